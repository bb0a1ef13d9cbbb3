"""What a plan costs. `make("roofline:rtx2080ti-x4-v1")` builds a simulator by its id."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from shard_gym.errors import UnknownName
from shard_gym.simulators.base import Counted, FastSimulator, Latency, Simulator, single_costs
from shard_gym.simulators.roofline import PRESETS, Roofline

__all__ = [
    "DEFAULT",
    "Counted",
    "FastSimulator",
    "Latency",
    "Roofline",
    "Simulator",
    "make",
    "registered",
    "single_costs",
]

DEFAULT = "roofline:h100-v1"  # of tasks that belong to no suite

# id -> builder. A published id never changes its numbers: a change gets a new version.
_BUILDERS: dict[str, Callable[[], Simulator]] = {
    f"roofline:{name}-v1": partial(Roofline, preset) for name, preset in PRESETS.items()
}


def _fbgemm(device: str) -> Simulator:
    """The operator at hand, measured when asked; needs torch and FBGEMM."""
    from shard_gym.simulators.fbgemm import Fbgemm, Settings

    return Fbgemm(Settings(device=device))


def _learned(name: str) -> Simulator:
    """A fit that is shipped."""
    from shard_gym.simulators.learned import Learned, shipped

    return Learned(shipped(name))


def _torchrec() -> Simulator:
    """What TorchRec's planner believes; needs no TorchRec."""
    from shard_gym.bridge.perf import TorchRecPerf

    return TorchRecPerf()


_BUILDERS |= {f"fbgemm:{device}": partial(_fbgemm, device) for device in ("cpu", "cuda")}
_BUILDERS |= {f"learned:{name}": partial(_learned, name) for name in ("cpu-v1", "cpu-judge-v1")}
_BUILDERS["torchrec:cuda-v1"] = _torchrec


def registered() -> tuple[str, ...]:
    """Ids that `make` knows."""
    return tuple(sorted(_BUILDERS))


def make(simulator_id: str) -> Simulator:
    """The simulator of that id."""
    if simulator_id not in _BUILDERS:
        raise UnknownName("simulator", simulator_id, _BUILDERS)
    return _BUILDERS[simulator_id]()
