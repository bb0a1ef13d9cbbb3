"""Programs over all kinds of sharding, against all plans of tiny tasks."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shard_gym import make_pool, simulators
from shard_gym.bounds import lower_bound
from shard_gym.errors import InfeasibleTask
from shard_gym.plan.violations import violations
from shard_gym.results.evaluate import score
from shard_gym.simulators.base import counted, plan_latency
from shard_gym.simulators.roofline import COUNT
from shard_gym.task.constraints import KINDS, Constraints
from shard_gym.task.links import Links
from shard_gym_agents.search.choices import Choices, Option
from shard_gym_agents.search.exact import Milp, decide
from shard_gym_agents.search.kinds import random_options
from shard_gym_agents.search.milp_kinds import OptionsModel
from tests.test_search_kinds import ROOFLINE, TORCHREC, brute_force, drawn, options_of

pytest.importorskip("highspy")
PATIENT = Milp(budget=1.5)  # the program of so few tables is solved in a part of it


@pytest.mark.parametrize("seed", [1, 3, 4])
def test_the_program_finds_the_best_of_all_plans_and_proves_it(seed):
    task = drawn(seed, tables=3 + seed % 2, fill=(0.5, 0.9)[seed % 2])
    best, found = brute_force(task, TORCHREC), PATIENT.solve(task, TORCHREC)
    assert violations(task, found.plan) == []
    assert found.makespan == score(task, found.plan, TORCHREC).makespan
    assert found.makespan == pytest.approx(best, rel=2e-4)
    assert found.bound <= best and found.gap <= 3e-4
    assert found.program == "all kinds, tables in at most 8 pieces that are sharded alike"


def test_of_costs_that_do_not_add_up_the_bound_holds():
    task = drawn(1, tables=3, fill=0.9)
    found = Milp(budget=1.0).solve(task, ROOFLINE)
    choices = Choices(task, lambda shards: ROOFLINE.embed_shards(task, shards))
    chosen = [random_options(choices, np.random.default_rng(seed)) for seed in range(40)]
    plans = [choices.plan(options) for options in chosen if options]
    worst = [float(plan_latency(ROOFLINE, task, plan).makespan("iteration")) for plan in plans]
    assert 0 < lower_bound(task, ROOFLINE) <= found.bound <= found.makespan <= min(worst)
    assert "no less than" in found.program


def test_a_fitted_planner_gets_a_plan_without_a_certificate():
    learned = simulators.make("learned:cpu-v1")
    task = replace(
        drawn(1, tables=5),
        objective="kernel",
        kinds=(),
        memory=(2**40,) * 4,
        constraints=Constraints(kinds=((0, ("tw",)),)),
    )
    found = Milp(budget=1.0).solve(task, learned)
    assert violations(task, found.plan) == [] and found.bound == 0.0
    assert "near the best plan" in found.program


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), host=st.booleans())
def test_values_of_the_program_are_the_plans_costs_and_bytes(seed, host):
    """A plan's values keep every row, and come back as the plan; its loads are what the planner says."""
    more = {"residences": ("hbm", "uvm", "cached"), "host_memory": 10**9} if host else {}
    task = drawn(seed, 5, 0.3, **more)
    choices = Choices(task, lambda shards: TORCHREC.embed_shards(task, shards))
    chosen = random_options(choices, np.random.default_rng(seed))
    assume(chosen)
    model = OptionsModel(choices)
    longest = model.variable(cost=1.0)
    model.memory()
    model.at_least(longest, choices.loads(TORCHREC.rates(task)), np.zeros(4))
    variables, given_values = model._start(chosen)
    values = np.zeros(len(model.cost))
    values[variables] = given_values
    makespan = float(plan_latency(TORCHREC, task, choices.plan(chosen)).makespan(task.objective))
    values[longest] = makespan * (1 + 1e-9)
    for low, index, factor, high in model.rows:
        assert low - 1e-9 <= values[index] @ factor <= high + 1e-9
    values[longest] = makespan * (1 - 1e-6)
    assert any(values[index] @ factor > high for _, index, factor, high in model.rows)
    assert choices.plan(model.chosen(values)) == choices.plan(chosen)


def test_constraints_hold_in_the_program():
    rules = Constraints(pin=((0, 3),), together=((1, 2),), apart=((1, 3, 4),), kinds=((5, ("dp", "rw")),))
    task = replace(drawn(5, 6, 0.3, constraints=rules), memory=(2**40,) * 4)
    plan = PATIENT(task, TORCHREC)
    assert violations(task, plan) == []
    assert plan.devices[0] == (3,) and plan.kind[5] in ("rw", "dp")


def four_of(size, memory, **settings):
    """Tables of 4 columns, whose bytes are told, on two hosts of two devices."""
    pool = make_pool(rows=[size // 16] * 4, dim=4, dtype="fp32")
    return replace(drawn(0), tables=pool, memory=(memory,) * 4, kinds=KINDS, **settings)


def test_whether_there_is_a_plan_is_decided_over_all_kinds():
    """Whole they are one a device. Two may not share a device; the third way out is rows."""
    rows = Constraints(kinds=tuple((t, ("tw",)) for t in range(3)))
    tight = four_of(16_000, 20_000, constraints=rows)  # 4,000 bytes left on three devices: rows over all
    assert violations(tight, decide(tight, 2.0).plan) == []
    apart = replace(tight, constraints=Constraints(apart=((0, 1), (2, 3)), pin=((0, 0), (2, 0))))
    verdict = decide(apart, 2.0)
    assert verdict.feasible is False and "constraints name" in verdict.reason and "too few" in verdict.reason
    assert decide(replace(apart, memory=(32_000,) * 4), 2.0).feasible
    with pytest.raises(InfeasibleTask, match="it would fit as rw"):
        PATIENT(replace(tight, memory=(15_999,) * 4), TORCHREC)


def test_recshard_places_whole_tables():
    task = replace(drawn(2, 4), memory=(2**40,) * 4)
    assert set(Milp(budget=0.5, cost="recshard")(task, TORCHREC).kind) == {"tw"}


def test_progress_is_told_and_may_stop_the_program():
    told = []
    plan = Milp(budget=3.0, progress=lambda ms, _: told.append(ms) or len(told) == 2)(drawn(3, 12, 0.6), TORCHREC)
    assert told == sorted(told, reverse=True) and len(told) <= 3
    assert violations(drawn(3, 12, 0.6), plan) == []


@pytest.mark.parametrize("planner", [TORCHREC, ROOFLINE], ids=lambda planner: planner.id)
@pytest.mark.parametrize("objective", ["iteration", "torchrec-critical-path"])
def test_longest_times_of_parts_add_up_to_the_makespan(planner, objective):
    task = replace(drawn(4, 6, 0.3), objective=objective)
    if objective not in planner.objectives:
        return
    sums = np.random.default_rng(0).uniform(0, 1e3, (4, planner.floors(task)[0].shape[1]))
    parts = [(weights * sums).sum(axis=1).max() for weights in planner.longest(task)]
    makespan = float(planner.decode(task, sums).makespan(objective))
    assert sum(parts) == pytest.approx(makespan, rel=1e-12) if parts else planner is ROOFLINE
    assert len(counted(planner).longest(task)) == len(parts)


def test_the_critical_path_is_solved_as_well_as_by_brute_force():
    """All plans of two tables, each costed as plans are."""
    task = drawn(3, 2, 0.9, objective="torchrec-critical-path")
    choices = Choices(task, lambda shards: TORCHREC.embed_shards(task, shards))
    every = product(*([Option(0.0, *one) for one in options_of(choices.forms, t)] for t in range(2)))
    plans = [choices.plan(dict(enumerate(chosen))) for chosen in every]
    worth = [score(task, plan, TORCHREC) for plan in plans]
    best = min(found.makespan for found in worth if found.feasible)
    found = PATIENT.solve(task, TORCHREC)
    assert found.makespan == pytest.approx(best, rel=2e-4) and found.bound <= best <= found.bound * 1.001


ANY_LINKS = st.builds(
    Links,
    port=st.floats(1e5, 1e9),
    latency_ms=st.sampled_from([0.0, 0.5]),
    group=st.just(2),
    uplink=st.sampled_from([1e6, 1e8, np.inf]),
    fabric=st.sampled_from([1e7, np.inf]),
    peer_to_peer=st.booleans(),
)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10**6), ANY_LINKS, st.booleans(), st.sampled_from(["roofline:h100-v1", "roofline:rtx2080ti-x4-v1"])
)
def test_floors_of_a_roofline_are_below_every_devices_cost(seed, links, several, simulator):
    """A device pays for what it holds, whatever others do."""
    planner, rng = simulators.make(simulator), np.random.default_rng(seed)
    kinds = {"kinds": KINDS, "residences": ("hbm", "cached"), "host_memory": 10**9} if several else {"kinds": ()}
    speed = () if seed % 2 else tuple(rng.uniform(0.5, 2, 4))
    task = replace(drawn(0), links=links, speed=speed, **kinds)
    held = rng.uniform(0, 1e3, (4, planner.floors(task)[0].shape[1])) * (rng.random((4, 1)) < 0.7)
    held *= rng.random(held.shape) < 0.7
    held[0] = 1.0  # one device at least has tables
    held[:, COUNT] = held.any(axis=1)
    cost, column, launch = planner.decode(task, held).cost("iteration"), *planner.launch(task)
    least = planner.least_ms(task) + planner.waits(task, held) + launch * (held[:, column] > 0)
    for floor, average, ahead in zip(
        *(of(task) for of in (planner.floors, planner.averages, planner.ahead)), strict=True
    ):
        own, longest = ((floor - ahead) * held).sum(axis=1), (ahead * held).sum(axis=1).max()
        assert (longest + own <= (cost - least) * (1 + 1e-9)).all()
        assert ((floor * held).sum(axis=1) <= (cost - least) * (1 + 1e-9)).all()
        assert (average >= floor * (1 - 1e-12)).all()
        share = np.array(task.speed) / sum(task.speed)
        assert share @ (average * held).sum(axis=1) <= share @ (cost - least) * (1 + 1e-9)


@pytest.mark.parametrize("seed", [3, 4])
@pytest.mark.parametrize("simulator", ["roofline:h100-v1", "roofline:a100-x32-roce-v2"])
def test_no_plan_of_two_tables_is_faster_than_a_rooflines_bound(seed, simulator):
    planner, task = simulators.make(simulator), drawn(seed, 2, 0.8)
    choices = Choices(task, lambda shards: planner.embed_shards(task, shards))
    every = product(*([Option(0.0, *one) for one in options_of(choices.forms, t)] for t in range(2)))
    fits = [chosen for chosen in map(dict, map(enumerate, every)) if not violations(task, choices.plan(chosen))]
    sums = np.stack([choices.sums(chosen) for chosen in fits])
    makespans = planner.decode(task, sums).makespan("iteration")
    assert 0 < lower_bound(task, planner) <= makespans.min()
    found = Milp(budget=0.5).solve(task, planner)
    assert lower_bound(task, planner) * (1 - 1e-4) <= found.bound <= makespans.min()
