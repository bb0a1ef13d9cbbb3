"""Columns of many tables in JSON: the bytes of arrays as text, in a fraction of the time of a list of numbers."""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from typing import Any

import numpy as np

from shard_gym.errors import CorruptFile

MANY = 10_000  # tables from where columns are packed
DTYPES = ("<i8", "<i4", "<f8", "<f4", "|b1")


def packed(values: np.ndarray) -> dict[str, Any]:
    """An array as its dtype, shape and bytes in base64, little-endian."""
    array = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    return {"dtype": array.dtype.str, "shape": list(array.shape), "base64": b64encode(array.tobytes()).decode()}


def unpacked(told: Any) -> Any:
    """The array that `packed` told of; anything that is no object is what it is."""
    if not isinstance(told, dict):
        return told
    if told.keys() != {"dtype", "shape", "base64"} or told["dtype"] not in DTYPES:
        raise CorruptFile(f"a packed column has dtype, shape and base64, the first one of {', '.join(DTYPES)}")
    dtype, shape, content = np.dtype(told["dtype"]), told["shape"], b64decode(told["base64"], validate=True)
    sizes = isinstance(shape, list) and all(isinstance(size, int) and size >= 0 for size in shape)
    if not sizes or math.prod(shape) * dtype.itemsize != len(content):
        raise CorruptFile(f"a packed column of shape {shape!r:.80} and dtype {dtype.str} has {len(content):,} bytes")
    if dtype.kind == "b" and content.strip(b"\0\1"):
        raise CorruptFile("a packed column of bools has bytes that are neither 0 nor 1")
    return np.frombuffer(content, dtype).reshape(shape)
