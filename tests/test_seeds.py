"""Placements that searches begin from, in the time there is."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym import Constraints, Task, simulators, suites
from shard_gym.errors import InfeasibleTask
from shard_gym.results.evaluate import score
from shard_gym_agents import make
from shard_gym_agents.search import greedy, rounds, seeds, state
from shard_gym_agents.search.greedy import by_cost, place
from shard_gym_agents.search.state import Board, Budget, Costs, Late, Pace
from shard_gym_agents.solvers.greedy import COSTS
from shard_gym_agents.solvers.solver import task_rng
from tests.pool_helpers import fp16_pool as make_pool
from tests.search_helpers import SIMULATOR


def drawn(seed, objective="kernel", room=1.3, devices=9):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(20, 80))
    rows, pooling = rng.integers(10, 10**6, n), rng.choice([0.0, 1.0, 7.0, 40.0], n)
    pool = make_pool(rows=rows, dim=rng.choice([4, 16, 64], n), pooling=pooling)
    capacity = max(int(room * pool.weight_bytes.sum() / devices), int(pool.weight_bytes.max()))
    speed = tuple(rng.choice([1.0, 0.6], devices).tolist())
    return Task(pool, (capacity,) * devices, objective=objective, speed=speed)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([1.0, 1.1, 9.0]),
    st.sampled_from([1.0, 1.3, np.inf]),
    st.booleans(),
    st.sampled_from(["roofline:h100-v2", "learned:cpu-v1"]),
)
def test_rounds_place_every_piece_where_one_after_another_does(seed, room, limit, by_size, planner_id):
    """Full devices, equal loads, pieces that cost nothing and devices of two speeds."""
    task = drawn(seed, room=room)
    board = Board(task, Costs(task, simulators.make(planner_id)))
    nodes = by_cost(board, board.whole)[None]
    if by_size:
        nodes = board.whole[np.argsort(-board.size[board.whole], kind="stable")][None]
    nodes = np.concatenate([nodes, [[board.none]]], axis=1)  # as of a variant with fewer pieces
    columns = np.array([limit * board.dim[board.whole].sum() / task.num_devices])
    expected, found = place(board, nodes, columns), greedy._place_in_rounds(board, nodes, columns, None)
    np.testing.assert_array_equal(expected.device[:, :-1], found.device[:, :-1])
    np.testing.assert_array_equal(expected.sums, found.sums)
    assert expected.feasible.tolist() == found.feasible.tolist()


def test_rounds_ask_about_many_pieces_at_once():
    task = Task(make_pool(rows=100, dim=4, pooling=np.arange(1.0, 1_001.0)), (10**9,) * 100)
    asked = simulators.Counted(SIMULATOR)
    board = Board(task, Costs(task, asked))
    before = asked.calls
    placed = place(board, by_cost(board, board.whole)[None])
    assert task.num_devices >= rounds.MANY and placed.feasible.all()
    assert asked.calls - before < len(board.whole) / 4


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until somebody turns it."""
    now = [0.0]
    for module in (state, seeds):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    return now


def steps_at(pace, clock, each):
    for step in range(pace.pieces):
        clock[0] += each
        try:
            pace.step()
        except Late:
            return step + 1
    return pace.pieces


def test_a_greedy_that_would_end_late_is_stopped_as_soon_as_that_shows(clock):
    assert steps_at(Pace(Budget(0.05, 0), 80), clock, 1e-3) == state.TOLD[0]
    assert steps_at(Pace(Budget(0.081, 0), 80), clock, 1e-3) == 80
    assert steps_at(Pace(Budget(0.0, 1), 80), clock, 1e-3) == 80  # plans asked about say nothing of time
    assert steps_at(Pace(Budget(1.0, 0), 6_400), clock, 1e-3) == 100  # of many pieces the first ones say less


class Slow(simulators.FastSimulator):
    """A simulator of whom each question takes a millisecond."""

    id = "slow"

    def __init__(self, clock):
        self.clock = clock

    def embed(self, task):
        return SIMULATOR.embed(task)

    def decode(self, task, sums):
        self.clock[0] += 1e-3
        return SIMULATOR.decode(task, sums)


@pytest.mark.parametrize(("seconds", "asks"), [(0.06, False), (5.0, True)])
def test_greedies_that_ask_the_planner_are_left_out_where_they_would_be_late(clock, seconds, asks):
    task = suites.get("core-80x8").tasks("val")[0]
    planner = Slow(clock)
    begun = clock[0]
    best = seeds.best_seed(Board(task, Costs(task, planner)), Budget(seconds, 0), task_rng(0, task))
    named = [score(task, make(f"{cost}-greedy")(task, planner), SIMULATOR).makespan for cost in COSTS]
    assert not best.amiss and (best.makespan < 0.99 * min(named)) == asks
    assert asks or clock[0] - begun < seconds


def test_where_no_search_would_begin_in_time_there_is_the_first_greedys_plan(clock):
    few, planner = suites.get("core-80x8").tasks("val")[0], Slow(clock)
    many = dataclasses.replace(few, tables=few.tables.take(np.arange(2_400) % 80), memory=(10**13,) * 8)
    for name in ("auto", "local-search"):
        assert make(name, budget=0.01)(many, planner) == make("lookup-greedy")(many, planner)
        assert clock[0] == 0  # nothing was asked
    for task, budget in ((many, Budget(0.1, 0)), (many, Budget(0.01, 1)), (few, Budget(0.0, 0))):
        assert seeds.in_haste(task, planner, budget) is None
    assert seeds.in_haste(dataclasses.replace(many, memory=(1,) * 8), planner, Budget(0.0, 0)) is None
    base = Constraints(base=(0,) * 2_400, max_moves=2_400)
    assert seeds.in_haste(dataclasses.replace(many, constraints=base), planner, Budget(0.0, 0)) is None


def test_where_memory_is_tight_an_overflowing_seed_is_mended():
    """Better than all greedies that find a plan by themselves, on most tasks of a suite of dead ends."""
    suite = suites.get("tightmix-80x8")
    planner, better = simulators.make(suite.planner), 0
    for task in suite.tasks("val")[:6]:
        board = Board(task, Costs(task, planner))
        best = seeds.best_seed(board, Budget(0.0, 1), task_rng(0, task))
        named = []
        for name in ("lookup-greedy", "size-greedy", "dim-greedy", "cost-greedy"):
            try:
                named.append(score(task, make(name)(task, planner), planner).makespan)
            except InfeasibleTask:
                continue
        found = score(task, best.plan(), planner)
        assert found.feasible and found.makespan <= min(named, default=np.inf)
        better += found.makespan < min(named, default=np.inf)
    assert better >= 2


def test_a_plan_comes_even_without_any_time():
    for objective in ("kernel", "iteration"):
        task = dataclasses.replace(drawn(3, room=2.0, devices=70), objective=objective)
        for name in ("auto", "local-search"):
            assert score(task, make(name, budget=0.0)(task, SIMULATOR), SIMULATOR).feasible


def test_the_ladders_pieces_are_a_placement_to_begin_from():
    """Tables together are one piece, which stays whole; the costliest other table comes in halves."""
    pool = make_pool(rows=10**6, dim=[256, 4, 4], pooling=[50.0, 1.0, 1.0])
    task = Task(pool, (10**10,) * 3, splits_allowed=True, constraints=Constraints(together=((1, 2),)))
    board = Board(task, Costs(task, SIMULATOR), splits=True)
    found = seeds.ladder(board, Budget(0, calls=10**6))
    plan = make("ladder")(task, SIMULATOR)
    assert found.plan().splits == plan.splits and 0 in plan.splits
    assert not found.amiss and found.makespan == score(task, plan, SIMULATOR).makespan
