"""Where tables may go under constraints: whoever keeps to `Room.legal` keeps them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym import Constraints, Plan, Task, make_pool
from shard_gym.memory import device_bytes
from shard_gym.nodes import halvings
from shard_gym.plan import violations
from shard_gym.room import Room, Rules, kept_whole


def task_of(sizes, memory, **constraints):
    """Tables of so many KB: one column of four bytes takes 4 * rows."""
    pool = make_pool([250 * size for size in sizes], [4] * len(sizes), [1.0] * len(sizes), dtype="int8")
    return Task(pool, tuple(1000 * m for m in memory), constraints=Constraints(**constraints), splits_allowed=True)


def legal(room, table):
    return np.flatnonzero(room.legal(table)[0]).tolist()


def test_without_constraints_memory_alone_counts():
    room = Room(task_of([3, 2], [4, 2]))
    assert room.rules is None
    assert (legal(room, 0), legal(room, 1)) == ([0], [0, 1])
    room.place(0, 0)
    assert legal(room, 1) == [1]


def test_a_pinned_table_has_its_room_reserved():
    room = Room(task_of([3, 2], [4, 4], pin=[(0, 0)]))
    assert legal(room, 1) == [1]
    room.place(1, 1)
    assert legal(room, 0) == [0]


def test_tables_together_take_their_room_at_once_and_follow_the_first():
    room = Room(task_of([3, 2, 1], [4, 5], together=[(0, 1)]))
    assert legal(room, 1) == [1]
    room.place(1, 1)
    assert (legal(room, 0), legal(room, 2)) == ([1], [0])


def test_tables_apart_keep_out_of_each_others_way():
    room = Room(task_of([1, 1, 1], [9, 9, 9], apart=[(0, 1)], pin=[(0, 2)]))
    assert legal(room, 1) == [0, 1]
    assert legal(room, 2) == [0, 1, 2]


def test_only_so_many_tables_may_move():
    room = Room(task_of([1, 1, 1], [9, 9], base=[0, 0, 1], max_moves=1))
    assert legal(room, 0) == [0, 1]
    room.place(0, 1)
    assert (legal(room, 1), legal(room, 2)) == ([0], [1])


def test_moves_that_must_be_made_are_kept_for_them():
    room = Room(task_of([1, 1, 1], [9, 9], base=[0, 0, 1], max_moves=1, pin=[(2, 0)]))
    assert (legal(room, 0), legal(room, 2)) == ([0], [0])


def test_a_table_may_leave_a_device_that_is_too_full():
    room = Room(task_of([3, 2], [4, 4], base=[0, 0], max_moves=1))
    assert legal(room, 0) == [1]
    room.place(0, 1)
    assert legal(room, 1) == [0]


def test_placements_side_by_side_do_not_touch():
    room = Room(task_of([1, 1], [9, 9], apart=[(0, 1)]), count=2)
    room.place(0, np.array([0, 1]))
    assert room.legal(1).tolist() == [[False, True], [True, False]]


def test_tables_whose_device_is_constrained_stay_whole():
    task = task_of([1] * 6, [9, 9], pin=[(0, 0)], together=[(1, 2)], apart=[(1, 3)], no_split=[4])
    assert kept_whole(task).tolist() == [True] * 5 + [False]
    assert kept_whole(task_of([1, 1], [9, 9], base=[0, 0], max_moves=1)).all()
    assert not halvings(task_of([1, 1], [9, 9], base=[0, 0], max_moves=1)).any()


def test_values_of_a_group_are_its_leaders():
    rules = Rules.of(task_of([1, 1, 1], [9, 9], together=[(2, 1)]))
    assert rules.merged(np.array([[1.0, 5.0], [2.0, 6.0], [4.0, 7.0]])).tolist() == [[1, 5], [6, 13], [0, 0]]


@st.composite
def constrained(draw):
    """A task whose `base` keeps to its constraints, with room to spare or none."""
    n, k = draw(st.integers(1, 8)), draw(st.integers(1, 4))
    sizes = draw(st.lists(st.integers(1, 5), min_size=n, max_size=n))
    base = draw(st.lists(st.integers(0, k - 1), min_size=n, max_size=n))
    used = np.bincount(base, sizes, minlength=k)
    memory = [int(u) + draw(st.integers(0, 3)) or 1 for u in used]
    on = {d: [t for t in range(n) if base[t] == d] for d in range(k)}
    pinned = draw(st.lists(st.sampled_from(range(n)), max_size=2, unique=True))
    groups = [tuple(tables[:2]) for tables in on.values() if len(tables) > 1 and draw(st.booleans())]
    one_each = [tables[-1] for tables in on.values() if tables and draw(st.booleans())]
    apart = [tuple(one_each)] if len(one_each) > 1 else []
    moves = draw(st.none() | st.integers(0, n))
    kept = {"pin": [(t, base[t]) for t in pinned], "together": groups, "apart": apart}
    return task_of(sizes, memory, **kept, **({} if moves is None else {"base": base, "max_moves": moves}))


@settings(max_examples=200, deadline=None)
@given(constrained(), st.randoms(use_true_random=False))
def test_whoever_keeps_to_what_is_legal_keeps_the_constraints(task, random):
    room, device = Room(task), [-1] * task.num_tables
    for table in random.sample(range(task.num_tables), task.num_tables):
        choices = legal(room, table)
        if task.constraints.max_moves is not None:
            assert choices, "the plan in use can be followed to the end"
        if not choices:
            return
        device[table] = random.choice(choices)
        room.place(table, device[table])
    assert not violations(task, Plan(tuple(device)))
    assert (room.free[0] == task.capacity - device_bytes(task, np.array(device))).all()


@pytest.mark.parametrize("seed", range(3))
def test_many_placements_at_once_are_as_one_by_one(seed):
    rng = np.random.default_rng(seed)
    task = task_of([2, 1, 1, 3, 1], [5, 5, 5], together=[(0, 2)], apart=[(1, 3)], pin=[(4, 1)])
    many, single = Room(task, 4), [Room(task) for _ in range(4)]
    for table in rng.permutation(5):
        one_by_one = np.concatenate([room.legal(table) for room in single])
        assert (many.legal(table) == one_by_one).all()
        devices = rng.integers(3, size=4)
        many.place(table, devices)
        for room, device in zip(single, devices, strict=True):
            room.place(table, device)
