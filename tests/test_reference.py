"""Every public name has a docstring, and stands in the reference."""

import ast
import re
from collections.abc import Iterator

import pytest
from benchmarks.documentation import PACKAGES, exports, modules, parsed, reference

MODULES = {name: parsed(file) for _, name, file in modules()}
CLASSES = [node for tree in MODULES.values() for node in tree.body if isinstance(node, ast.ClassDef)]


def public(body: list[ast.stmt]) -> Iterator[ast.ClassDef | ast.FunctionDef]:
    """Functions and classes without an underscore; of overloaded functions the one that does the work."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            overload = any("overload" in ast.unparse(mark) for mark in node.decorator_list)
            if not overload:
                yield node


def inherits(owner: ast.ClassDef, method: str, below: frozenset[ast.ClassDef] = frozenset()) -> bool:
    """True if a class takes the place of a method that a class of ours, or of another package, documents."""
    for base in owner.bases:
        name = ast.unparse(base).split("[")[0].split(".")[-1]
        ours = [known for known in CLASSES if known.name == name and known is not owner]
        if not ours and name not in ("object", "Protocol", "NamedTuple", "TypedDict", "Generic"):
            return True
        for known in set(ours) - below:
            told = [ast.get_docstring(node) for node in public(known.body) if node.name == method]
            if any(told) or inherits(known, method, below | {owner}):
                return True
    return False


def fulfils(owner: ast.ClassDef, method: str) -> bool:
    """True if a class has all that a protocol of ours asks for, and the protocol documents the method."""
    has = {node.name for node in public(owner.body)}
    for known in CLASSES:
        asked = {node.name: ast.get_docstring(node) for node in public(known.body)}
        if "Protocol" in map(ast.unparse, known.bases) and asked.get(method) and asked.keys() <= has:
            return True
    return False


def undocumented(tree: ast.Module) -> list[str]:
    """Public names without a docstring."""
    found = [node.name for node in public(tree.body) if not ast.get_docstring(node)]
    for owner in public(tree.body):
        if isinstance(owner, ast.ClassDef):
            methods = [node for node in public(owner.body) if not ast.get_docstring(node)]
            bare = [node.name for node in methods if not (inherits(owner, node.name) or fulfils(owner, node.name))]
            found += [f"{owner.name}.{name}" for name in bare]
    return found


def test_undocumented_names_are_found():
    tree = ast.parse('class A:\n    """A."""\n    def b(self): ...\n    def _c(self): ...\ndef d(): ...\ndef _e(): ...')
    assert undocumented(tree) == ["d", "A.b"]


def test_public_names_have_docstrings():
    assert not [module for module, tree in MODULES.items() if not ast.get_docstring(tree)]
    assert {module: names for module, tree in MODULES.items() if (names := undocumented(tree))} == {}


def test_docstrings_hold_no_tags_but_as_code():
    for module, tree in MODULES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = re.sub(r"`[^`]*`|^    .*$", "", ast.get_docstring(node) or "", flags=re.MULTILINE)
                assert not re.search(r"<[a-zA-Z/!][^>\n]*>", text), (module, getattr(node, "name", ""))


@pytest.mark.parametrize("package", PACKAGES)
def test_exported_names_say_what_they_are(package):
    assert exports(package)
    assert not [name for name, _, first in exports(package) if not first]


def test_every_module_is_in_the_reference_once():
    told = [line for text in reference().values() for line in text.splitlines() if line.startswith("::: ")]
    assert sorted(told) == sorted(f"::: {name}" for name in MODULES)
    assert len(MODULES) > 200


def test_rooms_have_a_page_each():
    assert {"reference/shard_gym.plan.md", "reference/shard_gym_agents.search.md"} < reference().keys()
    overview = reference()["reference/index.md"]
    assert "[`Plan`][shard_gym.plan.plan.Plan]" in overview
    assert "[`shard_gym.envs`](shard_gym.envs.md)" in overview
