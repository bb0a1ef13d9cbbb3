"""Every registered agent on tasks of all kinds of sharding: a plan that keeps to the task, or what to do instead."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shard_gym_agents
from shard_gym import Task, make_pool, simulators
from shard_gym.errors import InfeasibleTask, InvalidTask, ShardGymError
from shard_gym.plan.violations import violations
from shard_gym.results.evaluate import score
from shard_gym.task.constraints import KINDS, Constraints
from shard_gym.task.links import Links
from shard_gym_agents import make
from tests.test_search_kinds import brute_force, drawn

TORCHREC = simulators.make("torchrec:cuda-v1")
ROOFLINE = simulators.make("roofline:h100-v1")
FAST = {key: {"calls": 300} for key in ("local-search", "beam", "auto", "reshard")}
FAST |= {"random-search": {"samples": 5}, "milp": {"budget": 0.3}}
GREEDIES = [name for name, (path, _) in shard_gym_agents.AGENTS.items() if path.endswith(":Greedy")]  # of named costs
OF_ALL_KINDS = ("random", "random-search", "round-robin", "cost-greedy", *GREEDIES, *FAST)


def tables(**columns):
    """8 tables of 16 columns and 1,000 rows, 64,000 bytes each, but for what is told."""
    told = {"rows": [1_000] * 8, "dim": [16] * 8, "pooling": [1, 2, 3, 4, 5, 6, 7, 8]} | columns
    return make_pool(dtype="fp32", **told)


def task_of(pool, memory, **settings):
    links = Links(port=6e8, uplink=1e8, group=2)
    return Task(pool, (memory,) * 4, "iteration", 2048, links=links, kinds=KINDS, **settings)


EASY = task_of(tables(), 200_000)
GIANT = task_of(tables(rows=[20_000, *[1_000] * 7], dim=[4, *[16] * 7]), 250_000)  # 320,000 bytes and 7 of 64,000
HOST = task_of(tables(), 100_000, residences=("hbm", "uvm", "cached"), host_memory=10**6)  # 512,000 of 400,000
TASKS = {
    "easy": EASY,
    "giant": GIANT,
    "host": HOST,
    "in use": replace(EASY, constraints=Constraints(base=(0, 1, 2, 3, 0, 1, 2, 3))),
    "rules": replace(EASY, constraints=Constraints(pin=((0, 3),), apart=((1, 2),), kinds=((5, ("rw", "dp")),))),
}


@pytest.mark.parametrize("which", TASKS)
@pytest.mark.parametrize("name", shard_gym_agents.names())
def test_an_agent_plans_or_says_what_would(name, which):
    task = TASKS[which]
    try:
        plan = make(name, **FAST.get(name, {}))(task, TORCHREC)
    except ShardGymError as error:
        assert name not in OF_ALL_KINDS, error
        assert any(word in str(error) for word in ("cost-greedy", "train", "pip install", "TorchRec", "honour"))
    else:
        assert violations(task, plan) == []
        assert score(task, plan, TORCHREC).makespan > 0


@pytest.mark.parametrize("name", OF_ALL_KINDS)
def test_what_no_plan_can_hold_is_refused_with_what_would_fit(name):
    task = replace(GIANT, memory=(39_000,) * 4)
    with pytest.raises(InfeasibleTask, match="39,000 bytes; it would fit as residence uvm"):
        make(name, **FAST.get(name, {}))(task, ROOFLINE)


@pytest.mark.parametrize("name", ["round-robin", *GREEDIES])
def test_greedies_of_named_costs_cut_only_what_fits_nowhere_whole(name):
    """The giant comes first, its rows over the devices of a host, 10,000 of 16 bytes on each; all others stay whole."""
    plan = make(name)(GIANT, TORCHREC)
    assert plan.kind == ("twrw", *["tw"] * 7)
    assert make(name)(replace(EASY, memory=(10**6,) * 4), TORCHREC).kind == ("tw",) * 8


def test_a_named_greedy_deals_to_the_least_cost_so_far():
    """Costs are 1 to 8 times 16: 8 and 1 on the first device, 7 and 2 on the next one, each 9 in all.

    Table 7 by rows costs 2 on each device; then 7, 6 with 1, 5 with 2 and 4 with 3.
    """
    plan = make("lookup-greedy")(replace(EASY, memory=(10**6,) * 4), TORCHREC)
    assert plan.device == (0, 1, 2, 3, 3, 2, 1, 0)
    shared = replace(EASY, constraints=Constraints(kinds=((7, ("rw",)),)), memory=(10**6,) * 4)
    assert make("lookup-greedy")(shared, TORCHREC).device == (1, 2, 3, 3, 2, 1, 0, 0)


def test_rows_in_the_hosts_memory_are_a_last_resort():
    """Four tables whole, on each host one more by rows, 32,000 bytes a device; then 4,000 are left on each."""
    plan = make("size-greedy")(HOST, TORCHREC)
    assert plan.kind == ("tw",) * 4 + ("twrw",) * 2 + ("tw",) * 2
    assert plan.residence == ("hbm",) * 6 + ("uvm",) * 2 and violations(HOST, plan) == []


def test_neuroshard_cuts_columns_and_says_when_that_is_not_enough():
    plan = make("neuroshard")(EASY, TORCHREC)
    assert set(plan.kind) == {"tw"} and violations(EASY, plan) == []
    with pytest.raises(InfeasibleTask, match=r"table_0.*cost-greedy.* choose among all kinds"):
        make("neuroshard")(GIANT, TORCHREC)
    with pytest.raises(InvalidTask, match=r"table 5 .* may only be rw, dp; auto"):
        make("neuroshard")(TASKS["rules"], TORCHREC)
    with pytest.raises(InvalidTask, match="devices' memory"):
        make("neuroshard")(replace(HOST, residences=("uvm",)), TORCHREC)


@pytest.mark.parametrize("seed", [1, 4])
def test_beam_finds_the_best_of_all_plans_of_few_tables(seed):
    task = drawn(seed, tables=3 + seed % 2, fill=(0.5, 0.9)[seed % 2])
    plan = make("beam", calls=2_000)(task, TORCHREC)
    assert score(task, plan, TORCHREC).makespan == pytest.approx(brute_force(task, TORCHREC), rel=1e-9)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.4, 0.9]), st.sampled_from([TORCHREC, ROOFLINE]))
def test_beam_is_never_worse_than_cost_greedy(seed, fill, planner):
    task = drawn(seed, 8, fill)
    worth = [score(task, make(name, **FAST.get(name, {}))(task, planner), planner) for name in ("cost-greedy", "beam")]
    assert worth[1].feasible and worth[1].makespan <= worth[0].makespan * (1 + 1e-9)


def test_beam_is_told_of_and_stopped():
    task, told = drawn(3, 12, 0.6), []
    plan = make("beam", calls=600, progress=lambda ms, _: told.append(ms))(task, TORCHREC)
    assert told == sorted(told, reverse=True)
    assert told[-1] == pytest.approx(score(task, plan, TORCHREC).makespan, rel=1e-9)
    first = told[0]
    plan = make("beam", progress=lambda ms, _: told.append(ms) or True)(task, TORCHREC)
    assert told[-1] == first == pytest.approx(score(task, plan, TORCHREC).makespan, rel=1e-9)


def test_random_search_is_the_best_of_its_random_plans():
    worth = [score(EASY, make("random-search", samples=n)(EASY, TORCHREC), TORCHREC).makespan for n in (1, 3, 30)]
    assert worth == sorted(worth, reverse=True) and worth[0] > worth[2]
    assert worth[0] == score(EASY, make("random")(EASY, TORCHREC), TORCHREC).makespan
    told = []
    make("random-search", samples=30, progress=lambda makespan, _: told.append(makespan))(EASY, TORCHREC)
    assert told[-1] == worth[2] and told == sorted(told, reverse=True)


def test_costs_of_groups_count_once():
    task = replace(EASY, constraints=Constraints(together=((0, 1), (6, 7))), memory=(10**6,) * 4)
    for name in ("lookup-greedy", "random-search"):
        assert violations(task, make(name, **FAST.get(name, {}))(task, TORCHREC)) == []
