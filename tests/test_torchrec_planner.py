import threading
import time

import numpy as np
import pytest

from shard_gym import Constraints, Plan, Task, simulators, suites
from shard_gym.errors import InfeasibleTask, InvalidPlan, InvalidTask, MissingDependency, TimedOut, UnknownName
from shard_gym.memory.usage import device_bytes
from shard_gym.results.evaluate import score
from shard_gym.simulators.torchrec import TorchRecPerf
from shard_gym.tables.metasyn import metasyn
from shard_gym.tables.pool import GB
from shard_gym.task.links import Links
from shard_gym_agents import make
from tests.pool_helpers import fp16_pool as make_pool

pytest.importorskip("torchrec")
from shard_gym_agents.solvers import timed, torchrec_planner

SIMULATOR = simulators.make("roofline:rtx2080ti-x4-v1")


def plan_of(task, **options) -> Plan:
    return make("torchrec-planner", **options)(task, SIMULATOR)


def test_the_largest_table_first_each_where_its_estimate_is_least():
    """TorchRec's greedy by hand; tables are in order of bytes, looked up 1, 9, 2 and 2 times a sample."""
    task = Task(make_pool(rows=[4_000, 3_000, 2_000, 1_000], dim=32, pooling=[1, 9, 2, 2]), (GB,) * 2)
    assert plan_of(task).device == (0, 1, 0, 0)  # 1 | 9, then 1 + 2 | 9, then 1 + 2 + 2 | 9
    assert plan_of(task, partitioner="greedy-perf").device == (1, 0, 1, 1)  # 9 | 2, then 9 | 2 + 2 + 1


def test_it_is_told_the_bags_of_a_table():
    """The second table sends 9 rows a sample, and takes its estimate over that of two of the others together."""
    tables = make_pool(rows=[4_000, 3_000, 2_000, 1_000], dim=32, pooling=[9.0] * 4)
    assert plan_of(Task(tables, (GB,) * 2)).device == (0, 1, 0, 1)
    assert plan_of(Task(tables.with_(bags=[1, 9, 1, 1]), (GB,) * 2)).device == (0, 1, 0, 0)


def test_names_may_be_any_and_the_same_twice():
    tables = make_pool(rows=[10, 20, 30], dim=16, name=("a.b", "a.b", "x/0"))
    assert sorted(plan_of(Task(tables, (GB,) * 3)).device) == [0, 1, 2]


@pytest.mark.parametrize("accounting", ["weights", "training"])
def test_memory_is_the_tasks_own(accounting):
    """Two tables fit on one device to the byte, with their state where the task counts it, and no buffers."""
    tables = make_pool(rows=1_000, dim=16, pooling=[9, 1, 1], dtype="fp32")
    each = {"weights": 64_000, "training": 68_000}[accounting]
    task = Task(tables, (2 * each, each), optimizer="rowwise_adagrad", accounting=accounting)
    assert device_bytes(task, np.array(plan_of(task).device)).tolist() == [2 * each, each]
    short = Task(tables, (2 * each, each - 1), optimizer="rowwise_adagrad", accounting=accounting)
    with pytest.raises(InfeasibleTask, match="too few"):
        plan_of(short)


def test_its_own_words_where_its_greedy_runs_into_a_dead_end():
    """Sizes 4, 3, 3, 2, 2, 2 on two devices of 8: the only way is 4 + 2 + 2 and 3 + 3 + 2."""
    tables = make_pool(rows=[400, 300, 300, 200, 200, 200], dim=16, pooling=[1, 1, 1, 9, 9, 9], dtype="fp32")
    task = Task(tables, (8 * 6_400,) * 2)
    with pytest.raises(InfeasibleTask, match=r"too few: Device partition failed.*of table table_5"):
        plan_of(task)


def test_columns_are_halved_where_the_task_allows_splits():
    tables = make_pool(rows=1_000, dim=[64, 16], pooling=[50, 1], dtype="fp32")
    memory = (150_000, 200_000)  # the first table, 256,000 bytes, fits on neither
    task = Task(tables, memory, splits_allowed=True)
    plan = plan_of(task)
    assert plan.splits == (0,) and set(plan.kind) == {"tw"}
    assert score(task, plan, SIMULATOR).feasible
    with pytest.raises(InfeasibleTask, match="too few"):
        plan_of(Task(tables, memory))


def test_all_types_go_beyond_what_can_be_judged():
    """The one table is looked up by all devices together, a part of its rows on each."""
    task = Task(make_pool(rows=100_000, dim=128, pooling=80), (GB,) * 4)
    plan = plan_of(task, types="all")
    assert plan.kind == ("rw",) and plan.devices == ((0, 1, 2, 3),)
    with pytest.raises(InvalidPlan, match="is rw: the task allows tw"):
        score(task, plan, SIMULATOR)


@pytest.mark.parametrize("proposers", torchrec_planner.PROPOSERS)
@pytest.mark.parametrize("partitioner", torchrec_planner.PARTITIONERS)
def test_its_proposers_and_partitioners_all_plan(proposers, partitioner):
    tables = make_pool(rows=1_000, dim=[8, 16, 32, 64], pooling=[1, 2, 3, 4])
    task = Task(tables, (GB,) * 2, splits_allowed=True)
    assert score(task, plan_of(task, proposers=proposers, partitioner=partitioner), SIMULATOR).feasible


def test_devices_may_differ_in_memory_and_have_hosts():
    tables = make_pool(rows=[1_000] * 4, dim=16)
    task = Task(tables, (32_000, 96_000, 32_000, 32_000), links=Links(port=1e8, group=2))
    assert score(task, plan_of(task), SIMULATOR).feasible


def test_a_time_limit_is_kept_and_the_work_ends():
    """856 tables on 80 devices in all ways: TorchRec would take minutes."""
    task = Task(metasyn(0, 856), (2 * GB,) * 80)
    threads, begin = threading.active_count(), time.perf_counter()
    with pytest.raises(TimedOut, match=r"TorchRec's planner did not end in 1 s"):
        plan_of(task, types="all", timeout=1.0)
    assert time.perf_counter() - begin < 30
    assert threading.active_count() == threads


def test_a_time_limit_is_kept_in_any_thread():
    def forever():
        while True:
            pass

    raised = []

    def call():
        with pytest.raises(TimedOut):
            timed.within(0.05, forever, "a loop")
        raised.append(True)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(10)
    assert raised == [True]


@pytest.mark.skipif(not hasattr(time, "pthread_getcpuclockid"), reason="no clocks of threads")
def test_time_that_others_take_does_not_count():
    def asleep():
        time.sleep(0.4)
        return 7

    assert timed.within(0.2, asleep, "sleep") == 7


def test_what_fails_within_a_time_limit_is_told():
    with pytest.raises(ZeroDivisionError):
        timed.within(5, lambda: 1 // 0, "a division")
    assert timed.within(5, lambda: 7, "a number") == 7


def test_options_and_constraints_are_refused_in_words(tiny_task):
    with pytest.raises(UnknownName, match="allowed"):
        make("torchrec-planner", types="row-wise")
    with pytest.raises(UnknownName, match="dynamic-programming"):
        make("torchrec-planner", proposers="best")
    with pytest.raises(UnknownName, match="memory-balanced"):
        make("torchrec-planner", partitioner="best")
    with pytest.raises(InvalidTask, match="timeout"):
        make("torchrec-planner", timeout=0.0)
    with pytest.raises(InvalidTask, match="constraints"):
        plan_of(Task(tiny_task.tables, tiny_task.memory, constraints=Constraints(pin=((0, 1),))))


def test_without_torchrec_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torchrec", None)
    with pytest.raises(MissingDependency, match=r"pip install --no-deps torchrec==1\.8"):
        make("torchrec-planner")


def test_ours_beat_it_by_its_own_estimate():
    """Plans of 80 tables on 8 devices take at least 5 % less by TorchRec's own estimate."""
    task, perf = suites.get("core-80x8").tasks("test")[0], TorchRecPerf()
    ours = make("auto", calls=2_000)(task, perf)
    theirs = plan_of(task)
    assert score(task, ours, perf).makespan < 0.95 * score(task, theirs, perf).makespan
