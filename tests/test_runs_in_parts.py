"""Parts of a run: together they are the whole, and none of them is taken for it."""

import json
from dataclasses import replace

import pytest
from benchmarks.headroom import Tries

from benchmarks import headroom, headroom_places
from shard_gym.errors import CorruptFile, OutOfTurn
from shard_gym.results import Result, read_results
from shard_gym_agents.cli.main import main
from shard_gym_agents.leaderboard.command import without_part
from shard_gym_agents.leaderboard.entries.entry import results_of
from shard_gym_agents.leaderboard.merging import merge

SUITE, TASKS = "dlrm-10x2", 3
AGENTS = "lookup-greedy,random,local-search"
WORDS = f"leaderboard --suite {SUITE} --agents {AGENTS} --calls 40 --tasks {TASKS} --workers 1 --isolation limits"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Folders of a whole run, of two parts, and of what became of them."""
    folder = tmp_path_factory.mktemp("merging")
    for out, more in (("whole", []), ("apart", ["--part", "1/2"]), ("apart", ["--part=2/2"])):
        words = [*WORDS.split(), *more, "--out", str(folder / out), "--best-known", str(folder / "best")]
        assert main(words) == 0
    merge([folder / "apart" / "parts"], folder / "merged")
    return folder


def without_times(path):
    return [replace(result, wall_seconds=0, cpu_seconds=0, alone=False).to_json() for result in read_results(path)]


def ranked(page):
    """The rows of the first tables of a page, without times."""
    rows = [line.split("|")[1:6] for line in page.read_text().splitlines() if line.startswith("|")]
    return rows[: [row[0].strip() for row in rows].index("agent")]


def part(folder, number):
    return folder / "apart" / "parts" / f"{number}-of-2.jsonl"


def test_parts_together_are_the_whole(made):
    assert without_times(made / "merged" / f"{SUITE}.jsonl") == without_times(made / "whole" / f"{SUITE}.jsonl")
    assert ranked(made / "merged" / f"{SUITE}.md") == ranked(made / "whole" / f"{SUITE}.md")
    told = (made / "merged" / f"{SUITE}.md").read_text()
    assert "of 2 parts" in told and "any machines give the same rows" in told
    runs = [len(part(made, number).read_text().splitlines()) - 1 for number in (1, 2)]
    assert min(runs) > 0 and sum(runs) == TASKS * (1 + 2 + 2)  # a greedy counts once, the others have two seeds


def test_a_part_is_no_result(made, capsys):
    with pytest.raises(CorruptFile, match=r"part 1/2 of a run: unite all its parts with `shard-gym merge`"):
        read_results(part(made, 1))
    assert main(["page", str(part(made, 1)), "--out", str(made / "page.html")]) == 2
    assert "part 1/2" in capsys.readouterr().err
    assert not (made / "apart" / f"{SUITE}.jsonl").exists()


def test_a_page_is_made_of_what_was_united(made):
    assert main(["page", str(made / "merged"), "--out", str(made / "page.html")]) == 0


def test_an_entry_is_made_of_what_was_united(made):
    assert len(list(results_of(made / "merged", "random"))) == 2 * TASKS
    with pytest.raises(CorruptFile, match="part 1/2"):
        list(results_of(part(made, 1), "random"))


def test_modules_of_a_part_are_named_not_imported(made, tmp_path):
    def foreign(head):
        return head | {"options": head["options"] | {"imports": ["antigravity"]}}

    with pytest.raises(OutOfTurn, match="the run imported 'antigravity'"):
        merge([spoilt(part(made, 1), 0, foreign), part(made, 2)], tmp_path)


def test_a_part_that_is_missing_is_named(made, tmp_path):
    with pytest.raises(OutOfTurn, match=r"parts that are missing: 2/2"):
        merge([part(made, 1), part(made, 1)], tmp_path)
    with pytest.raises(OutOfTurn, match="no part is there"):
        merge([tmp_path], tmp_path)


def spoilt(path, place, change):
    """A copy of a part, one line of it changed."""
    lines = path.read_text().splitlines()
    lines[place] = json.dumps(change(json.loads(lines[place])))
    copy = place_of(path)
    copy.write_text("\n".join(lines) + "\n")
    return copy


def place_of(path):
    return path.with_suffix(".copy")


@pytest.mark.parametrize(
    ("place", "change", "told"),
    [
        (0, lambda head: head | {"work": "other"}, "no parts of one run: they are of other versions"),
        (0, lambda head: head | {"work": "other", "part": "2/3"}, "one is of 2 parts, the other of 3"),
        (0, lambda head: head | {"part": "3/2"}, "part 3/2 is none"),
        (0, lambda head: head | {"runs": 99}, "runs where 99 were written"),
        (0, lambda head: {"schema": "other"}, "give files that `shard-gym leaderboard --part I/N` wrote"),
        (0, lambda head: head | {"options": head["options"] | {"suite": 3}}, "its first line has other fields"),
        (0, lambda head: head | {"jobs": [{"job": {}, "told": {}}]}, "line 1 is no part of a leaderboard's runs"),
        (1, lambda row: row | {"job": 99}, "line 2"),
        (1, lambda row: row | {"job": -1}, "line 2 is no run of a part"),
        (2, lambda row: row | {"result": row["result"].replace('"device"', '"devise"')}, "line 3"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(made, tmp_path, place, change, told):
    with pytest.raises(CorruptFile, match=told):
        merge([part(made, 1), spoilt(part(made, 2), place, change)], tmp_path)
    assert not (tmp_path / f"{SUITE}.jsonl").exists()


def test_two_different_runs_of_one_key_are_refused(made, tmp_path):
    def other(row):
        found = Result.from_json(row["result"])
        return row | {"result": replace(found, plan=None, makespan=None, error="died: here").to_json()}

    with pytest.raises(CorruptFile, match="have two different runs of lookup-greedy, seed 0"):
        merge([part(made, 1), part(made, 2), spoilt(part(made, 1), 1, other)], tmp_path)


def test_the_command_of_the_whole():
    assert without_part(["--part", "1/2", "--seeds", "1"]) == ["--seeds", "1"]
    assert without_part(["--seeds", "1", "--part=1/2"]) == ["--seeds", "1"]


def tried(path, parts=()):
    """The runs of each task, without their times."""
    found = {}
    for task, runs in Tries(path, parts).lines.items():
        lines = [{name: line[name] for name in line if name not in ("seconds", "cpu")} for line in runs.values()]
        found[task] = sorted(map(str, lines))
    return found


def test_headroom_takes_over_what_parts_kept(tmp_path, monkeypatch):
    words = (
        f"--suite {SUITE} --methods local-search --calls 30 --seeds 1 --tasks 4 --results {tmp_path}/results".split()
    )
    runs, whole = tmp_path / "apart", tmp_path / "whole"
    for number in (1, 2):
        assert headroom.main([*words, "--runs", str(runs), "--part", f"{number}/2"]) == 0
    assert not (tmp_path / "results").exists()
    parts = sorted((runs / "parts").glob(f"*/{SUITE}.jsonl"))
    assert len(parts) == 2
    monkeypatch.setattr(headroom_places, "try_on", None)  # nothing is left to be called
    assert headroom.main([*words, "--runs", str(runs)]) == 0
    assert len(json.loads((tmp_path / "results" / "headroom" / f"{SUITE}.json").read_text())["cards"]) == 1
    monkeypatch.undo()
    assert headroom.main([*words, "--runs", str(whole)]) == 0
    assert tried(whole / f"{SUITE}.jsonl") == tried(runs / f"{SUITE}.jsonl", parts)


def test_a_round_takes_over_what_parts_kept(tmp_path, capsys):
    (folder := tmp_path / "round").mkdir()
    rules = ["--suite", SUITE, "--tasks", "2", "--reference-budget", "10ms"]
    assert main(["round", "new", str(folder), *rules]) == 0
    opened = ["round", "open", str(folder), "--agents", "lookup-greedy", "--isolation", "limits"]
    for number in (1, 2):
        assert main([*opened, "--part", f"{number}/2"]) == 0
    assert "part 2 of 2 is done, no outcome of its own" in capsys.readouterr().out
    kept = [line for path in folder.glob("parts/*/partial/*.jsonl") for line in path.read_text().splitlines()]
    assert len(kept) == 2 * 3  # two agents of the host
    wanted = sorted(json.loads(json.loads(line)["result"])["wall_seconds"] for line in kept)
    assert main(opened) == 0
    found = [r.wall_seconds for name in ("results", "references") for r in read_results(folder / f"{name}.jsonl")]
    assert sorted(found) == wanted  # nothing ran again
    assert not (folder / "parts").exists() and main(["round", "close", str(folder)]) == 0
