"""Annealing of plans of all kinds of sharding: in C and in numpy the same, with books that are kept."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym import core, simulators
from shard_gym.plan.forms import COPY, DEVICE, HOST, Forms
from shard_gym.plan.violations import violations
from shard_gym.results.evaluate import score
from shard_gym.task.constraints import Constraints
from shard_gym.task.links import Links
from shard_gym_agents.search.kinds import Search, searched
from shard_gym_agents.search.kinds_changes import DRAWN, Changing, can_change
from shard_gym_agents.search.kinds_greedy import greedy_board
from shard_gym_agents.search.state import Budget
from tests.test_core import built, by_both
from tests.test_search_kinds import drawn, options_of

ROOFLINE = simulators.make("roofline:h100-v2")


def begun(task, calls=10**9):
    """A search that has greedy's plan."""
    search = Search(task, ROOFLINE, Budget(0, calls))
    greedy_board(search)
    return search


def cached(seed, tables=12, **changes):
    """A task whose rows do not all fit into devices' memory."""
    task = drawn(seed, tables, 0.9, residences=("hbm", "cached"), host_memory=10**9, **changes)
    return replace(task, memory=(int(task.tables.weight_bytes.sum() / 6),) * 4)


@built
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    speed=st.sampled_from([(), (1.0, 0.5, 1.0, 2.0)]),
    links=st.sampled_from([None, Links(port=6e8, uplink=1e8, group=2, latency_ms=0.01), Links(port=1e7, fabric=1e8)]),
    heat=st.sampled_from([0.0, 1e-3, 1.0]),
    together=st.sampled_from([(), ((1, 2), (4, 6, 7))]),
)
def test_changes_in_c_are_numpys(seed, speed, links, heat, together):
    kinds = ("tw", "cw", "rw", "twrw", "grid", "dp") if links is not None and links.group else ("tw", "cw", "rw", "dp")
    task = cached(seed, speed=speed, links=links, kinds=kinds, constraints=Constraints(together=together))

    def changed():
        search = begun(task)
        changing, before = Changing(search), search.costs.planner.calls
        over = changing.go(np.random.default_rng(seed), heat, 0.1)
        return changing, over, search.costs.planner.calls - before

    (c, *told), (numpy, *again) = by_both(changed)
    assert told == again and c.makespan == numpy.makespan
    for name in ("plan", "best", "sums", "used"):
        np.testing.assert_array_equal(getattr(c, name), getattr(numpy, name))


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6), heat=st.sampled_from([0.0, 1e-2]))
def test_books_are_kept_and_the_best_plan_fits(seed, heat):
    task = cached(seed, constraints=Constraints(pin=((0, 1),), together=((1, 2),), apart=((3, 4),)))
    search = begun(task)
    assert can_change(search)
    changing, first = Changing(search), dict(search.chosen)
    for turn in range(3):
        changing.go(np.random.default_rng(seed + turn), heat, 1.0)
    kept = {0, 3, 4}  # a pin, and tables apart: no change moves them
    assert [search.chosen[i]._replace(worth=0) for i in kept] == [first[i]._replace(worth=0) for i in kept]
    changing.best = changing.plan
    now = {item: changing._option(item) for item in search.chosen}
    np.testing.assert_array_equal(changing.sums, search.choices.sums(now))
    size = search.choices.size
    used = sum(size[:, o.form, o.choice] * search.choices.times(o) for o in now.values())
    np.testing.assert_array_equal(changing.used, used)
    assert violations(task, search.plan) == []
    assert search.makespan == pytest.approx(score(task, search.plan, ROOFLINE).makespan, rel=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_annealing_finds_the_best_of_all_plans(seed):
    task = drawn(seed, 3, 0.6)
    forms = Forms.of(task, lambda shards: ROOFLINE.embed_shards(task, shards))
    rows, sizes = [], []
    for table in range(3):
        each, size = [], []
        for form, choice, targets in options_of(forms, table):
            span = {DEVICE: 1, HOST: 2}.get(choice, 4)
            times = np.bincount(targets, minlength=4 // span).repeat(span)
            each.append(times[:, None] * forms.vector[form, forms.column[choice]])
            size.append(times * forms.bytes[0, form, choice])
        rows.append(np.array(each))
        sizes.append(np.array(size))
    best = np.inf
    for some in np.array_split(np.array(list(product(*(range(len(each)) for each in rows)))), 20):
        fits = (sum(size[i] for size, i in zip(sizes, some.T, strict=True)) <= task.capacity).all(axis=1)
        sums = sum(each[i] for each, i in zip(rows, some[fits].T, strict=True))
        best = min(best, ROOFLINE.decode(task, sums).makespan(task.objective).min(initial=np.inf))
    found = searched(task, ROOFLINE, Budget(0, 30_000))
    assert found.makespan == pytest.approx(best, rel=1e-9)


def test_changes_count_as_questions_to_whoever_counts():
    asked = simulators.base.counted(ROOFLINE)
    own = searched(cached(2), asked, Budget(0, 5_000)).costs.planner.calls
    assert asked.calls == own + 1 >= 5_000  # one more for what the plan is worth


def test_a_piece_moves_and_pieces_of_two_tables_swap():
    """Numbers that are drawn say what is done, by hand."""
    task = drawn(0, 4, 0.2, kinds=("tw",), links=None)
    changing = Changing(begun(task))
    changing.plan[:, :3] = [[i, DEVICE, i] for i in range(4)]  # each whole on its own device
    moved = changing._change([0.9, 0.0, 0.0, 0.75, 0.1, 0.0, 0.0, 0.0])  # table 0, a piece elsewhere, device 3
    assert moved.items == [0] and moved.after[0][:3] == [0, DEVICE, 3]
    assert changing._change([0.9, 0.0, 0.0, 0.75, 0.9, 0.0, 0.0, 0.0]) is None  # the way it has, and nowhere else
    swapped = changing._change([0.1, 0.3, 0.8, 0.0, 0.0, 0.9, 0.0, 0.0])  # tables 1 and 3
    assert swapped.items == [1, 3] and [o[2] for o in swapped.after] == [3, 1]
    assert changing._change([0.1, 0.3, 0.3, 0.0, 0.0, 0.9, 0.0, 0.0]) is None  # a table with itself


def test_planners_that_the_core_does_not_know_are_searched_otherwise():
    task = drawn(0, 6, objective="torchrec-critical-path")
    search = Search(task, simulators.make("torchrec:cuda-v1"), Budget(0, 100))
    greedy_board(search)
    assert not can_change(search)
    few = replace(cached(1), constraints=Constraints(base=(0,) * 12, max_moves=3))
    assert not can_change(begun(replace(few, memory=(2**40,) * 4)))  # most tables stay where they are


@built
def test_changes_beside_arrays_are_refused():
    search = begun(cached(3))
    changing, drawn_, c = Changing(search), np.random.default_rng(0).random((4, DRAWN)), core.compiled()
    rest = (1.0, changing.plan, changing.sums, changing.used, drawn_, 0.0, 1.0, np.inf, changing.best.copy())
    ways, known = list(changing.ways), list(changing.known)
    c.changed(*ways, *known, *rest)
    beside = {
        "placed": (1, ways[1] + len(ways[2])),
        "items": (6, ways[6] + 12),
        "ways": (8, ways[8] + [[0, COPY + 1]]),
        "first": (7, ways[7][::-1].copy()),
        "pieces": (0, ways[0] + 8),
    }
    for place, values in beside.values():
        with pytest.raises(ValueError, match="changed wants"):
            c.changed(*ways[:place], values, *ways[place + 1 :], *known, *rest)
    for place in (1, 2, 3, 8):
        short = [*rest]
        short[place] = rest[place][:-1]
        with pytest.raises(ValueError, match="changed wants"):
            c.changed(*ways, *known, *short)
    with pytest.raises(ValueError, match="changed"):
        c.changed(*ways, *known)
    with pytest.raises(TypeError, match="float64"):
        c.changed(*ways[:2], ways[2].astype(np.float32), *ways[3:], *known, *rest)
    plan = changing.plan.copy()
    plan[0, 2] = 4
    with pytest.raises(ValueError, match="changed wants"):
        c.changed(*ways, *known, 1.0, plan, *rest[2:])
