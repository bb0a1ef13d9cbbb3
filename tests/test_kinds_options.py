"""The option of a table that adds least, tables in turn, and prices of memory: in C, in numpy, and by brute force."""

import importlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym import core, simulators
from shard_gym.errors import InfeasibleTask
from shard_gym.plan.forms import DEVICE, HOST
from shard_gym.simulators import collectives
from shard_gym.simulators.base import counted
from shard_gym.task.constraints import Constraints
from shard_gym.task.links import Links
from shard_gym_agents.search.kinds import Search, greedy
from shard_gym_agents.search.kinds_board import put_side_by_side
from shard_gym_agents.search.kinds_greedy import turns
from shard_gym_agents.search.state import Budget
from tests.test_core import built, by_both
from tests.test_search_kinds import ROOFLINE, TORCHREC, drawn, options_of

priced = importlib.import_module("shard_gym.bounds.prices")  # the package has a function of the name
PLANNERS = {"torchrec": TORCHREC, "roofline": ROOFLINE, "roofline 2": simulators.make("roofline:h100-v2")}
RULES = Constraints(), Constraints(apart=((0, 1, 2),), together=((3, 4),))


def small(seed, caches=True, **changes):
    """A task of 12 tables on 2 hosts of 2, of all kinds; with caches two thirds of the rows have room in devices."""
    task = drawn(seed, 12, 1.5 if caches else 0.7, **changes)
    return replace(task, residences=("hbm", "uvm", "cached"), host_memory=10**9) if caches else task


def begun(seed, planner, placed=5, **changes):
    """A board with a few tables of a task, and its search."""
    task = small(seed, **changes)
    search = Search(task, planner, Budget(0, 1_000))
    turn = next(turns(search))
    board = search.board(turn.price)
    for item, lift in zip(turn.order[:placed].tolist(), turn.lift.tolist(), strict=False):
        board.raised(lift)
        if (option := board.best(item)) is not None:
            board.put(item, option)
    return search, board


def worth_of(board, item, form, choice, targets):
    """Worth of an option put into the sums as they are; None where it has no room."""
    choices = board.choices
    span = {DEVICE: 1, HOST: choices.host}.get(choice, choices.task.num_devices)
    times = np.bincount(targets, minlength=choices.task.num_devices // span).repeat(span)
    size = choices.size[:, form, choice] * times
    if (size > board.free + choices.kept[item]).any():
        return None
    load = board.load + board.loads[:, form, choice] * times
    more = (np.maximum(load, 0) ** 4).sum() - (np.maximum(board.load, 0) ** 4).sum()
    return more / 4 + board.dear @ size.sum(axis=1)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("planner", PLANNERS)
def test_the_best_option_adds_least_of_all(seed, planner):
    _, board = begun(seed, PLANNERS[planner])
    for item in set(range(12)) - set(board.chosen):
        every = [worth_of(board, item, *option) for option in options_of(board.choices.forms, item)]
        least = min((worth for worth in every if worth is not None), default=None)
        for found in by_both(lambda item=item: board.best(item)):
            assert (found is None) == (least is None)
            if found is not None:
                mine = worth_of(board, item, found.form, found.choice, found.targets)
                assert found.worth == pytest.approx(mine, rel=1e-6) and mine <= least + 1e-6 * abs(least)


@built
@given(seed=st.integers(0, 10**6), planner=st.sampled_from(list(PLANNERS)), rules=st.sampled_from(RULES))
@settings(max_examples=8, deadline=None)
def test_options_are_numpys(seed, planner, rules):
    _, board = begun(seed, PLANNERS[planner], constraints=rules)
    items = [item for item in board.choices.items.tolist() if item not in board.chosen]

    def told():
        before = board.asked
        return [board.best(item, noise) for item in items for noise in (0.0, 1.0)], board.asked - before

    c, numpy = by_both(told)
    assert c == numpy


@built
@given(seed=st.integers(0, 10**6), planner=st.sampled_from(list(PLANNERS)))
@settings(max_examples=8, deadline=None)
def test_tables_in_turn_are_those_put_one_by_one(seed, planner):
    search, _ = begun(seed, PLANNERS[planner], 0)
    turn = next(turns(search))

    def told():
        board = search.board(turn.price)
        board.put_in_turn(turn.order, turn.lift)
        return board

    c, numpy = by_both(told)
    same_boards(c, numpy)
    one_by_one = search.board(turn.price)
    for item, lift in zip(turn.order.tolist(), turn.lift.tolist(), strict=True):
        one_by_one.raised(lift)
        if (option := one_by_one.best(item)) is not None:
            one_by_one.put(item, option)
    same_boards(c, one_by_one)


def same_boards(one, other):
    assert list(one.chosen.items()) == list(other.chosen.items())
    assert (one.asked, one.lift) == (other.asked, other.lift)
    for name in ("load", "offset", "free", "cost", "held", "sums", "alone"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    placed = list(one.chosen)
    np.testing.assert_array_equal(one.form[placed], other.form[placed])


@given(
    seed=st.integers(0, 10**6),
    planner=st.sampled_from(list(PLANNERS)),
    caches=st.booleans(),
    fill=st.floats(0.3, 1.2),
    shares=st.lists(st.floats(0, 1), min_size=3, max_size=3),
)
@settings(max_examples=8, deadline=None)
def test_boards_side_by_side_are_those_made_alone(seed, planner, caches, fill, shares):
    search, _ = begun(seed, PLANNERS[planner], 0, caches=caches)
    turn, rng = next(turns(search)), np.random.default_rng(seed)
    may = search.choices.may & (rng.random(search.choices.may.shape) < shares[0])
    lifts = [turn.lift * share for share in shares]

    def fresh(share):
        board = search.board(turn.price * share * 4)
        board.narrow(may)
        board.free *= fill
        return board

    def told():
        boards = [fresh(share) for share in shares]
        for board in boards:
            board.options = boards[0].options
        put_side_by_side(boards, turn.order, lifts)
        return boards

    c, numpy = by_both(told)
    for i, share in enumerate(shares):
        alone = fresh(share)
        alone.put_in_turn(turn.order, lifts[i])
        same_boards(c[i], numpy[i])
        same_boards(c[i], alone)


@built
@given(
    seed=st.integers(0, 10**6), planner=st.sampled_from(list(PLANNERS)), caches=st.booleans(), fill=st.floats(0.3, 1.2)
)
@settings(max_examples=8, deadline=None)
def test_plans_of_cost_greedy_are_numpys(seed, planner, caches, fill):
    task = small(seed, caches)
    task = replace(task, memory=(int(task.tables.weight_bytes.sum() / 4 / fill),) * 4)

    def told():
        asked = counted(PLANNERS[planner])
        try:
            return greedy(task, asked), asked.calls
        except InfeasibleTask as error:
            return str(error), 0

    c, numpy = by_both(told)
    assert c == numpy


@given(seed=st.integers(0, 10**6), planner=st.sampled_from(list(PLANNERS)), caches=st.booleans())
@settings(max_examples=8, deadline=None)
def test_prices_are_numpys_and_need_no_useless_option(seed, planner, caches):
    search = Search(small(seed, caches), PLANNERS[planner], Budget(0, 1_000))
    forms, loads = search.choices.forms, search.loads

    def told():
        return priced.prices(forms, loads)

    c, numpy = by_both(told)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(priced, "_useless", lambda values: np.zeros(values.shape[1:], bool))
        every = told()
    for name, values in vars(c).items():
        np.testing.assert_array_equal(values, getattr(numpy, name), err_msg=name)
        np.testing.assert_array_equal(values, getattr(every, name), err_msg=name)


def test_an_option_is_useless_where_another_is_cheaper_and_takes_no_more():
    """Cost, slowest shard, bytes there and in the host's memory, of four options of a table."""
    options = np.array([[1.0, 2.0, 2.0, 3.0], [5.0, 5.0, 4.0, 5.0], [7.0, 7.0, 9.0, 6.0], [0.0, 0.0, 0.0, 0.0]])
    assert priced._useless(options[:, None]).tolist() == [[False, True, False, False]]


@built
@given(
    st.integers(0, 10**6),
    st.sampled_from([(), (1,), (3, 2)]),
    st.sampled_from([(1, 0), (8, 0), (8, 4), (7, 3), (24, 8), (2, 5)]),
    st.booleans(),
    st.sampled_from([np.inf, 3e7]),
    st.sampled_from([np.inf, 1e8]),
)
@settings(max_examples=60, deadline=None)
def test_collectives_are_numpys(seed, plans, hosts, peers, uplink, fabric):
    rng, (devices, group) = np.random.default_rng(seed), hosts
    links = Links(1.5e8, 0.03, group, uplink, fabric, peers)
    sums = rng.integers(0, 2**30, (*plans, devices, 13)) / 2.0**14 * (rng.random(13) < 0.7)
    sums *= rng.random((*plans, devices, 1)) < 0.8

    def told():
        return collectives.comm_of(links, 4096, sums, 5, 7)

    for c, numpy in zip(*by_both(told), strict=True):
        np.testing.assert_array_equal(c, numpy)


@built
def test_the_core_refuses_options_that_do_not_fit_together():
    _, board = begun(0, TORCHREC)
    c, given = core.compiled(), board.options.given
    rest = (board.load, board.free, board.dear, None)
    assert c.cheapest(*given, *rest, 0)
    for wrong, why in (
        ((given._replace(host=3), rest, 0), "options are"),
        ((given._replace(pieces=given.pieces[1:]), rest, 0), "options are"),
        ((given._replace(pieces=given.pieces + 8), rest, 0), "1 to 8 pieces"),
        ((given._replace(first=given.first + 1), rest, 11), "no such forms"),
        ((given, (board.load[:, :3].copy(), *rest[1:]), 0), "options are"),
        ((given, (*rest[:2], np.zeros(3), None), 0), "cheapest wants"),
        ((given, rest, 12), "no such tables"),
        ((given, rest, -1), "no such tables"),
    ):
        with pytest.raises(ValueError, match=why):
            c.cheapest(*wrong[0], *wrong[1], wrong[2])
    with pytest.raises(ValueError, match="priced wants"):
        c.priced(np.zeros((2, 3)), np.zeros((2, 2, 2)), np.zeros(2), np.zeros(2), 0, np.ones(2), 3, 0.0)
    with pytest.raises(ValueError, match="comm wants"):
        first = np.zeros(2, np.int64)
        c.comm(np.ones(9), first, first + 3, np.zeros((1, 2, 13)), 5, 7, np.zeros((2, 1, 2)))
    with pytest.raises(ValueError, match="in_turn wants"):
        turn = np.zeros((1, 1)), np.zeros((1, 2)), np.zeros(1), np.zeros((1, 9), np.int64), np.zeros((1, 4))
        c.in_turn(*given, board.load, board.free, board.offset, np.zeros(1, np.int64), *turn)
