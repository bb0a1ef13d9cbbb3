"""The page of kills tells what it should: of a command that goes on, and of ones that lose, leave or double."""

from pathlib import Path

import pytest
from benchmarks.kills import Subject, trial

from shard_gym.errors import SimulatorError

LINES = 8
HEAD = """
import subprocess, sys, time

rows = folder / "rows"

def append(i):
    with rows.open("a") as file:
        file.write(f"{i}\\n")
"""
HONEST = f"""
for i in range(len(rows.read_text().split()) if rows.exists() else 0, {LINES}):
    time.sleep(0.1)
    append(i)
"""
CARELESS = {
    "lost": f"rows.unlink(missing_ok=True)\ntime.sleep(0.5)\n{HONEST}",
    "twice": f"append(0)\n{HONEST}",
    "orphans": f"subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n{HONEST}",
    "litter": f"(folder / '.x.begun').touch()\n{HONEST}",
    "failed": f"if (folder / 'begun').exists(): sys.exit(3)\n(folder / 'begun').touch()\n{HONEST}",
}


def lines(folder):
    path = folder / "rows"
    content = path.read_text() if path.exists() else ""
    return content[: content.rfind("\n") + 1].split()


def subject(body):
    return Subject("rows", lambda folder: exec(HEAD + body, {"folder": folder}), lines, lines)


needs_linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux")


@needs_linux
def test_a_command_that_goes_on_is_sound(tmp_path):
    outcome = trial(subject(HONEST), 2, 0, tmp_path, tell=lambda text: None)
    assert outcome.sound and outcome.kills == 2


@needs_linux
@pytest.mark.slow
@pytest.mark.parametrize("what", CARELESS)
def test_what_a_careless_command_does_is_told(tmp_path, monkeypatch, what):
    monkeypatch.setattr("benchmarks.kills.GRACE", 0.5)
    outcome = trial(subject(CARELESS[what]), 6, 0, tmp_path, tell=lambda text: None)
    assert getattr(outcome, what) and not outcome.sound


@needs_linux
def test_a_command_that_fails_by_itself_is_refused(tmp_path):
    with pytest.raises(SimulatorError, match="ends with 3 though nobody kills it"):
        trial(subject("sys.exit(3)"), 1, 0, tmp_path)
