import time
from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym import Constraints, Plan, Task, simulators, suites
from shard_gym.errors import InvalidPlan, InvalidTask
from shard_gym.memory.usage import device_bytes
from shard_gym.plan.moves import Move, aligned, best_columns, delta
from shard_gym.plan.random_plans import random_placements
from shard_gym.plan.shards import shards
from shard_gym.plan.violations import violations
from shard_gym.results.evaluate import score
from shard_gym.task.constraints import KINDS
from shard_gym.task.links import Links
from shard_gym_agents.search.kinds import random_plan
from tests.pool_helpers import fp16_pool as make_pool

pytestmark = pytest.mark.usefixtures("each_core")

GROUPED = "roofline:rtx2080ti-x4-v1"  # its links join pairs of devices
KEYS = ("metasyn-80x8", "dlrm-50x4", "core-80x8", "hetero-80x8", "prod-1000x128")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 6), st.sampled_from([2, 6, 10**12]))
def test_no_assignment_gains_more(seed, n, values):
    gain = np.random.default_rng(seed).integers(0, values, (n, n))
    column = best_columns(gain)
    assert sorted(column.tolist()) == list(range(n))
    best = max(sum(int(gain[i, j]) for i, j in enumerate(order)) for order in permutations(range(n)))
    assert gain[np.arange(n), column].sum() == best


def test_a_thousand_columns_are_assigned_in_a_moment(rng):
    hidden = rng.permutation(1_000)
    gain = rng.integers(0, 10**6, (1_000, 1_000))
    gain[np.arange(1_000), hidden] += 10**6
    start = time.process_time()
    assert best_columns(gain).tolist() == hidden.tolist()
    random = rng.integers(0, 10**9, (1_000, 1_000))
    assert random[np.arange(1_000), best_columns(random)].mean() > 0.99e9
    assert time.process_time() - start < 30


def two_tables(**settings):
    """16 columns of 10 fp16 rows, 20 bytes a column, and 8 columns of 5 rows, 10 bytes a column."""
    tables = make_pool(rows=[10, 5], dim=[16, 8], name=("a", "b"))
    return Task(tables, memory=(10**6,) * 3, splits_allowed=True, **settings)


def test_what_moves_is_counted_from_both_ends():
    found = delta(two_tables(), Plan((0, 1)), Plan((2, 1)))
    assert found.moves == (Move(0, "a", (0, 16), 320, source=0, target=2),)
    assert (found.sent, found.received) == ((320, 0, 0), (0, 0, 320))
    assert (found.tables, found.bytes, found.seconds(100.0)) == (1, 320, 3.2)
    assert delta(two_tables(), Plan((0, 1)), Plan((0, 1))).moves == ()


def test_the_busiest_device_decides_how_long_moving_takes():
    found = delta(two_tables(), Plan((0, 0)), Plan((1, 2)))
    assert (found.sent, found.received, found.bytes) == ((400, 0, 0), (0, 320, 80), 400)
    assert found.seconds(200.0) == 2.0
    assert delta(two_tables(), Plan((0, 1)), Plan((1, 0))).seconds(320.0) == 1.0  # both ways at once


def test_columns_that_are_there_already_stay():
    halves, quarters = (
        Plan((0, 1, 2), (0,)),
        Plan((0, 1, 0, 2), (0, 0)),
    )  # columns 0-3 and 8-15 of table a on 0, 4-7 on 2
    task = two_tables()
    found = delta(task, Plan((0, 1)), halves)
    assert found.moves == (Move(0, "a", (8, 16), 160, source=0, target=2),)
    assert delta(task, halves, Plan((2, 1))).moves == (Move(0, "a", (0, 8), 160, source=0, target=2),)
    changed = (Move(0, "a", (4, 8), 80, source=0, target=2), Move(0, "a", (8, 16), 160, source=2, target=0))
    assert delta(task, halves, quarters).moves == changed
    assert [m.columns for m in delta(task, quarters, Plan((1, 1))).moves] == [(0, 4), (4, 8), (8, 16)]


def test_optimizer_state_moves_where_it_is_accounted_for():
    """A rowwise state of 4 bytes a row is kept by each piece: 8 columns of 10 rows are 160 bytes and 40 of state."""
    task = two_tables(accounting="training", optimizer="rowwise_adagrad")
    assert delta(task, Plan((0, 1)), Plan((2, 1))).bytes == 320 + 40
    assert delta(task, Plan((0, 1)), Plan((0, 1, 2), (0,))).bytes == 160 + 40
    buffers = two_tables(accounting="true", optimizer="rowwise_adagrad")  # of a batch, which is not moved
    assert delta(buffers, Plan((0, 1)), Plan((2, 1))).bytes == 320 + 40


def test_plans_that_cannot_be_compared_are_refused():
    shared = Plan((0, 1), kind=("rw", "tw"), devices=((0, 1), (1,)))
    for old, new in ((Plan((0,)), Plan((0, 1))), (Plan((0, 1)), Plan((0, -1))), (shared, Plan((0, 1)))):
        with pytest.raises(InvalidPlan):
            delta(two_tables(), old, new)
    with pytest.raises(InvalidTask, match="bandwidth"):
        delta(two_tables(), Plan((0, 1)), Plan((1, 1))).seconds(0.0)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_pieces_received_are_what_was_not_there(seed, training):
    """Against sets of columns, one by one; of tables whose bytes divide evenly."""
    rng = np.random.default_rng(seed)
    accounting = {"accounting": "training", "optimizer": "adam"} if training else {}
    tables = make_pool(rows=rng.integers(1, 50, 5), dim=rng.choice([8, 16, 32], 5))
    task = Task(tables, memory=(10**9,) * 3, splits_allowed=True, **accounting)
    splits = [tuple(rng.permutation(5)[: rng.integers(0, 5)].tolist()) for _ in range(2)]
    old, new = (Plan(rng.integers(3, size=5 + len(s)), s) for s in splits)

    def columns(plan):
        ranges = [(t, 0, int(d)) for t, d in enumerate(tables.dim)]
        for i in plan.splits:
            t, first, last = ranges[i]
            ranges[i] = (t, first, (first + last) // 2)
            ranges.append((t, (first + last) // 2, last))
        return {(t, c): d for (t, a, b), d in zip(ranges, plan.device, strict=True) for c in range(a, b)}

    per_column = tables.rows * (2 + 8 * training)
    was, now = columns(old), columns(new)
    received = [sum(int(per_column[t]) for (t, c), d in now.items() if d == k != was[t, c]) for k in range(3)]
    assert list(delta(task, old, new).received) == received


@pytest.mark.parametrize("key", KEYS)
def test_new_names_change_neither_makespan_nor_memory(key):
    suite = suites.get(key)
    simulator = simulators.make(suite.judge if suite.judge.startswith("roofline") else GROUPED)
    for seed, task in enumerate(suite.tasks("val")[:4]):
        old, new = (Plan(p) for p in random_placements(task, 2, np.random.default_rng(seed)))
        found = aligned(task, old, new, simulator.hardware.links)
        before, after = score(task, new, simulator), score(task, found, simulator)
        assert (after.makespan, after.feasible) == (pytest.approx(before.makespan, rel=1e-12), before.feasible)
        assert delta(task, old, found).bytes < delta(task, old, new).bytes


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0, 2, 3, 4]), st.integers(1, 2), st.booleans())
def test_no_legal_names_let_more_bytes_stay(seed, group, kinds, pinned):
    """Against every permutation of five devices: legal are those that keep kinds, groups and pinned devices."""
    rng = np.random.default_rng(seed)
    tables = make_pool(rows=rng.integers(1, 1000, 8), dim=16)
    speed = tuple(rng.choice([1.0, 0.5][:kinds], 5).tolist())
    links = Links(1e6, group=group, uplink=1e6)
    old, new = (Plan(rng.integers(5, size=8)) for _ in range(2))
    task = Task(tables, (10**9,) * 5, objective="iteration", speed=speed, links=links)
    if pinned:
        task = replace(task, constraints=Constraints(pin=((3, new.device[3]),)))
    node = np.arange(5) // (group or 5)
    sizes = np.bincount(node)[node]
    found = aligned(task, old, new)
    assert score(task, found, simulators.make(GROUPED)).feasible
    best = min(
        delta(task, old, Plan(np.array(order)[list(new.device)])).bytes
        for order in map(np.array, permutations(range(5)))
        if np.array_equal(np.array(speed)[order], speed)
        and np.array_equal(node[order][:, None] == node[order], node[:, None] == node)
        and np.array_equal(sizes[order], sizes)
        and not (pinned and order[new.device[3]] != new.device[3])
    )
    assert delta(task, old, found).bytes == best


def test_devices_with_other_memory_keep_their_names():
    task = Task(make_pool(rows=[10, 40], dim=16), memory=(400, 2_000, 2_000))
    found = aligned(task, Plan((1, 0)), Plan((0, 2)))
    assert found == Plan((0, 2)) and (device_bytes(task, np.array(found.device)) <= task.capacity).all()
    assert aligned(replace(task, memory=(2_000,) * 3), Plan((1, 0)), Plan((0, 2))) == Plan((1, 0))


def test_without_links_of_its_own_a_task_has_the_planners():
    task = Task(make_pool(rows=[10, 10, 10], dim=16), memory=(10**6,) * 4, objective="iteration")
    old, new = Plan((0, 2, 3)), Plan((0, 1, 3))
    assert delta(task, old, aligned(task, old, new)).bytes == 0
    pairs = aligned(task, old, new, Links(1e6, group=2, uplink=1e6))  # tables 0 and 1 share a group in the new plan
    assert delta(task, old, pairs).tables == 1
    assert aligned(replace(task, objective="kernel"), old, new, Links(1e6, group=2)) == old


def test_a_thousand_devices_in_pairs_are_renamed_in_a_moment(rng):
    """Hundreds of thousands of pairs of groups could change places; few of them share a table."""
    task = Task(make_pool(rows=10, dim=16, pooling=[1.0] * 3_000), memory=(10**6,) * 1_000, objective="iteration")
    old = Plan(tuple(rng.integers(1_000, size=3_000).tolist()))
    swapped = Plan(tuple((d + 2) % 1_000 ^ 1 for d in old.device))  # each pair takes the next one's place, in turn
    start = time.process_time()
    assert aligned(task, old, swapped, Links(1e6, group=2, uplink=1e6)) == old
    assert time.process_time() - start < 10


def test_fewer_bytes_are_no_reason_to_move_more_tables_than_may():
    """Two small tables stay where they are, or the large one does."""
    tables = make_pool(rows=[10, 10, 1_000], dim=16)
    old, new = Plan((0, 0, 1)), Plan((0, 0, 0))
    task = Task(tables, memory=(10**6,) * 2)
    assert aligned(task, old, new) == Plan((1, 1, 1))
    counted = replace(task, constraints=Constraints(base=(0, 0, 1), max_moves=1))
    assert aligned(counted, old, new) == new


def all_kinds(rows=(8, 6), dim=(8, 8), **settings):
    """Tables of fp16 on two hosts of two devices: 2 bytes a row and column."""
    tables = make_pool(rows=list(rows), dim=list(dim), name=tuple("abcdef"[: len(rows)]))
    links = Links(port=6e8, group=2, uplink=1e8)
    return Task(tables, (10**6,) * 4, "iteration", links=links, kinds=KINDS, **settings)


EVERY = (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("new", "received"),
    [
        (Plan((0, 2), kind=("rw", "tw"), devices=(EVERY, (2,))), (0, 32, 32, 32)),  # 2 rows of 8 columns each
        (Plan((2, 2), kind=("twrw", "tw"), devices=((2, 3), (2,))), (0, 0, 64, 64)),  # 4 rows
        (Plan((0, 2), kind=("dp", "tw"), devices=(EVERY, (2,))), (0, 128, 128, 128)),
        (Plan((0, 2), residence=("uvm", "hbm")), (0, 0, 0, 0)),  # on the same device's host
        (Plan((0, 2, 2), (0,), ("grid", "tw", "grid"), ((0, 1), (2,), (2, 3))), (0, 32, 32, 32)),  # 4 rows, 4 columns
    ],
)
def test_shards_of_all_kinds_are_received_where_they_are_not(new, received):
    """Table a is whole on device 0, 8 rows of 8 columns, 128 bytes."""
    task = all_kinds(residences=("hbm", "uvm"), host_memory=10**6)
    found = delta(task, Plan((0, 2)), new)
    assert found.received == received and found.sent == (sum(received), 0, 0, 0)
    back = delta(task, new, Plan((0, 2)))
    assert (back.received[0], back.bytes) == ((0, 0) if "dp" in new.kind else (sum(received),) * 2)


def test_a_move_of_rows_says_which():
    task, rows = all_kinds(), Plan((0, 2), kind=("rw", "tw"), devices=(EVERY, (2,)))
    moved = delta(task, rows, Plan((1, 2))).moves
    assert [(m.rows, m.columns, m.bytes, m.source, m.target) for m in moved] == [
        ((0, 2), (0, 8), 32, 0, 1),
        ((4, 6), (0, 8), 32, 2, 1),
        ((6, 8), (0, 8), 32, 3, 1),
    ]
    assert delta(task, Plan((1, 2)), Plan((2, 2))).moves[0].rows is None


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_cells_received_are_what_was_not_there(seed, training):
    """Against sets of rows and columns, one by one."""
    rng = np.random.default_rng(seed)
    accounting = {"accounting": "training", "optimizer": "adam"} if training else {}
    task = all_kinds(rng.integers(1, 12, 3), rng.choice([8, 16], 3), **accounting)
    old, new = (random_plan(task, rng) for _ in range(2))

    def cells(plan):
        made, held = shards(task, plan), [set() for _ in range(4)]
        for t, d, r, n, c, w in zip(made.table, made.device, made.row, made.rows, made.column, made.dim, strict=True):
            held[d] |= set(product([int(t)], range(r, r + n), range(c, c + w)))
        return held

    was, now = cells(old), cells(new)
    found = delta(task, old, new)
    assert list(found.received) == [
        (2 + 8 * training) * len(after - before) for before, after in zip(was, now, strict=True)
    ]
    assert sum(found.sent) == sum(found.received) and delta(task, new, new).moves == ()
    for move in found.moves:
        rows = range(*(move.rows or (0, int(task.tables.rows[move.table]))))
        assert set(product([move.table], rows, range(*move.columns))) <= was[move.source] - was[move.target]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_hosts_and_single_devices_are_renamed_and_no_more_moves(seed):
    rng = np.random.default_rng(seed)
    task = all_kinds(rng.integers(1, 200, 6), rng.choice([8, 16], 6))
    old, new = (random_plan(task, rng) for _ in range(2))
    found = aligned(task, old, new)
    assert delta(task, old, found).bytes <= delta(task, old, new).bytes
    assert (found.kind, found.splits, found.share) == (new.kind, new.splits, new.share)
    assert violations(task, found) == []
    swapped = np.array([2, 3, 0, 1])
    names = {kind: swapped if kind not in ("rw", "dp") else np.arange(4) for kind in KINDS}
    devices = tuple(tuple(names[k][list(d)].tolist()) for k, d in zip(old.kind, old.devices, strict=True))
    moved = Plan([d[0] for d in devices], old.splits, old.kind, devices)
    assert delta(task, old, aligned(task, old, moved)).bytes == 0
