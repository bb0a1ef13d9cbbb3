"""The index of pages, and what its runner keeps, writes and prints."""

import argparse
import json
import re
from pathlib import Path

from benchmarks import pages
from shard_gym.errors import InvalidTask

ROOT = Path(__file__).parents[1]


def test_the_index_names_every_command_once():
    commands = {path.stem for path in (ROOT / "benchmarks" / "pages").glob("*.py") if "def main(" in path.read_text()}
    indexed = re.findall(r"^\| (\w+) \|", pages.__doc__, re.MULTILINE)
    assert sorted(indexed) == sorted({"NAME", "leaderboard"} | commands)


def measure(options: argparse.Namespace) -> pages.Found:
    if options.number < 0:
        raise InvalidTask("numbers are 0 or more")
    return {"number": options.number}


def page(found: pages.Found) -> str:
    return f"`{found['command']}` found {found['number']}"


def run(*arguments, schema="numbers/1"):
    made = pages.parser("numbers", "A number.")
    made.add_argument("--number", type=int, default=3)
    return pages.run(made, measure, page, arguments, schema=schema)


def test_a_page_is_measured_kept_and_made_again(tmp_path, capsys):
    assert run("--out", str(tmp_path), "--number", "4") == 0
    text = f"`python -m benchmarks.numbers --out {tmp_path} --number 4` found 4"
    assert (tmp_path / "numbers.md").read_text() == capsys.readouterr().out.strip() == text
    kept = json.loads((tmp_path / "numbers.json").read_text())
    assert list(kept) == ["schema", "commit", "command", "number"]
    (tmp_path / "numbers.md").unlink()
    assert run("--out", str(tmp_path), "--page") == 0
    assert (tmp_path / "numbers.md").read_text() == text


def test_what_cannot_be_measured_or_read_ends_it_in_one_line(tmp_path, capsys):
    assert run("--out", str(tmp_path), "--number", "-1") == 2
    assert capsys.readouterr().err == "python -m benchmarks.numbers: numbers are 0 or more\n"
    (tmp_path / "numbers.json").write_text('{"schema": "numbers/0"}')
    assert run("--out", str(tmp_path), "--page") == 2
    assert "is of schema numbers/0, not numbers/1: measure again" in capsys.readouterr().err
    assert not (tmp_path / "numbers.md").exists()


def test_a_file_may_be_named_instead_of_a_folder(tmp_path):
    assert run("--out", str(tmp_path / "my.md"), schema="") == 0
    assert (tmp_path / "my.md").exists()
    assert not list(tmp_path.glob("*.json"))
