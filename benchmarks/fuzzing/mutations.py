"""Ways to spoil input: bytes, what JSON holds, columns of arrays, and arguments of calls."""

from __future__ import annotations

import ast
import copy
import json
from typing import Any

import numpy as np

# What no reader expects where it expects something else.
ODD_JSON: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 10**23, -(2**63), 0.5, -0.5, 1e-320, 1e308, -1e308, 1e16),
    *("", "x", "-1", "nan", "\ud800", "\x1b[31m", "a" * 300, [], {}, [[]], [None], {"a": 1}, [1, 2], [[1], [2, 3]]),
    *(["tw"], [0, 0.5], {"schema": 1}, [[[[]]]], "shard-gym/plan/2", [-1, 10**9]),
)
TOKENS = (
    *(b"NaN", b"Infinity", b"-Infinity", b"1e999", b"9" * 5000, b"9" * 30, b"1e-400", b"-0", b"null", b"true"),
    *(b"[" * 3000, b'{"a":' * 3000, b"\xff\xfe", b"\x00", b"\xed\xa0\x80", b'"', b",", b"\n", b"\r", b"\\u0000"),
)
ODD_REALS = (np.nan, np.inf, -np.inf, -1, 0, 1e30, 1e-320, 2**40, 255)
ODD_ARGUMENTS = (
    *("None", "True", "0", "-1", "3", "0.5", "nan", "inf", "-inf", "1e-320", "1e308", "10**30", "-10**30", "''", "'x'"),
    *(
        "b'x'",
        "[]",
        "()",
        "{}",
        "[None]",
        "['a']",
        "[1, 'a']",
        "[[1], [1, 2]]",
        "(1, 2)",
        "{1: 2}",
        "set()",
        "object()",
    ),
    *("object", "len", "array([])", "array(1.5)", "array([1, 2])", "array([[1.0]])", "array(['a'])", "'\\ud800'"),
    *("range(3)", "once", "deep()", "Loud()", "array([nan, 1])", "array([True, False])", "1j", "'core-80x8'"),
)


def spoiled_bytes(content: bytes, rng: np.random.Generator) -> bytes:
    """Content with up to four changes: bits, bytes, pieces that go, double or are cut off, odd tokens."""
    data = bytearray(content)
    for _ in range(int(rng.integers(1, 5))):
        at, end = sorted(rng.integers(0, len(data) + 1, 2).tolist())
        token = TOKENS[int(rng.integers(len(TOKENS)))]
        digits = [i for i, byte in enumerate(data[:20_000]) if 48 <= byte < 58] or [at]
        number = digits[int(rng.integers(len(digits)))]
        flipped = bytes([byte ^ (1 << int(rng.integers(8))) for byte in data[at : at + 1]])
        changes = (
            (at, at + 1, flipped),
            (at, at + 1, bytes([int(rng.integers(256))])),
            (at, min(end, at + 64), b""),
            (at, at, bytes(data[at : min(end, at + 200)])),
            (at, at, token),
            (number, number + 1, token),
            (at, len(data) if rng.random() < 0.3 else at, b""),
        )
        start, stop, piece = changes[int(rng.integers(len(changes)))]
        data[start:stop] = piece
    return bytes(data)


def spoiled_json(data: Any, rng: np.random.Generator) -> Any:
    """A copy of what JSON holds with up to three values, keys or lengths changed."""
    holder = [copy.deepcopy(data)]
    for _ in range(int(rng.integers(1, 4))):
        places = list(_places(holder))
        held, key = places[int(rng.integers(len(places)))]
        kind = int(rng.integers(6))
        if kind < 3 or held is holder:
            held[key] = copy.deepcopy(ODD_JSON[int(rng.integers(len(ODD_JSON)))])
        elif kind == 3:
            del held[key]
        elif isinstance(held, list):
            held.insert(key, copy.deepcopy(held[int(rng.integers(len(held)))]))
        else:
            held[f"{key}x"] = held.pop(key) if kind == 4 else held[key]
    return holder[0]


def spoiled_text(content: bytes, rng: np.random.Generator) -> bytes:
    """JSON text spoiled as text or as what it holds."""
    if rng.random() < 0.3:
        return spoiled_bytes(content, rng)
    return json.dumps(spoiled_json(json.loads(content), rng)).encode()


def spoiled_arrays(arrays: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Arrays of which some have other shapes, types or numbers, or are gone."""
    found = dict(arrays)
    with np.errstate(all="ignore"):
        for _ in range(int(rng.integers(1, 4))):
            _spoil_array(found, arrays, rng)
    return found


def _spoil_array(found: dict[str, np.ndarray], arrays: dict[str, np.ndarray], rng: np.random.Generator) -> None:
    """Change one of the arrays, or remove it."""
    name = list(arrays)[int(rng.integers(len(arrays)))]
    array, kind = np.array(found.get(name, arrays[name])), int(rng.integers(7))
    if kind == 0:
        found.pop(name, None)
        return
    if kind == 1:
        array = array[..., None] if rng.random() < 0.5 else array.ravel()
    elif kind == 2:
        array = array[: len(array) // 2] if array.ndim else np.stack([array, array])
    elif kind == 3 and array.dtype.kind != "U":
        array = array.astype([np.float16, np.int8, np.bool_, np.complex64, np.float64][int(rng.integers(5))])
    elif array.dtype.kind in "iuf" and array.size:
        odd = ODD_REALS if array.dtype.kind == "f" else (0, 1, 127)
        array.flat[int(rng.integers(array.size))] = odd[int(rng.integers(len(odd)))]
    found[name] = array


def spoiled_call(source: str, rng: np.random.Generator) -> str:
    """An expression of Python in which up to two arguments are others."""
    tree = ast.parse(source, mode="eval")
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) != "array"]
    places = [(held, i) for call in calls for held in (call.args, call.keywords) for i in range(len(held))]
    for _ in range(int(rng.integers(1, 3))):
        held, i = places[int(rng.integers(len(places)))]
        odd: Any = ast.parse(ODD_ARGUMENTS[int(rng.integers(len(ODD_ARGUMENTS)))], mode="eval").body
        held[i] = ast.keyword(held[i].arg, odd) if isinstance(held[i], ast.keyword) else odd
    return ast.unparse(ast.fix_missing_locations(tree))


def _places(held: Any) -> Any:
    """Every list or object in another, with each of its keys."""
    keys = held if isinstance(held, dict) else range(len(held))
    for key in list(keys):
        yield held, key
        if isinstance(held[key], dict | list):
            yield from _places(held[key])
