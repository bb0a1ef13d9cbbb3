"""Reader of dlrm_datasets: what Meta's recommendation models look up in their embedding tables in one batch.

Files are named `fbgemm_t856_bs65536*.pt.gz` (github.com/facebookresearch/dlrm_datasets; AutoShard, A.1). Each
is a `torch.save` of three integer tensors, gzipped or not; the content tells, not the name:

    indices  (L,)                   rows looked up, ordered by (table, sample)
    offsets  (tables * batch + 1,)  lookup j = table * batch + sample is indices[offsets[j]:offsets[j + 1]]
    lengths  (tables, batch)        how many those are; redundant, and checked

There are no row counts: a table has `max(100, largest index + 1)` rows, as AutoShard's code takes it. There
are no dims and no weight dtypes either: they are arguments, one for all tables or one per table.

    from shard_gym.tables.dlrm_datasets import read_pool, read_traces

    pool = read_pool("fbgemm_t856_bs65536.pt.gz", dim=16)      # TablePool: 856 tables, exact use counts
    for indices, offsets in read_traces("fbgemm_t856_bs65536.pt.gz"):
        ...                                                    # int64, one table each, offsets from 0

Files are mapped, not loaded, and read table by table. A gzipped one is first unpacked to a temporary file (8
GB for the base file; TMPDIR says where), which is gone before the first table is read. Needs torch,
the extra `torch`. Pickled code in a file is refused, never run.
"""

from __future__ import annotations

import gzip
import os
import pickle
import shutil
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from shard_gym.errors import CorruptFile, InvalidPool, MissingDependency
from shard_gym.records.guard import MOST_BYTES, REFUSALS
from shard_gym.records.installing import install
from shard_gym.tables.histograms import NUM_BINS, use_histogram
from shard_gym.tables.pool import TablePool, make_pool

ROWS_MIN = 100  # AutoShard's code: a table has at least as many
MOST_RATIO = 50  # of unpacked to packed bytes
ROWS_MAX = 2**40  # beyond it the bytes of a table would not fit int64: no row number
_GZIP, _ZIP = b"\x1f\x8b", b"PK\x03\x04"  # how such files begin
_REFUSALS = (*REFUSALS, pickle.UnpicklingError, tarfile.TarError)  # what torch.load raises on files of others


def read_pool(
    path: str | Path, dim: int | Sequence[int] | np.ndarray = 16, dtype: str | Sequence[str] = "fp16"
) -> TablePool:
    """The tables of a file, with the statistics of its batch counted exactly."""
    file = _open(path)
    n = file.num_tables
    if np.ndim(dim) and np.shape(dim) != (n,):
        raise InvalidPool(f"{path} has {n} tables: give one dim or {n}, not shape {np.shape(dim)}")
    make_pool(np.full(n, ROWS_MIN), dim, dtype=dtype)  # refuses bad dims before the file is read
    rows, distinct = np.zeros((2, n), np.int64)
    pooling = np.zeros(n, np.float32)
    uses, accesses = np.zeros((2, n, NUM_BINS), np.float32)
    for t, (indices, _) in enumerate(file.traces()):
        rows[t] = max(ROWS_MIN, indices.max(initial=-1) + 1)
        pooling[t] = len(indices) / file.batch
        distinct[t], uses[t], accesses[t] = use_histogram(_use_counts(indices))
    statistics = {"distinct": distinct, "uses": uses, "accesses": accesses}
    return make_pool(rows, dim, pooling, dtype=dtype, reference_batch=file.batch, **statistics)


def read_traces(path: str | Path) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(indices, offsets) of table after table, int64, offsets from 0 as FBGEMM takes them.

    Shapes are checked at once, each table when its turn comes.
    """
    return _open(path).traces()


@dataclass(frozen=True, eq=False)
class _Lookups:
    """The arrays of a file, not copied: its pages come into memory as they are read."""

    path: Path
    indices: np.ndarray  # (L,)
    offsets: np.ndarray  # (tables * batch + 1,)
    lengths: np.ndarray  # (tables, batch)

    def __post_init__(self) -> None:
        tables, batch = self.lengths.shape
        if not tables or not batch:
            raise CorruptFile(f"{self.path}: lengths has shape {self.lengths.shape}, no table or no sample")
        if len(self.offsets) != tables * batch + 1:
            expected = f"{tables} tables of {batch} samples need {tables * batch + 1}"
            raise CorruptFile(f"{self.path}: offsets has {len(self.offsets)} entries, {expected}")
        if self.offsets[0] != 0:
            raise CorruptFile(f"{self.path}: table 0: offsets begin at {self.offsets[0]}, not at 0")
        if self.offsets[-1] != len(self.indices):
            end = f"offsets end at {self.offsets[-1]}, but there are {len(self.indices)} indices"
            raise CorruptFile(f"{self.path}: table {tables - 1}: {end}")

    @property
    def num_tables(self) -> int:
        return len(self.lengths)

    @property
    def batch(self) -> int:
        return self.lengths.shape[1]

    def traces(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Checked (indices, offsets) of table after table."""
        for t in range(self.num_tables):
            offsets = self._absolute_offsets(t)
            indices = self.indices[offsets[0] : offsets[-1]].astype(np.int64, copy=False)
            for rule, broken in (("is negative", indices < 0), ("is no row number", indices >= ROWS_MAX)):
                if broken.any():
                    i = int(np.argmax(broken))
                    sample = int(np.searchsorted(offsets - offsets[0], i, side="right")) - 1
                    raise CorruptFile(f"{self.path}: table {t}, sample {sample}: index {indices[i]} {rule}")
            yield indices, offsets - offsets[0]

    def _absolute_offsets(self, table: int) -> np.ndarray:
        """Positions where the samples of a table begin and end in `indices`, (batch + 1,) int64.

        The first entry is the last of the table before, checked with it: so all stay inside `indices`.
        """
        first = table * self.batch
        offsets = self.offsets[first : first + self.batch + 1].astype(np.int64)
        rules = {
            f"offsets exceed the {len(self.indices)} indices": offsets[1:] > len(self.indices),
            "offsets decrease": offsets[1:] < offsets[:-1],
            "lengths and offsets disagree": self.lengths[table] != np.diff(offsets),
        }
        for rule, broken in rules.items():
            if broken.any():
                s = int(np.argmax(broken))
                found = f"offsets {offsets[s]} to {offsets[s + 1]}, length {self.lengths[table, s]}"
                raise CorruptFile(f"{self.path}: table {table}, sample {s}: {rule} ({found})")
        return offsets


def _use_counts(indices: np.ndarray) -> np.ndarray:
    """Lookups of each row, zeros perhaps included."""
    if indices.max(initial=-1) < len(indices):
        return np.bincount(indices)
    # few of many rows: sorting them is quicker, and smaller, than counting all
    return np.unique(indices, return_counts=True)[1]


def _open(path: str | Path) -> _Lookups:
    path = Path(path)
    if not _begins(path, _GZIP):
        return _Lookups(path, *_load(path, path))
    with TemporaryDirectory(prefix="shard_gym_") as folder:
        unpacked = Path(folder) / "lookups.pt"
        try:
            _unpack(path, unpacked)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            written = unpacked.stat().st_size
            raise CorruptFile(f"{path}: gzip breaks off after {written:,} unpacked bytes: {error}") from error
        # on leaving, the folder goes; a mapped file lives on without a name until nobody uses it
        return _Lookups(path, *_load(unpacked, path))


def _unpack(path: Path, target: Path) -> None:
    """Unpack a gzipped file; one that grows as no data do, or beyond the disk, is refused."""
    most = max(MOST_BYTES // 2, MOST_RATIO * path.stat().st_size)
    free = shutil.disk_usage(target.parent).free
    with gzip.open(path) as source, target.open("wb") as file:
        while part := source.read(2**20):
            file.write(part)
            if file.tell() > min(most, free):
                why = "no data do that" if most <= free else f"TMPDIR has no room for more, {target.parent}"
                raise CorruptFile(f"{path} unpacks to more than {min(most, free):,} bytes: {why}")


def _load(path: Path, named: Path) -> list[np.ndarray]:
    """The three arrays in the file at `path`; errors say `named`."""
    torch = _torch()
    # what torch wrote before 1.6 is no zip and cannot be mapped; Windows does not delete a mapped file
    mmap = _begins(path, _ZIP) and (os.name == "posix" or path == named)
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except (*_REFUSALS, OSError) as error:
        reason = str(error).rpartition("WeightsUnpickler error: ")[2].strip() or repr(error)
        first_line = reason.partition("\n")[0]
        raise CorruptFile(f"{named} cannot be read as a torch.save of tensors: {first_line}") from error
    if not isinstance(loaded, tuple | list) or len(loaded) != 3:
        sized = isinstance(loaded, tuple | list | dict)
        found = f"{type(loaded).__name__} of {len(loaded)}" if sized else type(loaded).__name__
        raise CorruptFile(f"{named}: expected (indices, offsets, lengths), found {found}")
    names = ("indices", "offsets", "lengths")
    return [_integers(x, name, named) for name, x in zip(names, loaded, strict=True)]


def _integers(tensor: Any, name: str, path: Path) -> np.ndarray:
    """A tensor as an array over the same memory."""
    dimensions = 2 if name == "lengths" else 1
    if not isinstance(tensor, _torch().Tensor):
        raise CorruptFile(f"{path}: {name} is {type(tensor).__name__}, not a tensor")
    try:
        array: np.ndarray = tensor.numpy(force=True)
    except (TypeError, RuntimeError) as error:  # sparse, quantised, bfloat16
        raise CorruptFile(f"{path}: {name} is {tensor.dtype}, {tensor.layout}, not plain integers") from error
    if tensor.untyped_storage().nbytes() < array.nbytes:
        raise CorruptFile(f"{path}: {name} is {array.shape}, more numbers than the file holds")
    if array.dtype.kind not in "iu":
        raise CorruptFile(f"{path}: {name} is {tensor.dtype}, not integer")
    if array.ndim != dimensions:
        raise CorruptFile(f"{path}: {name} has shape {array.shape}, expected {dimensions} dimensions")
    return array


def _begins(path: Path, magic: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(magic)) == magic


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingDependency(f"dlrm_datasets files need torch: {install('torch')}") from error
    return torch
