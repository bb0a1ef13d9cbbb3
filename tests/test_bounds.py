from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym import Constraints, Plan, Task, simulators, suites
from shard_gym.bounds import certificate, least_filled, lower_bound, must_hold, shared_out
from shard_gym.bounds.shares import Share, below_a_unit, least_between, least_of, pieces_of, shares_of
from shard_gym.errors import InfeasibleTask, SimulatorError
from shard_gym.memory.usage import device_bytes, table_bytes
from shard_gym.plan.random_plans import random_placements
from shard_gym.results.evaluate import score
from shard_gym.simulators.base import counted
from shard_gym.simulators.learned import Learned
from shard_gym.tables.metasyn import load_metasyn
from shard_gym.task.links import Links
from shard_gym_agents import make
from tests.env_helpers import PoolingMs
from tests.pool_helpers import fp16_pool as make_pool

ROOFLINE = simulators.make("roofline:rtx2080ti-x4-v1")
PLANNER, JUDGE = simulators.make("learned:cpu-v1"), simulators.make("learned:cpu-judge-v1")
RAMPS = simulators.make("learned:cpu-v2")  # whose units stop growing
SIMULATORS = [ROOFLINE, *(simulators.make(f"roofline:{name}-v1") for name in ("a100-x32-roce", "h100")), PLANNER, JUDGE]
WIRES = [
    None,
    Links(port=1e6, latency_ms=0.1),
    Links(port=3e5, group=2, uplink=1e5),
    Links(port=2e5, group=2, uplink=1e5, fabric=2e5, peer_to_peer=False),
    Links(port=4e5, group=3, uplink=5e4),
]
BY_ID = pytest.mark.parametrize("simulator", SIMULATORS, ids=lambda s: s.id)


def drawn_task(seed: int, objective: str, splits: bool = False, most: int = 14) -> Task:
    """Few tables, some far heavier than others, on devices of any memory and speed that hold them at least once."""
    rng = np.random.default_rng(seed)
    n, devices = int(rng.integers(1, most)), int(rng.integers(1, 6))
    tables = load_metasyn(0, 856).take(rng.choice(856, n))
    tables = tables.with_(dim=rng.choice([4, 16, 64, 128], n).astype(np.int32))
    tables = tables.with_(bags=np.random.default_rng([seed, 1]).choice([1, 1, 3, 0.3], n))
    task = Task(tables, (1,) * devices, objective, splits_allowed=splits, links=WIRES[rng.integers(len(WIRES))])
    size = table_bytes(task)
    room = rng.choice([1.02, 1.3, 9.0]) * size.sum() / devices * rng.uniform(0.6, 1.4, devices)
    speed = tuple(rng.choice([1.0, 0.6, 0.3], devices)) if rng.random() < 0.5 else ()
    return replace(task, memory=tuple(np.maximum(room, size.max()).astype(int).tolist()), speed=speed)


def plans(task: Task, simulator: object, seed: int) -> list[Plan]:
    found = [make("local-search", budget=0.02)(task, simulator)]
    unsplit = replace(task, splits_allowed=False)
    drawn = random_placements(unsplit, 20, np.random.default_rng(seed))
    return [*found, *(Plan(tuple(placement.tolist())) for placement in drawn)]


def split_plans(task: Task, seed: int) -> list[Plan]:
    """Plans of random halvings; whether memory holds them is not asked."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(8):
        splits, now = [], task
        for _ in range(rng.integers(1, 8)):
            may = np.flatnonzero(now.tables.dim % 8 == 0)
            if len(may):
                splits.append(int(rng.choice(may)))
                now = task.split(splits)
        found.append(Plan(tuple(rng.integers(task.num_devices, size=now.num_tables).tolist()), tuple(splits)))
    return found


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["kernel", "iteration"]))
@BY_ID
def test_no_plan_beats_the_bound(simulator, seed, objective):
    task = drawn_task(seed, objective)
    try:
        known = plans(task, simulator, seed)
    except InfeasibleTask:
        return
    bound = lower_bound(task, simulator, budget=0.0)
    best = min(score(task, plan, simulator).makespan for plan in known)
    assert 0 < bound <= best


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["kernel", "iteration"]))
@BY_ID
def test_no_plan_with_splits_beats_the_bound_where_splits_are_allowed(simulator, seed, objective):
    task = replace(drawn_task(seed, objective, splits=True), memory=(2**60,) * drawn_task(seed, objective).num_devices)
    bound = lower_bound(task, simulator, budget=0.0)
    assert bound <= lower_bound(replace(task, splits_allowed=False), simulator, budget=0.0) * (1 + 1e-6) + 1e-9
    assert bound <= min(score(task, plan, simulator).makespan for plan in split_plans(task, seed))


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["kernel", "iteration"]))
@BY_ID
def test_the_bound_holds_for_the_very_best_plan(simulator, seed, objective):
    task = drawn_task(seed, objective, most=6)
    everywhere = np.array(list(product(range(task.num_devices), repeat=task.num_tables)))
    fits = (device_bytes(task, everywhere) <= task.capacity).all(axis=1)
    if fits.any():
        best = simulator.latency(task, everywhere[fits]).makespan(objective).min()
        assert lower_bound(task, simulator, budget=0.0) <= best


@pytest.mark.parametrize(
    ("key", "share"),
    [("dlrm-50x4", 0.995), ("core-80x8", 0.97), ("hetero-80x8", 0.97), ("tight-80x8", 0.96), ("metasyn-80x8", 0.96)],
)
def test_bounds_are_near_what_local_search_finds(key, share):
    suite = suites.get(key)
    task, judge = suite.tasks("test")[0], simulators.make(suite.judge)
    found = score(task, make("local-search", calls=20_000)(task, judge), judge).makespan
    assert share * found < lower_bound(task, judge) <= found


def test_the_bound_is_tight_where_every_bag_travels():
    """Alike tables of three bags, one a device, over slow wires: nothing is better, and the bound says so."""
    links = Links(port=1e5)
    task = Task(make_pool(rows=10, dim=64, pooling=[3.0] * 4, bags=3.0), (10**9,) * 4, "iteration", links=links)
    best = score(task, Plan((0, 1, 2, 3)), ROOFLINE).makespan
    assert best > 2 * (3 * 64 * 3 * 65_536 / 4 * 4 / 1e5)  # two all-to-alls; each device sends 192 columns to 3 others
    assert lower_bound(task, ROOFLINE, budget=0.0) == pytest.approx(best, rel=1e-6)


def one_heavy(**settings) -> Task:
    """Table 0 is looked up a thousand times as often as the others."""
    tables = make_pool(rows=10_000, dim=16, pooling=[500.0] + [0.5] * 7)
    return Task(tables, **{"memory": (10**9,) * 4, **settings})


def test_the_certificate_tells_what_binds():
    found = certificate(one_heavy(), ROOFLINE)
    assert (found.resource, found.table) == ("one table", 0)
    assert found.fill == pytest.approx(8 * 320_000 / 4e9)
    even = make_pool(rows=10_000, dim=16, pooling=[5.0] * 64)
    assert certificate(Task(even, memory=(10**9,) * 4), ROOFLINE).resource == "compute"
    slow = Task(even, memory=(10**9,) * 4, objective="iteration", links=Links(port=1e3))
    assert certificate(slow, ROOFLINE).resource == "comm"
    assert certificate(slow, ROOFLINE).comm_ms > 0.5 * certificate(slow, ROOFLINE).makespan


def test_memory_binds_where_the_heavy_table_fits_on_the_slow_device_only():
    task = one_heavy(memory=(100_000, 10**9), speed=(1.0, 0.1))
    with pytest.raises(InfeasibleTask, match="too few"):
        certificate(replace(task, memory=(100_000, 100_000)), ROOFLINE)
    bound = certificate(task, ROOFLINE)
    assert (bound.resource, bound.table) == ("memory", 0)
    all_there = score(task, Plan((1,) * 8), ROOFLINE).makespan
    assert 0.99 * all_there < bound.makespan <= all_there
    assert bound.makespan > 9 * lower_bound(replace(task, memory=(10**9,) * 2), ROOFLINE)


def test_memory_binds_where_a_device_must_hold_more_than_its_heavy_table():
    """Two devices have room for 8 of 16 tables each, so nothing is left over: the light ones go along."""
    tables = make_pool(rows=1_000, dim=16, pooling=[80.0] + [5.0] * 15)
    full = Task(tables, memory=(8 * 32_000,) * 2)
    wide = replace(full, memory=(16 * 32_000,) * 2)
    assert certificate(full, ROOFLINE).resource == "memory"
    with_seven = score(full, Plan((0,) * 8 + (1,) * 8), ROOFLINE).makespan
    assert lower_bound(full, ROOFLINE) == pytest.approx(with_seven, rel=1e-6)
    assert lower_bound(wide, ROOFLINE) < 0.99 * with_seven


def test_a_pinned_table_is_bound_to_its_device():
    task = one_heavy(speed=(1.0, 1.0, 1.0, 0.5))
    pinned = replace(task, constraints=Constraints(pin=((0, 3),)))
    assert lower_bound(pinned, ROOFLINE) == pytest.approx(2 * lower_bound(task, ROOFLINE))


def test_nine_equal_tables_on_eight_devices_share_one():
    tables = make_pool(rows=10_000, dim=16, pooling=[50.0] * 9)
    task = Task(tables, memory=(10**9,) * 8)
    pair = score(task, Plan((0, 0, 1, 2, 3, 4, 5, 6, 7)), ROOFLINE).makespan
    assert lower_bound(task, ROOFLINE) == pytest.approx(pair, rel=1e-6)


def test_splits_lower_the_bound_of_one_wide_table():
    tables = make_pool(rows=10**7, dim=512, pooling=[40.0] + [0.1] * 7)
    task = Task(tables, memory=(2**40,) * 4)
    assert lower_bound(replace(task, splits_allowed=True), ROOFLINE) < 0.9 * lower_bound(task, ROOFLINE)
    kept = replace(task, splits_allowed=True, constraints=Constraints(no_split=tuple(range(8))))
    assert lower_bound(kept, ROOFLINE) == lower_bound(task, ROOFLINE)


def test_a_simulator_without_a_proof_is_refused():
    with pytest.raises(SimulatorError, match="no bound is known for pooling-ms"):
        lower_bound(one_heavy(), PoolingMs())
    assert lower_bound(one_heavy(), counted(ROOFLINE)) == lower_bound(one_heavy(), ROOFLINE)


def test_weights_that_lower_a_factor_are_refused(monkeypatch):
    wrong = Learned(simulators.learned.shipped("cpu-v1"))
    monkeypatch.setitem(wrong.network.t, "factor/1/weight", -wrong.network.t["factor/1/weight"])
    with pytest.raises(SimulatorError, match="negative weights"):
        lower_bound(one_heavy(), wrong)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6))
@pytest.mark.parametrize("simulator", [PLANNER, JUDGE, RAMPS], ids=lambda s: s.id)
@pytest.mark.parametrize("phase", ["forward", "backward", "both"])
def test_no_shard_of_a_weight_costs_less_than_its_least(phase, simulator, seed):
    rng = np.random.default_rng(seed)
    task = suites.get("metasyn-80x8").tasks("test")[seed % 10]
    pieces = pieces_of(task, simulator)
    share = next(shares_of(simulator, pieces, phase, 8))
    order = np.argsort(
        rng.choice([-1, 1]) * share.weights / pieces.alone[phase][0] + rng.normal(0, 0.02, 80)
    )  # odd shards as well
    held = order[: rng.integers(1, 40)]
    placement = np.full((1, 80), -1)
    placement[0, held] = 0
    latency = simulator.latency(replace(task, objective="kernel"), placement)
    cost = {"forward": latency.forward_compute, "backward": latency.backward_compute, "both": latency.compute}[phase]
    assert share.least(float(share.weights[held].sum()) * (1 - 1e-9)) <= cost[0, 0]


def test_a_line_below_a_unit_that_stops():
    seen = np.array([[-3.0, -1.0], [-2.0, 0.5], [-1.0, 4.0], [0.2, 0.7], [0.2, 4.0], [2.0, 3.0]])
    slope, start = below_a_unit(*seen.T, 1.0)
    inside = np.linspace(*seen.T, 101)
    assert (start + slope * inside <= inside.clip(0, 1) + 1e-12).all()
    assert (slope + start)[[3, 5]].tolist() == [1, 1] and slope[2] == 1 / 4  # as good as they can be


def test_devices_of_two_speeds_share_weights_by_speed():
    """Weights of 9 at a millisecond each, on speeds 2 and 1: 6 and 3, so 3 ms; with a fixed cost of 1 it is 11 / 3."""
    share = Share(np.array([9.0]), lambda weight: weight, lambda weight: weight)
    assert shared_out(share, np.array([2.0, 1.0]), np.zeros(2)) == pytest.approx(3)
    fixed = Share(np.array([9.0]), lambda weight: weight + 1, lambda weight: weight + 1)
    assert shared_out(fixed, np.array([2.0, 1.0]), np.zeros(2)) == pytest.approx(11 / 3)
    assert shared_out(share, np.array([1.0, 1.0]), np.array([0.0, 100.0])) == pytest.approx(9)


def test_knapsacks_by_hand():
    value, x = least_of(np.array([[3.0, 1.0, 2.0]]), np.array([1.0, 1.0, 2.0]), 2.0)
    assert value[0] == 2 and x.tolist() == [[0, 1, 0.5]]
    bounded = least_between(
        np.array([[3.0, 1.0, 2.0]]), np.ones(3), 1.0, np.array([9.0, 1.0, 1.0]), np.array([9.0]), np.array([9.0])
    )
    assert 2.9 < bounded[0] <= 3


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6))
def test_a_knapsack_of_two_sums_is_never_above_a_choice_it_allows(seed):
    rng = np.random.default_rng(seed)
    cost, weight, second, x = rng.normal(size=7), rng.uniform(0.1, 2, 7), rng.uniform(0.1, 2, 7), rng.uniform(size=7)
    low, high = np.sort(x @ second + rng.uniform(-1, 1, 2) * [1, -1])
    low, high = min(low, x @ second), max(high, x @ second)
    found = least_between(cost[None], weight, weight @ x, second, np.array([low]), np.array([high]))
    assert found[0] <= cost @ x + 1e-9


def test_what_must_be_held_by_hand():
    assert must_hold(10, np.array([6, 5])).tolist() == [5, 4]
    assert must_hold(10, np.array([20, 5])).tolist() == [5, 0]
    filled = least_filled(np.array([9.0, 1.0, 4.0]), np.array([2, 2, 2]), 3)
    assert filled.tolist() == [9.5, 3.0, 4.5]  # beside the table half of the lightest other
