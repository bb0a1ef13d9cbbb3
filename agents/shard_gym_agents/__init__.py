"""Solvers: `make(name)` gives a callable `(task, planner) -> Plan`.

A solver is a frozen dataclass; its fields are its configuration (`seed` and `budget` among them where they
matter), its `track` says whether it may ask the planner ("search") or never does ("blind"). Modules are imported
when asked for, so an absent extra only matters then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from inspect import signature
from typing import Any

from shard_gym.errors import InvalidTask, MissingDependency, UnknownName
from shard_gym.records.guard import expect
from shard_gym_agents.learners import LEARNERS
from shard_gym_agents.solvers.solver import Solver

__all__ = ["AGENTS", "Solver", "make", "names", "options"]

ENTRY_POINTS = "shard_gym.agents"  # where other packages register theirs

AGENTS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "random": ("shard_gym_agents.solvers.random:Random", {}),
    "random-search": ("shard_gym_agents.solvers.random:RandomSearch", {}),
    "round-robin": ("shard_gym_agents.solvers.greedy:RoundRobin", {}),
    "size-greedy": ("shard_gym_agents.solvers.greedy:Greedy", {"cost": "size"}),
    "dim-greedy": ("shard_gym_agents.solvers.greedy:Greedy", {"cost": "dim"}),
    "lookup-greedy": ("shard_gym_agents.solvers.greedy:Greedy", {"cost": "lookup"}),
    "size-lookup-greedy": ("shard_gym_agents.solvers.greedy:Greedy", {"cost": "size-lookup"}),
    "size-lookup-log-greedy": ("shard_gym_agents.solvers.greedy:Greedy", {"cost": "size-lookup-log"}),
    "cost-greedy": ("shard_gym_agents.solvers.greedy:CostGreedy", {}),
    "halve-then-greedy": ("shard_gym_agents.solvers.halving:HalveThenGreedy", {}),
    "ladder": ("shard_gym_agents.solvers.halving:Ladder", {}),
    "local-search": ("shard_gym_agents.search.local_search:LocalSearch", {}),
    "beam": ("shard_gym_agents.search.beam:Beam", {}),
    "neuroshard": ("shard_gym_agents.search.beam:NeuroShard", {}),
    "auto": ("shard_gym_agents.search.local_search:Auto", {}),
    "milp": ("shard_gym_agents.search.exact:Milp", {}),
    "reshard": ("shard_gym_agents.search.reshard:Reshard", {}),
    "torchrec-planner": ("shard_gym_agents.solvers.torchrec_planner:TorchRecPlanner", {}),
    "torchrec-planner-perf": (
        "shard_gym_agents.solvers.torchrec_planner:TorchRecPlanner",
        {"partitioner": "greedy-perf"},
    ),
    **{name: ("shard_gym_agents.learners.trained:Trained", {"learner": name}) for name in LEARNERS},
}
"""Solvers of ours by name: where each is, as `module:Class`, and its options."""


def names() -> tuple[str, ...]:
    """Agents that `make` knows by name, ours first, then those of installed packages."""
    return (*AGENTS, *(name for name in installed() if name not in AGENTS))


@cache
def installed() -> dict[str, str]:
    """Agents of installed packages: `module:Class` by name."""
    return {entry.name: entry.value for entry in entry_points(group=ENTRY_POINTS)}


def make(name: str, **config: Any) -> Solver:
    """The solver of that name, or of `module:Class`; options it has no field for are refused."""
    solver, defaults = _found(name)
    return _built(name, solver, {**defaults, **config})


def options(name: str) -> frozenset[str]:
    """Options that `make` takes for an agent, `seed` or `budget` for example."""
    solver, defaults = _found(name)
    try:
        return frozenset(signature(solver).parameters.keys() - defaults.keys())
    except (TypeError, ValueError):
        return frozenset()  # made in C, or nothing that can be called: `make` says so


def _found(name: str) -> tuple[Any, Mapping[str, Any]]:
    """The class of that name, or of `module:Class`, and the options that the name stands for."""
    expect(name, str, InvalidTask)
    path, defaults = AGENTS.get(name, (name, {}))
    if name not in AGENTS:
        path = installed().get(name, name)
    module, _, attribute = path.partition(":")
    if not module or module.startswith(".") or not attribute:
        raise UnknownName("agent", name, (*names(), "module:Class"))
    try:
        return getattr(import_module(module), attribute), defaults
    except (ModuleNotFoundError, AttributeError) as error:
        missing = getattr(error, "name", None)
        if isinstance(error, ModuleNotFoundError) and not f"{module}.".startswith(f"{missing}."):
            raise MissingDependency(f"{name} needs {missing}: pip install {missing}") from error
        raise UnknownName(f"agent ({error})", name, (*names(), "module:Class")) from error


def _built(name: str, solver: Any, config: dict[str, Any]) -> Solver:
    """The solver, made with these options."""
    if is_dataclass(solver) and (unknown := config.keys() - {f.name for f in fields(solver)}):
        has = [f.name for f in fields(solver)]
        raise InvalidTask(f"{name} has no option {', '.join(sorted(unknown))}; it has: {has}")
    try:
        signature(solver).bind(**config)
    except (TypeError, ValueError) as error:
        raise InvalidTask(f"{name} cannot be made with options {config}: {error}") from error
    made = solver(**config)
    if not callable(made):
        why = f"a solver is called with a task and a planner, {type(made).__name__} cannot be called"
        raise UnknownName(f"agent ({why})", name, (*names(), "module:Class"))
    return made
