"""The arena against agents that are broken, cheat or attack: each costs its own row, and the row says what happened."""

import math
import os
import py_compile
import re
import shutil
import socket
import time
from pathlib import Path

import pytest

from shard_gym import simulators
from shard_gym.results.evaluate import evaluate
from shard_gym.task import suites
from shard_gym_agents import make
from shard_gym_agents.leaderboard import report, runs
from shard_gym_agents.leaderboard.arena import host, rules
from shard_gym_agents.leaderboard.arena.host import Nursery
from shard_gym_agents.leaderboard.arena.job import Job
from shard_gym_agents.leaderboard.arena.rules import FULL, LIMITS, Rules
from shard_gym_agents.leaderboard.references import references
from shard_gym_agents.leaderboard.runs import Here, Scope, run_jobs
from shard_gym_agents.leaderboard.seats import Arena, describe_agents
from tests.arena_helpers import processes_of

SUITE, ROOFLINE, TASKS = "dlrm-10x4", "roofline:rtx2080ti-x4-v1", 2
WORKERS = 4  # many sleep
TIGHT = Rules(memory=0.4e9, disk=64e6, files=256, processes=40, build_seconds=3)
HONEST = ("cost-greedy", "random")
FINE = ""  # a plan, and no word

# What the row of an agent says, at both levels or at full and at limits.
ROWS: dict[str, str | tuple[str, str]] = {
    "Sound": FINE,
    "Fails": "ValueError: no idea",
    "Quits": "SystemExit: 3",
    "Interrupts": "KeyboardInterrupt",
    "Rages": "Wrath: out of my way",
    "Mute": "Silent",
    "Surrogate": r"ValueError: \\ud800 lost",
    "Escapes": r"ValueError: \\x1b\[2J<b>\|`red`",
    "Windy": "ValueError: x{200,300} ",
    "Recurses": "RecursionError: maximum",
    "Unbuilt": "RuntimeError: no checkpoint",
    "QuitsUnbuilt": "SystemExit: goodbye",
    "RagesUnbuilt": "Wrath: not today",
    "SilentUnbuilt": "Silent",
    "UnknownUnbuilt": "UnknownName: unknown agent 'me'",
    "MissingUnbuilt": "MissingDependency: needs more",
    "SleepsUnbuilt": "late: not built within 3 s",
    "DiesUnbuilt": "died: signal SIGKILL",
    "SlowlyBuilt": FINE,
    "NotCalled": "UnknownName: unknown agent .* cannot be called",
    "InfiniteConfig": FINE,
    "HugeConfig": "died: promised an answer of 1,000,.* bytes where 65,536",
    "DeepConfig": FINE,
    "ListTrack": r"UnknownName: unknown track \['search'\]",
    "OwnTrack": "UnknownName: unknown track 'winners'",
    "TurnsCoat": "SimulatorError: a solver of track 'blind' asks",
    "OddlyDeterministic": "Wrath: who asks",
    "ReturnsList": "InvalidPlan: a solver returns a shard_gym.Plan, got list",
    "ReturnsNothing": "InvalidPlan: a solver returns a shard_gym.Plan, got NoneType",
    "ReturnsShort": "InvalidPlan: 10 tables need a device each, the plan has 1",
    "ReturnsFar": "InvalidPlan: table 0 is on device 99",
    "ReturnsUnplaced": "InvalidPlan: table 0 is not placed",
    "ReturnsNan": "InvalidPlan: ",
    "ReturnsFloats": "InvalidPlan: ",
    "ReturnsHuge": "died: gave an answer that is not JSON|InvalidPlan: ",
    "ReturnsObjects": "InvalidPlan: ",
    "ReturnsDeep": "InvalidPlan: ",
    "ReturnsLong": "died: promised an answer of 6,.* bytes where 1,048,576",
    "SplitsTooMuch": "InvalidPlan: ",
    "Lies": FINE,
    "PatchesScores": FINE,
    "PatchesTime": FINE,
    "PatchesJson": "died: gave an answer that is",
    "CountsBackwards": "died: gave a count of calls that is none: -5",
    "CountsInWords": "died: gave a count of calls that is none: 'few'",
    "Exits": "died: exit code 3",
    "Segfaults": "died: signal SIGSEGV",
    "Aborts": "died: signal SIGABRT",
    "KillsItself": "died: signal SIGKILL",
    "StopsItself": "late: no plan within 0.2 s, killed",
    "Sleeps": "late: no plan within 0.2 s, killed",
    "Spins": "late: no plan within 0.2 s, killed",
    "AnswersLate": r"late: [0-9.]+ s of 0.2 s|late: no plan",
    "StopsParent": (FINE, "late: no plan within"),
    "KillsParent": (FINE, "died: its warden closed its line"),
    "KillsAll": FINE,
    "LeavesDaemons": FINE,
    "LeavesDaemonsUnbuilt": "RuntimeError: built something else",
    "ForgetsChild": FINE,
    "Multiplies": "died: ran [456][0-9] processes where 40 are the most|BlockingIOError: ",
    "LooksAtParent": "PermissionError: ",
    "SeesOthers": ("RuntimeError: alone", FINE),
    "Hoards": "MemoryError: out of memory",
    "HoardsArrays": ".*MemoryError: out of memory, Unable",
    "HoardsTogether": "died: out of memory: .* GB where 0.4 GB are the most",
    "FillsFile": "OSError: .*File too large",
    "FillsDisk": ("OSError: .*No space left", FINE),
    "LeavesFiles": FINE,
    "OpensMuch": "OSError: .*Too many open files",
    "RaisesLimits": "ValueError: not allowed to raise|PermissionError: ",
    "DumpsCore": "ValueError: not allowed to raise|PermissionError: ",
    "Babbles": "died: promised an answer of 4,294,967,295 bytes",
    "Promises": "died: promised an answer of 1,000,000,000 bytes",
    "Trickles": "late: no plan within",
    "Guesses": "died: gave an answer to another question",
    "AnswersTwice": "died: (spoke without being asked|said more than its answer|gave an answer)",
    "ClaimsScores": "died: gave an answer that is none",
    "Closes": "died: closed its line",
    "BabblesUnbuilt": "died: gave a description that is none",
    "PraisesItself": "died: (spoke without being asked|said more than its answer|gave an answer)",
    "AsksUnseen": "SimulatorError: a solver of track 'blind' asks",
    "CopiesPlanner": FINE,
    "Reads": ("FileNotFoundError: ", FINE),
    "ReadsResults": ("FileNotFoundError: empty", FINE),
    "ReadsRival": ("FileNotFoundError: empty", FINE),
    "ReadsBeyond": ("FileNotFoundError: ", FINE),
    "ReadsPasswords": ("FileNotFoundError: ", "PermissionError: |"),
    "UncoversResults": ("FileNotFoundError: ", FINE),
    "Writes": ("OSError: .*Read-only file system", FINE),
    "WritesPackage": ("OSError: .*Read-only file system", "RuntimeError: not tried"),
    "Connects": ("ConnectionRefusedError|OSError: ", FINE),
    "ReadsEnvironment": "RuntimeError: not in the environment",
    "FindsHome": "RuntimeError: nothing at home",
    "FindsDescriptors": "RuntimeError: nothing open",
    "Prints": FINE,
}


def nursery_at(level, **settings):
    """A nursery of that level; where that is not to be had, the test is skipped with the reason."""
    found = Nursery(Rules(**{**vars(TIGHT), "isolation": "auto" if level == FULL else level, **settings}), HONEST)
    if found.isolation != level:
        found.close()
        pytest.skip(f"no isolation {level} here: {found.why}")
    return found


@pytest.fixture
def scene(tmp_path, monkeypatch):
    """A folder with the corpus, and beside it what it must not read."""
    folder = tmp_path / "agents"
    (folder / "best_known").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    shutil.copy(Path(__file__).with_name("arena_corpus.py"), folder / "corpus.py")
    py_compile.compile(str(folder / "corpus.py"))  # a hundred processes import it
    for name in ("best_known/dlrm-10x4.json", "results.jsonl", "rival.py", "../secret/key"):
        (folder / name).write_text("others'")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("CORPUS_SECRET", "token")
    monkeypatch.setenv("CORPUS_HOME", str(Path.home()))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(host, "GRACE_SECONDS", 0.2)
    monkeypatch.setattr(runs, "STRIKES", 1)  # nobody needs to die twice
    monkeypatch.setattr(runs, "TIMED", 0)  # nor alone
    rules.place.cache_clear()
    with socket.create_server(("127.0.0.1", 0)) as server:
        (folder / "port").write_text(str(server.getsockname()[1]))
        yield folder


def contest(folder, level):
    """The rows of the corpus and of honest agents, each of which had two tasks; and the runs of the latter."""
    secret = [str(folder / name) for name in ("best_known", "results.jsonl")]
    nursery = nursery_at(level, secret=tuple(secret))
    agents = [*HONEST, *(f"corpus:{name}" for name in ROWS)]
    arena = Arena(nursery, agents=(*agents, "rival:Agent"))
    limits = {f"corpus:{name}": 0.2 for name, told in ROWS.items() if "late: no plan" in str(told)}
    jobs = [Job(SUITE, agent, 0, ROOFLINE, ROOFLINE, time_limit=limits.get(agent, 30.0)) for agent in agents]
    try:
        about = describe_agents(jobs, arena, WORKERS)
        blank = {job: told for job, told in about.items() if not told.keys() & {"missing", "unknown"}}
        found = run_jobs(blank, Scope(folder.parent / "partial", TASKS), Here(arena, WORKERS))
    finally:
        arena.stop()
        nursery.close()
    assert found.complete
    suite = suites.get(SUITE)
    refs = references(suite, "test", TASKS, ROOFLINE, folder / "none")
    unable = [
        report.unable_row(suite, job.agent, ROOFLINE, ROOFLINE, told.get("missing") or told["unknown"])
        for job, told in about.items()
        if job not in blank
    ]
    by_seed = {job.agent: [results] for job, results in found.done.items()}
    ranking = report.ranking(suite, "test", by_seed, refs, unable, found.watched_of(found.done))
    return {row.agent.removeprefix("corpus:"): row for row in ranking.rows}, {j.agent: r for j, r in found.done.items()}


def none_left(folder):
    deadline = time.monotonic() + 10
    while processes_of(folder):
        assert time.monotonic() < deadline, "a process outlived its nursery"
        time.sleep(0.02)


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are listed in /proc")
@pytest.mark.parametrize("level", [FULL, LIMITS])
def test_the_corpus_harms_nothing_and_gains_nothing(scene, level):
    files, ends = contents(scene), set(os.listdir("/proc/self/fd"))
    rows, done = contest(scene, level)

    expected = {name: told if isinstance(told, str) else told[level == LIMITS] for name, told in ROWS.items()}
    said = {name: rows[name].error or "" for name in ROWS}
    wrong = [name for name in ROWS if not re.match(expected[name], said[name]) or (said[name] and not expected[name])]
    assert not wrong, "\n".join(f"{name}: {said[name]!r}, not {expected[name]!r}" for name in wrong)

    tasks, judge = suites.get(SUITE).tasks("test")[:TASKS], simulators.make(ROOFLINE)
    for name in HONEST:
        alone = evaluate(make(name), tasks, judge, judge)
        assert [result.makespan for result, _ in done[name]] == [result.makespan for result in alone]
    for agent, pairs in done.items():
        for (result, found), task in zip(pairs, tasks, strict=True):  # each plan is that of its own task, scored here
            assert result.task == task.hash and (found is None) == (result.plan is None)
            assert found is None or math.isclose(found.makespan, result.makespan), agent
    assert min(result.wall_seconds for result, _ in done["corpus:PatchesTime"]) >= 0.1
    assert rows["SlowlyBuilt"].watched.build >= 0.3 > rows["Sound"].watched.wall
    assert {rows[name].track for name in ("TurnsCoat", "CopiesPlanner", "AsksUnseen")} == {"blind"}
    assert {row.watched.isolation for row in rows.values()} == {level, ""}  # "" where nothing ran

    changed = {path.name for path, content in contents(scene).items() if files.get(path) != content}
    assert changed == (set() if level == FULL else {"mark", "dlrm-10x4.json"})
    none_left(scene)
    assert not list((scene.parent / "temporary").iterdir())
    assert set(os.listdir("/proc/self/fd")) == ends
