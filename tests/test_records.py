"""Ledgers, durations, and how a command ends."""

import argparse
import json
import multiprocessing
import time

import pytest

from shard_gym.errors import CorruptFile, InvalidTask
from shard_gym.records import commands, ledger
from shard_gym.records.commands import count, seconds


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
