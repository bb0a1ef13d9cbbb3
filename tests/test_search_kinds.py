"""Solvers, bounds and feasibility of tasks of all kinds of sharding."""

from dataclasses import replace
from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shard_gym_agents
from shard_gym import Task, make_pool, simulators
from shard_gym.bounds import certificate, lower_bound
from shard_gym.bounds.prices import prices
from shard_gym.errors import InfeasibleTask
from shard_gym.memory.usage import bytes_used, device_sums
from shard_gym.plan.feasibility import disproof, quick
from shard_gym.plan.forms import ALL, COPY, DEVICE, HOST, Forms
from shard_gym.plan.plan import Plan
from shard_gym.plan.shards import shards
from shard_gym.plan.violations import violations
from shard_gym.results.evaluate import score
from shard_gym.simulators import single_costs
from shard_gym.task.constraints import KINDS, Constraints
from shard_gym.task.links import Links
from shard_gym_agents.search.kinds import Search, searched
from shard_gym_agents.search.kinds_greedy import greedy_board, seeded
from shard_gym_agents.search.kinds_swaps import even_out
from shard_gym_agents.search.kinds_trades import traded
from shard_gym_agents.search.state import Budget

TORCHREC = simulators.make("torchrec:cuda-v1")
ROOFLINE = simulators.make("roofline:h100-v1")
HOSTS = Links(port=6e8, uplink=1e8, group=2)
SOLVERS = ("random", "cost-greedy", "local-search", "auto")


def drawn(seed, tables=4, fill=0.7, **changes):
    """A small task on 2 hosts of 2 devices, memory filled to a share."""
    rng = np.random.default_rng(seed)
    rows = np.exp(rng.uniform(np.log(3), np.log(1e6), tables)).astype(int)
    pool = make_pool(
        rows=rows, dim=rng.choice([4, 8, 12, 24], tables), pooling=rng.uniform(0.5, 40, tables).round(1), dtype="fp16"
    )
    memory = int(pool.weight_bytes.sum() / 4 / fill) + 1
    task = Task(pool, (memory,) * 4, "iteration", 2048, links=HOSTS, kinds=KINDS)
    return replace(task, **changes)


def solved(name, task, planner=TORCHREC, **options):
    if name in ("local-search", "auto"):
        options = {"calls": 2_000, **options}
    return shard_gym_agents.make(name, **options)(task, planner)


def options_of(forms, table):
    """Every option of a table: form, choice, targets."""
    k, hosts = forms.task.num_devices, forms.task.num_devices // forms.task.devices_per_host
    for form in range(forms.first[table], forms.first[table + 1]):
        places = {DEVICE: k, HOST: hosts, ALL: 1, COPY: 1}
        for choice in np.flatnonzero(forms.may[form]).tolist():
            for targets in combinations_with_replacement(range(places[choice]), int(forms.pieces[form])):
                yield form, choice, targets


def brute_force(task, planner):
    """The least makespan of all plans, each scored as plans are."""
    forms = Forms.of(task, lambda shards: planner.embed_shards(task, shards))
    rates, bytes_ = planner.rates(task), forms.bytes[0]
    loads, sizes = [], []
    for table in range(task.num_tables):
        each = []
        for form, choice, targets in options_of(forms, table):
            span = {DEVICE: 1, HOST: task.devices_per_host}.get(choice, task.num_devices)
            times = np.bincount(targets, minlength=task.num_devices // span).repeat(span)
            load = np.einsum("kh,kh->k", forms.vector[form, forms.column[choice]], rates)
            each.append((times * load, times * bytes_[form, choice]))
        loads.append(np.array([load for load, _ in each]))
        sizes.append(np.array([size for _, size in each]))
    total, used = np.zeros((1, task.num_devices)), np.zeros((1, task.num_devices))
    for load, size in zip(loads, sizes, strict=True):
        total = (total[:, None] + load).reshape(-1, task.num_devices)
        used = (used[:, None] + size).reshape(-1, task.num_devices)
        kept = (used <= task.capacity).all(axis=1)
        total, used = total[kept], used[kept]
    return float(total.max(axis=1).min()) if len(total) else None


@pytest.mark.parametrize("seed", [1, 3, 4, 5])
def test_search_finds_the_best_of_all_plans(seed):
    task = drawn(seed, tables=3 + seed % 2, fill=(0.5, 0.9)[seed % 2])
    best = brute_force(task, TORCHREC)
    plan = solved("local-search", task, calls=6_000)
    assert score(task, plan, TORCHREC).makespan == pytest.approx(best, rel=1e-9)
    assert lower_bound(task, TORCHREC) <= best


@given(seed=st.integers(0, 10**6), kinds=st.sets(st.sampled_from(KINDS), min_size=1), fill=st.floats(0.2, 0.95))
@settings(max_examples=8, deadline=None)
def test_every_plan_keeps_to_its_task_and_is_worth_what_the_search_says(seed, kinds, fill):
    task = drawn(seed, 6, fill, kinds=tuple(kinds | {"rw"}), accounting="torchrec")
    task = replace(task, memory=tuple(m + 10**7 for m in task.memory))
    for planner in (TORCHREC, ROOFLINE):
        found = searched(task, planner, Budget(0, 1_000))
        assert violations(task, found.plan) == []
        assert score(task, found.plan, planner).makespan == found.makespan
        assert lower_bound(task, planner) <= found.makespan
        for name in ("random", "cost-greedy"):
            result = score(task, solved(name, task, planner), planner)
            assert result.feasible and lower_bound(task, planner) <= result.makespan


def test_forms_are_the_shards_of_their_plans():
    task = drawn(1, 5, residences=("hbm", "uvm", "cached"), host_memory=10**10, accounting="torchrec")
    task = replace(task, memory=(10**10,) * 4)
    forms = Forms.of(task, lambda shards: ROOFLINE.embed_shards(task, shards))
    rng = np.random.default_rng(0)
    for _ in range(50):
        every = [list(options_of(forms, t)) for t in range(5)]
        chosen = [options[rng.integers(len(options))] for options in every]
        placed = shards(task, forms.plan(chosen))
        sums, used = np.zeros((4, forms.vector.shape[2])), np.zeros((2, 4), np.int64)
        for form, choice, targets in chosen:
            span = {DEVICE: 1, HOST: 2}.get(choice, 4)
            times = np.bincount(targets, minlength=4 // span).repeat(span)
            sums += times[:, None] * forms.vector[form, forms.column[choice]]
            used += times * forms.bytes[:, form, choice]
        np.testing.assert_array_equal(sums, device_sums(ROOFLINE.embed_shards(task, placed), placed.device, 4))
        np.testing.assert_array_equal(used, np.stack(bytes_used(task, placed)))


def test_loads_of_devices_that_are_alike_are_those_of_each():
    """Devices of the same weights are costed once; one that differs makes all be costed."""
    task = drawn(1, 12)
    forms, k = Forms.of(task, lambda shards: ROOFLINE.embed_shards(task, shards)), task.num_devices
    rates = np.random.default_rng(0).random((k, forms.part_vector.shape[1]))
    alike = np.repeat(rates[:1], k, axis=0)
    other = np.concatenate([alike[:-1], rates[-1:]])
    np.testing.assert_array_equal(forms.loads(alike)[..., :-1], forms.loads(other)[..., :-1])


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("planner", [TORCHREC, ROOFLINE], ids=lambda p: p.id)
def test_constraints_hold(name, planner):
    rules = Constraints(
        pin=((0, 3),), together=((1, 2),), apart=((1, 3, 4),), no_split=(5,), kinds=((6, ("dp", "rw")), (7, ("cw",)))
    )
    task = drawn(5, 9, 0.3, constraints=rules)
    task = replace(task, tables=task.tables.with_(dim=np.full(9, 24, np.int32)), memory=(2**40,) * 4)
    plan = solved(name, task, planner)
    assert violations(task, plan) == []
    assert plan.devices[0] == (3,) and plan.kind[6] in ("rw", "dp")
    assert 7 in plan.splits and 5 not in plan.splits


@pytest.mark.parametrize("planner", [TORCHREC, ROOFLINE], ids=lambda p: p.id)
@pytest.mark.parametrize("seed", [0, 2])
def test_few_tables_leave_the_plan_in_use(planner, seed):
    """Whole tables that stay or move: searches and the exact program find the best of all such plans."""
    base, together = (0, 0, 1, 2, 2), ((1, 2),) if seed == 2 else ()
    task = drawn(seed, 5, constraints=Constraints(base=base, max_moves=5, together=together))
    task = replace(task, memory=(int(1.02 * task.tables.weight_bytes.max()),) * 4)
    made = [Plan(tuple(place)) for place in np.indices((4,) * 5).reshape(5, -1).T.tolist()]
    moved = np.array([sum(a != b for a, b in zip(plan.device, base, strict=True)) for plan in made])
    worth = np.array([score(task, plan, planner).makespan if not violations(task, plan) else np.inf for plan in made])
    assert worth.min() < np.inf
    for moves in (0, 2):
        best = worth[moved <= moves].min()
        few = replace(task, constraints=replace(task.constraints, max_moves=moves))
        for name in (
            "random",
            "cost-greedy",
            "dim-greedy",
            "beam",
            "local-search",
            *(("milp",) if planner is TORCHREC else ()),
        ):
            options = {"calls": 200} if name == "beam" else {}
            try:
                plan = solved(name, few, planner, **options)
            except InfeasibleTask:
                assert best == np.inf or name in ("random", "dim-greedy")
                continue
            assert violations(few, plan) == []
            if name in ("local-search", "milp"):
                assert score(few, plan, planner).makespan <= best * (1 + (1e-6 if planner is TORCHREC else 2e-3))


def test_a_table_larger_than_its_devices_lives_where_it_may():
    task = Task(make_pool(rows=10**6, dim=16, dtype="fp16"), (9 * 10**6,) * 4, "iteration", 512, kinds=("tw", "rw"))
    assert solved("cost-greedy", task).kind == ("rw",)
    assert quick(task).feasible and violations(task, quick(task).plan) == []
    only = replace(task, kinds=("tw",))
    assert "too few" in disproof(only)
    named = replace(task, constraints=Constraints(kinds=((0, ("tw",)),)))
    assert "it would fit as cw or rw" in disproof(named)
    with pytest.raises(InfeasibleTask, match="would fit as"):
        solved("auto", named)
    with pytest.raises(InfeasibleTask, match="would fit as"):
        lower_bound(named, TORCHREC)
    pinned = replace(task, constraints=Constraints(pin=((0, 1),)))
    with pytest.raises(InfeasibleTask, match="table 0 fits on no device: constraints keep it"):
        solved("cost-greedy", pinned)
    small = replace(task, memory=(10**6,) * 4)
    assert "residence uvm" in disproof(small)
    host = replace(small, residences=("hbm", "uvm", "cached"), host_memory=10**9)
    for name in SOLVERS:
        plan = solved(name, host)
        assert violations(host, plan) == [] and plan.residence[0] != "hbm"
    assert quick(host).feasible


def test_progress_stops_a_search_and_is_told_of_better_plans():
    told = []
    task = drawn(3, 12, 0.6)
    solved("local-search", task, progress=lambda makespan, _: told.append(makespan) or len(told) == 3)
    assert told == sorted(told, reverse=True) and len(told) <= 3

    def interrupt(makespan, _):
        if len(told) == 5:
            raise KeyboardInterrupt
        told.append(makespan)

    told.clear()
    plan = solved("auto", task, progress=interrupt)
    assert violations(task, plan) == []


def test_calls_make_a_search_repeatable():
    task = drawn(4, 20)
    assert solved("auto", task, seed=3) == solved("auto", task, seed=3)


def test_the_critical_path_has_a_bound_and_a_search():
    task = drawn(6, 10, objective="torchrec-critical-path")
    found = searched(task, TORCHREC, Budget(0, 5_000))
    assert score(task, found.plan, TORCHREC).makespan == found.makespan
    assert 0 < lower_bound(task, TORCHREC) <= found.makespan
    assert found.makespan <= score(task, solved("random", task), TORCHREC).makespan


def test_one_dear_table_binds():
    task = drawn(0, 4, kinds=("tw", "rw"), constraints=Constraints(kinds=((2, ("tw",)),)))
    task = replace(task, tables=task.tables.with_(pooling=np.array([1, 1, 500, 1])), memory=(2**40,) * 4)
    bound = certificate(task, TORCHREC)
    assert (bound.resource, bound.table) == ("one table", 2)
    assert score(task, solved("auto", task), TORCHREC).makespan == pytest.approx(bound.makespan, rel=1e-6)


def test_links_bind_where_they_are_slow():
    task = drawn(2, 8, 0.3, links=Links(port=1e4, uplink=1e3, group=2))
    bound = lower_bound(task, ROOFLINE)
    best = score(task, solved("auto", task, ROOFLINE), ROOFLINE).makespan
    quick = lower_bound(replace(task, links=HOSTS), ROOFLINE)
    assert 10 * quick < bound <= best


def test_no_shard_of_a_plan_as_fast_as_the_bound_is_slower():
    """Two tables, three devices: alone the dearer takes 3 ms, in halves on two devices 2.2 ms each."""
    task = drawn(0, 2, 0.1, kinds=("tw", "cw"))
    task = replace(
        task, tables=task.tables.with_(dim=np.array([24, 24], np.int32)), memory=(2**30,) * 3, links=None, speed=()
    )
    forms = Forms.of(task, lambda shards: np.zeros((len(shards.rows), 1)))
    loads = np.full((len(forms.table), 4, 3), np.inf)
    whole, halves = forms.first[:-1], forms.first[:-1] + 1
    loads[:, DEVICE] = 9.0
    loads[whole, DEVICE] = np.array([[3.0], [1.0]])
    loads[halves, DEVICE] = np.array([[2.2], [0.9]])
    found = prices(forms, loads)
    assert found.bound == pytest.approx(2.2, rel=1e-4)  # the mean is 4/3 ms, or 1.8 without the slow shard
    free = prices(replace(forms, may=forms.may & (forms.level == 0)[:, None]), loads)
    assert free.bound == 3.0 and free.table == 0


def test_few_kinds_where_each_costs_a_wait():
    task = drawn(2, 24, objective="torchrec-critical-path", batch=8192)
    dim = np.random.default_rng(2).choice([32, 64, 128, 256, 512], 24).astype(np.int32)
    tables = task.tables.with_(dim=dim)
    task = replace(task, tables=tables, memory=(int(tables.weight_bytes.sum() / 4 / 0.5),) * 4)
    search = Search(task, TORCHREC, Budget(0, 20_000))
    board = greedy_board(search)
    of_all = search.makespan
    kinds = {
        int(search.choices.kinds[o.form, o.choice])
        for o in seeded(search, board, np.random.default_rng(0)).chosen.values()
    }
    assert kinds < set(search.choices.kinds[search.choices.may].tolist())
    assert lower_bound(task, TORCHREC) <= search.makespan < of_all


@pytest.mark.parametrize("seed", range(3))
def test_trades_are_worth_what_is_asked_and_keep_to_memory(seed):
    """Residences change, halves stay halves: costs and free bytes are those of the plan that comes out."""
    task = drawn(seed, 24, 0.9, residences=("hbm", "cached"), host_memory=10**9, kinds=("tw", "cw", "dp"))
    task = replace(task, memory=(int(task.tables.weight_bytes.sum() / 12),) * 4)
    search = Search(task, ROOFLINE, Budget(0, 10**6))
    board = greedy_board(search)
    before, halved = board.asked_value, {i: o.form for i, o in board.chosen.items() if len(o.targets) > 1}
    traded(board, search.trades, search.budget)
    assert board.asked_value < before and (board.free >= 0).all()
    assert {i: o.form for i, o in board.chosen.items() if len(o.targets) > 1} == halved
    np.testing.assert_array_equal(board.sums, search.choices.sums(board.chosen))
    np.testing.assert_array_equal(board.free, board.choices.room - board.held.sum(axis=0))
    plan = search.choices.plan(board.chosen)
    assert violations(task, plan) == []
    assert float(search.costs.plans(board.sums).makespan) == pytest.approx(
        score(task, plan, ROOFLINE).makespan, rel=1e-12
    )


def test_swaps_make_loads_even_and_keep_to_memory():
    task = drawn(7, 40, 0.9, kinds=("tw", "rw"))
    search = Search(task, TORCHREC, Budget(0, 10**6))
    board = greedy_board(search)
    before = board.longest
    assert even_out(board, np.random.default_rng(0)) and board.longest < before
    assert (board.free >= 0).all()
    load = board.load.copy()
    board.settle()
    np.testing.assert_allclose(board.load, load, rtol=1e-9)
    assert violations(task, search.choices.plan(board.chosen)) == []


def greedy_of_whole_tables(task, planner):
    """The makespan of tables costliest first, each to the device that then costs least; memory does not count."""
    rows, sums = planner.embed(task), np.zeros((task.num_devices, planner.embed(task).shape[1]))
    for table in np.argsort(-single_costs(planner, task), kind="stable"):
        tried = sums + np.eye(task.num_devices)[..., None] * rows[table]
        sums = tried[np.diagonal(planner.decode(task, tried).cost(task.objective)).argmin()]
    return float(planner.decode(task, sums).makespan(task.objective))


@pytest.mark.parametrize("planner", [TORCHREC, ROOFLINE], ids=lambda p: p.id)
@pytest.mark.parametrize("seed", range(4))
def test_cost_greedy_over_all_kinds_is_no_worse_than_of_whole_tables(planner, seed):
    """Even where each collective takes long, so that every further kind costs a wait."""
    task = drawn(seed, 16, 0.1, links=replace(HOSTS, latency_ms=0.5), kinds=("tw", "rw", "dp"))
    found = score(task, solved("cost-greedy", task, planner), planner).makespan
    assert found <= greedy_of_whole_tables(task, planner)
