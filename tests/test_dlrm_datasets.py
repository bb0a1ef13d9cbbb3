import gzip
import os
import pickle
import subprocess
import sys
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shard_gym.errors import CorruptFile, InvalidPool, MissingDependency
from shard_gym.tables.dlrm_datasets import ROWS_MAX, _Lookups, read_pool, read_traces
from shard_gym.tables.pool import NUM_BINS
from shard_gym.tables.traces import trace
from tests.pool_helpers import fp16_pool as make_pool

torch = pytest.importorskip("torch")


def tensors(ids, dtypes=("int64", "int64", "int64")):
    """The three tensors of a file from `ids[table][sample]`, lists of row ids."""
    lengths = np.array([[len(sample) for sample in table] for table in ids])
    flat = [i for table in ids for sample in table for i in sample]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    arrays = zip((flat, offsets, lengths), dtypes, strict=True)
    return tuple(torch.tensor(a.tolist() if hasattr(a, "tolist") else a, dtype=getattr(torch, d)) for a, d in arrays)


def write(path, content, zipped=False, legacy=False):
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    if zipped:
        path.write_bytes(gzip.compress(path.read_bytes(), compresslevel=1))
    return path


TWO_TABLES = [[[5, 5], [], [7]], [[120, 3, 3, 3], [120], [0]]]  # 2 tables, batch 3


@pytest.fixture(autouse=True)
def unpacked(tmp_path_factory, monkeypatch):
    """Folder where gzipped files are unpacked; it must be empty after every test."""
    folder = tmp_path_factory.mktemp("unpacked")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert not list(folder.iterdir())


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("zipped", [False, True])
def test_two_tables_by_hand(tmp_path, zipped, legacy):
    path = write(tmp_path / "f.pt", tensors(TWO_TABLES), zipped, legacy)
    pool = read_pool(path, dim=[8, 32], dtype="fp32")
    assert pool.rows.tolist() == [100, 121]  # at least 100, else the largest index and one
    assert pool.dim.tolist() == [8, 32]
    assert pool.dtype == ("fp32", "fp32")
    assert pool.reference_batch == 3
    assert pool.lookups.tolist() == [3, 6]
    assert pool.distinct.tolist() == [2, 3]
    touched, looked_up = pool.use_counts()
    assert touched[:, :4].tolist() == [[1, 1, 0, 0], [1, 1, 1, 0]]  # used once, twice, 3-4 times, 5-8 times
    assert looked_up[:, :4].tolist() == [[1, 2, 0, 0], [1, 2, 3, 0]]
    traces = [(i.tolist(), o.tolist()) for i, o in read_traces(path)]
    assert traces == [([5, 5, 7], [0, 2, 2, 3]), ([120, 3, 3, 3, 120, 0], [0, 4, 5, 6])]


def test_traces_outlive_the_unpacked_file(tmp_path, unpacked):
    traces = read_traces(write(tmp_path / "f.pt.gz", tensors(TWO_TABLES), zipped=True))
    assert not list(unpacked.iterdir())
    indices, offsets = next(traces)
    assert indices.dtype == offsets.dtype == np.int64
    assert indices.tolist() == [5, 5, 7]
    assert torch.from_numpy(indices).sum() == 17  # no copy, as FBGEMM takes it


def naive_statistics(samples):
    counts = Counter(i for sample in samples for i in sample)
    uses, accesses = np.zeros((2, NUM_BINS))
    for count in counts.values():
        b = min((count - 1).bit_length(), NUM_BINS - 1)
        uses[b] += 1 / len(counts)
        accesses[b] += count / counts.total()
    return max([99, *counts]) + 1, counts.total() / len(samples), len(counts), uses, accesses


@st.composite
def lookups(draw):
    batch = draw(st.integers(1, 6))
    largest, dtype = draw(st.sampled_from([(20, "uint8"), (300, "int16"), (2**31 - 1, "int32"), (2**33, "int64")]))
    ids = st.one_of(st.integers(0, 5), st.integers(0, largest))
    table = st.lists(st.lists(ids, max_size=12), min_size=batch, max_size=batch)
    dtypes = (dtype, draw(st.sampled_from(["int32", "int64"])), draw(st.sampled_from(["int32", "int64"])))
    return draw(st.lists(table, min_size=1, max_size=4)), dtypes


@given(lookups(), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_statistics_are_those_of_a_naive_count(tmp_path, drawn, zipped, legacy):
    ids, dtypes = drawn
    path = write(tmp_path / "f.pt", tensors(ids, dtypes), zipped, legacy)
    pool = read_pool(path)
    for t, samples in enumerate(ids):
        rows, pooling, distinct, uses, accesses = naive_statistics(samples)
        assert (pool.rows[t], pool.distinct[t]) == (rows, distinct)
        assert pool.pooling[t] == np.float32(pooling)
        np.testing.assert_allclose(pool.uses[t], uses, rtol=1e-6)
        np.testing.assert_allclose(pool.accesses[t], accesses, rtol=1e-6)
    for samples, (indices, offsets) in zip(ids, read_traces(path), strict=True):
        assert offsets[0] == 0
        assert [indices[a:b].tolist() for a, b in pairwise(offsets)] == samples


@pytest.mark.parametrize("far", [0, 2**35])
def test_every_bin_of_uses(tmp_path, far):
    """Counted by row where rows are few, by sorting where they are many."""
    counts = [1, 2, 3, 4, 5, 8, 9, 32_768, 32_769, 100_000]
    ids = [far + row for row, count in enumerate(counts) for _ in range(count)]
    pool = read_pool(write(tmp_path / "f.pt", tensors([[ids]])))
    touched, looked_up = pool.use_counts()
    assert touched[0].tolist() == [1, 1, 2, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2]
    assert looked_up[0].tolist() == [1, 2, 7, 13, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32_768, 132_769]
    assert pool.rows[0] == max(100, far + len(counts))


def test_a_synthetic_pool_written_as_traces_reads_back(tmp_path):
    pool = make_pool([500, 4000, 120], 16, [3.5, 0, 40], reference_batch=256)
    parts = [trace(pool, t) for t in range(len(pool))]
    ids = [[i[a:b].tolist() for a, b in pairwise(o)] for i, o in parts]
    found = read_pool(write(tmp_path / "f.pt", tensors(ids)))
    assert found.with_(rows=pool.rows) == pool


def test_any_memory_layout_is_read(tmp_path):
    indices, offsets, lengths = tensors(TWO_TABLES)
    strided = torch.stack([indices, indices], dim=1)[:, 0]
    path = write(tmp_path / "f.pt", [strided, offsets, lengths.T.contiguous().T])
    assert read_pool(path) == read_pool(write(tmp_path / "g.pt", (indices, offsets, lengths)))


def test_offsets_beyond_int32():
    start = 2**31 + 5
    offsets = np.array([0, 1, start, start + 3, start + 7])
    indices = np.broadcast_to(np.int8(1), start + 7)
    file = _Lookups(Path("f.pt"), indices, offsets, np.array([[1, start - 1], [3, 4]]))
    assert (file._absolute_offsets(1) - start).tolist() == [0, 3, 7]
    assert file._absolute_offsets(0).tolist() == [0, 1, start]


def changed(part, at, value):
    """The two tables with one number changed."""
    parts = [t.clone() for t in tensors(TWO_TABLES)]
    parts[part].view(-1)[at] = value
    return tuple(parts)


INDICES, OFFSETS, LENGTHS = tensors(TWO_TABLES)
BAD_CONTENT = {
    "a dict": ({"indices": INDICES}, "expected (indices, offsets, lengths), found dict of 1"),
    "a tensor": (torch.tensor(3), "expected (indices, offsets, lengths), found Tensor"),
    "two": ((INDICES, OFFSETS), "found tuple of 2"),
    "no tensor": ((INDICES, OFFSETS, "x"), "lengths is str, not a tensor"),
    "float": ((INDICES.float(), OFFSETS, LENGTHS), "indices is torch.float32, not integer"),
    "bool": ((INDICES, OFFSETS, LENGTHS > 0), "lengths is torch.bool, not integer"),
    "bfloat16": ((INDICES.bfloat16(), OFFSETS, LENGTHS), "indices is torch.bfloat16"),
    "sparse": ((INDICES.to_sparse(), OFFSETS, LENGTHS), "torch.sparse_coo, not plain integers"),
    "flat lengths": ((INDICES, OFFSETS, LENGTHS.flatten()), "lengths has shape (6,), expected 2 dimensions"),
    "deep indices": ((INDICES[None], OFFSETS, LENGTHS), "indices has shape (1, 9), expected 1 dimensions"),
    "no tables": ((INDICES, OFFSETS, LENGTHS[:0]), "no table or no sample"),
    "short offsets": ((INDICES, OFFSETS[:-1], LENGTHS), "has 6 entries, 2 tables of 3 samples need 7"),
    "late start": (changed(1, 0, 1), "table 0: offsets begin at 1, not at 0"),
    "wrong end": ((INDICES[:-1], OFFSETS, LENGTHS), "table 1: offsets end at 9, but there are 8 indices"),
    "decreasing": (changed(1, 4, 2), "table 1, sample 0: offsets decrease (offsets 3 to 2, length 4)"),
    "wrapping": (changed(1, 4, -(2**63)), "table 1, sample 0: offsets decrease"),
    "beyond": (changed(1, 4, 99), "table 1, sample 0: offsets exceed the 9 indices"),
    "lengths": (changed(2, 4, 2), "table 1, sample 1: lengths and offsets disagree (offsets 7 to 8"),
    "negative": (changed(0, 7, -1), "table 1, sample 1: index -1 is negative"),
    "unsigned": (((INDICES - 1).to(torch.uint64), OFFSETS, LENGTHS), "table 1, sample 2: index -1 is"),
    "huge": (changed(0, 2, ROWS_MAX), f"table 0, sample 2: index {ROWS_MAX} is no row number"),
}  # fmt: skip


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("case", BAD_CONTENT)
def test_bad_content_is_refused(tmp_path, case, zipped):
    content, message = BAD_CONTENT[case]
    path = write(tmp_path / "f.pt", content, zipped)
    for read in (read_pool, lambda p: list(read_traces(p))):
        with pytest.raises(CorruptFile) as refusal:
            read(path)
        assert str(refusal.value).startswith(str(path))
        assert message in str(refusal.value)


class Evil:
    def __init__(self, sentinel):
        self.sentinel = sentinel

    def __reduce__(self):
        return os.mkdir, (str(self.sentinel),)


@pytest.mark.parametrize("form", ["zip", "legacy", "pickle"])
@pytest.mark.parametrize("zipped", [False, True])
def test_code_in_a_file_is_refused_not_run(tmp_path, form, zipped):
    path, sentinel = tmp_path / "f.pt", tmp_path / "ran"
    content = (INDICES, OFFSETS, Evil(sentinel))
    if form == "pickle":
        path.write_bytes(pickle.dumps(content[2], protocol=2))
    else:
        write(path, content, legacy=form == "legacy")
    if zipped:
        path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(CorruptFile, match=r"cannot be read as a torch\.save of tensors"):
        read_pool(path)
    assert not sentinel.exists()


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.98])
@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("legacy", [False, True])
def test_truncated_files_are_refused(tmp_path, share, zipped, legacy):
    path = write(tmp_path / "f.pt", tensors(TWO_TABLES), zipped, legacy)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(CorruptFile, match="gzip breaks off" if zipped and share else "of tensors"):
        read_pool(path)


@pytest.mark.parametrize("content", [b"hello", b"PK\x03\x04 no zip", b"\x1f\x8b\x08 no gzip", bytes(5000)])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "f.pt").write_bytes(content)
    with pytest.raises(CorruptFile, match=r"f\.pt"):
        read_pool(tmp_path / "f.pt")


def test_a_missing_file_stays_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_pool(tmp_path / "nowhere.pt")


@pytest.mark.parametrize("bad", [{"dim": [4, 4, 4]}, {"dim": 0}, {"dtype": "fp8"}, {"dtype": ("fp16",)}])
def test_bad_dims_and_dtypes_are_refused(tmp_path, bad):
    path = write(tmp_path / "f.pt", tensors(TWO_TABLES))
    with pytest.raises(InvalidPool):
        read_pool(path, **bad)


def test_without_torch_says_what_to_install(tmp_path, monkeypatch):
    path = write(tmp_path / "f.pt", tensors(TWO_TABLES))
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependency, match=r'pip install -e ".*\[torch\]"'):
        read_pool(path)


# Not ru_maxrss, which a process inherits from the one that started it.
MEASURE = """
import sys
import torch
from shard_gym.tables.dlrm_datasets import read_pool

def kilobytes(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field + ":"))

read_pool(sys.argv[1])  # what the first call imports is not the file's
before = kilobytes("VmRSS")
assert len(read_pool(sys.argv[2])) == 16
print(kilobytes("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("zipped", [False, True])
def test_a_file_is_held_once(tmp_path, zipped):
    small = write(tmp_path / "small.pt", tensors(TWO_TABLES))
    tables, batch, pooling = 16, 2048, 128
    indices = torch.arange(tables * batch * pooling) % 100_003  # 34 MB
    content = (
        indices,
        torch.arange(tables * batch + 1) * pooling,
        torch.full((tables, batch), pooling),
    )
    path = write(tmp_path / "large.pt", content)
    size = path.stat().st_size
    if zipped:
        path = write(path, content, zipped)
    command = [sys.executable, "-c", MEASURE, str(small), str(path)]
    measured = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 0.5 * size < int(measured.stdout) * 1024 < 1.6 * size
