import dataclasses
import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shard_gym import Plan, simulators, suites
from shard_gym.errors import InfeasibleTask, InvalidTask
from shard_gym.memory.usage import table_bytes
from shard_gym.plan.nodes import MOST_HALVINGS
from shard_gym.results import evaluate
from shard_gym.results.evaluate import score
from shard_gym_agents import make
from tests.pool_helpers import fp16_pool as make_pool
from tests.search_helpers import SIMULATOR, best_by_force, draw_task

SEEDS = st.integers(0, 10**6)
OBJECTIVES = st.sampled_from(["kernel", "iteration"])


def bound_by_one_table(seed=0):
    """Six tables on three devices, one of which alone takes longer than a fair share of the whole."""
    rng = np.random.default_rng(seed)
    tables = make_pool(rows=10**6, dim=[2048, 64, 64, 64, 64, 64], pooling=[20, *rng.uniform(5, 10, 5)])
    return dataclasses.replace(draw_task(seed), tables=tables, memory=(10**11,) * 3, speed=(), splits_allowed=True)


@pytest.mark.parametrize("name", ["beam", "neuroshard", "local-search"])
@pytest.mark.parametrize("objective", ["kernel", "iteration"])
def test_splits_beat_every_plan_without_where_one_table_binds(name, objective):
    task = dataclasses.replace(bound_by_one_table(), objective=objective)
    config = {} if name == "neuroshard" else {"calls": 2_000}
    plan = make(name, **config)(task, SIMULATOR)
    assert 0 in plan.splits
    assert score(task, plan, SIMULATOR).makespan < 0.9 * best_by_force(task)


@pytest.mark.parametrize("name", ["beam", "neuroshard", "local-search", "auto"])
def test_no_split_where_the_task_forbids_it(name):
    task = dataclasses.replace(bound_by_one_table(), splits_allowed=False)
    config = {} if name == "neuroshard" else {"calls": 1_000}
    assert not make(name, **config)(task, SIMULATOR).splits


@settings(max_examples=15, deadline=None)
@given(SEEDS, OBJECTIVES, st.sampled_from([1.1, 3.0]))
def test_a_beam_is_never_worse_than_cost_greedy(seed, objective, room):
    task = draw_task(seed, objective, room, splits=True, tables=12)
    try:
        greedy = score(task, make("cost-greedy")(task, SIMULATOR), SIMULATOR).makespan
    except InfeasibleTask:
        greedy = np.inf
    try:
        found = score(task, make("beam", calls=1_500)(task, SIMULATOR), SIMULATOR)
    except InfeasibleTask:
        assert greedy == np.inf
        return
    assert found.feasible
    assert found.makespan <= greedy


def test_a_beam_finds_the_best_placement_of_a_tiny_task():
    for seed in range(5):
        task = draw_task(seed, room=9.0)
        found = score(task, make("beam", calls=2_000)(task, SIMULATOR), SIMULATOR).makespan
        assert found == pytest.approx(best_by_force(task), rel=1e-9)


def test_seed_and_calls_decide_what_a_beam_finds():
    task = suites.get("mixed-10to59x4-split").tasks("val")[0]
    one, same = (make("beam", calls=5_000, seed=1)(task, SIMULATOR) for _ in range(2))
    assert one == same


@pytest.mark.parametrize("settings", [{"width": 0}, {"candidates": 0}])
def test_a_beam_of_nothing_is_refused(settings):
    with pytest.raises(InvalidTask, match="width"):
        make("beam", **settings)


def test_a_result_can_hold_how_neuroshard_was_made():
    config = evaluate.config(make("neuroshard"))
    assert json.loads(json.dumps(config, allow_nan=False)) == config


@pytest.mark.parametrize("settings", [{"beams": 0}, {"candidates": 0}, {"limits": 0}, {"splits": -1}])
def test_a_neuroshard_of_nothing_is_refused(settings):
    with pytest.raises(InvalidTask, match="neuroshard needs"):
        make("neuroshard", **settings)


def greedy_under_limit(task, scale):
    """NeuroShard's inner greedy, written plainly for devices that are alike."""
    alone = [one_shard(task, [t]) for t in range(task.num_tables)]
    limit = scale * task.tables.dim.sum() / task.num_devices
    shards = [[] for _ in range(task.num_devices)]
    for t in sorted(range(task.num_tables), key=lambda t: -alone[t]):
        free = [m - table_bytes(task)[s].sum() for m, s in zip(task.memory, shards, strict=True)]
        legal = [
            d
            for d, shard in enumerate(shards)
            if table_bytes(task)[t] <= free[d] and task.tables.dim[[*shard, t]].sum() <= limit
        ]
        if not legal:
            return None
        shards[min(legal, key=lambda d: one_shard(task, shards[d]))].append(t)
    return [next(d for d, shard in enumerate(shards) if t in shard) for t in range(task.num_tables)]


def one_shard(task, shard):
    placement = np.full(task.num_tables, -1)
    placement[shard] = 0
    return float(SIMULATOR.latency(task, placement).compute[0])


@pytest.mark.parametrize("key", ["dlrm-10x4", "mixed-10to59x4"])
def test_neuroshard_without_splits_is_its_greedy_under_the_best_limit(key):
    task = dataclasses.replace(suites.get(key).tasks("val")[1], splits_allowed=False)
    plans = [greedy_under_limit(task, scale) for scale in np.linspace(1.0, 1.5, 11)]
    best = min(score(task, Plan(tuple(p)), SIMULATOR).makespan for p in plans if p is not None)
    found = make("neuroshard")(task, SIMULATOR)
    assert score(task, found, SIMULATOR).makespan == pytest.approx(best, rel=1e-12)


@settings(max_examples=15, deadline=None)
@example(650252, "kernel")  # whole tables fit under no limit of columns
@given(SEEDS, OBJECTIVES)
def test_neuroshard_splits_no_more_than_it_may(seed, objective):
    task = draw_task(seed, objective, room=1.2, splits=True, tables=12)
    try:
        plan = make("neuroshard", splits=4)(task, SIMULATOR)
    except InfeasibleTask:
        return
    assert score(task, plan, SIMULATOR).feasible
    assert len(plan.splits) <= 4
    whole = make("neuroshard", splits=0)
    try:
        unsplit = score(task, whole(task, SIMULATOR), SIMULATOR).makespan
    except InfeasibleTask:
        return
    assert score(task, plan, SIMULATOR).makespan <= unsplit


def test_a_table_comes_in_eight_pieces_at_most():
    task = dataclasses.replace(bound_by_one_table(), memory=(10**11,) * 3)
    plan = make("neuroshard")(task, SIMULATOR)
    dims = task.split(plan.splits).tables.dim
    assert dims.min() >= 4 and 2048 // dims[plan.splits[0]] <= 2**MOST_HALVINGS


def test_local_search_beats_neuroshard_with_a_tenth_of_its_questions():
    suite = suites.get("mixed-20to119x8-split")
    planner = simulators.make(suite.planner)
    for task in suite.tasks("val")[:3]:
        asked = simulators.Counted(planner)
        neuroshard = score(task, make("neuroshard")(task, asked), planner).makespan
        found = score(task, make("local-search", calls=asked.calls // 10)(task, planner), planner).makespan
        assert found < neuroshard


@pytest.mark.parametrize("name", ["local-search", "beam"])
def test_a_table_that_binds_is_halved_again_and_again(name):
    """One half in two helps no more than none: all pieces as dear as the dearest have to be halved at once."""
    suite = suites.get("metasyn-80x8")
    planner, task = simulators.make(suite.planner), suite.tasks("test")[0]
    pooling = np.array(task.tables.pooling)
    pooling[(task.tables.dim * pooling).argmax()] *= 20
    tables = make_pool(task.tables.rows, task.tables.dim, pooling)
    task = dataclasses.replace(task, tables=tables, splits_allowed=True)
    best = score(task, make("neuroshard")(task, planner), planner).makespan
    plan = make(name, calls=3_000)(task, planner)
    assert len(plan.splits) >= 3
    assert score(task, plan, planner).makespan <= best * (1 + 1e-9)


def test_neuroshard_keeps_a_budget_where_it_is_given_one():
    task = suites.get("mixed-10to59x4-split").tasks("val")[0]
    asked = []
    for config in ({}, {"calls": 5_000}, {"budget": 1e-9}):
        counted = simulators.Counted(SIMULATOR)
        plan = make("neuroshard", **config)(task, counted)
        assert score(task, plan, SIMULATOR).feasible
        asked.append(counted.calls)
    assert asked[2] < asked[1] < asked[0]
