"""Row frequencies from logs: exact while they fit, and sketches whose stated error holds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym.errors import InvalidPool, UnknownName
from shard_gym.flexshard.counts import RowCounter, count_log
from shard_gym.flexshard.curves import Curve, from_counts
from shard_gym.torchrec.logs import Log
from shard_gym_agents.cli.flex import main

batches = st.lists(st.lists(st.lists(st.integers(0, 40), max_size=8), max_size=5), min_size=1, max_size=6)


def counted(counter, samples):
    ids = np.array([i for sample in samples for i in sample], np.int64)
    counter.add(ids, np.array([len(sample) for sample in samples], np.int64))


@settings(max_examples=100, deadline=None)
@given(batches)
def test_what_fits_is_counted_exactly_whatever_the_batches(drawn):
    counter, samples = RowCounter(capacity=64), [sample for batch in drawn for sample in batch]
    for batch in drawn:
        counted(counter, batch)
    if not samples or not any(samples):
        return
    held = {}
    for sample in samples:
        for row in set(sample):
            held[row] = held.get(row, 0) + 1
    curve = counter.curve(num_rows=50)
    assert counter.exact and "exact" in counter.told()
    assert curve.num_rows == 50
    by_row = np.repeat(curve.probability, curve.rows)[: len(held)]
    assert np.allclose(by_row * len(samples), sorted(held.values(), reverse=True))


def zipf_batches(rows=50_000, batches=12, batch=1024, length=20):
    rng = np.random.default_rng(0)
    ends = np.cumsum(np.arange(1, rows + 1) ** -1.0)
    for _ in range(batches):
        lengths = rng.poisson(length, batch)
        yield np.searchsorted(ends, rng.random(lengths.sum()) * ends[-1]), lengths


def test_a_sketch_keeps_its_word():
    exact, sketch = RowCounter(), RowCounter(capacity=4096)
    for ids, lengths in zipf_batches():
        exact.add(ids, lengths)
        sketch.add(ids, lengths)
    true, told = exact.curve(50_000), sketch.curve(50_000)
    assert exact.exact and not sketch.exact and "sketch" in sketch.told()
    assert told.num_rows == pytest.approx(50_000, rel=0.05)
    frequent = int((told.rows == 1).sum())
    assert frequent > 20
    by_row = np.repeat(true.probability, true.rows)[:frequent]
    assert (np.abs(told.probability[:frequent] - by_row) <= told.error * told.probability[:frequent] + 1e-12).all()
    assert told.length == pytest.approx(true.length, rel=0.05)
    for rows in (100, 1_000, 10_000):
        assert told.covered(rows) == pytest.approx(true.covered(rows), rel=0.08)


def test_memory_is_bounded():
    counter = RowCounter(capacity=1024)
    for ids, lengths in zipf_batches():
        counter.add(ids, lengths)
    counter.curve()
    assert max(len(counter._frequent.row), len(counter._sampled.row)) <= 1024


@pytest.mark.parametrize(
    ("ids", "lengths"),
    [([1, 2], [1]), ([1], [2, -1]), ([-1], [1]), ([0.5], [1]), ([[1]], [1])],
)
def test_what_is_no_batch_is_refused(ids, lengths):
    with pytest.raises(InvalidPool):
        RowCounter().add(np.array(ids), np.array(lengths))


def parquet(path, column):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"history": column, "other": list(range(len(column)))}), path)
    return path


def test_a_log_of_lists_in_two_files_by_hand(tmp_path):
    logs = [parquet(tmp_path / "a.parquet", [[3, 3, 1], []]), parquet(tmp_path / "b.parquet", [[1], [1, 9]])]
    counter = count_log(Log(logs, ["history"]), rows=10)
    assert (counter.samples, counter.lookups, counter.exact) == (4, 6, True)
    curve = counter.curve(10)
    assert (curve.probability.tolist(), curve.rows.tolist()) == ([0.75, 0.25, 0.0], [1, 2, 7])


def test_texts_of_csv_are_rows_of_their_own_or_share_those_told(tmp_path):
    pytest.importorskip("pyarrow")
    log = tmp_path / "log.csv"
    log.write_text("history,day\n" + "".join(f"{text},1\n" for text in ("left", "right", "left", "", "up")))
    curve = count_log(Log([log], ["history"])).curve()
    assert (curve.probability.tolist(), curve.rows.tolist()) == ([0.4, 0.2], [1, 2])
    assert count_log(Log([log], ["history"]), rows=1).curve(1).probability.tolist() == [0.8]


def test_ids_beyond_the_rows_are_refused_or_wrapped(tmp_path):
    log = Log([parquet(tmp_path / "a.parquet", [[12, 2], [5]])], ["history"])
    with pytest.raises(InvalidPool, match="'history': 12 is no row, those are 0 to 9"):
        count_log(log, rows=10)
    curve = count_log(log, rows=10, outside="modulo").curve(10)
    assert (curve.probability.tolist(), curve.rows.tolist()) == ([0.5, 0.0], [2, 8])
    with pytest.raises(UnknownName):
        count_log(log, outside="ignore")
    with pytest.raises(InvalidPool, match="one column"):
        count_log(Log(log.paths, ["history", "other"]))
    with pytest.raises(InvalidPool, match="-1 is no row"):
        count_log(Log([parquet(tmp_path / "b.parquet", [[-1]])], ["history"]))


def test_the_command_makes_a_curve_that_flex_plans_with(tmp_path, capsys):
    rng = np.random.default_rng(0)
    log = parquet(tmp_path / "a.parquet", [rng.zipf(1.3, 20).clip(max=1_000) - 1 for _ in range(500)])
    out = tmp_path / "curve.safetensors"
    assert main(["curve", str(log), "--column", "history", "--rows", "1000", "--out", str(out)]) == 0
    told = capsys.readouterr().out
    assert "in 500 samples" in told and "1,000 rows, of which a sample looks up" in told
    assert Curve.load(out).num_rows == 1_000
    assert main(["--table", f"name=h,curve={out},dim=16"]) == 0
    assert "all RW takes" in capsys.readouterr().out
    assert main(["curve", str(log), "--column", "future", "--out", str(out)]) == 2
    assert "future" in capsys.readouterr().err


def test_nothing_counted_is_no_curve(tmp_path):
    empty = RowCounter()
    counted(empty, [[], []])
    with pytest.raises(InvalidPool, match="none of the 2 samples"):
        empty.curve(10)
    with pytest.raises(InvalidPool, match="more than num_rows=1"):
        from_counts(np.array([1, 1]), 3, num_rows=1)
    with pytest.raises(InvalidPool, match="no sample"):
        RowCounter().curve()
