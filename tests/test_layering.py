"""Imports point one way, and the gym needs its core dependencies only until an extra is asked for."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = {  # lowest first: a layer knows those before it, never those after
    "shard_gym": ROOT / "shard_gym",
    "shard_gym_agents": ROOT / "agents" / "shard_gym_agents",
    "benchmarks": ROOT / "benchmarks",
    "tests": ROOT / "tests",
}
# Rooms of shard_gym, lowest first: a room imports those before it. `memory` is told a task, `plan` knows memory, ...
ROOMS = (
    "errors",
    "core",
    "records",
    "work",
    "tables",
    "task",
    "memory",
    "plan",
    "generator",
    "simulators",
    "measuring",
    "pictures",
    "envs",
    "proofs",
    "bounds",
    "results",
    "torchrec",
    "flexshard",
)
FILES = [(layer, path) for layer, folder in LAYERS.items() for path in sorted(folder.rglob("*.py"))]
GYM_FILES = [path for layer, path in FILES if layer == "shard_gym"]
CORE = {*sys.stdlib_module_names, "shard_gym", "numpy", "gymnasium", "safetensors"}
# imported only when somebody measures, fits or runs a table, so these may need torch
LAZY = (
    "shard_gym/measuring/",
    "shard_gym/torchrec/checkpoints.py",
    "shard_gym/flexshard/embedding.py",
)
LAZY_CORE = {"torch", "fbgemm_gpu"}
HEAVY = {
    "torch",
    "fbgemm_gpu",
    "torchrec",
    "ray",
    "stable_baselines3",
    "matplotlib",
    "pygame",
    "pyarrow",
    "pandas",
    "highspy",
}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imported_roots(node: ast.AST, in_functions: bool) -> Iterator[str]:
    """Top-level packages imported below `node`; without `in_functions`, only those that run on import."""
    for child in ast.iter_child_nodes(node):
        function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        for_types = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        if isinstance(child, ast.Import):
            yield from (alias.name.split(".")[0] for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and not child.level:
            yield str(child.module).split(".")[0]
        elif in_functions or not (function or for_types):
            yield from imported_roots(child, in_functions)


def test_imported_roots_tells_lazy_imports_apart():
    source = "import numpy.random\nfrom . import plan\ntry:\n    from torch import nn\nfinally: pass\n"
    source += "if TYPE_CHECKING:\n    import ray\ndef f():\n    import pandas\n"
    assert set(imported_roots(ast.parse(source), in_functions=False)) == {"numpy", "torch"}
    assert set(imported_roots(ast.parse(source), in_functions=True)) == {"numpy", "torch", "pandas", "ray"}


@pytest.mark.parametrize(("layer", "path"), FILES, ids=[relative(path) for _, path in FILES])
def test_imports_point_one_way(layer, path):
    names = list(LAYERS)
    above = set(names[names.index(layer) + 1 :])
    assert not above & set(imported_roots(ast.parse(path.read_text()), in_functions=True))


def imported_modules(node: ast.AST) -> Iterator[str]:
    """Dotted names imported anywhere below `node`: of `from a import b` both a and a.b."""
    for child in ast.walk(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and not child.level:
            yield str(child.module)
            yield from (f"{child.module}.{alias.name}" for alias in child.names)


@pytest.mark.parametrize("path", GYM_FILES, ids=relative)
def test_a_room_imports_the_rooms_before_it_only(path):
    room = relative(path).removesuffix(".py").split("/")[1]
    if room == "__init__":
        return  # the public names come from everywhere
    known = ROOMS[: ROOMS.index(room) + 1]
    imported = {name.split(".")[1] for name in imported_modules(ast.parse(path.read_text())) if "shard_gym." in name}
    assert imported <= set(known)


def module_of(path: Path) -> str:
    return relative(path).removeprefix("agents/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imports() -> dict[str, set[str]]:
    """Modules of ours that each module of ours imports, at the top or later."""
    modules = {module_of(path): path for layer, path in FILES if layer != "tests"}
    for name in [name for name in modules if name.startswith(("benchmarks.pages.", "benchmarks.make."))]:
        modules["benchmarks." + name.split(".", 2)[2]] = modules.pop(
            name
        )  # as benchmarks/__init__.py lets them be named
    found = {}
    for name, path in modules.items():
        asked = {*imported_modules(ast.parse(path.read_text()))} & modules.keys()
        found[name] = {other for other in asked if not f"{name}.".startswith(f"{other}.")}
    return found


def test_no_files_import_each_other_in_a_circle():
    left = imports()
    while free := {name for name, others in left.items() if not others & left.keys()}:
        left = {name: others for name, others in left.items() if name not in free}
    assert not left


@pytest.mark.parametrize("path", GYM_FILES, ids=relative)
def test_the_gym_imports_its_core_dependencies_only(path):
    allowed = CORE | LAZY_CORE if relative(path).startswith(LAZY) else CORE
    assert set(imported_roots(ast.parse(path.read_text()), in_functions=False)) <= allowed


def test_light_modules_pull_in_nothing_heavy():
    """Every gym module but the lazy ones, and what the core install runs: the command and the leaderboard."""
    light = [relative(path) for path in GYM_FILES if not relative(path).startswith(LAZY)]
    modules = [name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in light]
    modules += ["shard_gym_agents.cli.main", "shard_gym_agents.leaderboard.command"]
    code = f"import sys, {', '.join(modules)}\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert not HEAVY & set(run.stdout.split())
