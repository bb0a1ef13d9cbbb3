"""Placing of tables: whoever keeps to `Placing.legal` keeps the constraints, and it is what plain Python finds."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym import Constraints, Plan, Task, make_pool
from shard_gym.memory.usage import device_bytes, table_bytes
from shard_gym.plan.nodes import Nodes, Options, halvings
from shard_gym.plan.placing import One, Placing, one
from shard_gym.plan.rules import Rules, kept_whole
from shard_gym.plan.violations import violations


def task_of(sizes, memory, **constraints):
    """Tables of so many KB: one column of four bytes takes 4 * rows."""
    pool = make_pool([250 * size for size in sizes], [4] * len(sizes), [1.0] * len(sizes), dtype="int8")
    return Task(pool, tuple(1000 * m for m in memory), constraints=Constraints(**constraints), splits_allowed=True)


def placing_of(task, count=1):
    return Placing(Options.of(task), count)


def legal(placing, table):
    return np.flatnonzero(placing.legal(table)[0]).tolist()


def test_without_constraints_memory_alone_counts():
    placing = placing_of(task_of([3, 2], [4, 2]))
    assert not placing.options.rules.binding
    assert (legal(placing, 0), legal(placing, 1)) == ([0], [0, 1])
    placing.place(0, 0)
    assert legal(placing, 1) == [1]


def test_a_pinned_table_has_its_room_reserved():
    placing = placing_of(task_of([3, 2], [4, 4], pin=[(0, 0)]))
    assert legal(placing, 1) == [1]
    placing.place(1, 1)
    assert legal(placing, 0) == [0]


def test_tables_together_take_their_room_at_once_and_follow_the_first():
    placing = placing_of(task_of([3, 2, 1], [4, 5], together=[(0, 1)]))
    assert legal(placing, 1) == [1]
    placing.place(1, 1)
    assert (legal(placing, 0), legal(placing, 2)) == ([1], [0])


def test_tables_apart_keep_out_of_each_others_way():
    placing = placing_of(task_of([1, 1, 1], [9, 9, 9], apart=[(0, 1)], pin=[(0, 2)]))
    assert legal(placing, 1) == [0, 1]
    assert legal(placing, 2) == [0, 1, 2]


def test_only_so_many_tables_may_move():
    placing = placing_of(task_of([1, 1, 1], [9, 9], base=[0, 0, 1], max_moves=1))
    assert legal(placing, 0) == [0, 1]
    placing.place(0, 1)
    assert (legal(placing, 1), legal(placing, 2)) == ([0], [1])


def test_moves_that_must_be_made_are_kept_for_them():
    placing = placing_of(task_of([1, 1, 1], [9, 9], base=[0, 0, 1], max_moves=1, pin=[(2, 0)]))
    assert (legal(placing, 0), legal(placing, 2)) == ([0], [0])


def test_a_table_may_leave_a_device_that_is_too_full():
    placing = placing_of(task_of([3, 2], [4, 4], base=[0, 0], max_moves=1))
    assert legal(placing, 0) == [1]
    placing.place(0, 1)
    assert legal(placing, 1) == [0]


def test_placements_side_by_side_do_not_touch():
    placing = placing_of(task_of([1, 1], [9, 9], apart=[(0, 1)]), count=2)
    placing.place(0, np.array([0, 1]))
    assert placing.legal(1).tolist() == [[False, True], [True, False]]


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
    placing, device = placing_of(task), [-1] * task.num_tables
    for table in random.sample(range(task.num_tables), task.num_tables):
        choices = legal(placing, table)
        if task.constraints.max_moves is not None:
            assert choices, "the plan in use can be followed to the end"
        if not choices:
            return
        device[table] = random.choice(choices)
        placing.place(table, device[table])
    assert not violations(task, Plan(tuple(device)))
    assert (placing.free[0] == task.capacity - device_bytes(task, np.array(device))).all()


@pytest.mark.parametrize("seed", range(3))
def test_many_placements_at_once_are_as_one_by_one(seed):
    rng = np.random.default_rng(seed)
    task = task_of([2, 1, 1, 3, 1], [5, 5, 5], together=[(0, 2)], apart=[(1, 3)], pin=[(4, 1)])
    many, single = placing_of(task, 4), [placing_of(task) for _ in range(4)]
    for table in rng.permutation(5):
        one_by_one = np.concatenate([placing.legal(table) for placing in single])
        assert (many.legal(table) == one_by_one).all()
        devices = rng.integers(3, size=4)
        many.place(table, devices)
        for placing, device in zip(single, devices, strict=True):
            placing.place(table, device)


@dataclass
class Oracle:
    """One plan of a task in plain Python, pieces as (table, level), straight from what constraints mean."""

    task: Task
    size: dict  # of each piece
    vector: dict
    put: list = field(default_factory=list)  # (piece, device)

    def __post_init__(self):
        c, n = self.task.constraints, self.task.num_tables
        self.groups = [{t} for t in range(n)]
        for group in c.together:
            joined = set().union(*(g for g in self.groups if g & set(group)))
            self.groups = [g for g in self.groups if not g & joined] + [joined]
        self.devices = range(self.task.num_devices)

    def group(self, table):
        return next(g for g in self.groups if table in g)

    def bytes(self, group):
        return sum(self.size[t, 0] for t in group)

    def away(self, group, device):
        c = self.task.constraints
        return 0 if c.max_moves is None else sum(c.base[t] != device for t in group)

    def allowed(self, group):
        pins = [d for t, d in self.task.constraints.pin if t in group]
        return [d for d in self.devices if all(d == pin for pin in pins)]

    def home(self, group):
        """Device where it is expected: on its pin, or where fewest of it move."""
        if not any(t in group for t, _ in self.task.constraints.pin) and self.task.constraints.max_moves is None:
            return None
        return min(self.allowed(group), key=lambda d: (self.away(group, d), d))

    def seat(self, group):
        return next((d for (t, level), d in self.put if level == 0 and t in group), None)

    def stands(self, group):
        """Device where it is or is expected."""
        seat = self.seat(group)
        return self.home(group) if seat is None else seat

    def free(self, device):
        return self.task.memory[device] - sum(self.size[piece] for piece, d in self.put if d == device)

    def sums(self, device):
        return sum((self.vector[piece] for piece, d in self.put if d == device), 0 * next(iter(self.vector.values())))

    def room(self, device, but):
        halves = sum(self.size[p] for p, d in self.put if p[1] and d == device)
        others = sum(self.bytes(g) for g in self.groups if g is not but and self.stands(g) == device)
        return self.task.memory[device] - halves - others

    def legal(self, piece):
        table, level = piece
        if level:
            return [self.room(d, None) >= self.size[piece] for d in self.devices]
        group, c = self.group(table), self.task.constraints
        if self.seat(group) is not None:
            return [d == self.seat(group) for d in self.devices]
        foes = [g for g in self.groups if g is not group and any(g & set(a) and group & set(a) for a in c.apart)]
        moved = sum(self.away(g, self.stands(g)) for g in self.groups if g is not group)
        return [
            d in self.allowed(group)
            and self.room(d, group) >= self.bytes(group)
            and all(self.stands(g) != d for g in foes)
            and (c.max_moves is None or moved + self.away(group, d) <= c.max_moves)
            for d in self.devices
        ]


def options_and_oracles(task, count):
    """The tables and halves of a task with vectors made up, and as many plans of them in plain Python."""
    nodes = Nodes.of(task, split_action=True)
    size, vector = table_bytes(nodes.pieces), np.random.default_rng(0).integers(0, 99, (len(nodes), 2)) / 2.0**14
    table = np.where(nodes.level == 0, nodes.table, -1)
    options = Options.of_pieces(task, size, table, vector, Rules.of(task), nodes.may_split[:, None])
    pieces = list(zip(nodes.table.tolist(), nodes.level.tolist(), strict=True))
    known = dict(zip(pieces, size.tolist(), strict=True)), dict(zip(pieces, vector, strict=True))
    return options, pieces, [Oracle(task, *known) for _ in range(count)]


def assert_alike(placing, oracles):
    for b, oracle in enumerate(oracles):
        assert placing.free[b].tolist() == [oracle.free(d) for d in oracle.devices]
        assert (placing.sums[b] == [oracle.sums(d) for d in oracle.devices]).all()


def in_any_order(pieces, random):
    """The rows of whole tables."""
    whole = [row for row, (_, level) in enumerate(pieces) if level == 0]
    return random.sample(whole, len(whole))


@settings(max_examples=200, deadline=None)
@given(constrained(), st.randoms(use_true_random=False), st.booleans())
def test_bytes_sums_and_what_is_legal_are_those_of_plain_python(task, random, keeps):
    """Three plans side by side, every table in an order of its own, halves of some, legal or not."""
    options, pieces, oracles = options_and_oracles(task, 3)
    placing, k = Placing(options, 3, track=True), task.num_devices
    waiting = [in_any_order(pieces, random) for _ in oracles]
    while any(waiting):
        of = np.flatnonzero([bool(each) for each in waiting])
        rows = np.array([waiting[b].pop(0) for b in of])
        found, chosen = placing.legal(rows, of).tolist(), []
        for b, row, legal in zip(of.tolist(), rows.tolist(), found, strict=True):
            may_split = bool(options.changes[row, 0])
            assert legal == [*oracles[b].legal(pieces[row]), may_split]
            among = [d for d, may in enumerate(legal) if may] if keeps and any(legal) else range(k + may_split)
            chosen.append(random.choice(among))
            if chosen[-1] == k:
                waiting[b] += [row + 1, row + 1]
            else:
                oracles[b].put.append((pieces[row], chosen[-1]))
        placing.place(rows, np.array(chosen), of)
        assert_alike(placing, oracles)


@settings(max_examples=200, deadline=None)
@given(constrained(), st.booleans(), st.randoms(use_true_random=False))
def test_one_plan_in_plain_numbers_is_that_of_plain_python(task, ruled, random):
    task = task if ruled else replace(task, constraints=Constraints())
    options, pieces, (oracle,) = options_and_oracles(task, 1)
    placing, waiting, k = one(options, track=True), in_any_order(pieces, random), task.num_devices
    many = Placing(options, track=True)
    assert isinstance(placing, One) != options.rules.binding
    while waiting:
        row = waiting.pop(0)
        expected, may_split = oracle.legal(pieces[row]), bool(options.changes[row, 0])
        assert [placing.may(row, d) for d in range(k + 1)] == placing.legal(row)[0].tolist() == [*expected, may_split]
        mask = [*(expected if any(expected) else [not may_split] * k), may_split]
        assert placing.mask(row).tolist() == many.mask(row).tolist() == mask
        option = random.randrange(k + may_split)
        legal = [*expected, may_split][option]
        assert placing.took(row, option) == legal
        if not legal:
            placing.put(row, option)
        many.put(row, option)
        if option == k:
            waiting += [row + 1, row + 1]
        else:
            oracle.put.append((pieces[row], option))
        assert_alike(placing, [oracle])
        assert_alike(many, [oracle])


def test_tasks_side_by_side_keep_to_their_own_constraints():
    tasks = [
        task_of([1, 1], [9, 9], apart=[(0, 1)]),
        task_of([1, 2, 1], [1, 9]),
        task_of([1, 2, 1], [3, 3], together=[(0, 2)], pin=[(1, 0)]),
        task_of([1, 1], [9, 9], base=[0, 1], max_moves=1),
    ]
    each = [Options.of(task) for task in tasks]
    first = np.cumsum([0, *(len(one.size) for one in each)])
    columns = ("size", "vector", "table", "changes")
    joined = {name: np.concatenate([getattr(one, name) for one in each]) for name in columns}
    options = Options(
        **joined,
        tasks=tasks,
        capacity=np.stack([task.capacity for task in tasks]),
        rules=Rules.side_by_side([one.rules for one in each]),
        held=np.concatenate([*(one.held[:-1] for one in each), [0]]),
    )
    placing = Placing(options, 4)
    placing.begin(np.arange(4), np.arange(4))
    alone = [one(options) for options in each]
    for table in range(2):
        legal = placing.legal(first[:-1] + table)
        assert legal.tolist() == [single.legal(table)[0].tolist() for single in alone]
        chosen = legal.argmax(axis=1)
        placing.place(first[:-1] + table, chosen)
        for single, device in zip(alone, chosen.tolist(), strict=True):
            single.put(table, device)
