"""Commands on a full disk and in a read-only folder: one line says so, what was there stays, and they can go on."""

import contextlib
import io
import json
import os
import re
import traceback
from dataclasses import dataclass
from importlib import util

import pytest

from benchmarks import headroom, pages
from shard_gym.measuring import measure
from shard_gym.records.files import BEGUN
from shard_gym.records.locks import LOCK
from shard_gym_agents.cli import main as cli
from shard_gym_agents.leaderboard.arena import kernel

PAGE, PAGES = 4096, 4096  # bytes of one, and how many the disk has
FREE = (0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 256, 1024)
LOG = "a,b\n" + "1,4\n2,5\n" * 40


@dataclass(frozen=True)
class Command:
    """A command that writes to OUT, and where it is run."""

    words: str
    call: object = cli.main
    needs: str = "numpy"
    told: str = "No space left on device"

    def run(self, out):
        """The exit code, and what was said on stderr."""
        told = io.StringIO()
        with contextlib.redirect_stderr(told), contextlib.redirect_stdout(io.StringIO()):
            code = self.call(self.words.replace("OUT", str(out)).split())
        return code, told.getvalue()


def paged(words):
    return pages.run(pages.parser("x", "x"), lambda _: {"rows": ["x" * 9_000]}, lambda found: "x" * 9_000, words)


COMMANDS = {
    "solve": Command("solve --suite core-80x8 --index 0 --agent size-greedy --out OUT/plan.json"),
    "profile": Command("profile OUT/../log.csv --columns a,b --batch 4 --dim 8 --out OUT/pool.json", needs="pyarrow"),
    "flex": Command("flex --batch 64 --out OUT/tiers.json"),
    "leaderboard": Command(
        "leaderboard --suite dlrm-10x4 --agents lookup-greedy --tasks 2 --workers 1 --isolation limits --out OUT "
        "--best-known OUT/best --update-best"
    ),
    "headroom": Command(
        "--suite dlrm-10x4 --methods local-search --calls 20 --seeds 1 --tasks 1 --workers 1 --update-best "
        "--runs OUT/runs --results OUT/results",
        headroom.main,
    ),
    "train": Command(
        "train cloning --suite dlrm-10x4 --plans 1 --calls 20 --updates 1 --iterations 1 --out OUT", needs="torch"
    ),
    "measure": Command(
        "--batch 64 --arena-gb 0.1 --warmups 1 --runs 3 --drop 1 --shards 2 --workers 1 --out OUT",
        measure.main,
        "fbgemm_gpu",
        "No space left on device|what they measured is kept in .*start again to go on",  # after the worker said it
    ),
    "page": Command("--out OUT", paged),
}
SLOW = ("train", "measure")


def apart(work, *arguments):
    """The value of `work` in a process that may mount what it likes; skips where the kernel gives no such place."""
    ours, theirs = os.pipe()
    if not (child := os.fork()):
        try:
            try:
                kernel.unshare(kernel.NEW_MOUNTS | kernel.NEW_USER)
            except OSError as error:
                told = {"skip": str(error)}
            else:
                told = {"value": work(*arguments)}
        except BaseException:
            told = {"failed": traceback.format_exc()}
        with os.fdopen(theirs, "w") as file:
            json.dump(told, file)
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as file:
        told = json.load(file)
    os.waitpid(child, 0)
    if "skip" in told:
        pytest.skip(f"no mounts here: {told['skip']}")
    assert "failed" not in told, told["failed"]
    return told["value"]


def held_in(folder):
    """Files that others may want to keep."""
    found = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {str(path): len(content) for path, content in found.items() if path.name != "filler"}


def mounted(folder):
    kernel.mount("none", str(folder), "tmpfs", options=f"size={PAGES * PAGE}")
    (folder / "kept.txt").write_text("kept")


def filled(folder, free):
    """Leave so many pages of a disk."""
    room = os.statvfs(folder).f_bfree
    with open(folder / "filler", "ab") as file:
        file.write(bytes(max(room - free, 0) * PAGE))


def tried_with_more_room(command, out):
    """Words of the command on a disk with no room, with some, and so on until it is done."""
    mounted(out)
    told = []
    for free in FREE:
        (out / "filler").unlink(missing_ok=True)
        filled(out, free)
        before = held_in(out)
        code, said = command.run(out)
        after = held_in(out)
        left = [name for name in after if name.endswith((BEGUN, LOCK))]
        told.append({"code": code, "said": said, "lost": sorted(before.keys() - after.keys()), "left": left})
        if code == 0:
            break
    return told


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in COMMANDS])
def test_a_command_on_a_full_disk_says_so_and_goes_on_when_there_is_room(tmp_path, name):
    if not util.find_spec(COMMANDS[name].needs):
        pytest.skip(f"needs {COMMANDS[name].needs}")
    (tmp_path / "log.csv").write_text(LOG)
    (tmp_path / "out").mkdir()
    *refused, done = apart(tried_with_more_room, COMMANDS[name], tmp_path / "out")
    assert refused and done["code"] == 0, done
    for each in refused:
        assert each["code"] == 2
        assert re.search(COMMANDS[name].told, each["said"].splitlines()[-1]) and "Traceback" not in each["said"], each
        assert not each["lost"] and not each["left"], each


def read_only(commands, out):
    mounted(out)
    kernel.protect(str(out))
    return {name: (*command.run(out), sorted(held_in(out))) for name, command in commands.items()}


@pytest.mark.parametrize("slow", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_commands_in_a_read_only_folder_say_so_in_a_line(tmp_path, slow):
    (tmp_path / "log.csv").write_text(LOG)
    (out := tmp_path / "out").mkdir()
    chosen = {name: COMMANDS[name] for name in COMMANDS if (name in SLOW) == slow}
    able = {name: command for name, command in chosen.items() if util.find_spec(command.needs)}
    for name, (code, said, there) in apart(read_only, able, out).items():
        assert code == 2, name
        assert "Read-only file system" in said.splitlines()[-1] and "Traceback" not in said, (name, said)
        assert there == [str(out / "kept.txt")]
