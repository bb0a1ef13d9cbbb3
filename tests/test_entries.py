"""Entries of strangers: what comes out is told, all else is refused with the reason and an exit code."""

import gzip
import hashlib
import json
import shutil
from dataclasses import asdict, replace

import numpy as np
import pytest

from benchmarks import entries as published
from shard_gym import simulators, suites
from shard_gym.errors import CorruptFile, EntryRefused, InvalidTask
from shard_gym.results import BENCHMARK_VERSION, read_results, write_results
from shard_gym.results.evaluate import evaluate
from shard_gym_agents import make
from shard_gym_agents.cli.main import main
from shard_gym_agents.leaderboard.entries import entry as entries
from shard_gym_agents.leaderboard.entries.card import Card
from shard_gym_agents.leaderboard.entries.command import packed
from shard_gym_agents.leaderboard.entries.entry import ABOUT, CARD, PLANS, Claims, pack, read
from shard_gym_agents.leaderboard.entries.validate import validate, validate_all
from shard_gym_agents.learners.trained import shipped

SUITE = suites.get("dlrm-10x4")
FACTS = Card(
    agent="dim-greedy",
    authors=("A. Stranger", "</script><script>alert(1)</script>"),
    command="shard-gym leaderboard --suite dlrm-10x4 --agents dim-greedy",
    version="1.0",
    licence="Apache-2.0",
    link="https://example.org/agent",
    track="blind",
    suites=("dlrm-10x4",),
    seeds=(0,),
    hardware="two cores",
    training="none",
    checkpoints=(),
)


@pytest.fixture(scope="module")
def results():
    """Runs of an agent of ours on all test tasks, as from a clean commit."""
    judge, tasks = simulators.make(SUITE.judge), SUITE.tasks("test")
    found = evaluate(make("dim-greedy"), tasks, judge, judge, suite=SUITE.key, name="dim-greedy")
    return [replace(result, seed=0, commit="0" * 40) for result in found]


@pytest.fixture
def made(results, tmp_path):
    """A folder with an honest entry of few tasks."""
    pack(results[:9], FACTS, tmp_path / "entry")
    return tmp_path / "entry"


def test_an_honest_entry_is_told_and_packed_to_the_same_bytes(results, tmp_path, capsys):
    made = tmp_path / "entry"
    pack(results, FACTS, made)
    found = validate(made, strict=True)
    assert (found.plans, found.feasible, found.short) == (50, 50, ())
    assert [r.plan for r in found.entry.results()] == [r.plan for r in results]
    pack(results, found.entry.card, tmp_path / "again")
    assert all((made / name).read_bytes() == (tmp_path / "again" / name).read_bytes() for name in (CARD, PLANS, ABOUT))
    assert main(["validate", str(made), "--strict"]) == 0
    assert "50 plans scored again, 50 feasible" in capsys.readouterr().out


def test_a_run_is_submitted_and_what_does_not_come_out_is_not_written(results, tmp_path, capsys):
    others = [replace(result, agent="other") for result in results]
    write_results(tmp_path / "run" / "dlrm-10x4.jsonl", [*results[:9], *others[:9]])
    (tmp_path / "card.toml").write_text(FACTS.to_toml())
    command = ["submit", str(tmp_path / "run"), "--card", str(tmp_path / "card.toml"), "--out", str(tmp_path / "mine")]
    assert main(command) == main(command) == 0  # the second takes the place of the first
    assert read(tmp_path / "mine").claims.agents == {"dim-greedy"}
    forged = tmp_path / "forged.jsonl"
    write_results(forged, [replace(result, makespan=1.0) for result in results[:9]])
    with pytest.raises(EntryRefused, match=r"says 1\.0 ms, but its plan takes"):
        packed(forged, FACTS, tmp_path / "forged")
    with pytest.raises(
        EntryRefused, match=r"no results of 'nobody', the card's agent; agents there: 'dim-greedy'|other"
    ):
        packed(tmp_path / "run", replace(FACTS, agent="nobody", command="nobody"), tmp_path / "forged")
    assert not (tmp_path / "forged").exists()
    with pytest.raises(InvalidTask, match="holds something else"):
        packed(forged, FACTS, tmp_path)


def changed(name, change):
    """A file of the entry with other bytes."""
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def told(**changes):
    """Other words in entry.json."""
    return changed(ABOUT, lambda content: json.dumps(json.loads(content) | changes).encode())


def linked(folder):
    (folder / CARD).rename(folder.parent / "away")
    (folder / CARD).symlink_to(folder.parent / "away")


BROKEN = {
    "a file": (lambda folder: [shutil.rmtree(folder), folder.write_text("")], "is no entry"),
    "no card": (lambda folder: (folder / CARD).unlink(), "no whole entry: it has no card.toml"),
    "half-written": (lambda folder: (folder / ABOUT).unlink(), "no whole entry: it has no entry.json"),
    "something else beside": (lambda folder: (folder / "solver.py").write_text(""), "'solver.py', which belongs to no"),
    "a link to another's file": (linked, "is a link"),
    "plans cut off": (changed(PLANS, lambda content: content[:-20]), "one was changed"),
    "plans that are not packed": (changed(PLANS, gzip.decompress), "one was changed"),
    "a changed card": (changed(CARD, lambda content: content.replace(b"Stranger", b"Thief")), "one was changed"),
    "another schema": (told(schema="shard-gym/entry/9"), "not of schema"),
    "more results than there are": (told(results=10), "results is 10, not 9"),
    "a clean commit that was none": (told(commits=["1" * 40]), "commits is"),
    "no JSON": (changed(ABOUT, lambda content: b"{"), "is not JSON"),
    "nested": (changed(ABOUT, lambda content: b"[" * 50_000), "nested"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_whole_entry_cannot_be_read(made, name, capsys):
    breaks, message = BROKEN[name]
    breaks(made)
    with pytest.raises(CorruptFile, match=message):
        read(made)
    assert main(["validate", str(made)]) == 2
    assert "cannot be read: " in capsys.readouterr().err


@pytest.mark.parametrize("name", [PLANS, CARD])
def test_too_large_a_file_is_refused_before_it_is_read(made, name, monkeypatch):
    monkeypatch.setitem(entries.MOST_BYTES, name, 100)
    with pytest.raises(CorruptFile, match="100 are the most"):
        read(made)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(b"\n" * 2**20 + b"{}" * 2**26), "more than|is no|schema|JSON"),
        (gzip.compress(b"x" * 100)[:-12], "ended before"),
        (gzip.compress(b"x" * 100)[:-8] + b"\0" * 8, "CRC"),
        (b"\x1f\x8b" + b"\0" * 40, "compression|header|Error"),
        (b"", "the file is empty"),
    ],
    ids=["a bomb", "cut off", "damaged", "nonsense", "nothing"],
)
def test_packed_plans_that_are_damaged_are_refused(made, content, message):
    (made / PLANS).write_bytes(content)
    with pytest.raises(CorruptFile, match=message):
        read_results(made / PLANS)


def each(**changes):
    return lambda lines: [replace(result, **changes) for result in lines]


FORGED = {
    "a better makespan": (each(makespan=1.0), {}, "says 1.0 ms, but its plan takes"),
    "another version": (each(benchmark_version="0"), {}, f"of benchmark version 0, this is {BENCHMARK_VERSION}"),
    "a task twice": (lambda lines: [*lines, lines[0]], {}, "comes twice"),
    "a task left out": (lambda lines: [*lines[:7], *lines[8:]], {}, "no line of task number 7"),
    "another's runs": (each(agent="ours"), {}, "agent of the card: 'dim-greedy'; of the results: 'ours'"),
    "another's suite": (each(suite="dlrm-20x4"), {}, "no task"),
    "a suite that was not run": (list, {"suites": ("core-80x8", "dlrm-10x4")}, "suites of the card"),
    "seeds that were not run": (list, {"seeds": (0, 1)}, "seeds of the card: 0, 1; of the results: 0"),
    "another track": (list, {"track": "search"}, "track of the card: 'search'; of the results: 'blind'"),
    "weights of nobody": (each(config={"weights": "abc"}), {"checkpoints": ("f" * 64,)}, "weights abc, which are no"),
    "a search told as blind": (
        each(agent="cost-greedy"),
        {"agent": "cost-greedy", "command": "cost-greedy"},
        "is of track 'search'",
    ),
}
UNPUBLISHED = {
    "a few tasks": (lambda lines: lines[:8], "8 of the 50 test tasks of dlrm-10x4"),
    "local changes": (each(commit="0" * 40 + "-dirty"), "commit the changes"),
    "two commits": (lambda lines: [replace(lines[0], commit="1" * 40), *lines[1:]], "several commits or versions"),
    "another planner": (each(planner="roofline:h100-v1"), "planner roofline:h100-v1"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_resealed_entry_is_refused(results, tmp_path, name, capsys):
    forge, changes, message = FORGED[name]
    pack(forge(results[:9]), replace(FACTS, **changes), tmp_path / "entry")
    with pytest.raises(EntryRefused, match=message):
        validate(tmp_path / "entry")
    assert main(["validate", str(tmp_path / "entry")]) == 1
    assert "refused: " in capsys.readouterr().err


@pytest.mark.parametrize("name", UNPUBLISHED)
def test_strict_refuses_what_cannot_be_compared(results, tmp_path, name):
    change, message = UNPUBLISHED[name]
    pack(change(results), FACTS, tmp_path / "entry")
    assert message in validate(tmp_path / "entry").short[0]
    with pytest.raises(EntryRefused, match=message):
        validate(tmp_path / "entry", strict=True)


def test_a_judge_that_is_a_file_is_not_opened(results, tmp_path):
    with pytest.raises(CorruptFile, match="no registered simulator"):
        pack(each(judge="/dev/zero.safetensors")(results), FACTS, tmp_path / "entry")


def test_an_entry_that_comes_twice_is_refused_and_the_others_are_told(made, results, capsys):
    again, stolen, own = (made.with_name(name) for name in ("copy", "stolen", "z"))
    shutil.copytree(made, again)
    thief = replace(FACTS, agent="mine:Own", command="mine:Own", authors=("A. Thief",))
    pack(each(agent="mine:Own")(results[:9]), thief, stolen)
    slower = [replace(r, agent="size-greedy", wall_seconds=r.wall_seconds + 1) for r in results[:9]]
    pack(slower, replace(FACTS, agent="size-greedy", command="size-greedy"), own)
    found = dict(validate_all([made, again, stolen, own]))
    assert [type(one).__name__ for one in found.values()] == ["Validated", "EntryRefused", "EntryRefused", "Validated"]
    assert "the runs are those of" in str(found[stolen])
    assert main(["validate", str(made.parent)]) == 1
    assert capsys.readouterr().err.count("refused: ") == 2


WORDS = {
    "a name of 10,000 characters": {"agent": "x" * 10_000},
    "a name that moves the cursor": {"agent": "x\x1b[2J"},
    "a name that turns the direction": {"agent": "x\u202eyx"},
    "a command of other agents": {"command": "shard-gym leaderboard --agents auto"},
    "a link to a script": {"link": "javascript:alert(1)"},
    "a link with markup": {"link": 'https://x"><script>'},
    "no authors": {"authors": ()},
    "too many authors": {"authors": tuple(map(str, range(51)))},
    "an author who is a number": {"authors": (1,)},
    "a seed twice": {"seeds": (0, 0)},
    "a seed that is a word": {"seeds": ("0",)},
    "a seed below 0": {"seeds": (-1,)},
    "an unknown track": {"track": "free"},
    "half a checkpoint": {"checkpoints": ("abc",)},
    "no hardware": {"hardware": " "},
    "a licence with markup": {"licence": "<b>"},
}


@pytest.mark.parametrize("name", WORDS)
def test_words_that_no_card_has_are_refused_in_few_words(name, tmp_path):
    with pytest.raises(CorruptFile) as refused:
        replace(FACTS, **WORDS[name])
    assert len(str(refused.value)) < 250
    values = asdict(FACTS) | WORDS[name]
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    (tmp_path / CARD).write_text("\n".join(['schema = "shard-gym/card/1"', *lines]))
    with pytest.raises(CorruptFile, match=r"card\.toml"):
        Card.load(tmp_path / CARD)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("track", "trick"), "has no field 'track'|unknown field 'trick'"),
        (lambda text: text.replace("card/1", "card/2"), "no card: schema"),
        (lambda text: text + "[", "is not TOML"),
        (lambda text: text + "x = " + "[" * 30_000, "is not TOML"),
        (lambda text: text + "x = " + "9" * 10_000, "TOML|unknown"),
        (lambda text: text + "#" * 2**16, "more than 65,536 bytes"),
        (lambda text: "\xff", "card"),
    ],
)
def test_what_is_no_card_is_refused(change, message, tmp_path):
    (tmp_path / CARD).write_text(change(FACTS.to_toml()))
    with pytest.raises(CorruptFile, match=message):
        Card.load(tmp_path / CARD)


def test_a_card_is_read_as_it_was_written(tmp_path):
    odd = replace(FACTS, training='"quoted" \\ and ünïcode', checkpoints=("a" * 64,), seeds=(2, 0, 1))
    (tmp_path / CARD).write_text(odd.to_toml())
    assert Card.load(tmp_path / CARD) == odd and odd.seeds == (0, 1, 2)


def test_our_rows_become_entries(results, tmp_path, capsys):
    write_results(tmp_path / "run" / "dlrm-10x4.jsonl", results)
    command = [str(tmp_path / "run"), "--out", str(tmp_path / "out"), "--hardware", "two cores"]
    assert published.main(command) == 0
    assert validate(tmp_path / "out" / "dim-greedy", strict=True).entry.card.training == "none"
    assert "1 entries, " in capsys.readouterr().out
    write_results(tmp_path / "run" / "dlrm-10x4.jsonl", each(commit="1-dirty")(results[:3]))
    assert published.main(command) == 2
    assert "3 of the 50 test tasks" in capsys.readouterr().err
    assert validate(tmp_path / "out" / "dim-greedy", strict=True).plans == 50  # the old one stays


def test_the_weights_that_runs_used_are_on_the_card():
    claims = Claims(results=1, agents={"ppo"}, tracks={"search"}, suites={"core-60x4"}, seeds={"core-60x4": {0}})
    path = shipped("ppo")["core-60x4"]
    claims.weights = {hashlib.sha256(path.read_bytes()).hexdigest()[:12]}
    card = published.card_of("ppo", claims, "two cores")
    assert card.checkpoints == (hashlib.sha256(path.read_bytes()).hexdigest(),)
    assert card.training == "0.51 minutes for core-60x4, each on one core"


def test_a_published_entry_comes_out():
    folders = [path.parent for path in published.FOLDER.glob(f"*/{ABOUT}")]
    if not folders:
        pytest.skip("no entries are published yet: make leaderboard, then python -m benchmarks.entries")
    validate(min(folders, key=lambda folder: (folder / PLANS).stat().st_size), strict=True)


def test_results_may_be_packed(results, tmp_path):
    rng = np.random.default_rng(0)
    chosen = [results[i] for i in rng.choice(len(results), 5)]
    write_results(tmp_path / "r.jsonl.gz", chosen)
    assert read_results(tmp_path / "r.jsonl.gz") == chosen
