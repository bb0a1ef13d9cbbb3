"""Cells of logs: the ids that are in them, and numbers for ids that are hashes."""

from __future__ import annotations

from typing import Any

import numpy as np

from shard_gym.errors import InvalidPool

MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # of splitmix64 (public domain)


class Hashes:
    """Numbers for hashes, from 0 in the order in which they are first seen."""

    def __init__(self) -> None:
        self.count = 0
        self._runs: list[tuple[np.ndarray, np.ndarray]] = []  # (sorted hashes, their numbers), each twice the next

    def numbers(self, hashes: np.ndarray) -> np.ndarray:
        """The number of each, new ones for those that were never seen."""
        unique, inverse = np.unique(hashes, return_inverse=True)
        found = np.full(len(unique), -1, np.int64)
        for known, numbers in self._runs:
            at = np.minimum(np.searchsorted(known, unique), len(known) - 1)
            hit = known[at] == unique
            found[hit] = numbers[at[hit]]
        new = found < 0
        if new.any():
            found[new] = np.arange(self.count, self.count + new.sum())
            self.count += int(new.sum())
            self._runs.append((unique[new], found[new]))
            self._merge()
        return found[inverse]

    def _merge(self) -> None:
        while len(self._runs) > 1 and 2 * len(self._runs[-1][0]) > len(self._runs[-2][0]):
            last, before = self._runs.pop(), self._runs.pop()
            known, numbers = (np.concatenate(arrays) for arrays in zip(before, last, strict=True))
            order = np.argsort(known)
            self._runs.append((known[order], numbers[order]))


def bags_of(column: Any, ids: str, name: str) -> tuple[np.ndarray, np.ndarray, bool]:
    """(ids, ids of each sample, whether they are hashes) of an Arrow column; missing cells and values are no ids."""
    import pyarrow
    from pyarrow import compute, types

    cells = column.combine_chunks() if isinstance(column, pyarrow.ChunkedArray) else column
    samples, sample = len(cells), np.arange(len(cells))
    if types.is_list(cells.type) or types.is_large_list(cells.type):
        sample, cells = compute.list_parent_indices(cells).to_numpy(), compute.list_flatten(cells)
    if types.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    missing = cells.is_null(nan_is_null=True)
    lengths = np.bincount(sample[~missing.to_numpy(zero_copy_only=False)], minlength=samples)
    values, hashed = _ids(cells.filter(compute.invert(missing)), ids, name)
    return values, lengths, hashed


def _ids(cells: Any, ids: str, name: str) -> tuple[np.ndarray, bool]:
    """Ids of cells that are all there, and whether they are hashes."""
    from pyarrow import types

    if not len(cells):
        return np.zeros(0, np.int64), False
    if types.is_string(cells.type) or types.is_large_string(cells.type):
        if ids == "int":
            return _whole(cells, name), False
        texts = cells.dictionary_encode()
        convert = _hexadecimal if ids == "hex" else _hashed_text
        return convert(texts.dictionary.to_pylist(), name)[texts.indices.to_numpy()], ids != "hex"
    if ids == "hex":
        raise InvalidPool(f"column {name!r}: ids='hex' reads text, but this is {cells.type}")
    numbers = _whole(cells, name)
    return (_mixed(numbers.astype(np.uint64)), True) if ids == "hash" else (numbers, False)


def _whole(cells: Any, name: str) -> np.ndarray:
    """Whole numbers: int64, or uint64 as they are in the file."""
    from pyarrow import ArrowInvalid, int64, types

    if not (types.is_integer(cells.type) or types.is_floating(cells.type) or types.is_string(cells.type)):
        raise InvalidPool(f"column {name!r} is {cells.type}: ids are whole numbers or text, or lists of them")
    try:
        numbers = cells if types.is_uint64(cells.type) else cells.cast(int64())
    except ArrowInvalid as error:
        raise InvalidPool(f"column {name!r} does not hold whole numbers: {error}") from error
    return np.asarray(numbers.to_numpy())


def _hexadecimal(texts: list[str], name: str) -> np.ndarray:
    try:
        return np.array([int(text, 16) for text in texts], np.uint64)
    except (ValueError, OverflowError) as error:
        raise InvalidPool(f"column {name!r} does not hold hexadecimal numbers of 64 bits: {error}") from error


def _hashed_text(texts: list[str], name: str) -> np.ndarray:
    """64 bits of each text, the same on every machine."""
    letters = np.array([text.encode() for text in texts])
    words = letters.astype(f"S{-(-letters.itemsize // 8) * 8}").view("<u8").reshape(len(texts), -1)
    hashed = np.zeros(len(texts), np.uint64)
    for word in words.T:  # zero beyond the end of a text: how long the others are does not matter
        hashed = np.where(word == 0, hashed, _mixed(hashed ^ word))
    return hashed


def _mixed(words: np.ndarray) -> np.ndarray:
    """Each word with its bits spread over all 64."""
    for shift, multiplier in zip((30, 27), MULTIPLIERS, strict=True):
        words = (words ^ (words >> np.uint64(shift))) * multiplier
    return words ^ (words >> np.uint64(31))
