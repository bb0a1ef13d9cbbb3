"""Completion by the shells themselves: the script is read, and asked what may follow a line."""

import shutil
import subprocess

import pytest

from shard_gym import simulators, suites
from shard_gym_agents.cli import completion
from shard_gym_agents.cli.index import COMMANDS
from shard_gym_agents.cli.main import main

ASK = """
ask() { COMP_LINE="$1" COMP_POINT=${#1} COMPREPLY=(); _shard_gym; echo "${COMPREPLY[*]}"; }
"""


@pytest.fixture(scope="module")
def bash(tmp_path_factory):
    """Words that bash offers after each of some lines."""
    shell = shutil.which("bash")
    if shell is None:
        pytest.skip("needs bash")
    script = tmp_path_factory.mktemp("bash") / "completion"
    script.write_text(completion.bash() + ASK)

    def offered(*lines):
        asked = "\n".join(f'ask "{line}"' for line in lines)
        told = subprocess.run(
            [shell, "--norc", "-c", f"source {script}\n{asked}"], capture_output=True, text=True, check=True
        )
        assert not told.stderr
        return [line.split() for line in told.stdout.splitlines()]

    return offered


def test_bash_completes_commands_and_their_stages(bash):
    solve, round_, stages, flex, none = bash(
        "shard-gym sol", "shard-gym rou", "shard-gym round ", "shard-gym flex c", "shard-gym solve qq"
    )
    assert (solve, round_, stages) == (["solve"], ["round"], ["new", "open", "close", "check"])
    assert (flex, none) == (["curve"], [])
    (every,) = bash("shard-gym ")
    assert set(every) == {name.split()[0] for name in COMMANDS} | {"--help", "--version"}


def test_bash_completes_options_of_a_command(bash):
    suite, stage, flag = bash(
        "shard-gym solve --su", "shard-gym round new --su", "shard-gym solve --suite core-80x8 --no-p"
    )
    assert suite == stage == ["--suite"] and flag == ["--no-progress"]
    (every,) = bash("shard-gym score --plan x.json --")
    assert set(every) == {text for text in COMMANDS["score"].parser().options() if text.startswith("--")}


def test_bash_completes_names_and_choices(bash):
    suite, equals, listed, choice, learner, shell, machine = bash(
        "shard-gym solve --suite core-80",
        "shard-gym solve --suite=core-80",
        "shard-gym leaderboard --agents random,cost-g",
        "shard-gym solve --optimizer ",
        "shard-gym train auto",
        "shard-gym completion z",
        "shard-gym sweep --hardware dgx-h100,dgx-h2",
    )
    assert suite == equals == [key for key in suites.SUITES if key.startswith("core-80")]
    assert listed == ["random,cost-greedy"] and choice == ["sgd", "rowwise_adagrad", "adam"]
    assert (learner, shell, machine) == (["autoshard"], ["zsh"], ["dgx-h100,dgx-h200"])


def test_bash_completes_names_after_a_colon_as_it_splits_words(bash):
    (found,) = bash("shard-gym solve --simulator roofline:h1")
    names = [name for name in simulators.registered() if name.startswith("roofline:h1")]
    assert found == [name.removeprefix("roofline:") for name in names]


def test_bash_leaves_files_to_itself(bash):
    lines = ("score --plan ", "score --task ta", "verify ", "leaderboard --agent my", "solve --budget ")
    assert bash(*(f"shard-gym {line}" for line in lines)) == [[]] * len(lines)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_command_prints_a_script_that_the_shell_can_read(shell, tmp_path, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "core-80x8" in script and "cost-greedy" in script
    path = tmp_path / "script"
    path.write_text(script)
    if program := shutil.which(shell):
        told = subprocess.run([program, "-n", str(path)], capture_output=True, text=True)
        assert (told.returncode, told.stderr) == (0, "")
