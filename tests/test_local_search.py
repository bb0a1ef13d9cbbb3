import dataclasses
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym import Task, make_pool, simulators, suites
from shard_gym.errors import InfeasibleTask, InvalidTask, SimulatorError
from shard_gym.memory.usage import device_bytes, device_sums, table_bytes
from shard_gym.plan.plan import check
from shard_gym.plan.random_plans import random_placements
from shard_gym.plan.violations import violations
from shard_gym.results.evaluate import score
from shard_gym.simulators import Counted
from shard_gym_agents import make
from shard_gym_agents.search.local_search import kick, search
from shard_gym_agents.search.moves import improve
from shard_gym_agents.search.repair import repair
from shard_gym_agents.search.state import Board, Budget, Costs, State
from shard_gym_agents.solvers.solver import task_rng
from tests.search_helpers import SIMULATOR, best_by_force, draw_task

SEEDS = st.integers(0, 10**6)
OBJECTIVES = st.sampled_from(["kernel", "iteration"])


def board_of(task, splits=False):
    return Board(task, Costs(task, SIMULATOR), splits)


def assert_consistent(state):
    """Running sums and costs are those of the placement, made afresh."""
    fresh = State(state.board, state.node, state.device)
    for name in ("sums", "free", "forward", "own"):
        np.testing.assert_allclose(getattr(state, name), getattr(fresh, name), rtol=1e-12)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(SEEDS, OBJECTIVES, st.sampled_from([1.02, 1.2, 9.0]))
def test_the_best_of_all_placements_is_found_on_tiny_tasks(seed, objective, room):
    task = draw_task(seed, objective, room)
    best = best_by_force(task)
    if best == np.inf:
        with pytest.raises(InfeasibleTask, match=r"bytes.*too few"):
            make("local-search", calls=2_000)(task, SIMULATOR)
        return
    found = score(task, make("local-search", calls=2_000)(task, SIMULATOR), SIMULATOR)
    assert found.feasible
    assert found.makespan == pytest.approx(best, rel=1e-9)


@settings(max_examples=25, deadline=None)
@given(SEEDS, OBJECTIVES, st.booleans())
def test_a_search_is_never_worse_than_its_start_and_keeps_its_sums(seed, objective, splits):
    task = draw_task(seed, objective, room=3.0, splits=splits, tables=30)
    rng = np.random.default_rng(seed)
    start = board_of(task, splits).start(random_placements(task, 1, rng)[0])
    before = start.makespan
    found = search(start, Budget(0, 400), rng)
    assert start.makespan == before
    assert found.makespan <= before
    assert not found.overflow
    assert_consistent(found)


@settings(max_examples=25, deadline=None)
@given(SEEDS, OBJECTIVES)
def test_a_plan_with_splits_is_the_placement_it_came_from(seed, objective):
    task = draw_task(seed, objective, room=9.0, splits=True, tables=10)
    rng = np.random.default_rng(seed)
    state = board_of(task, splits=True).start(np.zeros(task.num_tables, int))
    for _ in range(20):
        may_split = np.flatnonzero(state.board.may_split[state.node])
        if len(may_split) and rng.random() < 0.7:
            state.halve(int(rng.choice(may_split)), int(rng.integers(task.num_devices)))
        else:
            kick(state, rng)
    state.rescore()
    improve(state, rng)
    plan = state.plan()
    tables = check(task, plan)
    assert tables.num_tables == len(state.node)
    found = device_sums(SIMULATOR.embed(tables), np.array(plan.device), task.num_devices)
    np.testing.assert_array_equal(found, state.sums)
    assert score(task, plan, SIMULATOR).makespan == pytest.approx(state.makespan, rel=1e-12)


@pytest.mark.parametrize("name", ["local-search", "beam", "auto"])
@pytest.mark.parametrize("most", [0, 1, 2])
def test_a_table_is_quartered_where_not_even_its_half_fits_beside_another(name, most):
    """A half of a table of 100 parts fits on one device only, quarters on all."""
    tables = make_pool(rows=[1_000, 10], dim=64, pooling=[30, 1])
    size, memory = int(tables.weight_bytes[0]), [0.46, 0.44, 0.42]
    memory[most] = 0.52
    capacities = tuple(int(share * size) for share in memory)
    task = dataclasses.replace(draw_task(0), tables=tables, memory=capacities, speed=(), splits_allowed=True)
    assert score(task, make(name, calls=200)(task, SIMULATOR), SIMULATOR).feasible


def test_halves_that_meet_are_joined_again():
    """Two tables on two devices, one of them in halves: whole, each on a device of its own, they cost least."""
    tables = make_pool(rows=10_000, dim=64, pooling=[40, 40])
    task = dataclasses.replace(draw_task(0), tables=tables, memory=(10**9,) * 2, speed=(), splits_allowed=True)
    state = board_of(task, splits=True).start([0, 1])
    whole = state.makespan
    state.halve(0, 1)
    state.rescore()
    state.refresh(range(task.num_devices))
    while improve(state, np.random.default_rng(0)):
        pass
    assert len(state.node) == 2
    assert state.makespan == whole
    assert_consistent(state)


@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_a_repair_ends_without_overflow_or_says_so(seed):
    task = draw_task(seed, room=1.15, tables=8)
    state = board_of(task).start(np.zeros(task.num_tables, int))
    assert state.overflow > 0 or task.num_tables == 1
    mended = repair(state, np.random.default_rng(seed))
    assert (not mended.overflow) == (not mended.amiss) == (best_by_force(task) < np.inf)
    assert_consistent(mended)


def test_dead_ends_of_greedies_are_escaped():
    suite, dead_ends = suites.get("tightmix-80x8"), 0
    planner = simulators.make(suite.planner)
    for task in suite.tasks("test")[:20]:
        try:
            make("cost-greedy")(task, planner)
        except InfeasibleTask:
            dead_ends += 1
        assert score(task, make("local-search", calls=2_000)(task, planner), planner).feasible
    assert dead_ends > 5


@pytest.mark.parametrize("key", ["core-80x8", "metasyn-80x8", "tightmix-80x8-split"])
def test_seed_and_calls_decide(key):
    suite = suites.get(key)
    task, planner = suite.tasks("val")[0], simulators.make(suite.planner)
    one, same, other = (make("local-search", calls=15_000, seed=s)(task, planner) for s in (1, 1, 2))
    assert one == same != other


def test_a_budget_of_seconds_is_kept():
    task = suites.get("core-80x8").tasks("val")[0]
    start = time.perf_counter()
    make("local-search", budget=0.1)(task, SIMULATOR)
    assert 0.1 <= time.perf_counter() - start < 5


@pytest.mark.parametrize("settings", [{"budget": -1.0}, {"budget": float("nan")}, {"calls": -1}])
def test_a_budget_below_zero_is_refused(settings, tiny_task):
    with pytest.raises(InvalidTask, match="budget"):
        make("local-search", **settings)(tiny_task, SIMULATOR)


def test_progress_is_told_and_may_stop_the_search():
    task = suites.get("core-80x8").tasks("val")[0]
    told = []

    def stop_at_three(makespan, seconds):
        told.append((makespan, seconds))
        return len(told) == 3

    plan = make("local-search", budget=30.0, progress=stop_at_three)(task, SIMULATOR)
    assert len(told) == 3 and told == sorted(told, key=lambda t: (-t[0], t[1]))
    assert score(task, plan, SIMULATOR).makespan == pytest.approx(told[-1][0], rel=1e-12)


def test_ctrl_c_ends_a_search_that_somebody_watches():
    task, told = suites.get("core-80x8").tasks("val")[0], []

    def interrupt(makespan, seconds):
        told.append(makespan)
        if len(told) == 3:
            raise KeyboardInterrupt

    plan = make("local-search", budget=30.0, progress=interrupt)(task, SIMULATOR)
    found = score(task, plan, SIMULATOR)
    assert found.feasible and found.makespan == pytest.approx(told[-1], rel=1e-12)


def test_progress_is_told_on_the_way_down_and_changes_nothing():
    task, told = suites.get("core-80x8").tasks("val")[0], []
    start = np.zeros(task.num_tables, int)
    watched, alone = (
        search(board_of(task).start(start), Budget(0, 3_000), np.random.default_rng(0), progress)
        for progress in (lambda makespan, seconds: told.append(makespan), None)
    )
    assert watched.plan() == alone.plan()
    assert len(told) > 20  # one descent from everything on one device


class NanFromNowOn(simulators.FastSimulator):
    """The simulator of these tests, until `wrong` is set."""

    id, wrong = "nan-from-now-on", False

    def embed(self, task):
        return SIMULATOR.embed(task)

    def decode(self, task, sums):
        latency = SIMULATOR.decode(task, sums)
        backward = np.full_like(latency.backward_compute, np.nan) if self.wrong else latency.backward_compute
        return dataclasses.replace(latency, backward_compute=backward)


@pytest.mark.parametrize("objective", ["kernel", "iteration"])
def test_a_change_that_is_worth_nan_is_not_made(objective):
    planner, task = NanFromNowOn(), draw_task(0, objective, room=9.0)
    state = Board(task, Costs(task, planner)).start(np.zeros(task.num_tables, int))
    planner.wrong = True
    with pytest.raises(SimulatorError, match="predicts NaN"):
        improve(state, np.random.default_rng(0))


def test_it_plans_better_than_cost_greedy_at_size():
    suite = suites.get("core-80x8")
    for task in suite.tasks("val")[:3]:
        greedy = score(task, make("cost-greedy")(task, SIMULATOR), SIMULATOR).makespan
        found = score(task, make("local-search", calls=10_000)(task, SIMULATOR), SIMULATOR).makespan
        assert found < 0.999 * greedy


def test_random_plans_where_memory_is_tight_fit_and_differ():
    task = suites.get("tightmix-80x8").tasks("test")[0]
    drawn = random_placements(task, 200, task_rng(0, task))
    assert drawn.shape == (200, 80)
    assert (device_bytes(task, drawn) <= task.capacity).all()
    assert len(np.unique(drawn, axis=0)) == 200


def test_calls_count_from_each_search_on():
    """A planner that counts, and was asked before, as in training or on a leaderboard."""
    task, counted = draw_task(3, "iteration", 1.3), Counted(SIMULATOR)
    solver = make("local-search", calls=2_000)
    first = solver(task, counted)
    spent = counted.calls
    assert solver(task, counted) == first and counted.calls == 2 * spent > 0


@pytest.mark.parametrize("seed", range(4))
def test_the_only_way_to_fill_two_devices_is_found_though_tables_may_be_halved(seed):
    """Halvings that make no room are taken back: in halves there are more ways to go wrong."""
    rng = np.random.default_rng(seed)
    tables = make_pool(rows=rng.integers(10_000, 1_000_000, 10), dim=32, pooling=1.0)
    size, on_first = table_bytes(Task(tables, (10**12,))), rng.permutation(10) < 5
    memory = (int(size[on_first].sum()), int(size[~on_first].sum()))
    task = Task(tables, memory, splits_allowed=True)
    plan = make("local-search", calls=300)(task, SIMULATOR)
    assert not violations(task, plan)
