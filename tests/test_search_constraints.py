"""Searches under planning constraints: whatever they plan keeps to the task, and little is lost by that."""

import dataclasses
import time
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym import Constraints, Plan, Task, make_pool, suites
from shard_gym.errors import InfeasibleTask
from shard_gym.memory.usage import device_bytes, table_bytes
from shard_gym.plan.violations import violations
from shard_gym.results.evaluate import score
from shard_gym_agents import make
from shard_gym_agents.search.local_search import kick
from shard_gym_agents.search.repair import redeal, repair, shake
from shard_gym_agents.search.state import Board, Costs
from tests.search_helpers import SIMULATOR, draw_task

SEARCHES = {
    "local-search": {"calls": 400},
    "beam": {"calls": 400},
    "auto": {"calls": 400},
    "neuroshard": {"calls": 400},
}


@st.composite
def constrained(draw, tables=12, splits=False):
    """A task that one plan keeps to; the plan in use too, where it is given."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    objective = draw(st.sampled_from(["kernel", "iteration"]))
    task = draw_task(int(rng.integers(10**6)), objective, splits=splits, tables=tables)
    n, k = task.num_tables, task.num_devices
    device = rng.integers(k, size=n)
    memory = device_bytes(task, device) + (draw(st.sampled_from([0.0, 0.2, 2.0])) * table_bytes(task).mean())
    on = [np.flatnonzero(device == d).tolist() for d in range(k)]
    kept = {
        "pin": [(t, int(device[t])) for t in rng.permutation(n)[: draw(st.integers(0, 2))].tolist()],
        "together": [here[:2] for here in on if len(here) > 1 and rng.random() < 0.4],
        "apart": [[here[-1] for here in on if here]] if draw(st.booleans()) else [],
    }
    base = {}
    if draw(st.booleans()):
        base = {"base": device.tolist(), "max_moves": draw(st.integers(0, n))}
    constraints = Constraints(**kept, **base)
    return dataclasses.replace(task, memory=tuple((memory + 1).tolist()), constraints=constraints)


def best_by_force(task):
    every = np.array(list(product(range(task.num_devices), repeat=task.num_tables)))
    every = every[(device_bytes(task, every) <= task.capacity).all(axis=1)]
    keeps = [not violations(task, Plan(tuple(placement))) for placement in every.tolist()]
    return float(SIMULATOR.latency(task, every[keeps]).makespan(task.objective).min())


def makespan(task, plan):
    found = score(task, plan, SIMULATOR)
    assert found.feasible
    return found.makespan


@pytest.mark.parametrize("name", SEARCHES)
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_plans_keep_to_the_task_and_are_no_worse_than_the_one_in_use(name, data):
    task = data.draw(constrained(splits=data.draw(st.booleans())))
    try:
        plan = make(name, **SEARCHES[name])(task, SIMULATOR)
    except InfeasibleTask as error:
        assert task.constraints.max_moves is None and "not prove" in str(error)
        return
    assert not violations(task, plan)
    if base := task.constraints.base:
        assert makespan(task, plan) <= makespan(task, Plan(base)) * (1 + 1e-9)


@pytest.mark.parametrize("name", ["local-search", "auto"])
@settings(max_examples=8, deadline=None, derandomize=True)
@given(constrained(tables=6))
def test_the_best_of_all_plans_that_keep_to_a_tiny_task_is_found(name, task):
    plan = make(name, calls=2_000)(task, SIMULATOR)
    assert makespan(task, plan) == pytest.approx(best_by_force(task), rel=1e-9)


@settings(max_examples=50, deadline=None)
@given(constrained(), st.integers(0, 100))
def test_no_change_breaks_a_rule_and_counts_are_kept_up(task, seed):
    rng = np.random.default_rng(seed)
    board = Board(task, Costs(task, SIMULATOR))
    if not board.rules.binding:
        return
    state = board.start(task.constraints.base or rng.integers(task.num_devices, size=task.num_tables))
    for change in (kick, shake, redeal) * 3:
        broken = state.broken
        change(state, rng)
        assert state.broken <= broken
    fresh = board.start(state.plan().device)
    assert (fresh.standing.near == state.standing.near).all()
    assert fresh.standing.left == state.standing.left and fresh.broken == state.broken


def test_as_many_tables_apart_as_there_are_devices_change_places():
    """Each table has one device that is as fast as it is dear; only swaps lead there."""
    tables = make_pool(rows=10_000, dim=16, pooling=[10, 20, 40, 80])
    task = Task(tables, (10**9,) * 4, speed=(4.0, 1.0, 8.0, 2.0), constraints=Constraints(apart=[(0, 1, 2, 3)]))
    in_use = Constraints(apart=task.constraints.apart, base=(0, 2, 1, 3), max_moves=4)
    for constraints in (task.constraints, in_use):
        plan = make("local-search", calls=200)(dataclasses.replace(task, constraints=constraints), SIMULATOR)
        assert plan.device == (1, 3, 0, 2)


def test_tables_apart_in_overlapping_groups_are_sorted_out():
    """A ring of seven tables, neighbours apart, takes all of three devices; where tables are left to it."""
    ring = [(i, (i + 1) % 7) for i in range(7)]
    task = Task(make_pool([100] * 7, [4] * 7, [1.0] * 7), (10**9,) * 3, constraints=Constraints(apart=ring))
    state = Board(task, Costs(task, SIMULATOR)).start([0] * 7)
    assert state.broken == 7
    state = repair(state, np.random.default_rng(0))
    assert not state.amiss and not violations(task, state.plan())


def test_a_plan_in_use_that_will_not_do_is_mended_with_the_moves_allowed():
    """Device 0 overflows by one table of 10, tables 0 and 1 must be apart: moving table 0 or 1 mends both."""
    tables = make_pool(rows=[1_000] * 4, dim=4, pooling=1.0, dtype="fp32")
    size = int(table_bytes(Task(tables, (10**9,)))[0])
    constraints = Constraints(apart=[(0, 1)], base=(0, 0, 0, 1), max_moves=1)
    task = Task(tables, (2 * size, 2 * size), constraints=constraints)
    for name, config in SEARCHES.items():
        plan = make(name, **config)(task, SIMULATOR)
        assert not violations(task, plan), name
        assert plan.device in [(1, 0, 0, 1), (0, 1, 0, 1)]


def test_few_moves_win_what_few_moves_can():
    """Each move more makes the plan better that has everything on one of four devices."""
    task = Task(make_pool(10_000, 16, [20.0] * 8), (10**9,) * 4)
    found = []
    for moves in range(7):
        constraints = Constraints(base=(0,) * 8, max_moves=moves)
        moved = dataclasses.replace(task, constraints=constraints)
        plan = make("auto", calls=2_000)(moved, SIMULATOR)
        assert sum(d != 0 for d in plan.device) <= moves
        found.append(makespan(moved, plan))
    assert found == sorted(found, reverse=True) and len(set(found)) == 7


@pytest.mark.parametrize("name", SEARCHES)
def test_what_is_proved_to_have_no_plan_is_said_so(name):
    tables = make_pool(rows=[1_000, 1_000], dim=4, pooling=1.0)
    task = Task(tables, (20_000, 7_000), constraints=Constraints(pin=[(0, 1)]))
    with pytest.raises(InfeasibleTask, match="device 1, where it is pinned"):
        make(name, **SEARCHES[name])(task, SIMULATOR)


@pytest.mark.parametrize("name", [*SEARCHES, "reshard"])
@pytest.mark.parametrize("room", [10**9, 1])
def test_pins_are_kept_where_the_moves_that_they_take_are_not_allowed(name, room):
    """One table is on device 1 and must go to device 0, and nothing may move; with room there, and without."""
    constraints = Constraints(pin=[(0, 0)], base=(1,), max_moves=0)
    task = Task(make_pool(rows=[1_000], dim=4, pooling=1.0), (room, 10**9), constraints=constraints)
    with pytest.raises(InfeasibleTask, match="1 tables or more must leave" if room > 1 else "where it is pinned"):
        make(name, calls=100)(task, SIMULATOR)


@pytest.mark.parametrize("name", SEARCHES)
def test_what_is_not_proved_is_not_claimed(name):
    """Three tables, each apart from the others, on two devices; no count of bytes says why not."""
    tables = make_pool(rows=[1_000] * 3, dim=4, pooling=1.0)
    task = Task(tables, (10**9,) * 2, constraints=Constraints(apart=[(0, 1), (1, 2), (0, 2)]))
    with pytest.raises(InfeasibleTask, match=r"does not prove that there is none; .* must be apart"):
        make(name, **SEARCHES[name])(task, SIMULATOR)


def test_a_budget_is_kept_where_no_plan_is_found():
    """Tables of more than a third of a device each, three to a device in sum: counts rule nothing out."""
    rng = np.random.default_rng(0)
    tables = make_pool(rows=rng.integers(9_000, 11_000, 600), dim=4, pooling=1.0)
    task = Task(tables, (int(table_bytes(Task(tables, (10**9,))).sum() * 1.00001 / 200),) * 200)
    start = time.perf_counter()
    with pytest.raises(InfeasibleTask, match="does not prove"):
        make("local-search", budget=0.2)(task, SIMULATOR)
    assert time.perf_counter() - start < 20


def test_a_large_task_with_rules_is_searched_as_others_are():
    task = suites.get("core-80x8").tasks("val")[0]
    free = make("auto", calls=20_000)(task, SIMULATOR)
    rules = Constraints(pin=[(0, 1)], together=[(2, 3)], apart=[tuple(range(10, 18))])
    ruled = dataclasses.replace(task, constraints=rules)
    plan = make("auto", calls=20_000)(ruled, SIMULATOR)
    assert not violations(ruled, plan)
    assert makespan(ruled, plan) < 1.01 * makespan(task, free)


@pytest.mark.parametrize("name", ["beam", "neuroshard"])
def test_progress_is_told_and_may_stop_before_the_end(name):
    task, told = suites.get("mixed-10to59x4-split").tasks("val")[0], []

    def stop(value, seconds):
        told.append(value)
        return True

    plan = make(name, progress=stop, budget=30.0)(task, SIMULATOR)
    assert makespan(task, plan) == pytest.approx(told[-1], rel=1e-12) and len(told) == 1


@pytest.mark.parametrize("name", ["beam", "neuroshard"])
def test_ctrl_c_returns_the_best_so_far(name):
    task, told = suites.get("mixed-10to59x4-split").tasks("val")[0], []

    def interrupt(value, seconds):
        told.append(value)
        if len(told) == 2:
            raise KeyboardInterrupt

    plan = make(name, progress=interrupt, budget=30.0)(task, SIMULATOR)
    assert makespan(task, plan) == pytest.approx(told[-1], rel=1e-12) and len(told) == 2
