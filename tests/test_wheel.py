"""The wheel as users install it: with its core dependencies and no extra, away from the checkout."""

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PACKAGES = {"shard_gym": ROOT / "shard_gym", "shard_gym_agents": ROOT / "agents" / "shard_gym_agents"}
USE = """
import sys
import gymnasium, shard_gym, shard_gym_agents
assert all(module.__file__.startswith(sys.argv[1]) for module in (shard_gym, shard_gym_agents))
env = gymnasium.make("shard_gym:ShardGym-MetaSyn-80x8")
env.reset(seed=0)
env.step(env.action_space.sample())
try:
    shard_gym_agents.make("autoshard")
except shard_gym.errors.MissingDependency as error:
    assert str(error) == "autoshard needs torch: pip install torch"
else:
    raise AssertionError("a trained policy without torch")
assert not {"torch", "matplotlib"} & set(sys.modules)
"""


def run(*command: object, **options) -> None:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr


def core_dependencies(name: str) -> set[str]:
    """The distributions that a plain install of `name` brings along."""
    needed = {Requirement(line) for line in metadata.requires(name) or ()}
    direct = {r.name for r in needed if r.marker is None or r.marker.evaluate({"extra": ""})}
    return direct.union(*map(core_dependencies, direct))


def link_distribution(name: str, site: Path) -> None:
    dist = metadata.distribution(name)
    for entry in {file.parts[0] for file in dist.files or ()} - {"..", "__pycache__"}:
        (site / entry).symlink_to(dist.locate_file(entry))


def package_files(folder: Path) -> set[str]:
    files = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    return {path.as_posix() for path in files if path.suffix != ".pyc" and not path.name.startswith(".")}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder that the wheel, built by way of the source distribution, is installed into."""
    dist, site = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("site")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, ROOT)
    (wheel,) = dist.glob("*.whl")
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", site, wheel)
    return site


def test_the_wheel_holds_the_two_packages_whole_and_nothing_else(installed):
    top = {path.name for path in installed.iterdir() if path.suffix != ".dist-info"}
    assert top == {*PACKAGES, "bin"}
    for name, source in PACKAGES.items():
        assert package_files(installed / name) == package_files(source)


def test_the_wheel_works_without_extras(installed, tmp_path):
    """`-S` hides this interpreter's own site-packages: only the wheel and its core dependencies are there."""
    core = tmp_path / "core"
    core.mkdir()
    for name in core_dependencies("shard-gym"):
        link_distribution(name, core)
    env = os.environ | {"PYTHONPATH": f"{installed}{os.pathsep}{core}"}
    run(sys.executable, "-S", "-c", USE, installed, cwd=tmp_path, env=env)
    command = (sys.executable, "-S", installed / "bin" / "shard-gym")
    run(*command, "--help", cwd=tmp_path, env=env)
    run(
        *command,
        "leaderboard",
        "--suite",
        "dlrm-10x4",
        "--agents",
        "cost-greedy",
        "--tasks",
        "1",
        cwd=tmp_path,
        env=env,
    )
    assert (tmp_path / "runs" / "leaderboard" / "dlrm-10x4.md").exists()
