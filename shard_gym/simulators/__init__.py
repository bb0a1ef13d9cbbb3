"""Simulators: the cost of a plan. `make("roofline:rtx2080ti-x4-v1")` builds a simulator by its id."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shard_gym.errors import SimulatorError, UnknownName
from shard_gym.records.guard import expect
from shard_gym.simulators.base import Counted, FastSimulator, Latency, Simulator
from shard_gym.simulators.single import single_costs

if TYPE_CHECKING:  # imported when it is asked for
    from shard_gym.simulators.roofline import Roofline

__all__ = [
    "DEFAULT",
    "SIMULATORS",
    "Counted",
    "FastSimulator",
    "Latency",
    "Roofline",
    "Simulator",
    "make",
    "registered",
    "single_costs",
]

DEFAULT = "roofline:h100-v2"  # of tasks that belong to no suite
WEIGHTS = ".safetensors"  # how files of fits end
ROOFLINES = {1: ("rtx2080ti-x4", "a100-x32-roce", "h100", "h200"), 2: ("a100-x32-roce", "h100", "h200")}  # by version

Builder = Callable[[], Simulator]


def _made_by(path: str, *arguments: str | int) -> Builder:
    """A call of `module:function` with these arguments; the module is imported then."""
    module, _, name = path.partition(":")
    return lambda: getattr(import_module(module), name)(*arguments)


def _fits() -> list[str]:
    """Names of the fits that come with the package: each `fits/NAME.safetensors` is the simulator `learned:NAME`."""
    return sorted(file.stem for file in (Path(__file__).parent / "fits").iterdir() if file.suffix == WEIGHTS)


# A published id never changes its numbers: a change gets a new version.
SIMULATORS: dict[str, Builder] = {
    **{
        f"roofline:{name}-v{version}": _made_by("shard_gym.simulators.roofline:make_preset", name, version)
        for version, names in ROOFLINES.items()
        for name in names
    },
    **{f"learned:{name}": _made_by("shard_gym.simulators.learned:make_shipped", name) for name in _fits()},
    **{f"fbgemm:{device}": _made_by("shard_gym.measuring.fbgemm:make_fbgemm", device) for device in ("cpu", "cuda")},
    "torchrec:cuda-v1": _made_by("shard_gym.simulators.torchrec:TorchRecPerf"),
}


def __getattr__(name: str) -> Any:
    if name == "Roofline":
        return import_module("shard_gym.simulators.roofline").Roofline
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def registered() -> tuple[str, ...]:
    """Ids that `make` knows."""
    return tuple(sorted(SIMULATORS))


def make(simulator_id: str) -> Simulator:
    """The simulator of that id, or of a weights file (a path that ends in .safetensors)."""
    expect(simulator_id, str, SimulatorError)
    if simulator_id.endswith(WEIGHTS):
        return _made_by("shard_gym.simulators.learned:Learned", simulator_id)()
    if simulator_id not in SIMULATORS:
        raise UnknownName("simulator", simulator_id, (*SIMULATORS, f"FILE{WEIGHTS}"))
    return SIMULATORS[simulator_id]()
