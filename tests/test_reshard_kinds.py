"""Re-sharding of plans of all kinds: what moves, and what that is worth."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym import Plan, Task, make_pool
from shard_gym.errors import InfeasibleTask
from shard_gym.plan.moves import aligned, delta
from shard_gym.plan.shards import shards
from shard_gym.plan.violations import violations
from shard_gym.results.evaluate import score
from shard_gym.task.constraints import KINDS, Constraints
from shard_gym_agents import make
from shard_gym_agents.search.choices import Choices, Option
from shard_gym_agents.search.kinds import random_options, random_plan
from shard_gym_agents.search.traffic import Traffic
from tests.test_search_kinds import ROOFLINE, TORCHREC, drawn, options_of


def large(seed, tables, fill=0.6, **changes):
    """A drawn task whose tables are 30 times as tall, so that moving them takes a while."""
    task = drawn(seed, tables, fill, **changes)
    return replace(
        task, tables=task.tables.with_(rows=30 * task.tables.rows), memory=tuple(31 * m for m in task.memory)
    )


def total_ms(task, base, plan, horizon, planner=TORCHREC):
    """Steps at the plan's makespan, and the time to move at 10 GB/s."""
    return horizon * score(task, plan, planner).makespan + 1e3 * delta(task, base, plan).seconds(10e9)


def choices_of(task):
    return Choices(task, lambda shards: TORCHREC.embed_shards(task, shards))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.booleans())
def test_options_move_what_their_plan_does(seed, host, training):
    more = {"residences": ("hbm", "uvm", "cached"), "host_memory": 10**9} if host else {}
    more |= {"accounting": "training", "optimizer": "adam"} if training else {}
    task, rng = replace(drawn(seed, 5, 0.2, **more), memory=(2**30,) * 4), np.random.default_rng(seed)
    choices, base = choices_of(task), random_plan(task, rng)
    traffic, chosen = Traffic(choices, base), random_options(choices, rng)
    moved = sum(traffic.moves(item, option) for item, option in chosen.items())
    found = delta(task, base, traffic.plan(chosen))
    np.testing.assert_array_equal(moved, [found.sent, found.received])
    assert found.bytes <= delta(task, base, choices.plan(chosen)).bytes


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_where_tables_are_in_use_is_an_option_that_moves_nothing(seed):
    task, rng = replace(drawn(seed, 6, 0.2), memory=(2**30,) * 4), np.random.default_rng(seed)
    base = random_plan(task, rng)
    traffic = Traffic(choices_of(task), base)
    assert len(traffic.home) == 6
    assert all(not traffic.moves(item, option).any() for item, option in traffic.home.items())
    mine, theirs = (shards(task, plan) for plan in (traffic.plan(traffic.home), base))
    for name in ("table", "kind", "rows", "dim", "row", "column", "device"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))


def test_what_is_none_of_the_tasks_options_is_no_home():
    """A table in a half and two quarters, one that the task wants by rows, and one in a cache of an odd share."""
    task = replace(drawn(0, 4), memory=(2**30,) * 4, residences=("hbm", "cached"), host_memory=2**30)
    task = replace(task, tables=task.tables.with_(dim=np.full(4, 16, np.int32)))
    task = replace(task, constraints=Constraints(kinds=((1, ("rw",)),)))
    living = {"residence": ("hbm", "hbm", "cached", "hbm", "hbm", "hbm"), "share": (1, 1, 0.3, 1, 1, 1)}
    base = Plan((0, 1, 2, 3, 1, 2), (0, 0), **living)
    assert list(Traffic(choices_of(task), base).home) == [3]
    assert Traffic(choices_of(task), base).home[3] == Option(0.0, int(choices_of(task).forms.first[3]), 0, (3,))


@pytest.mark.parametrize(("seed", "horizon"), [(1, 0.0), (1, 1.0), (2, 3e-4)])
def test_nothing_costs_less_of_two_tables(seed, horizon):
    task = drawn(seed, 2, 0.7)
    choices, base = choices_of(task), random_plan(task, np.random.default_rng(seed))
    traffic = Traffic(choices, base)
    every = product(*([Option(0.0, *one) for one in options_of(choices.forms, t)] for t in range(2)))
    plans = [traffic.plan(dict(enumerate(chosen))) for chosen in every]
    best = min(total_ms(task, base, plan, horizon) for plan in plans if not violations(task, plan))
    found = make("reshard", calls=1_000, horizon=horizon, in_use=base)(task, TORCHREC)
    assert violations(task, found) == []
    assert total_ms(task, base, found, horizon) == pytest.approx(best, rel=1e-9)


@settings(max_examples=6, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.sampled_from([1, 100, 10_000]), st.sampled_from([TORCHREC, ROOFLINE]))
def test_it_is_never_worse_than_staying_or_a_fresh_plan_renamed(seed, horizon, planner):
    task = large(seed, 6)
    base = random_plan(task, np.random.default_rng(seed))
    fresh = make("cost-greedy")(task, planner)
    found = make("reshard", calls=600, horizon=horizon, in_use=base)(task, planner)
    others = (base, fresh, aligned(task, base, fresh))
    assert violations(task, found) == []
    least = min(total_ms(task, base, plan, horizon, planner) for plan in others)
    assert total_ms(task, base, found, horizon, planner) <= least * (1 + 1e-9)


def test_more_moves_the_longer_the_plan_is_used():
    task = large(7, 12)
    base = random_plan(task, np.random.default_rng(7))
    plans = [make("reshard", calls=1_200, horizon=h, in_use=base)(task, TORCHREC) for h in (0, 1, 100, 10**5)]
    moved = [delta(task, base, plan).bytes for plan in plans]
    assert plans[0] == base and 0 < moved[1] < moved[2] < moved[3]


def test_a_table_that_outgrew_its_device_moves_and_others_stay():
    """Four tables, one a device; the first no longer fits on one, and there is room for its rows beside the others."""
    pool = make_pool(rows=[12_000, 8_900, 1_000, 1_000], dim=16, dtype="fp32", pooling=10)
    in_use = Constraints(base=(0, 1, 2, 3))
    grown = Task(pool, (767_999,) * 4, "iteration", 512, kinds=("tw", "rw"), constraints=in_use)
    assert violations(grown, Plan((0, 1, 2, 3))) != []
    plan = make("reshard", calls=1_000, horizon=0)(grown, TORCHREC)
    assert violations(grown, plan) == []
    assert plan.kind == ("rw", "tw", "tw", "tw") and plan.device[1:] == (1, 2, 3)


def test_plans_with_splits_may_be_in_use_of_any_task():
    task = Task(make_pool(rows=[1_000] * 4, dim=16), (10**6,) * 2, "iteration", 512, splits_allowed=True)
    base = Plan((0, 0, 0, 0, 1), (0,))
    assert make("reshard", calls=500, horizon=0, in_use=base)(task, ROOFLINE) == base
    whole = make("reshard", calls=500, horizon=0, in_use=Plan((0, 0, 0, 0)))(task, ROOFLINE)
    assert whole == Plan((0, 0, 0, 0))


def test_constraints_are_kept_and_progress_is_told():
    rules = Constraints(pin=((0, 3),), together=((1, 2),), apart=((1, 3, 4),), kinds=((5, ("dp", "rw")),))
    task = replace(drawn(5, 8, 0.3), memory=(2**40,) * 4)
    base, told = random_plan(task, np.random.default_rng(0)), []
    ruled = replace(task, constraints=rules)
    options = {"calls": 3_000, "horizon": 10, "in_use": base}
    plan = make("reshard", **options, progress=lambda ms, _: told.append(ms))(ruled, TORCHREC)
    assert violations(ruled, plan) == [] and plan.devices[0] == (3,)
    assert told and score(ruled, plan, TORCHREC).makespan <= told[0]
    stopped = make("reshard", **options, progress=lambda *_: True)(ruled, TORCHREC)
    assert violations(ruled, stopped) == []


def test_a_task_without_a_plan_says_what_would_fit():
    task = replace(drawn(0, 3), memory=(10,) * 4, kinds=KINDS)
    with pytest.raises(InfeasibleTask, match="residence uvm"):
        make("reshard", calls=10, in_use=Plan((0, 1, 2)))(task, TORCHREC)
