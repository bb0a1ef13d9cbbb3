"""Docstrings begin with a noun or a verb, so that a stranger knows at once what a thing is or does."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(
    path for folder in ("shard_gym", "agents", "benchmarks", "tests") for path in (ROOT / folder).rglob("*.py")
)
RIDDLES = (
    "as at by for from how if in it its of on so that those these this they to what when where whether which while "
    "who whose why with"
)


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring of a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text


@pytest.mark.parametrize("path", FILES, ids=[path.relative_to(ROOT).as_posix() for path in FILES])
def test_docstrings_begin_with_a_noun_or_a_verb(path):
    found = docstrings(ast.parse(path.read_text()))
    assert not [
        (line, text.split("\n")[0]) for line, text in found if text.split()[0].strip('":,').lower() in RIDDLES.split()
    ]
