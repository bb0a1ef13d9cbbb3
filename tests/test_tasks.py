import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym import Constraints, Task
from shard_gym.errors import CorruptFile, InvalidTask, UnknownName
from shard_gym.memory.usage import device_bytes, device_sums, overshoot, table_bytes
from shard_gym.task.links import Links
from tests.pool_helpers import fp16_pool as make_pool


def test_a_task_is_a_value(tiny_task):
    same = dataclasses.replace(tiny_task)
    assert same == tiny_task and hash(same) == hash(tiny_task)
    assert dataclasses.replace(tiny_task, batch=1_024) != tiny_task
    assert dataclasses.replace(tiny_task, speed=(1, 1, 0.5)) != tiny_task
    assert dataclasses.replace(tiny_task, tables=tiny_task.tables.with_(dim=np.full(6, 4))) != tiny_task


def test_json_gives_the_task_back(tiny_task):
    rich = dataclasses.replace(
        tiny_task,
        links=Links(port=1e8, group=3),
        optimizer="adam",
        accounting="training",
        objective="iteration",
        constraints=Constraints(pin=((0, 1),), apart=((1, 2),), base=(0,) * 6, max_moves=2),
    )
    for task in (tiny_task, rich):
        assert Task.from_json(task.to_json()) == task
        assert "Infinity" not in task.to_json()


def test_a_task_of_one_bag_a_table_is_hashed_and_written_as_before_there_were_bags(tiny_task):
    assert tiny_task.hash == "61769c10915076eb"
    assert "bags" not in json.loads(tiny_task.to_json())["tables"]
    several = dataclasses.replace(tiny_task, tables=tiny_task.tables.with_(bags=[1, 1, 1, 1, 1, 0.5]))
    assert several != tiny_task and Task.from_json(several.to_json()).tables == several.tables
    assert several.split([5]).tables.bags.tolist() == [1, 1, 1, 1, 1, 0.5, 0.5]


RICH = {  # another value for every field
    "memory": (1, 2, 3),
    "objective": "iteration",
    "batch": 7,
    "speed": (1.0, 0.5, 1.0),
    "links": Links(port=1e8),
    "optimizer": "adam",
    "accounting": "training",
    "splits_allowed": True,
    "constraints": Constraints(pin=((1, 2),)),
    "name": "mine",
    "kinds": ("cw",),
    "residences": ("hbm", "uvm"),
    "host_memory": 10,
    "host_link": 5.0,
}
COLUMNS = {  # and for every column of the first table
    "rows": 70_000,
    "dim": 4,
    "pooling": 9.5,
    "distinct": 999,
    "uses": np.eye(1, 17, 3)[0],
    "accesses": np.eye(1, 17, 3)[0],
    "name": "other",
    "dtype": "fp32",
    "bags": 2.5,
    "pooled": False,
    "weighted": True,
    "optimizer": "lamb",
}


def test_every_field_decides_the_hash(tiny_task):
    tiny_task = dataclasses.replace(tiny_task, host_memory=9)
    assert RICH.keys() | {"tables"} == {f.name for f in dataclasses.fields(Task)}
    others = [dataclasses.replace(tiny_task, **{field: value}) for field, value in RICH.items()]
    assert COLUMNS.keys() | {"reference_batch"} == {f.name for f in dataclasses.fields(tiny_task.tables)}
    pools = [tiny_task.tables.with_(reference_batch=65_537)]
    for column, value in COLUMNS.items():
        changed = list(getattr(tiny_task.tables, column))
        changed[0] = value
        pools.append(tiny_task.tables.with_(**{column: changed}))
    others += [dataclasses.replace(tiny_task, tables=pool) for pool in pools]
    assert len({task.hash for task in (tiny_task, *others)}) == 1 + len(RICH) + len(COLUMNS) + 1


def test_every_changed_value_in_the_json_is_refused(tiny_task):
    last = [False] * (tiny_task.num_tables - 1) + [True]
    told = {"bags": 3.0, "pooled": np.invert(last), "weighted": last, "optimizer": ["adam" * one for one in last]}
    tiny_task = dataclasses.replace(tiny_task, tables=tiny_task.tables.with_(**told), host_memory=9)
    written = json.loads(tiny_task.to_json())
    rich = json.loads(dataclasses.replace(tiny_task, **RICH).to_json())
    for field in RICH:
        with pytest.raises(CorruptFile, match="its content is"):
            Task.from_json(json.dumps(written | {field: rich[field]}))
    for column, value in COLUMNS.items():
        plain = value.tolist() if isinstance(value, np.ndarray) else value
        tables = written["tables"] | {column: [plain, *written["tables"][column][1:]]}
        with pytest.raises(CorruptFile, match="its content is"):
            Task.from_json(json.dumps(written | {"tables": tables}))
    for batch, told in ((65_537, "its content is"), (0, "InvalidPool"), (65_536.0, "InvalidPool")):
        tables = written["tables"] | {"reference_batch": batch}
        with pytest.raises(CorruptFile, match=told):
            Task.from_json(json.dumps(written | {"tables": tables}))


def test_numpy_numbers_make_the_same_task(tiny_task):
    plain = Constraints(pin=((0, 1),), apart=((1, 2),), base=(0,) * 6, max_moves=2)
    three = np.arange(3)
    ours = Constraints(pin=three[None, :2], apart=[three[1:]], base=np.zeros(6, int), max_moves=three[2])
    assert ours == plain and hash(ours) == hash(plain)
    settings = {"batch": 8, "links": Links(1, 2, 3, 4)}
    same = {"batch": np.int64(8), "links": Links(np.float32(1), np.int8(2), np.int64(3), np.float64(4))}
    one = dataclasses.replace(tiny_task, constraints=plain, memory=(5, 6, 7), **settings)
    two = dataclasses.replace(tiny_task, constraints=ours, memory=np.array([5.0, 6.5, 7.9]), **same)
    assert one == two and Task.from_json(two.to_json()) == one


def test_changed_json_is_refused(tiny_task):
    changed = json.loads(tiny_task.to_json()) | {"batch": 7}
    with pytest.raises(CorruptFile, match="its content is"):
        Task.from_json(json.dumps(changed))
    with pytest.raises(CorruptFile):
        Task.from_json(tiny_task.to_json()[:-20])


BAD = {
    "at least one device": dict(memory=()),
    "device 1 has 0 bytes": dict(memory=(1, 0, 1)),
    "speed": dict(speed=(1.0, 2.0)),
    "batch": dict(batch=0),
    "tables \\[6\\]": dict(constraints=Constraints(pin=((6, 0),))),
    "devices \\[3\\]": dict(constraints=Constraints(pin=((0, 3),))),
    "max_moves needs base": dict(constraints=Constraints(max_moves=1)),
    "finite number a device": dict(memory=(float("inf"),) * 3),
    "finite number": dict(memory=(float("nan"),) * 3),
    "one finite": dict(memory=("1", "1", "1")),
    "not below 2": dict(memory=(1, 1, 10**20)),
    "got True": dict(batch=True),
    "positive int": dict(batch=1.0),
    "together, with optimizer state": dict(tables=make_pool(rows=[2**45] * 5, dim=16)),
    "pinned to two devices": dict(constraints=Constraints(pin=((0, 1), (0, 2)))),
    "table 2, or one that must be with it": dict(
        constraints=Constraints(pin=((0, 1), (2, 0)), together=((0, 1), (1, 2)))
    ),
    "\\(0, 1\\) must be apart": dict(constraints=Constraints(pin=((0, 2), (1, 2)), apart=((0, 1),))),
    "\\(3, 4\\) must be apart": dict(constraints=Constraints(together=((3, 5), (5, 4)), apart=((3, 4),))),
    "4 tables must be apart": dict(constraints=Constraints(apart=((0, 1, 2, 3),))),
}


@pytest.mark.parametrize("message", BAD)
def test_contradictions_are_named(tiny_task, message):
    with pytest.raises(InvalidTask, match=message):
        dataclasses.replace(tiny_task, **BAD[message])


@pytest.mark.parametrize(
    "malformed",
    [
        {"pin": ((0,),)},
        {"pin": ((0, 1, 2),)},
        {"pin": (0, 1)},
        {"pin": (("a", 1),)},
        {"pin": ((0, True),)},
        {"together": (1, 2)},
        {"apart": ((0.5, 1),)},
        {"base": 3},
        {"no_split": ("a",)},
        {"max_moves": -1},
        {"max_moves": 1.5},
    ],
)
def test_malformed_constraints_are_refused(malformed):
    with pytest.raises(InvalidTask):
        Constraints(**malformed)


@pytest.mark.parametrize(
    "wrong",
    [
        {"uplink": float("nan")},
        {"fabric": -1.0},
        {"group": 2.5},
        {"group": True},
        {"group": -1},
        {"latency_ms": float("inf")},
        {"port": "fast"},
        {"port": float("nan")},
    ],
)
def test_links_that_are_none_are_refused(wrong):
    with pytest.raises(InvalidTask):
        Links(**{"port": 1.0, **wrong})


def test_constraints_that_agree_are_kept(tiny_task):
    fine = Constraints(pin=((0, 1), (0, 1), (1, 1)), together=((0, 1), (2, 3)), apart=((0, 2), (1, 3, 4)))
    assert dataclasses.replace(tiny_task, constraints=fine).constraints == fine


@pytest.mark.parametrize("field", ["objective", "optimizer", "accounting"])
def test_unknown_names_list_the_valid_ones(tiny_task, field):
    with pytest.raises(UnknownName, match="choose one of"):
        dataclasses.replace(tiny_task, **{field: "x"})


def test_an_empty_task_is_refused():
    with pytest.raises(InvalidTask, match="at least one table"):
        Task(make_pool(rows=[1]).take([]), memory=(1,))


def test_splits_halve_columns_and_append(tiny_task):
    split = tiny_task.split((2, 2, 6))  # table 2 twice, then its first appended half
    assert split.tables.dim.tolist() == [8, 16, 8, 8, 16, 32, 8, 8, 8]
    assert split.tables.weight_bytes.sum() == tiny_task.tables.weight_bytes.sum()
    assert len(set(split.tables.name)) == 9


def test_splits_below_four_columns_are_refused(tiny_task):
    with pytest.raises(InvalidTask, match="multiple of 4"):
        tiny_task.split((0, 0))
    with pytest.raises(InvalidTask, match="names table 9"):
        tiny_task.split((9,))


@pytest.mark.parametrize(("optimizer", "extra"), [("sgd", 0), ("rowwise_adagrad", 4 * 10), ("adam", 2 * 4 * 10 * 8)])
def test_memory_by_hand(optimizer, extra):
    task = Task(make_pool(rows=10, dim=8), memory=(1_000,), optimizer=optimizer, accounting="training")
    assert table_bytes(task).tolist() == [10 * 8 * 2 + extra]
    assert table_bytes(dataclasses.replace(task, accounting="weights")).tolist() == [160]


def test_device_bytes_skip_what_is_not_placed(tiny_task):
    size = table_bytes(tiny_task)
    placements = np.array([[0, 0, 2, -1, -1, 2], [-1] * 6])
    assert device_bytes(tiny_task, placements).tolist() == [[size[0] + size[1], 0, size[2] + size[5]], [0, 0, 0]]


def test_overshoot_is_the_worst_device():
    task = Task(make_pool(rows=[10, 10]), memory=(100, 200))
    assert overshoot(task, np.array([[150, 100], [50, 100]])).tolist() == [0.5, -0.5]


@given(st.data())
def test_sums_agree_with_a_loop(data):
    n, h, plans = (data.draw(st.integers(1, 6)) for _ in range(3))
    k = data.draw(st.integers(1, 12))  # both ways of adding
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    values = rng.integers(-1000, 1000, (n, h)) / 2**14
    placements = rng.integers(-1, k, (plans, n))
    expected = np.zeros((plans, k, h))
    for p, t in np.ndindex(plans, n):
        if placements[p, t] >= 0:
            expected[p, placements[p, t]] += values[t]
    assert (device_sums(values, placements, k) == expected).all()
