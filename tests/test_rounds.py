"""Sealed rounds: one from beginning to end, and everything that is refused on the way."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import rounds as rehearsal
from shard_gym import suites
from shard_gym.errors import CorruptFile, InvalidTask
from shard_gym.results import read_results, write_results
from shard_gym.results.evaluate import Score
from shard_gym_agents.cli.main import main
from shard_gym_agents.leaderboard.rounds import command as module
from shard_gym_agents.leaderboard.rounds import sealed
from shard_gym_agents.leaderboard.rounds.closing import references
from shard_gym_agents.leaderboard.rounds.contest import Played
from shard_gym_agents.leaderboard.rounds.folder import Opened, Round, parsed, read
from shard_gym_agents.leaderboard.rounds.sealed import Secret, checked, tasks_of

AGENTS = ["--agents", "cost-greedy,lookup-greedy,random", "--agent", "round_spy:Spy"]


def round_(*words, code=0):
    assert main(["round", *map(str, words)]) == code


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """A folder with the round after each stage: new, opened, closed."""
    folder, patch = tmp_path_factory.mktemp("held"), pytest.MonkeyPatch()
    shutil.copy(Path(__file__).with_name("round_spy.py"), folder)
    patch.chdir(folder)
    patch.syspath_prepend(folder)
    rules = ["--suite", "dlrm-10x2", "--tasks", 3, "--seeds", 2, "--reference-budget", "20ms"]
    round_("new", "round", *rules)
    shutil.copytree("round", "new")
    round_("open", "round", *AGENTS, "--isolation", "auto")
    shutil.copytree("round", "opened")
    round_("close", "round")
    shutil.move("round", "closed")
    shutil.move("round.secret.json", "secret")
    yield folder
    patch.undo()
    sys.modules.pop("round_spy", None)


@pytest.fixture
def stage(held, tmp_path):
    """Copies the round after a stage, with its secret where commands look for it."""

    def copied(name):
        shutil.copytree(held / name, tmp_path / "round")
        shutil.copy(held / "secret", tmp_path / "round.secret.json")
        return tmp_path / "round"

    return copied


def changed(path, **fields):
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def refused(capsys, *words):
    capsys.readouterr()
    round_(*words, code=2)
    return capsys.readouterr().err


def test_a_round_from_beginning_to_end(stage, capsys):
    folder = stage("closed")
    assert folder.with_name("round.secret.json").stat().st_mode & 0o777 == 0o600
    seed = json.loads((folder / "closing.json").read_text())["seed"]
    for name in ("round.json", "begun.json", "opened.json", "results.jsonl", "references.jsonl"):
        assert seed not in (folder / name).read_text()
    folder.with_name("round.secret.json").unlink()
    round_("check", folder)
    assert "3 tasks made again from the seed" in capsys.readouterr().out
    page = (folder / "closing.md").read_text()
    rows = {line.split("|")[2].strip(): line for line in page.splitlines() if line.startswith("| 1") or "%]" in line}
    assert rows.keys() == {"cost-greedy", "lookup-greedy", "random", "round_spy:Spy"}
    assert seed in page
    assert not list(folder.glob("partial*"))


def test_tasks_are_fresh_and_like_the_suites(held):
    rules, secret = read(held / "new", Round), Secret.load(held / "secret")
    tasks, usual = tasks_of(rules, secret), suites.get("dlrm-10x2").tasks("test")
    assert tasks == tasks_of(rules, secret)
    assert [task.hash for task in tasks] == read(held / "opened", Opened).tasks
    others = tasks_of(rules, Secret.fresh())
    known = {tuple(table) for task in usual for table in zip(task.tables.rows, task.tables.pooling, strict=True)}
    for task, other in zip(tasks, others, strict=True):
        assert (task.num_tables, task.memory, task.objective) == (10, usual[0].memory, usual[0].objective)
        drawn = {tuple(table) for table in zip(task.tables.rows, task.tables.pooling, strict=True)}
        assert len(drawn & known) < 2  # small tables may be alike
        assert task != other
        assert all(name.startswith("table_") for name in task.tables.name)


def test_agents_do_not_see_the_round(held):
    results = read_results(held / "opened" / "results.jsonl")
    isolation = read(held / "opened", Opened).isolation
    told = {result.error for result in results if result.agent == "round_spy:Spy"}
    assert (told == {None}) == (isolation == "full")  # else the secret is there for all to read
    assert {result.suite for result in results} == {""}


@pytest.mark.parametrize(
    ("at", "words", "told"),
    [
        ("new", ["new", "{}", "--suite", "dlrm-10x2"], "holds a round already"),
        ("new", ["open", "{}"], "--agents"),
        ("new", ["open", "{}", "--agents", "cost-gredy"], "unknown agent 'cost-gredy'"),
        ("new", ["close", "{}"], "its agents come first: shard-gym round open"),
        ("new", ["check", "{}"], "is not closed"),
        ("opened", ["open", "{}", "--agents", "random"], "was opened already: shard-gym round close"),
        ("opened", ["check", "{}"], "is not closed"),
        ("closed", ["open", "{}", "--agents", "random"], "is closed: shard-gym round check"),
        ("closed", ["close", "{}"], "closed already"),
        ("closed", ["close", "{}/elsewhere"], "holds no round: shard-gym round new"),
    ],
)
def test_stages_out_of_turn_are_refused(stage, capsys, at, words, told):
    folder = stage(at)
    assert told in refused(capsys, *(word.format(folder) for word in words))


def test_another_seed_or_other_rules_are_refused(stage, capsys):
    folder = stage("opened")
    Secret.fresh().save(folder.with_name("other.json"))
    assert "do not give the commitment" in refused(capsys, "close", folder, "--secret", folder.with_name("other.json"))
    changed(folder / "round.json", tasks=2)
    assert "do not give the commitment" in refused(capsys, "close", folder)
    changed(folder / "round.json", tasks="2")
    assert "tasks is '2'" in refused(capsys, "close", folder)
    assert not (folder / "closing.json").exists()


def test_a_suite_that_changed_is_refused(held, monkeypatch):
    rules, secret = read(held / "new", Round), Secret.load(held / "secret")
    assert checked(rules, secret, "here") == secret
    other = replace(suites.get("dlrm-10x2"), dtype="fp32")
    monkeypatch.setitem(suites.SUITES, "dlrm-10x2", other)
    with pytest.raises(InvalidTask, match="not drawn as it was when the round was announced"):
        checked(rules, secret, "here")


def test_foreign_results_are_refused(stage, capsys):
    folder = stage("opened")
    results = read_results(folder / "results.jsonl")
    write_results(folder / "results.jsonl", results[:-6])  # both seeds of the last agent
    assert "is not the file that was written" in refused(capsys, "close", folder)
    sha256 = module.sha256_of(folder / "results.jsonl")
    changed(folder / "opened.json", results_sha256=sha256)
    assert "differ in round_spy:Spy" in refused(capsys, "close", folder)
    worse = [replace(r, makespan=r.makespan and 2 * r.makespan) for r in results]
    write_results(folder / "results.jsonl", worse)
    changed(folder / "opened.json", results_sha256=module.sha256_of(folder / "results.jsonl"))
    assert "but its plan takes" in refused(capsys, "close", folder)


def test_other_tasks_references_and_standings_are_refused(stage, capsys):
    folder = stage("closed")
    kept = (folder / "opened.json").read_text()
    opened = json.loads(kept)
    changed(folder / "opened.json", tasks=opened["tasks"][::-1])
    assert "the seed gives other tasks" in refused(capsys, "check", folder)
    changed(folder / "opened.json", tasks=opened["tasks"], random=[1.0, 2.0, 3.0])
    assert "other mean makespans" in refused(capsys, "check", folder)
    (folder / "opened.json").write_text(kept)
    rows = json.loads((folder / "closing.json").read_text())["standings"]
    changed(folder / "closing.json", standings=rows[::-1])
    assert "other standings" in refused(capsys, "check", folder)
    changed(folder / "closing.json", commitment="0" * 64)
    assert "is of another round" in refused(capsys, "check", folder)


@pytest.mark.parametrize("name", ["round.json", "begun.json", "opened.json", "results.jsonl", "references.jsonl"])
def test_half_a_file_is_refused(stage, capsys, name):
    folder = stage("opened")
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])
    assert name in refused(capsys, "close", folder)
    assert not (folder / "closing.json").exists()


def test_a_round_that_broke_off_goes_on_with_its_agents(stage, capsys, monkeypatch):
    folder = stage("new")
    seen = []

    def broken_off(jobs, rules, scope, workers, users, cluster):
        seen.append(Path(jobs[0].tasks).read_text())
        return Played({}, {}, False, "full")

    monkeypatch.setattr(module, "play", broken_off)
    round_("open", folder, "--agents", "cost-greedy,random", code=130)
    assert len(seen[0].splitlines()) == 3
    assert not list(folder.rglob("tasks.jsonl"))
    assert "begun with cost-greedy, random" in refused(capsys, "open", folder, "--agents", "random")
    assert "not done" in refused(capsys, "close", folder)
    round_("open", folder, code=130)  # with the same agents
    assert len(seen) == 2


def test_references_are_the_better_plan_of_the_host(held):
    opened = read(held / "opened", Opened)
    random = np.array(opened.random)
    results = read_results(held / "opened" / "references.jsonl")
    greedy, auto = ([r for r in results if r.agent == agent] for agent in ("cost-greedy", "auto"))
    feasible = {
        r.agent: [(r, Score(r.makespan, 1.0)) for r in runs] for r, runs in ((greedy[0], greedy), (auto[0], auto))
    }
    best = [min(a.makespan, b.makespan) for a, b in zip(greedy, auto, strict=True)]
    assert references(feasible, random) == pytest.approx(best)
    lost = [(r, Score(r.makespan, 1.0, ("too large",))) for r in auto]
    assert references(feasible | {"auto": lost}, random) == pytest.approx([r.makespan for r in greedy])
    assert references({"auto": lost}, random) == pytest.approx(random)


def test_a_secret_is_never_overwritten(tmp_path, capsys):
    (tmp_path / "round.secret.json").write_text("of another round")
    told = refused(capsys, "new", tmp_path / "round", "--suite", "dlrm-10x2", "--tasks", 1)
    assert "is the secret of a round" in told
    assert (tmp_path / "round.secret.json").read_text() == "of another round"
    assert not (tmp_path / "round" / "round.json").exists()


def test_commitments_bind_rules_seed_and_salt(held):
    rules, secret = read(held / "new", Round), Secret.load(held / "secret")
    others = [replace(secret, seed="0"), replace(secret, salt="0")]
    found = {secret.commitment(rules), *(other.commitment(rules) for other in others)}
    found |= {secret.commitment(replace(rules, budget=9.0)), sealed.json_sha256({"seed": secret.seed})}
    assert len(found) == 5
    with pytest.raises(CorruptFile, match="do not give"):
        checked(rules, others[1], "here")


@pytest.mark.parametrize("odd", [None, True, -1.5, "\ud800", [[]], {"a": None}])
def test_a_field_of_another_type_is_refused(held, odd):
    whole = json.loads((held / "opened" / "opened.json").read_text())
    for name, value in whole.items():
        if not (isinstance(odd, str) and isinstance(value, str) and name != "schema"):
            with pytest.raises(CorruptFile):
                parsed({**whole, name: odd}, Opened, "a file")
        with pytest.raises(CorruptFile):
            parsed({field: value for field, value in whole.items() if field != name}, Opened, "a file")


def test_rank_correlation_by_hand():
    three = np.array([1.0, 2.0, 3.0])
    assert rehearsal.agreement(three, three) == 1
    assert rehearsal.agreement(three, -three) == -1
    assert rehearsal.agreement(three, np.array([1.0, 3.0, 2.0])) == pytest.approx(1 / 3)
    assert rehearsal.agreement(three, np.stack([three, -three])).tolist() == [1, -1]
    two_alike = np.array([1.0, 1.0, 3.0])
    assert rehearsal.agreement(two_alike, two_alike) == 1
    assert rehearsal.agreement(two_alike, three) == pytest.approx(2 / 6**0.5)


def test_the_page_tells_which_pairs_change():
    rising, even = [0.01 * i for i in range(1, 11)], [0.2] * 10
    public = {"first": rising, "second": even, "third": [0.5] * 10}
    of_round = {"first": even[:5], "second": rising[:5], "third": [0.5] * 5}
    told = {"suites": {"core-80x8": {"public": public, "round": of_round}}, "command": "c"}
    page = rehearsal.page({**told, "tasks": 5, "reference_budget": 1.0})
    assert "Rank correlation (Kendall) 0.33 [" in page
    assert "1 of 3 pairs change their order, 1 of them beyond both intervals" in page
    assert "| second over first | +14.50% [" in page
    assert "| -17.00% [" in page
