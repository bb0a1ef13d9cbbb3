"""Measured shards as columns: whole and consistent."""

from dataclasses import replace

import numpy as np
import pytest

from shard_gym.errors import CorruptFile, InvalidPool
from shard_gym.measuring.measurements import KINDS, Measurements
from shard_gym.tables.metasyn import load_metasyn

POOL = "metasyn_0_856"


def measured(times, shards=None):
    """Shards of one table each (or as given) with these forward times, backward ten times as long."""
    shards = shards or [([i], [16]) for i in range(len(times))]
    times = np.array(times)
    blank = Measurements.unmeasured(POOL, shards, "random")
    return replace(blank, forward_ms=times, backward_ms=10 * times, forward_spread=0 * times, backward_spread=0 * times)


def test_measurements_come_back_as_they_were_saved(tmp_path):
    shards = [([5, 7, 900 - 50], [16, 4, 128]), ([3], [32])]
    saved = replace(Measurements.unmeasured(POOL, shards, "light", 2), card={"noise": {"pairs": 0}})
    saved.save(tmp_path / "m.npz")
    loaded = Measurements.load(tmp_path / "m.npz")
    assert loaded == saved and loaded.content_hash == saved.content_hash
    assert [loaded.tables(i)[0].tolist() for i in range(2)] == [[5, 7, 850], [3]]
    assert KINDS[loaded.kind[0]] == "light" and loaded.round.tolist() == [2, 2]
    tables = loaded.shard_tables(0)
    assert tables.dim.tolist() == [16, 4, 128] and tables.name == load_metasyn().take([5, 7, 850]).name


def test_take_and_concat_keep_shards_whole():
    one = measured([1.0, 2.0, 3.0], [([1, 2], [4, 8]), ([3], [16]), ([4, 5, 6], [32, 32, 64])])
    other = replace(measured([4.0]), pools=("metasyn_1_856",), card={"seed": 1})
    both = Measurements.concat([one, other])
    assert both.pools == (POOL, "metasyn_1_856") and both.pool.tolist() == [0, 0, 0, 1]
    assert both.card == {"parts": [{}, {"seed": 1}]}
    picked = both.take([3, 2])
    assert [picked.tables(i)[0].tolist() for i in range(2)] == [[0], [4, 5, 6]]
    assert picked.total_ms.tolist() == [44.0, 33.0]
    assert both.take(both.forward_ms > 2.5) == both.take([2, 3])


@pytest.mark.parametrize("keep", [0, 10, 400, -1])
def test_a_truncated_data_set_is_refused(tmp_path, keep):
    path = tmp_path / "m.npz"
    measured([1.0, 2.0]).save(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CorruptFile, match=r"m\.npz"):
        Measurements.load(path)


def test_a_changed_data_set_is_refused(tmp_path):
    path = tmp_path / "m.npz"
    measured([1.0, 2.0]).save(path)
    with np.load(path) as data:
        columns = dict(data)
    columns["forward_ms"] = columns["forward_ms"] * 0.9
    np.savez(path, **columns)
    with pytest.raises(CorruptFile, match="says its content is"):
        Measurements.load(path)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("offsets", [0, 1, 1], "no empty shard"),
        ("offsets", [0, 1, 3], "offsets must rise from 0 to 2"),
        ("kind", [0, 9], "kind must be below 6: entry 1"),
        ("pool", [1, 0], "pool must be below 1, the number of pools: entry 0"),
        ("dim", [4, 0], "dim must be at least 1"),
        ("forward_ms", [1, -1], "times must not be negative"),
        ("forward_ms", [1], "column forward_ms has shape"),
    ],
)
def test_columns_that_contradict_each_other_are_refused(column, values, message):
    with pytest.raises(InvalidPool, match=message):
        replace(measured([1.0, 2.0]), **{column: np.array(values)})
