"""Packages that `new-agent` writes: green as written."""

import subprocess
import sys
from pathlib import Path

import pytest

from shard_gym.errors import InvalidTask, ShardGymError
from shard_gym_agents.cli import new_agent
from shard_gym_agents.cli.main import main

SOURCES = {"README.md", "card.toml", "pyproject.toml", "tests/test_deals.py"} | {
    f"deals/{name}.py" for name in ("__init__", "greedy", "policy", "train")
}


def files(folder: Path) -> set[str]:
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return {name for name in found if "__pycache__" not in name}


def untrained(*command, **settings):
    return subprocess.CompletedProcess(command, 0, "trained\n", "")


def test_the_package_has_its_own_name_everywhere(tmp_path, monkeypatch):
    monkeypatch.setattr(new_agent.subprocess, "run", untrained)
    assert main(["new-agent", "deals", "--out", str(tmp_path / "deals")]) == 0
    assert files(tmp_path / "deals") == SOURCES
    for path in tmp_path.rglob("*.*"):
        assert "my_agent" not in path.read_text()
        if path.suffix == ".py":
            compile(path.read_text(), path, "exec")


@pytest.mark.parametrize(
    "name", ["", "my-agent", "My", "1st", "a.b", "../x", "def", "ünï", "x" * 41, "numpy", "<script>"]
)
def test_what_is_no_name_of_a_package_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidTask, match=r"is no name|is taken"):
        new_agent.write(name, tmp_path / "out")
    assert not any(tmp_path.iterdir())


def test_a_folder_that_is_there_is_left_alone(tmp_path):
    with pytest.raises(InvalidTask, match="is there already"):
        new_agent.write("deals", tmp_path)


def test_training_that_fails_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(new_agent.subprocess, "run", lambda *a, **s: subprocess.CompletedProcess(a, 1, "", "no disk"))
    with pytest.raises(ShardGymError, match="could not be trained: no disk"):
        new_agent.write("deals", tmp_path / "deals")


@pytest.mark.slow
def test_its_tests_pass_and_it_has_a_row_and_an_entry(tmp_path):
    def run(folder, *command):
        done = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    shard_gym = ("-c", "import sys; from shard_gym_agents.cli.main import main; sys.exit(main())")
    run(tmp_path, *shard_gym, "new-agent", "deals")
    mine = tmp_path / "deals"
    assert "4 passed" in run(mine, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    agents = (
        "--agents",
        "random",
        "--agent",
        "deals:Greedy",
        "--agent",
        "deals:Policy",
        "--seeds",
        "1",
        "--tasks",
        "2",
    )
    table = run(mine, *shard_gym, "leaderboard", "--suite", "core-60x4", *agents, "--out", "run")
    ranks = [line.split()[:2] for line in table.splitlines() if line[:1].isdigit()]
    assert {name for _, name in ranks} == {"random", "deals:Greedy", "deals:Policy"} and ranks[-1][1] == "random"
    run(mine, *shard_gym, "submit", "run", "--card", "card.toml", "--out", "entry")
    assert "2 plans scored again, 2 feasible" in run(mine, *shard_gym, "validate", "entry")
