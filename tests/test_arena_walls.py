"""The arena's parts: messages, figures, views, and that nothing outlives the leaderboard; users' agents work in it."""

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym.task import suites
from shard_gym_agents.leaderboard import report
from shard_gym_agents.leaderboard.arena import answers, rules
from shard_gym_agents.leaderboard.arena.frames import Broken, Late, Line
from shard_gym_agents.leaderboard.arena.host import Nursery, Worker, WorkerLost
from shard_gym_agents.leaderboard.arena.job import Job
from shard_gym_agents.leaderboard.arena.processes import descendants
from shard_gym_agents.leaderboard.arena.rules import FULL, LIMITS, Rules
from shard_gym_agents.leaderboard.kept import Watched
from tests.arena_helpers import processes_of

ROOT = Path(__file__).parents[1]
SUITE, ROOFLINE = "dlrm-10x4", "roofline:rtx2080ti-x4-v1"
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
MESSAGES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@pytest.fixture
def lines():
    near, far = socket.socketpair()
    with near, far:
        yield Line(near), far


def soon(seconds=0.02):
    return time.monotonic() + seconds


@settings(max_examples=25)
@given(message=MESSAGES)
def test_a_message_arrives_as_it_was_sent(message):
    near, far = socket.socketpair()
    with near, far:
        Line(far).send(message)
        assert Line(near).receive(1 << 20) == message


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (struct.pack("!I", 1_000_000_000), "promised an answer of 1,000,000,000 bytes where 100 are the most"),
        (struct.pack("!I", 3) + b"NaN", "NaN is no number"),
        (struct.pack("!I", 3) + b"[}]", "not JSON"),
        (struct.pack("!I", 2) + b"\xff\xfe", "not JSON"),
        (struct.pack("!I", 100) + b"[" * 100, "not JSON"),
        (struct.pack("!I", 9) + b"1", "closed its line"),
        (b"", "closed its line"),
    ],
)
def test_what_is_no_message_is_refused(lines, sent, told):
    line, far = lines
    far.sendall(sent)
    far.shutdown(socket.SHUT_WR)
    with pytest.raises(Broken, match=told):
        line.receive(100)


@pytest.mark.parametrize("sent", [b"", b"\0\0", struct.pack("!I", 9) + b"1234"])
def test_a_message_that_does_not_end_is_late(lines, sent):
    line, far = lines
    far.sendall(sent)
    with pytest.raises(Late):
        line.receive(100, soon())


def test_whoever_does_not_read_is_late(lines):
    line, _ = lines
    with pytest.raises(Late):
        line.send("x" * 10_000_000, soon())


QUESTION = {"nonce": "a", "index": 1}
SOUND = QUESTION | {"plan": {"schema": "shard-gym/plan/1", "device": [0, 1]}, "error": None, "calls": 2}


def test_a_sound_answer_is_believed():
    plan, error, calls = answers.checked_answer(SOUND, QUESTION)
    assert (plan.device, error, calls) == ((0, 1), None, 2)


@pytest.mark.parametrize("odd", [None, [], "x", 3, {}, SOUND | {"wall_seconds": 0}, {**SOUND, "nonce": "b"}])
def test_an_answer_of_another_form_or_to_another_question_is_not(odd):
    with pytest.raises(Broken):
        answers.checked_answer(odd, QUESTION)


@pytest.mark.parametrize("index", [2, "1", None, [1]])
def test_an_index_is_a_number(index):
    with pytest.raises(Broken):
        answers.checked_answer(SOUND | {"index": index}, QUESTION)


@pytest.mark.parametrize("calls", [-1, 1.5, True, "2", None, [], 2**60])
def test_calls_are_a_count(calls):
    with pytest.raises(Broken, match="count of calls"):
        answers.checked_answer(SOUND | {"calls": calls}, QUESTION)


@pytest.mark.parametrize("plan", [[], 3, {}, {"schema": "shard-gym/plan/1", "device": ["x"]}, {"device": [0, 1]}])
def test_a_plan_that_is_none_is_an_error_of_its_run(plan):
    found, error, _ = answers.checked_answer(SOUND | {"plan": plan}, QUESTION)
    assert found is None and error.startswith("InvalidPlan")


ABOUT = {"track": "blind", "deterministic": True, "config": {"seed": 0}, "source": ""}


@pytest.mark.parametrize(
    "odd",
    [{"track": []}, {"track": "mine"}, {"deterministic": 1}, {"config": []}, {"source": None}, {"rank": 1}],
)
def test_a_description_has_its_form(odd):
    assert answers.checked_about(ABOUT) == ABOUT
    with pytest.raises(Broken):
        answers.checked_about(ABOUT | odd)


@pytest.mark.parametrize("odd", [[], None, {}, {"error": 3}, {"error": "x", "missing": "y"}, {"sorry": "x"}])
def test_a_reason_for_no_agent_has_its_form(odd):
    assert answers.checked_about({"error": "x\x1b\ny"}) == {"error": r"x\x1b"}
    with pytest.raises(Broken):
        answers.checked_about(odd)


def test_an_answer_may_be_as_long_as_a_plan_of_the_task_needs():
    core, prod = (suites.get(key).tasks("test")[0] for key in (SUITE, "prod-1000x128"))
    assert answers.answer_bytes(core) == 1 << 20
    worst = {"device": [127] * 1000, "kind": ["grid"] * 1000, "devices": [list(range(128))] * 1000}
    assert len(json.dumps(worst)) < answers.answer_bytes(prod)


def test_what_an_agent_uses_beside_its_time_is_noted():
    def notes(**seconds):
        return report._excess(Watched("full", 0.0, **seconds))

    assert notes(wall=1.0, cpu=1.1, idle=0.1, runs=10) == []
    assert notes(wall=1.0, cpu=3.0, idle=0.0, runs=10) == ["uses 3.0 cores"]
    assert notes(wall=1.0, cpu=1.0, idle=2.0, runs=10) == ["computes between tasks, 0.2 s of CPU each time"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder of a user's own, beside it a named file."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "own").mkdir()
    shutil.copy(Path(__file__).with_name("arena_solvers.py"), folder / "own" / "solvers.py")
    (folder / "own" / "helper.py").write_text("def double(x):\n    return 2 * x\n")
    (folder / "named").write_text("named")
    np.save(folder / "own" / "weights.npy", np.arange(3))
    return folder


@pytest.fixture(scope="module", params=[FULL, LIMITS])
def nursery(place, request):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(place / "own"))
        patch.setenv("NAMED", str(place / "named"))
        rules.place.cache_clear()
        wanted = "auto" if request.param == FULL else LIMITS
        found = Nursery(Rules(isolation=wanted, environment=("NAMED",), readable=(str(place / "named"),)))
        try:
            if found.isolation != request.param:
                pytest.skip(f"no isolation {request.param} here: {found.why}")
            yield found
        finally:
            found.close()


class Working:
    """A worker that is ended."""

    def __init__(self, agent, nursery, planner=ROOFLINE, judge=ROOFLINE, suite=SUITE):
        self.worker = Worker(Job(suite, agent, 0, planner, judge), nursery)

    def __enter__(self):
        self.about = self.worker.about()
        return self.worker

    def __exit__(self, *_):
        self.worker.kill()


@pytest.mark.parametrize("name", ["Usual", *(pytest.param(n, marks=pytest.mark.slow) for n in ("Packages", "Learned"))])
def test_what_agents_usually_do_works(nursery, name):
    if name != "Usual":
        pytest.importorskip("torch")
        pytest.importorskip("highspy" if name == "Packages" else "stable_baselines3")
    with Working(f"solvers:{name}", nursery) as worker:
        run = worker.solve(0).run
        assert run.error is None and run.plan is not None


def test_the_cpu_of_children_counts(nursery):
    with Working("solvers:Burns", nursery) as worker:
        turns = [worker.solve(index) for index in range(2)]
    assert all(turn.cpu_seconds > 0.15 for turn in turns)


def test_cpu_between_tasks_is_seen(nursery):
    with Working("solvers:Idles", nursery) as worker:
        idle, deadline = 0.0, time.monotonic() + 60
        while idle < 0.15:
            assert time.monotonic() < deadline
            idle += worker.solve(0).idle_seconds
            time.sleep(0.1)


def test_the_judges_weights_are_nowhere_at_full(nursery):
    judge = suites.get("metasyn-80x8").judge
    with Working("solvers:Peeks", nursery, "learned:cpu-v1", judge, "metasyn-80x8") as worker:
        told = worker.solve(0).run.error
    assert told == f"RuntimeError: [{nursery.isolation == LIMITS}, True]"


def test_a_nursery_that_was_killed_is_replaced(nursery):
    folder = Path(nursery.folder)
    os.kill(nursery.process.pid, signal.SIGKILL)
    nursery.process.wait()
    with Working("solvers:Plain", nursery) as worker:
        assert worker.solve(0).run.plan is not None
    assert not folder.exists()


def test_a_warden_rests_while_the_agent_works(place, nursery):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nursery, "rules", replace(nursery.rules, isolation=nursery.isolation, verbose=True))
        loud = Nursery(nursery.rules)
    with Working("solvers:Quiet", loud) as worker:
        assert worker.solve(0).run.plan is not None
        inner = [one.pid for one in descendants(worker.pid)]  # at full the warden is the first of them
        clock = (~(inner[0] if nursery.isolation == FULL else worker.pid) << 3) | 2
        used = time.clock_gettime(clock)
        worker.solve(0)
        assert time.clock_gettime(clock) - used < 0.05
    loud.close()


def test_an_agent_that_cannot_be_built_has_no_second_answer(nursery):
    working = Working("solvers:Nobody", nursery)
    with working as worker, pytest.raises(WorkerLost):
        assert "unknown" in working.about
        worker.solve(0)


@pytest.mark.skipif(not Path("/proc").exists(), reason="processes are listed in /proc")
@pytest.mark.parametrize("level", ["auto", LIMITS])
def test_nothing_outlives_a_leaderboard_that_is_killed(tmp_path, level):
    agents = tmp_path / "agents"
    agents.mkdir()
    (agents / "lasting.py").write_text(
        "import os, sys, time\n\nclass Agent:\n    def __call__(self, task, planner):\n"
        "        if not os.fork():\n            os.setsid()\n            os.fork()\n"
        "        sys.stderr.write('here\\n')\n        time.sleep(1000)\n"
    )
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    path = os.pathsep.join([str(agents), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    command = [sys.executable, "-m", "benchmarks.leaderboard", "--suite", SUITE, "--agents", "random", "--tasks", "1"]
    command += ["--agent", "lasting:Agent", "--isolation", level, "--verbose", "--out", str(tmp_path / "out")]
    environment = os.environ | {"PYTHONPATH": path, "TMPDIR": str(temporary)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if line == "here\n":
                break
        assert processes_of(agents)
        process.kill()
    deadline = time.monotonic() + 30
    while processes_of(agents) or any(temporary.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
