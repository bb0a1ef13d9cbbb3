"""Bounds of tasks of all kinds: what plans wait for and launch, and no plan that is faster."""

import copy
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shard_gym import Task, make_pool, simulators, suites
from shard_gym.bounds import lower_bound
from shard_gym.bounds.certify import certified
from shard_gym.bounds.kinds import ByWaits, Case
from shard_gym.errors import InfeasibleTask
from shard_gym.memory.shards import Shards, Tables
from shard_gym.plan.forms import Forms
from shard_gym.plan.plan import Plan
from shard_gym.plan.violations import violations
from shard_gym.proofs import FORMS, verify
from shard_gym.proofs.waits import Waits
from shard_gym.simulators.base import plan_latency
from shard_gym.simulators.roofline import COUNT
from shard_gym.task.constraints import KINDS, Constraints
from shard_gym.task.links import Links
from shard_gym_agents.search.choices import Choices, Option
from shard_gym_agents.search.kinds import random_options
from tests.test_search_kinds import drawn, options_of

H100 = simulators.make("roofline:h100-v1")
LAUNCH = H100.hardware.launch_us * 1e-3  # ms
HOSTS = Links(port=6e8, latency_ms=1.0, group=2, uplink=1e8)
QUICK = Links(port=1e12, group=4)
LINKS = st.builds(
    Links,
    port=st.floats(1e5, 1e12),
    latency_ms=st.sampled_from([0.0, 0.5, 5.0]),
    group=st.sampled_from([0, 1, 2, 4]),
    uplink=st.sampled_from([1e6, 1e8, np.inf]),
    fabric=st.sampled_from([1e7, np.inf]),
    peer_to_peer=st.booleans(),
)
SOME_KINDS = [KINDS, ("tw", "dp"), ("tw", "cw", "rw"), ("twrw", "dp"), ("rw", "grid"), ("tw", "cw")]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    links=LINKS,
    kinds=st.sampled_from(SOME_KINDS),
    batch=st.sampled_from([1, 4, 512, 65_536]),
    objective=st.sampled_from(["iteration", "iteration", "kernel"]),
    name=st.sampled_from(["roofline:h100-v2", "roofline:a100-x32-roce-v2", "roofline:rtx2080ti-x4-v1"]),
)
def test_no_plan_is_faster_than_the_bound(seed, links, kinds, batch, objective, name):
    rng, planner = np.random.default_rng(seed), simulators.make(name)
    assume(links.group or not set(kinds) & {"twrw", "grid"})
    if objective == "kernel":
        kinds = ("tw", "cw")
    host = {"residences": ("hbm", "cached"), "host_memory": 10**9} if seed % 3 or objective == "kernel" else {}
    speed = () if seed % 2 else tuple(rng.uniform(0.5, 2, 4))
    fill = float(rng.choice([0.01, 0.3, 0.9]))
    changes = {"links": links, "kinds": kinds, "batch": batch, "objective": objective, "speed": speed}
    try:
        task = drawn(seed, int(rng.integers(1, 7)), fill, **changes, **host)
        told = certified(task, planner)
    except InfeasibleTask:
        assume(False)
    choices = Choices(task, lambda shards: planner.embed_shards(task, shards))
    found = [options for options in (random_options(choices, rng) for _ in range(20)) if options]
    plans = [choices.plan(options) for options in found]
    best = min((float(plan_latency(planner, task, plan).makespan(objective)) for plan in plans), default=np.inf)
    assert 0 < lower_bound(task, planner) <= best
    assert verify(told, task, planner) <= best
    if told["proof"]["form"] == "waits":
        assert FORMS["waits"](task, planner, any_proof(rng, told)) <= best


def any_proof(rng, told):
    """A proof with other sums, guesses, prices and spans than the certificate's, and a case of all plans."""
    cases = copy.deepcopy(told["proof"]["cases"])

    def scaled(values):
        return (np.array(values) * np.exp(rng.normal(0, 1))).tolist()

    for case in cases:
        ends = sorted(
            (rng.uniform(0, 1) * told["bound"] for _ in range(rng.integers(4))), reverse=bool(rng.integers(2))
        )
        span = case["spans"][0]["all"]
        case["spans"] = [
            {"most": most, **{name: {key: scaled(value) for key, value in span.items()} for name in ("all", "rest")}}
            for most in (*ends, 0.0)
        ]
        case["sum"] = int(rng.integers(4))
    return {"cases": cases}


@pytest.mark.parametrize("batch", [1, 2048])
@pytest.mark.parametrize("links", [HOSTS, replace(HOSTS, group=4), replace(HOSTS, peer_to_peer=False)])
def test_no_plan_of_two_tables_is_faster_than_the_bound(links, batch):
    """All plans, of two tables that are mostly waits and launches."""
    task = drawn(3, 2, 0.8, links=links, batch=batch)
    choices = Choices(task, lambda shards: H100.embed_shards(task, shards))
    every = product(*([Option(0.0, *one) for one in options_of(choices.forms, t)] for t in range(2)))
    fits = [chosen for chosen in map(dict, map(enumerate, every)) if not violations(task, choices.plan(chosen))]
    best = H100.decode(task, np.stack([choices.sums(chosen) for chosen in fits])).makespan("iteration").min()
    assert 0.5 * best < lower_bound(task, H100) <= best


@pytest.mark.parametrize(
    ("kinds", "links", "waits"),
    [
        ((("tw",), ("tw",)), HOSTS, 3),  # ids, rows, and rows back
        ((("cw",), ("cw",)), HOSTS, 3),
        ((("dp",), ("dp",)), HOSTS, 2),  # reduce-scatter and all-gather of gradients
        ((("rw",), ("rw",)), HOSTS, 3),  # ids, and one each of the two
        ((("tw",), ("dp",)), HOSTS, 5),
        ((("tw",), ("rw",)), HOSTS, 5),  # ids travel once
        ((("tw", "dp"), ("tw", "dp")), HOSTS, 2),
        ((("tw", "rw"), ("tw", "dp")), HOSTS, 3),
        ((("twrw",), ("twrw",)), HOSTS, 3),  # ids, and between hosts twice; the other host has no rings of its own
        ((("twrw",), ("twrw",)), replace(HOSTS, group=4), 3),  # one host of all
        ((("grid",), ("rw",)), HOSTS, 5),
    ],
)
def test_plans_wait_for_each_collective_that_they_have(kinds, links, waits):
    """Latencies of a second: the best plan is the one that waits least."""
    tables = make_pool(rows=[4000, 4000], dim=32, pooling=10)
    constraints = Constraints(kinds=tuple(enumerate(kinds)))
    task = Task(tables, (2**30,) * 4, "iteration", 2048, links=links, kinds=KINDS, constraints=constraints)
    at_once = lower_bound(replace(task, links=replace(links, latency_ms=0.0)), H100)
    slow = lower_bound(replace(task, links=replace(links, latency_ms=1000.0)), H100)
    assert slow == pytest.approx(1000 * waits, rel=1e-3) and slow >= 1000 * waits + at_once - 1e-3


def test_one_device_waits_for_nobody():
    links = Links(port=1e8, latency_ms=1e6)
    task = drawn(1, 3, kinds=("tw", "cw", "rw", "dp"), links=links, memory=(2**40,), speed=())
    assert 0 < lower_bound(task, H100) < 1e3


def test_ids_of_a_tiny_batch_are_no_wait():
    """12 bytes are less than half a grain of sums: 2 waits, not 3."""
    tables = make_pool(rows=[4000, 4000], dim=32, pooling=1)
    constraints = Constraints(kinds=((0, ("tw",)), (1, ("tw",))))
    task = Task(tables, (2**30,) * 4, "iteration", 1, links=HOSTS, kinds=KINDS, constraints=constraints)
    forms = Forms.of(task, lambda shards: H100.embed_shards(task, shards))
    assert sum(Waits(task, H100, forms).ms.values()) == 2.0
    ids = Forms.of(large := replace(task, batch=64), lambda shards: H100.embed_shards(large, shards))
    assert sum(Waits(large, H100, ids).ms.values()) == 3.0


def one_kind(kind, tables, objective="iteration", links=HOSTS):
    """A task of four devices with room, whose tables have one kind."""
    told = Constraints(kinds=tuple((t, (kind,)) for t in range(len(tables))))
    kinds = KINDS if objective == "iteration" else ("tw", "cw")
    return Task(tables, (2**32,) * 4, objective, 65_536, links=links, kinds=kinds, constraints=told)


def sums_of(task):
    """Each device's sum where each has a table."""
    shards = Shards.whole(Tables.of_task(task))
    return np.pad(H100.embed_shards(task, shards), ((0, 4 - task.num_tables), (0, 0)))


@pytest.mark.parametrize(("objective", "waits"), [("kernel", 0), ("iteration", 3)])
def test_a_table_for_each_device_is_as_fast_as_the_bound(objective, waits):
    """Four equal tables of four devices."""
    links = Links(port=1e12, latency_ms=0.1, group=4)
    task = one_kind("tw", make_pool(rows=[10**6] * 4, dim=64, pooling=100), objective, links)
    sums, bound = sums_of(task), lower_bound(task, H100)
    work = (max(sums[0, :2]) + max(sums[0, 2:4]) + sums[0, 4]) * 1e-3  # of both passes, and the sort
    best = float(H100.decode(task, sums).makespan(objective))
    assert bound <= best == pytest.approx(work + 2 * LAUNCH + 0.1 * waits, rel=1e-3)
    assert bound == pytest.approx(best, rel=1e-3)


def test_devices_launch_where_they_have_rows():
    """Plans of tiny tables may leave three of four devices empty, but not the fourth."""
    tables = make_pool(rows=[100] * 40, dim=4, pooling=1)
    on_all, anywhere, one = (
        replace(one_kind(kind, tables, links=QUICK), batch=64, memory=(2**32,) * devices, links=links, speed=())
        for kind, devices, links in (("rw", 4, QUICK), ("tw", 4, QUICK), ("tw", 1, replace(QUICK, group=1)))
    )
    work = (H100.embed_shards(one, Shards.whole(Tables.of_task(one)))[:, :5]).sum(axis=0) * 1e-3
    total = max(work[:2]) + max(work[2:4]) + work[4]
    assert lower_bound(one, H100) == pytest.approx(2 * LAUNCH + total, rel=1e-4)
    assert lower_bound(anywhere, H100) == pytest.approx(2 * LAUNCH + total / 4, rel=1e-4)
    assert 2 * LAUNCH < lower_bound(on_all, H100) < 2 * LAUNCH + total
    assert total < LAUNCH


def test_blocks_without_rows_launch_nothing():
    """A table of two rows by rows: two of four devices have no rows, but send and receive."""
    tables = make_pool(rows=[2], dim=4, pooling=1000)
    task = one_kind("rw", tables, links=QUICK)
    forms = Forms.of(task, lambda shards: H100.embed_shards(task, shards))
    assert forms.part_vector[forms.part_vector[:, COUNT] == 0].any()
    plan = Plan((0,), kind=("rw",), devices=((0, 1, 2, 3),))
    best = plan_latency(H100, task, plan)
    assert (best.backward_compute == 0).sum() == 2
    assert 2 * LAUNCH < lower_bound(task, H100) <= float(best.makespan("iteration"))


def test_spans_of_the_slowest_forward_pass_prove_more():
    """A task in which shards take longer in the forward pass than its mean, or else more is to be done."""
    suite = suites.get("core-80x8-allkinds")
    task, judge = suite.tasks("val")[3], simulators.make(suite.judge)
    case = ByWaits(task, judge).binding
    of_all = Case(case.columns, case.costs, case.number, case.may).weakest.ms
    assert len(case.spans) > 1 and 1.01 * of_all < case.weakest.ms
    ends = [span.most for span in case.spans]
    assert ends == sorted(ends) and ends[-1] == np.inf and [0.0, *ends[:-1]] == [span.low for span in case.spans]
