"""The wheel as users install it: with its core dependencies and no extra, away from the checkout."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from shard_gym.records.locks import held

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


def run(*command: object, **options) -> str:
    """Words of the command on stderr."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr


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
    """Files of a package but for what is compiled."""
    files = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    compiled = {".pyc", ".so", ".pyd"}
    return {path.as_posix() for path in files if path.suffix not in compiled and not path.name.startswith(".")}


def copied_source(folder: Path) -> Path:
    """A copy of what is built: builds in one folder delete each other's files, and tests run side by side."""
    away = shutil.ignore_patterns(".*", "*.so", "*.egg-info", "build", "measurements")
    return shutil.copytree(ROOT, folder / "source", ignore=away)


@pytest.fixture(scope="module")
def dist(tmp_path_factory, request):
    """The folder with the wheel, built by way of the source distribution; once for all workers of pytest-xdist."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if hasattr(request.config, "workerinput") else base) / "dist"
    with held(folder.with_name("building"), wait=True):
        if not folder.exists():
            built = tmp_path_factory.mktemp("built")
            source = copied_source(tmp_path_factory.mktemp("copy"))
            run(sys.executable, "-m", "build", "--no-isolation", "--outdir", built, source)
            built.rename(folder)
    return folder


@pytest.fixture(scope="module")
def installed(dist, tmp_path_factory):
    """The folder that the wheel is installed into."""
    site = tmp_path_factory.mktemp("site")
    (wheel,) = dist.glob("*.whl")
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", site, wheel)
    return site


def test_the_wheel_holds_the_two_packages_whole_and_nothing_else(installed):
    top = {path.name for path in installed.iterdir() if path.suffix != ".dist-info"}
    assert top == {*PACKAGES, "bin"}
    for name, source in PACKAGES.items():
        assert package_files(installed / name) == package_files(source)


def tag_and_core(wheel: Path) -> tuple[str, bool]:
    """Tell what a wheel says it is for, and if it has the compiled core."""
    return wheel.stem.split("-", 2)[2], any("shard_gym/core/_compiled" in name for name in ZipFile(wheel).namelist())


def test_a_wheel_with_the_core_is_for_one_platform_and_every_python_from_311_on(dist):
    (wheel,) = dist.glob("*.whl")
    tag, has_core = tag_and_core(wheel)
    assert tag == "py3-none-any" if not has_core else tag.startswith("cp311-abi3-")
    (source,) = dist.glob("*.tar.gz")
    with tarfile.open(source) as packed:
        names = {Path(name).name for name in packed.getnames()}
    assert "core.c" in names and not any(name.endswith(".so") for name in names)


@pytest.mark.slow
@pytest.mark.parametrize("told", [{"CC": sys.executable + " -c exit(1) "}, {"SHARD_GYM_NO_CORE": "1"}], ids=list)
def test_without_a_compiler_or_the_core_a_wheel_is_for_every_platform(told, tmp_path):
    source = copied_source(tmp_path)
    without = os.environ | told
    run(
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--wheel",
        "--outdir",
        tmp_path,
        source,
        env=without,
    )
    (wheel,) = tmp_path.glob("*.whl")
    assert tag_and_core(wheel) == ("py3-none-any", False)


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
    words = [
        "leaderboard",
        "--suite",
        "dlrm-10x2",
        "--agents",
        "cost-greedy,lookup-greedy",
        "--tasks",
        "2",
        "--page",
        "--out",
        "p",
    ]
    told = run(*command, *words, cwd=tmp_path, env=env)
    assert "look: python -m webbrowser -t p/leaderboard.html" in told
    assert {path.name for path in (tmp_path / "p").iterdir()} >= {"dlrm-10x2.md", "dlrm-10x2.jsonl"}
    assert "No best known" not in (tmp_path / "p" / "dlrm-10x2.md").read_text()
    page = (tmp_path / "p" / "leaderboard.html").read_text()
    assert not re.search(r"(src|href)=.?(https?:)?//|url\(|@import|fetch\(", page)
    assert not list(installed.rglob("best_known"))
