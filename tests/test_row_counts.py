"""Row frequencies from logs: exact while they fit, and sketches whose stated error holds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym.errors import InvalidPool
from shard_gym.rowwise.counts import RowCounter

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


def test_nothing_counted_is_no_curve():
    with pytest.raises(InvalidPool, match="no sample"):
        RowCounter().curve()
