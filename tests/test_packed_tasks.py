"""Tasks of many tables in JSON."""

import dataclasses
import json

import numpy as np
import pytest

from shard_gym import Task, suites
from shard_gym.errors import CorruptFile
from shard_gym.task import packed


@pytest.fixture
def many():
    task = suites.get("core-80x8").tasks("val")[0]
    return dataclasses.replace(task, tables=task.tables.take(np.arange(packed.MANY) % task.num_tables), name="many")


def test_many_tables_are_packed_and_read_back(many):
    text = many.to_json()
    data = json.loads(text)
    assert data["schema"] == "shard-gym/task/3" and data["hash"] == many.hash
    assert len(text) < 250 * many.num_tables  # 160 bytes of numbers a table, 4 characters for 3, and its name
    read = Task.from_json(text)
    assert read == many and read.tables == many.tables
    fewer = dataclasses.replace(many, tables=many.tables.take(np.arange(packed.MANY - 1)))
    assert json.loads(fewer.to_json())["schema"] == "shard-gym/task/1"


def test_columns_that_came_later_are_packed_too(many):
    weighted = np.arange(many.num_tables) % 2 == 0
    tables = many.tables.with_(weighted=weighted, optimizer=("adam",) * many.num_tables)
    task = dataclasses.replace(many, tables=tables)
    read = Task.from_json(task.to_json())
    assert read.hash == task.hash and read.tables == tables


@pytest.mark.parametrize(
    "damage",
    [
        {"dtype": "|O"},
        {"dtype": "<i4"},
        {"dtype": ["<i8"]},
        {"shape": [-1]},
        {"shape": "many"},
        {"shape": [10**30, 10**30]},
        {"base64": "A"},
        {"base64": "@@@@"},
        {"base64": 7},
        {"more": 1},
    ],
)
def test_a_damaged_column_is_refused(many, damage):
    data = json.loads(many.to_json())
    data["tables"]["rows"] |= damage
    with pytest.raises(CorruptFile):
        Task.from_json(json.dumps(data))


def test_bools_are_zeros_and_ones():
    told = packed.packed(np.array([True, False]))
    assert packed.unpacked(told).tolist() == [True, False]
    with pytest.raises(CorruptFile, match="neither 0 nor 1"):
        packed.unpacked(told | {"base64": "AAc="})
