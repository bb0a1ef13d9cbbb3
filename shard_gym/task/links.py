"""The wires of an all-to-all: which devices share what, and how fast it is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from shard_gym.errors import InvalidTask
from shard_gym.records.guard import guarded
from shard_gym.records.numbers import whole

HOST_LINK = 0.8 * 31.5e6  # bytes a millisecond to a host's memory where nobody tells: 16 lanes of PCIe 4
LEAST = 2.0**-100  # of a rate or speed: what is divided by it stays a number


@dataclass(frozen=True)
class Links:
    """Devices in groups (a node, or a PCIe switch), joined by uplinks.

    Rates are achieved bytes a millisecond in one direction. A device sends its pooled rows to every other one:
    traffic inside a group uses its port; what leaves the group uses the group's uplink, shared by its devices;
    `fabric` carries everything (host memory, where there is no peer-to-peer). Their times add up.
    """

    port: float  # of each device, towards its group
    latency_ms: float = 0.0  # of one all-to-all
    group: int = 0  # devices a group, the last one taking the rest; 0: all in one
    uplink: float = math.inf  # of each group
    fabric: float = math.inf  # of the whole machine
    peer_to_peer: bool = True  # False: traffic inside a group takes the uplink too

    @guarded("links", InvalidTask)
    def __post_init__(self) -> None:
        try:
            for rate in ("port", "latency_ms", "uplink", "fabric"):
                object.__setattr__(self, rate, float(getattr(self, rate)))
            object.__setattr__(self, "group", whole(self.group))
        except (TypeError, ValueError) as error:
            raise InvalidTask(f"links are rates and a whole number of devices a group: {error}") from error
        object.__setattr__(self, "peer_to_peer", bool(self.peer_to_peer))
        rates = all(rate >= LEAST for rate in (self.port, self.uplink, self.fabric))  # NaN is not
        if not (rates and 0 <= self.latency_ms < 1 / LEAST and self.group >= 0):
            raise InvalidTask(f"links need positive rates, latency >= 0 and group >= 0, got {self}")

    def all_to_all_ms(self, dims: np.ndarray, batch: int) -> np.ndarray:
        """Time of one all-to-all on each device, given the summed columns each holds; (..., K) -> (..., K).

        Device d sends batch * dims_d * 4 bytes (pooled output is fp32), 1/K of it to each device, and receives
        batch/K * 4 * (sum of all dims). Links carry both ways at once, so the larger one counts. The two passes
        mirror each other (what was sent comes back), so one function serves both.
        """
        total = dims @ np.ones((dims.shape[-1], 1))  # whole columns: exact, and sooner than their sum
        return self._sent_ms(dims, total, *self._held_in_groups(dims, total), batch)

    def one_more_ms(self, dims: np.ndarray, more: np.ndarray, batch: int) -> np.ndarray:
        """The same on each device if it alone held so many more columns, (..., K) and (...) -> (..., K)."""
        more, total = more[..., None], dims @ np.ones((dims.shape[-1], 1))
        in_group, group = self._held_in_groups(dims, total)
        return self._sent_ms(dims + more, total + more, in_group + more, group, batch)

    def _sent_ms(self, dims: np.ndarray, total: np.ndarray, in_group: np.ndarray, group: Any, batch: int) -> np.ndarray:
        """Time of one all-to-all on each device, from columns there, in its group, of so many devices, and in all."""
        devices = dims.shape[-1]
        if devices == 1:
            return np.zeros(dims.shape)
        slice_bytes = 4.0 * batch / devices  # one column's output for the samples of one device
        if self.peer_to_peer:  # sent, received; inside the group, then leaving it
            near = np.maximum(dims * (group - 1), in_group - dims)
        else:
            near = np.maximum(dims * (devices - 1), total - dims)
        ms = near * (slice_bytes / self.port) + self.latency_ms
        if self.uplink < math.inf:
            if self.peer_to_peer:
                far = np.maximum(in_group * (devices - group), (total - in_group) * group)
            else:
                far = np.maximum(in_group * (devices - 1), total * group - in_group)
            ms += far * (slice_bytes / self.uplink)
        if self.fabric < math.inf:
            ms += total * ((devices - 1) * slice_bytes / self.fabric)
        return ms

    def _held_in_groups(self, dims: np.ndarray, total: np.ndarray) -> tuple[np.ndarray, Any]:
        """Columns that each device's group holds, and the group's size; one number where there is one group."""
        devices = dims.shape[-1]
        if not 0 < self.group < devices:
            return total, devices
        starts, sizes, group = _groups(devices, self.group)
        return np.add.reduceat(dims, starts, axis=-1).repeat(sizes, axis=-1), group

    def groups(self, devices: int) -> tuple[np.ndarray, np.ndarray]:
        """First device and size of each group of so many devices."""
        starts, sizes, _ = _groups(devices, self.group or devices)
        return starts, sizes

    def ring_ms(self, held: np.ndarray) -> np.ndarray:
        """Time of one reduce-scatter or all-gather over all devices, of `held` bytes on each; (..., K) -> (..., K).

        Devices form a ring, in which each passes on (K-1)/K of the bytes; a ring enters and leaves each group once.
        An all-reduce is one after the other. (NCCL's rings; nccl-tests, doc/PERFORMANCE.md counts the same bytes.)
        """
        devices = held.shape[-1]
        _, sizes, group = _groups(devices, self.group or devices)
        passed = held * ((devices - 1) / devices)
        leaving = passed * float(len(sizes) > 1) if self.peer_to_peer else passed * group
        return self._ms(passed, leaving, passed * devices)

    def rings_in_groups_ms(self, held: np.ndarray) -> np.ndarray:
        """Time of one reduce-scatter or all-gather inside each group, of `held` bytes on each; (..., K) -> (..., K)."""
        devices = held.shape[-1]
        *_, group = _groups(devices, self.group or devices)
        passed = held * ((group - 1) / group)
        return self._ms(passed, passed * (0.0 if self.peer_to_peer else group), passed * devices)

    def between_groups_ms(self, held: np.ndarray) -> np.ndarray:
        """Time of the all-to-all of devices of the same place in each group; (..., K) -> (..., K).

        `held` are bytes of the group's pooled rows for all samples, the same on each of its devices, which has its
        part of the samples. What goes to other groups leaves by the uplink, and what they hold for this one comes in.
        """
        devices = held.shape[-1]
        starts, _, group = _groups(devices, self.group or devices)
        groups, total = len(starts), (held / group).sum(axis=-1, keepdims=True)
        leaving = np.maximum(held * (groups - 1), total - held) / groups
        return self._ms(np.zeros_like(held), leaving, np.broadcast_to(total * ((groups - 1) / groups), held.shape))

    def _ms(self, near: np.ndarray, leaving: np.ndarray, everything: np.ndarray) -> np.ndarray:
        """Time of bytes through the port, the uplink and the fabric; nothing takes no time."""
        ms = near / self.port + leaving / self.uplink + everything / self.fabric
        return ms + self.latency_ms * (near + leaving > 0)


@cache
def _groups(devices: int, group: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First device and size of each group, and the size of each device's group."""
    starts = np.arange(0, devices, group)
    sizes = np.minimum(group, devices - starts)
    return starts, sizes, sizes.repeat(sizes)
