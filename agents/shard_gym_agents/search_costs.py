"""What a search asks its planner: as few shards as an exact answer takes, counted."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from shard_gym.bounds import unwrapped
from shard_gym.errors import InvalidTask
from shard_gym.simulators import Counted, FastSimulator
from shard_gym.simulators.learned import Learned
from shard_gym.tasks import Constraints, Task

CALLS_A_SECOND = 100_000
GRACE = 0.1  # seconds that a first plan may take, whatever the budget


@dataclass(frozen=True, eq=False)
class Parts:
    """The two parts of what devices cost, ms (..., K): the slowest `forward` is waited for by all, `own` adds to it.

    Of the kernel objective all is `own`.
    """

    forward: np.ndarray
    own: np.ndarray

    @property
    def makespan(self) -> np.ndarray:
        """What plans are worth, (...)."""
        return self.forward.max(axis=-1) + self.own.max(axis=-1)


class Costs:
    """A task's planner, for a search."""

    def __init__(self, task: Task, planner: FastSimulator) -> None:
        self.task = task
        self.planner = Counted(planner)  # what this search asks, whatever was asked before
        self.kernel = task.objective == "kernel"
        self.slowness = 1 / np.array(task.speed)
        # devices that do not touch and are alike, so that any shards can be asked about together
        alike = {"memory": (1,) * task.num_devices, "speed": (), "objective": "kernel"}
        self._alike = replace(task, **alike, constraints=Constraints())  # type: ignore[arg-type]

    @property
    def calls(self) -> int:
        """Plans asked about so far, by this search."""
        return self.planner.calls

    def plans(self, sums: np.ndarray) -> Parts:
        """Whole plans from each device's sum, (..., K, H)."""
        latency = self.planner.decode(self.task, sums)
        if self.kernel:
            own = latency.compute
            return Parts(np.zeros_like(own), own)
        return Parts(latency.forward_compute, latency.forward_comm + latency.backward_comm + latency.backward_compute)

    def compute(self, sums: np.ndarray, device: np.ndarray | int) -> np.ndarray:
        """Forward and backward computation of shards, sums (S, H), each on its device (S,); K of them count as a plan.

        A device's computation depends on nothing but its own tables and its speed.
        """
        k, shards = self.task.num_devices, len(sums)
        packed = np.zeros((-(-shards // k), k, sums.shape[-1]))
        packed.reshape(-1, sums.shape[-1])[:shards] = sums
        return self.planner.decode(self._alike, packed).compute.ravel()[:shards] * self.slowness[device]

    def scaling_share(self, sums: np.ndarray) -> float:
        """How much of the devices' own cost goes with their speed, of one plan: computation does, links do not."""
        if self.kernel:
            return 1.0
        latency = self.planner.decode(self.task, sums)
        whole = latency.backward_compute + latency.forward_comm + latency.backward_comm
        return float(latency.backward_compute.sum() / max(float(whole.sum()), 1e-12))

    def doubt(self, sums: np.ndarray, other: np.ndarray) -> float:
        """The planner's standard deviation of how much sooner one plan is done than another, ms; sums of both, (K, H).

        Where it knows only that of devices: that of the one which sets the pace. 0 where it knows none.
        """
        planner = unwrapped(self.planner)
        if isinstance(planner, Learned):
            return planner.doubt(self.task, sums, other)
        latency = self.planner.decode(self.task, sums)
        slowest = int(latency.cost(self.task.objective).argmax())
        return 0.0 if latency.spread is None else float(latency.spread[slowest])


class Budget:
    """When to stop: after so many seconds, or after so many plans asked about, which any machine does alike."""

    def __init__(self, seconds: float, calls: int) -> None:
        if not seconds >= 0 or calls < 0:
            raise InvalidTask(f"a search needs budget >= 0 seconds and calls >= 0, got {seconds}, {calls}")
        self.start = time.perf_counter()
        self.seconds, self.calls = seconds, calls
        self.stopped = False  # by whoever follows the search

    @property
    def spent_seconds(self) -> float:
        """Since the start."""
        return time.perf_counter() - self.start

    @property
    def worth_seconds(self) -> float:
        """About how many seconds the budget stands for, for choices that depend on how much there is to spend."""
        return self.calls / CALLS_A_SECOND if self.calls else self.seconds

    def over(self, costs: Costs, share: float = 1.0) -> bool:
        """Whether that share of it is spent."""
        if self.calls:
            return costs.calls >= share * self.calls
        return self.spent_seconds >= share * self.seconds

    @property
    def hopeless(self) -> bool:
        """Whether to give up looking for any plan at all; a budget of plans asked about does not say when."""
        return not self.calls and self.spent_seconds >= max(self.seconds, GRACE)
