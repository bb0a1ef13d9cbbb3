import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym import Constraints, Plan, Task, simulators, suites
from shard_gym.errors import InfeasibleTask, InvalidTask
from shard_gym.memory.usage import device_bytes
from shard_gym.plan.moves import aligned, delta
from shard_gym.plan.random_plans import random_placements
from shard_gym.plan.violations import violations
from shard_gym.results.evaluate import score
from shard_gym_agents import make
from tests.pool_helpers import fp16_pool as make_pool
from tests.search_helpers import SIMULATOR, draw_task
from tests.test_auto import Unsure

FAST = {"calls": 3_000}


def total_ms(task, plan, horizon, gb_s=10.0):
    """Steps at the plan's makespan, and the time to move."""
    moved = delta(task, Plan(task.constraints.base), plan)
    return horizon * score(task, plan, SIMULATOR).makespan + 1e3 * moved.seconds(gb_s * 1e9)


def with_base(task, seed=0, **constraints):
    """The task with a random feasible plan in use."""
    base = random_placements(task, 1, np.random.default_rng(seed))[0]
    return replace(task, constraints=Constraints(base=tuple(base.tolist()), **constraints))


@pytest.mark.parametrize("horizon", [10, 100, 10_000])
def test_it_beats_staying_and_planning_afresh(horizon):
    for seed, task in enumerate(suites.get("core-80x8").tasks("val")[:3]):
        task = with_base(task, seed)
        base, fresh = (
            Plan(task.constraints.base),
            make("auto", calls=1_000)(replace(task, constraints=Constraints()), SIMULATOR),
        )
        found = make("reshard", calls=20_000, horizon=horizon)(task, SIMULATOR)
        assert not violations(task, found)
        others = (base, fresh, aligned(task, base, fresh, SIMULATOR.hardware.links))
        totals = [total_ms(task, plan, horizon) for plan in others]
        assert total_ms(task, found, horizon) < min(totals)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.sampled_from(["kernel", "iteration"]), st.sampled_from([1e-3, 0.03, 1.0]))
def test_nothing_costs_less_on_a_tiny_task(seed, objective, horizon):
    """The plan in use fits in one half of the draws, and may not in the other."""
    task = draw_task(seed, objective, room=1.6, tables=5)
    every = np.array(list(product(range(task.num_devices), repeat=task.num_tables)))
    fits = every[(device_bytes(task, every) <= task.capacity).all(axis=1)]
    if not len(fits):
        return
    in_use = fits if seed % 2 else every
    base = in_use[np.random.default_rng(seed).integers(len(in_use))]
    task = replace(task, constraints=Constraints(base=tuple(base.tolist())))
    best = min(total_ms(task, Plan(device), horizon) for device in fits)
    found = make("reshard", **FAST, horizon=horizon)(task, SIMULATOR)
    assert total_ms(task, found, horizon) == pytest.approx(best, rel=1e-9)


def test_a_plan_that_is_not_used_any_longer_stays():
    task = with_base(suites.get("core-80x8").tasks("val")[0])
    assert make("reshard", **FAST, horizon=0)(task, SIMULATOR) == Plan(task.constraints.base)


def test_more_moves_the_longer_the_plan_is_used():
    task = with_base(suites.get("core-80x8").tasks("val")[1])
    base = Plan(task.constraints.base)
    moved = [delta(task, base, make("reshard", **FAST, horizon=h)(task, SIMULATOR)).bytes for h in (1, 30, 1_000)]
    assert moved[0] < moved[1] < moved[2]


def test_it_ends_where_only_moves_that_are_not_allowed_fit():
    """Nothing of the slow device fits on the other one, which could give it a table."""
    tables = make_pool(rows=[1_000, 100], dim=16, pooling=[50, 1])
    constraints = Constraints(base=(0, 1), max_moves=0)
    task = Task(tables, (10**6, 100 * 32), constraints=constraints)
    assert make("reshard", calls=100)(task, SIMULATOR) == Plan((0, 1))


def test_where_nothing_is_in_use_the_plan_is_autos(tiny_task):
    assert make("reshard", calls=300)(tiny_task, SIMULATOR) == make("auto", calls=300)(tiny_task, SIMULATOR)


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 3))
def test_constraints_are_kept(seed, max_moves):
    """The plan in use keeps them, so something always does."""
    rng = np.random.default_rng(seed)
    tables = make_pool(rows=rng.integers(10, 10**6, 12), dim=16, pooling=rng.exponential(30, 12))
    base = (0, 0, 1, 2, *rng.integers(3, size=8).tolist())
    kept = {"pin": ((4, base[4]),), "together": ((0, 1),), "apart": ((1, 2, 3),)}
    for more in ({}, {"max_moves": max_moves}):
        task = Task(tables, (10**9,) * 3, constraints=Constraints(base=base, **kept, **more))
        found = make("reshard", calls=1_000)(task, SIMULATOR)
        assert not violations(task, found)
        assert total_ms(task, found, 10_000) <= total_ms(task, Plan(base), 10_000)


@pytest.mark.parametrize("kind", ["pin", "together", "apart", "max_moves"])
def test_what_constraints_leave_is_improved(kind):
    task = with_base(suites.get("core-80x8").tasks("val")[0])
    base = task.constraints.base
    on = [[t for t in range(80) if base[t] == d] for d in range(8)]
    told = {
        "pin": {"pin": tuple((t, base[t]) for t in range(40))},
        "together": {"together": tuple(tuple(tables[:4]) for tables in on)},
        "apart": {"apart": tuple(tuple(tables[i] for tables in on) for i in range(3))},
        "max_moves": {"max_moves": 5},
    }
    task = replace(task, constraints=Constraints(base=base, **told[kind]))
    found = make("reshard", **FAST)(task, SIMULATOR)
    assert not violations(task, found)
    assert total_ms(task, found, 10_000) < 0.99 * total_ms(task, Plan(base), 10_000)


def grown(seed, tables=500, devices=16, grow=20, fill=0.93):
    """A task whose plan in use was made before some of its tables grew by 60 %, so that devices are over."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(10**4, 10**7, tables)
    pool = make_pool(rows=rows, dim=rng.choice([16, 32, 64, 128], tables), pooling=rng.exponential(10, tables))
    task = Task(pool, (int(pool.weight_bytes.sum() / devices / fill),) * devices, objective="iteration")
    base = make("auto", calls=2_000)(task, SIMULATOR)
    factor = np.ones(tables)
    factor[rng.choice(tables, grow, replace=False)] = 1.6
    pool = pool.with_(rows=(rows * factor).astype(np.int64))
    return replace(task, tables=pool, constraints=Constraints(base=base.device))


def moved_by_hand(task):
    """The least tables that will do leave each device that is over, for where most room is; None if there is none."""
    device, size = list(task.constraints.base), task.tables.weight_bytes
    for over in np.flatnonzero(device_bytes(task, np.array(device)) > task.capacity):
        free = task.capacity - device_bytes(task, np.array(device))
        there = [t for t in np.argsort(size) if device[t] == over and size[t] >= -free[over]]
        if not there or size[there[0]] > free.max():
            return None
        device[there[0]] = int(free.argmax())
    return Plan(tuple(device))


@pytest.mark.parametrize("seed", [1, 5])
@pytest.mark.parametrize("horizon", [10, 10_000])
def test_a_plan_in_use_that_outgrew_its_devices_is_mended_first(seed, horizon):
    """The case reported: 500 tables, 20 of them grown, four devices over; 363 tables moved, to a slower plan."""
    task = grown(seed)
    base, mended = Plan(task.constraints.base), moved_by_hand(task)
    assert violations(task, base) and mended is not None and not violations(task, mended)
    found = make("reshard", calls=20_000, horizon=horizon)(task, SIMULATOR)
    fresh = make("auto", calls=2_000)(replace(task, constraints=Constraints()), SIMULATOR)
    others = (mended, fresh, aligned(task, base, fresh, SIMULATOR.hardware.links))
    assert total_ms(task, found, horizon) < min(total_ms(task, plan, horizon) for plan in others)
    assert delta(task, base, found).tables < 100


@settings(max_examples=7, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.sampled_from([0.8, 0.9, 0.97]), st.sampled_from([1.0, 100.0, 10_000.0]))
def test_it_is_never_worse_than_a_repair_staying_or_a_fresh_plan(seed, fill, horizon):
    try:
        task = grown(seed, tables=40, devices=4, grow=5, fill=fill)
        fresh = make("auto", calls=500)(replace(task, constraints=Constraints()), SIMULATOR)
    except InfeasibleTask:
        return
    base = Plan(task.constraints.base)
    plans = [base, moved_by_hand(task), fresh, aligned(task, base, fresh, SIMULATOR.hardware.links)]
    totals = [total_ms(task, plan, horizon) for plan in plans if plan is not None and not violations(task, plan)]
    found = make("reshard", calls=4_000, horizon=horizon)(task, SIMULATOR)
    assert not violations(task, found)
    assert total_ms(task, found, horizon) <= min(totals) * (1 + 1e-9)


@pytest.mark.parametrize("max_moves", [1, 2, 3])
def test_the_one_move_that_mends_is_found(max_moves):
    """The fastest of the plans that one move leads to, or one that is faster with the moves left."""
    task, mends = grown(0, tables=200, devices=8, grow=1), []
    base, size = np.array(task.constraints.base), task.tables.weight_bytes
    free = task.capacity - device_bytes(task, base)
    (over,) = np.flatnonzero(free < 0)
    for table, device in product(np.flatnonzero(base == over), np.flatnonzero(free > 0)):
        if free[over] + size[table] >= 0 and free[device] >= size[table]:
            mends.append(np.where(np.arange(200) == table, device, base))
    best = SIMULATOR.latency(task, np.array(mends)).makespan(task.objective).min()
    task = replace(task, constraints=replace(task.constraints, max_moves=max_moves))
    for name in ("auto", "local-search", "reshard"):
        found = make(name, calls=2_000)(task, SIMULATOR)
        assert not violations(task, found)
        assert score(task, found, SIMULATOR).makespan <= best * (1 + 1e-9), name


def test_a_plan_in_use_that_does_not_fit_any_longer_is_left():
    tables = make_pool(rows=[100, 200, 300], dim=16)
    task = Task(tables, memory=(12_800, 12_800), constraints=Constraints(base=(0, 0, 0)))
    found = make("reshard", **FAST, horizon=0)(task, SIMULATOR)
    assert not violations(task, found)
    assert delta(task, Plan((0, 0, 0)), found).bytes == 6_400  # table 1; without it the others just fit
    with pytest.raises(InfeasibleTask, match="too few"):
        make("reshard", **FAST)(replace(task, memory=(9_000, 9_000)), SIMULATOR)


def test_halves_are_taken_where_splits_are_allowed():
    """One table sets the pace, so it has to be halved for a better plan."""
    tables = make_pool(rows=10**6, dim=512, pooling=[30, 1, 1])
    task = Task(tables, (10**10,) * 2, splits_allowed=True, constraints=Constraints(base=(0, 1, 1)))
    found = make("reshard", **FAST, horizon=10**6)(task, SIMULATOR)
    assert found.splits and score(task, found, SIMULATOR).makespan < score(task, Plan((0, 1, 1)), SIMULATOR).makespan
    assert make("reshard", **FAST, horizon=0)(task, SIMULATOR) == Plan((0, 1, 1))


def test_a_gain_within_the_planners_spread_moves_nothing():
    task = with_base(suites.get("core-80x8").tasks("val")[0])
    base = Plan(task.constraints.base)
    assert make("reshard", **FAST)(task, Unsure(1e9)) == base
    assert make("reshard", **FAST)(task, Unsure(0.01)) != base != make("reshard", **FAST, sure=0)(task, Unsure(1e9))


def test_seed_and_calls_decide():
    task = with_base(suites.get("core-80x8").tasks("val")[2])
    one, same, other = (make("reshard", calls=10_000, seed=s, horizon=300)(task, SIMULATOR) for s in (1, 1, 2))
    assert one == same != other


def test_ctrl_c_returns_the_best_so_far():
    task = with_base(suites.get("core-80x8").tasks("val")[0])
    told = []

    def interrupts(makespan, seconds):
        told.append(makespan)
        if len(told) == 5:
            raise KeyboardInterrupt

    found = make("reshard", budget=60.0, progress=interrupts)(task, SIMULATOR)
    assert score(task, found, SIMULATOR).makespan == pytest.approx(told[-1], rel=1e-12)
    told.clear()
    stopped = make("reshard", budget=60.0, progress=lambda makespan, seconds: told.append(makespan) or len(told) == 5)
    assert not violations(task, stopped(task, SIMULATOR)) and len(told) == 5


def test_a_step_is_what_the_planner_says_it_is():
    """Running sums after many changes are those of the placement."""
    from shard_gym_agents.search.reshard import Pieces, Placement, Prices
    from shard_gym_agents.search.state import Costs

    task = with_base(suites.get("hetero-80x8").tasks("val")[0])
    rng, base = np.random.default_rng(0), Plan(task.constraints.base)
    state = Placement(Pieces(task, base, Costs(task, SIMULATOR)), base)
    for _ in range(30):
        state.make(state.anything(rng))
        assert state.improve(Prices(100.0, 1e-7), rng)
    moved = delta(task, base, state.plan())
    assert state.makespan == score(task, state.plan(), SIMULATOR).makespan
    assert state.traffic.tolist() == [list(moved.sent), list(moved.received)]
    assert np.array_equal(state.free, task.capacity - device_bytes(task, state.device))


@pytest.mark.parametrize("settings", [{"horizon": -1}, {"horizon": math.inf}, {"bandwidth_gb_s": 0}, {"sure": -1}])
def test_settings_that_mean_nothing_are_refused(settings):
    with pytest.raises(InvalidTask, match="reshard needs"):
        make("reshard", **settings)


def test_many_tables_on_many_devices():
    rng = np.random.default_rng(0)
    tables = make_pool(rows=10_000, dim=16, pooling=rng.exponential(9, 2_000))
    base = rng.integers(200, size=2_000)
    task = Task(tables, memory=(10**9,) * 200, constraints=Constraints(base=tuple(base.tolist())))
    planner = simulators.make("roofline:h100-v1")
    found = make("reshard", budget=0.4, horizon=1_000)(task, planner)
    assert score(task, found, planner).makespan < score(task, Plan(base), planner).makespan
