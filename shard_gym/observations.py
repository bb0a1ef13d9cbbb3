"""What a policy sees: three observations, each a space and a function of the episode's state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from shard_gym.episodes import Prepared, State
from shard_gym.tables import FEATURES

WIDTH = len(FEATURES) + 1
INF = np.inf


@dataclass(frozen=True)
class Observation:
    """One way to show a state; `space` takes a prepared task and the most tables a task has."""

    space: Callable[[Prepared, int], spaces.Space]
    observe: Callable[[State, int], Any]
    needs_sums: bool = False  # each step asks the simulator


def _box(low: float, high: float, *shape: int, dtype: type = np.float32) -> spaces.Box:
    return spaces.Box(low, high, shape, dtype)  # type: ignore[arg-type]


def table_space(prepared: Prepared, most: int) -> spaces.Box:
    """The next table's features and the share of tables placed."""
    low, high = np.full((2, WIDTH), INF, np.float32)
    low *= -1
    low[-1], high[-1] = 0, 1
    return spaces.Box(low, high, dtype=np.float32)


def table(state: State, most: int) -> np.ndarray:
    """The next table's 21 standardised features and the share of tables placed, (22,)."""
    return state.episode.rows[len(state.placed)].copy()


def full_space(prepared: Prepared, most: int) -> spaces.Dict:
    """The next table, each device's load, what remains."""
    devices, width = prepared.task.num_devices, 4 + prepared.embedding.shape[1]  # type: ignore[union-attr]
    return spaces.Dict(
        table=table_space(prepared, most),
        devices=_box(-INF, INF, devices, width),
        remaining=_box(0, 1, 5),
        action_mask=_box(0, 1, devices, dtype=np.int8),
    )


def full(state: State, most: int) -> dict[str, np.ndarray]:
    """The next table, each device's load, what remains; units are shares of the task."""
    return {
        "table": table(state, most),
        "devices": _devices(state),
        "remaining": state.episode.remaining[len(state.placed)].copy(),
        "action_mask": state.mask(),
    }


def _devices(state: State) -> np.ndarray:
    """Used and free memory, predicted cost, speed, summed embedding of each device, (K, 4 + H)."""
    p, sums = state.episode.prepared, state.sums
    assert sums is not None and p.embedding is not None
    task, devices = p.task, p.task.num_devices
    free, even_share = (
        np.array(state.free),
        np.abs(p.embedding).sum(axis=0) / devices,
    )  # of each embedding column
    shown = np.empty((devices, 4 + sums.shape[1]), np.float32)
    shown[:, 0] = 1 - free / task.capacity
    shown[:, 1] = free / max(task.memory)
    shown[:, 2] = state.latency().cost(task.objective) * devices / max(p.alone.sum(), 1e-12)
    shown[:, 3] = np.array(task.speed) / max(task.speed)
    shown[:, 4:] = sums / np.where(even_share > 0, even_share, 1)
    return shown


def set_space(prepared: Prepared, most: int) -> spaces.Dict:
    """All tables and where they are, padded to `most` tables."""
    devices = prepared.task.num_devices
    return spaces.Dict(
        tables=_box(-INF, INF, most, WIDTH - 1),
        sizes=_box(0, INF, most),
        device=_box(-1, devices - 1, most, dtype=np.int64),
        order=_box(-1, most - 1, most, dtype=np.int64),
        position=_box(0, most, 1, dtype=np.int64),
        capacity=_box(0, 1, devices),
        speed=_box(0, 1, devices),
        action_mask=_box(0, 1, devices, dtype=np.int8),
    )


def set_(state: State, most: int) -> dict[str, np.ndarray]:
    """All tables, where they are, their order and the devices; past the last table is padding."""
    p, n = state.episode.prepared, len(state.episode.order)
    task, largest = p.task, max(p.task.memory)
    shown = {
        "tables": np.zeros((most, WIDTH - 1), np.float32),
        "sizes": np.zeros(most, np.float32),
        "device": np.full(most, -1),
        "order": np.full(most, -1),
        "position": np.array([len(state.placed)]),
        "capacity": (task.capacity / largest).astype(np.float32),
        "speed": (np.array(task.speed) / max(task.speed)).astype(np.float32),
        "action_mask": state.mask(),
    }
    shown["tables"][:n] = p.features
    shown["sizes"][:n] = p.sizes / largest
    shown["device"][:n] = state.placement()
    shown["order"][:n] = state.episode.order
    return shown


OBSERVATIONS = {
    "table": Observation(table_space, table),
    "full": Observation(full_space, full, needs_sums=True),
    "set": Observation(set_space, set_),
}
