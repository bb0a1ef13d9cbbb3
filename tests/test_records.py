"""Ledgers, files, locks, durations, and how a command ends."""

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from shard_gym.errors import CorruptFile, InUse, InvalidTask
from shard_gym.records import commands, ledger
from shard_gym.records.commands import count, seconds
from shard_gym.records.escape import markdown, plain
from shard_gym.records.files import BEGUN, whole, write_whole
from shard_gym.records.locks import LOCK, held


def test_a_line_that_broke_off_is_cut_before_anything_is_read_or_added(tmp_path):
    path = tmp_path / "folder" / "rows.jsonl"
    assert ledger.read(path) == []
    assert not path.exists()
    for i in range(2):
        ledger.append(path, {"i": i})
    with path.open("a") as file:
        file.write('{"i": 2')
    assert ledger.read(path) == [{"i": 0}, {"i": 1}]
    with path.open("a") as file:
        file.write('{"i": 3, "what": ')
    ledger.append(path, '{"i": 4}')
    assert path.read_text() == '{"i": 0}\n{"i": 1}\n{"i": 4}\n'


@pytest.mark.parametrize(
    ("line", "message"), [("nonsense", "line 2 is no row: Expecting"), ('{"j": 1}', "line 2 is no row: 'i'")]
)
def test_a_corrupt_line_is_named_by_its_number(tmp_path, line, message):
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"i": 0}}\n{line}\n{{"i": 2}}\n')
    with pytest.raises(CorruptFile, match=message):
        ledger.read(path, lambda text: json.loads(text)["i"], "row")


def _hold(path, taken):
    with ledger.opened(path) as mine:
        taken.set()
        time.sleep(0.5)
        mine.append({"by": "the other process"})


def test_one_process_at_a_time_has_a_ledger(tmp_path):
    context = multiprocessing.get_context("spawn")
    path, taken = tmp_path / "rows.jsonl", context.Event()
    other = context.Process(target=_hold, args=(path, taken))
    other.start()
    assert taken.wait(60)
    with pytest.raises(BlockingIOError), ledger.opened(path, wait=False):
        pass
    ledger.append(path, {"by": "this one"})
    other.join()
    assert [line["by"] for line in ledger.read(path)] == ["the other process", "this one"]


@pytest.mark.parametrize(("text", "expected"), [("100ms", 0.1), ("90s", 90), ("8m", 480), ("2h", 7200), ("1e2s", 100)])
def test_durations(text, expected):
    assert seconds(text) == pytest.approx(expected)
    assert seconds("1.5", unit="m") == 90


@pytest.mark.parametrize("text", ["", "ms", "0s", "-1s", "nan", "inf", "1d", "3", "1 s", "e", "1e999s"])
def test_no_durations(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is no duration"):
        seconds(text)


def test_counts():
    assert count("12") == 12
    for text in ("0", "-1", "1.5", "many"):
        with pytest.raises(argparse.ArgumentTypeError, match="not a whole number above 0"):
            count(text)


@pytest.mark.parametrize(
    ("raised", "code", "told"),
    [
        (InvalidTask("no tables"), 2, "task: no tables\n"),
        (FileNotFoundError("no file"), 2, "task: no file\n"),
        (KeyboardInterrupt(), 130, ""),
        (None, 0, ""),
    ],
)
def test_how_a_command_ends(capsys, raised, code, told):
    def command(options):
        assert options.tables == 3
        if raised:
            raise raised

    parser = commands.parser("task", "Make a task.")
    parser.add_argument("--tables", type=count)
    assert commands.run(parser, command, ["--tables", "3"]) == code
    assert capsys.readouterr().err == told


# --- files that are whole, or not there ---


def test_a_link_is_written_through(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there" / "file")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "file").read_text() == "new"
    assert len(list(tmp_path.rglob("*"))) == 3


@pytest.mark.parametrize("kind", ["device", "folder", "pipe"])
def test_what_is_no_file_is_not_written(tmp_path, kind):
    path = {"device": Path("/dev/null"), "folder": tmp_path / "folder", "pipe": tmp_path / "pipe"}[kind]
    if kind == "folder":
        path.mkdir()
    if kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(FileExistsError, match="no file that could be written"):
        write_whole(path, "x")
    assert not list(path.parent.glob(f"*{BEGUN}"))


def _dies_while_it_writes(path, begun):
    with whole(path) as file:
        file.write(b"half")
        begun.set()
        time.sleep(60)


def test_what_a_killed_process_began_goes_with_the_next_write(tmp_path):
    context = multiprocessing.get_context("spawn")
    path, begun = tmp_path / "page[1].md", context.Event()
    other = context.Process(target=_dies_while_it_writes, args=(path, begun))
    other.start()
    assert begun.wait(60)
    write_whole(path, "ours")  # the other is at it: what it has begun stays
    assert len(list(tmp_path.iterdir())) == 2
    other.kill()
    other.join()
    write_whole(path, "ours again")
    assert [p.read_text() for p in tmp_path.iterdir()] == ["ours again"]


def test_what_another_sweeps_before_it_is_locked_is_begun_again(tmp_path, monkeypatch):
    begin, swept = tempfile.mkstemp, []

    def swept_once(**options):
        handle, name = begin(**options)
        if not swept:
            os.unlink(name)
            swept.append(name)
        return handle, name

    monkeypatch.setattr(tempfile, "mkstemp", swept_once)
    write_whole(tmp_path / "page.md", "whole")
    assert swept and [p.read_text() for p in tmp_path.iterdir()] == ["whole"]


FULL_DISK = """
import resource, signal, sys
from shard_gym.errors import ShardGymError
from shard_gym.records import commands, ledger
from shard_gym.records.files import write_whole

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = sys.argv[1]
write_whole(f"{path}/page", "old")
ledger.append(f"{path}/rows", {"row": 0})
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

def work():
    codes = [commands.ended(f, call) for f, call in (
        ("page", lambda: write_whole(f"{path}/page", "x" * 1000)),
        ("rows", lambda: ledger.append(f"{path}/rows", "x" * 1000)),
        ("rows", lambda: ledger.append(f"{path}/rows", {"row": 1})),
    )]
    print(codes)

work()
"""


def test_a_full_disk_is_told_in_a_line_and_loses_nothing(tmp_path):
    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True)
    assert done.stdout == "[2, 2, 0]\n", done.stderr
    assert len(done.stderr.splitlines()) == 2 and "File too large" in done.stderr
    assert (tmp_path / "page").read_text() == "old"
    assert ledger.read(tmp_path / "rows") == [{"row": 0}, {"row": 1}]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page", "rows"]


def test_a_line_without_an_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(ledger, "MOST_LINE", 1_000)
    (tmp_path / "rows").write_bytes(b"1\n" + b"2" * 2_000 + b"\n")
    with pytest.raises(CorruptFile, match="line 2: more than 1,000 bytes"):
        ledger.read(tmp_path / "rows")


# --- locks, and processes that end together ---


def _holds(folder, taken, free):
    with held(folder):
        taken.set()
        free.wait(60)


@pytest.fixture
def another(tmp_path):
    """Another process that has the folder, and the event that frees it."""
    context = multiprocessing.get_context("spawn")
    taken, free = context.Event(), context.Event()
    process = context.Process(target=_holds, args=(tmp_path / "out", taken, free))
    process.start()
    assert taken.wait(60)
    yield process, free
    if process.is_alive():  # a dead one never wakes up, and `set` would wait for that
        free.set()
    process.join()


def test_a_second_command_is_told_who_has_the_folder(tmp_path, another):
    process, free = another
    with pytest.raises(InUse, match=f"out is in use by process {process.pid} on .* since .*: wait for it, end it"):
        held(tmp_path / "out").__enter__()
    free.set()
    process.join()
    with held(tmp_path / "out"):
        assert (tmp_path / "out" / LOCK).exists()
    assert not list((tmp_path / "out").iterdir())


def test_a_killed_command_holds_nothing(tmp_path, another):
    process, _ = another
    process.kill()
    process.join()
    with held(tmp_path / "out"):
        pass
    assert not list((tmp_path / "out").iterdir())


def test_a_command_may_wait(tmp_path, another, capsys):
    _, free = another
    threading.Timer(0.2, free.set).start()
    with held(tmp_path / "out", wait=True):
        pass
    assert "waiting" in capsys.readouterr().err


def _counts(folder, times):
    for _ in range(times):
        with held(folder, wait=True):
            path = folder / "count"
            write_whole(path, str(int(path.read_text()) + 1 if path.exists() else 1))


def test_no_update_is_lost(tmp_path):
    context = multiprocessing.get_context("fork")
    both = [context.Process(target=_counts, args=(tmp_path, 30)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join()
    assert (tmp_path / "count").read_text() == "60"


PARENT = """
import multiprocessing, sys, time
from shard_gym.records.processes import end_with_parent

def work(path):
    end_with_parent()
    open(path, "w").write(str(multiprocessing.current_process().pid))
    while True:
        time.sleep(0.1)

if __name__ == "__main__":
    multiprocessing.get_context("fork").Process(target=work, args=(sys.argv[1],)).start()
    time.sleep(60)
"""


def test_workers_end_with_a_killed_parent(tmp_path):
    path = tmp_path / "pid"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(path)])
    while not (path.exists() and path.read_text()):
        assert parent.poll() is None
        time.sleep(0.01)
    worker = int(path.read_text())
    parent.kill()
    parent.wait()
    for _ in range(3_000):
        try:
            os.kill(worker, 0)
            state = Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[0]
        except (ProcessLookupError, FileNotFoundError):
            return
        if state == "Z":  # nobody has asked how it ended
            return
        time.sleep(0.01)
    raise AssertionError("the worker is still there")


# --- text of others ---


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("local-search é中", "local-search é中"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("a\rb\nc\td\x00", r"a\rb\nc\td\x00"),
        ("\u202eabc\u2066", r"\u202eabc\u2066"),
        ("\ud800", r"\ud800"),
        ("\u2028", r"\u2028"),
    ],
)
def test_text_of_others_is_shown_in_one_plain_line(text, shown):
    assert plain(text) == shown
    assert plain(plain(text)) == shown


def test_text_of_others_makes_no_markup():
    shown = markdown("a|b \\| <script> [x](http://y) ![i](j) `c` & \n")
    assert not set("|<>`\n") & set(shown)
    assert "](" not in shown


def test_errors_are_told_without_control_characters(capsys):
    def fails():
        raise InvalidTask("no \x1b[2J\ud800\nwhat helps")

    assert commands.ended("task", fails) == 2
    assert capsys.readouterr().err == "task: no \\x1b[2J\\ud800\nwhat helps\n"
