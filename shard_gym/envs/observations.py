"""Observations of policies: five of them, each a space and a function of the episode's state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from shard_gym.envs.episodes import Prepared, Scales
from shard_gym.envs.states import State
from shard_gym.plan.nodes import MOST_HALVINGS
from shard_gym.simulators import FastSimulator
from shard_gym.simulators.single import costs_with
from shard_gym.tables.pool import FEATURES

WIDTH = len(FEATURES) + 1
STATE = WIDTH + 7  # numbers of "flat" before those of devices
PER_DEVICE = 4  # numbers of "flat" for each device, beside the mask
LIMIT = 5.0  # numbers of "flat" are cut off there
FAR, TINY = 1e300, 1e-12  # ms
INF = np.inf


class Observation(NamedTuple):
    """One way to show a state; `space` takes a prepared task and the most nodes a task has."""

    space: Callable[[Prepared, int], spaces.Space]
    observe: Callable[[Any, int], Any]
    needs_sums: bool = False  # each step asks the simulator, which must be fast


def _box(low: float, high: float, *shape: int, dtype: type = np.float32) -> spaces.Box:
    return spaces.Box(low, high, shape, dtype)  # type: ignore[arg-type]


def table_space(prepared: Prepared, most: int) -> spaces.Box:
    """The next table's features and the share of tables placed."""
    low, high = np.full((2, WIDTH), INF, np.float32)
    low *= -1
    low[-1], high[-1] = 0, 1
    return spaces.Box(low, high, dtype=np.float32)


def table(state: State, most: int) -> np.ndarray:
    """The next table's 21 standardised features and the share of tables placed, a fresh (22,) float32."""
    episode = state.episode
    row = episode.rows[state.position].copy()
    if episode.split_action:
        row[-1] = state.num_placed / state.num_pieces
    return row


def full_space(prepared: Prepared, most: int) -> spaces.Dict:
    """The next table, each device's load, what remains."""
    devices, width = prepared.task.num_devices, 4 + prepared.embedding.shape[1]  # type: ignore[union-attr]
    most_left = INF if prepared.split_action else 1  # splits add to it
    return spaces.Dict(
        table=table_space(prepared, most),
        devices=_box(-INF, INF, devices, width),
        remaining=_box(0, most_left, 5),
        action_mask=_box(0, 1, prepared.num_actions, dtype=np.int8),
    )


def full(state: State, most: int) -> dict[str, np.ndarray]:
    """The next table, each device's load, what remains; units are shares of the task."""
    p = state.episode.prepared
    return {
        "table": table(state, most),
        "devices": device_rows(p.scales, state.free, state.latency().cost(p.task.objective), state.sums),
        "remaining": state.remaining(),
        "action_mask": state.mask(),
    }


def device_rows(scales: Scales, free: np.ndarray, cost: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Used and free memory, predicted cost, speed, summed embedding of devices, float32 (..., 4 + H).

    From bytes left and costs (...), and sums (..., H).
    """
    shown = np.empty((*free.shape, 4 + sums.shape[-1]), np.float32)
    shown[..., 0] = 1 - free / scales.capacity
    shown[..., 1] = free / scales.largest
    shown[..., 2] = cost * scales.num_devices / scales.cost
    shown[..., 3] = scales.speed
    np.divide(sums, scales.embedding, out=shown[..., 4:], casting="same_kind")
    return shown


def ahead_space(prepared: Prepared, most: int) -> spaces.Dict:
    """The space of `full`, and each device's cost with the next table on it."""
    cost = _box(-INF, INF, prepared.task.num_devices)
    return spaces.Dict([*full_space(prepared, most).spaces.items(), ("ahead", cost)])


def ahead(state: State, most: int) -> dict[str, np.ndarray]:
    """Observation `full`, and costs of each device with the next table on it, (K,); at the end, what it costs."""
    p, shown = state.episode.prepared, full(state, most)
    if state.done:
        return shown | {"ahead": shown["devices"][:, 2].copy()}
    assert p.embedding is not None and isinstance(p.simulator, FastSimulator)
    cost = costs_with(p.task, p.simulator, state.sums, p.embedding[state.episode.nodes[state.position]])
    return shown | {"ahead": (cost * len(cost) / p.total_cost).astype(np.float32)}


class Next(NamedTuple):
    """The next piece, zeros at the end; numbers, or columns (n, 1) and rows (n, ...) of many episodes."""

    row: np.ndarray  # (22,) the "table" observation
    alone: Any  # single cost, ms
    size: Any  # bytes
    remaining: np.ndarray  # (5,)
    mask: np.ndarray  # (A,)


def flat_width(devices: int, actions: int) -> int:
    """Numbers of "flat"."""
    return STATE + PER_DEVICE * devices + actions


def flat_space(prepared: Prepared, most: int) -> spaces.Box:
    """One row of numbers within LIMIT of 0."""
    return _box(-LIMIT, LIMIT, flat_width(prepared.task.num_devices, prepared.num_actions))


def flat(state: State, most: int) -> np.ndarray:
    """The next table, what remains, each device, and last the mask, in one row."""
    p, alone, size = state.episode.prepared, 0.0, 0
    if not state.done:
        node = state.episode.nodes[state.position]
        alone, size = p.alone[node], p.sizes[node]
    piece = Next(table(state, most), alone, size, state.remaining(), state.mask())
    shown = np.empty(flat_width(p.scales.num_devices, p.num_actions), np.float32)
    put_flat(shown, p.scales, piece, state.free, state.latency().cost(p.task.objective))
    return shown


def put_flat(shown: np.ndarray, scales: Scales, piece: Next, free: np.ndarray, cost: np.ndarray) -> None:
    """Put the observation "flat" into (..., W), from bytes left and costs of devices, (..., K)."""
    k, share = scales.num_devices, scales.cost / scales.num_devices
    costs, gaps, room, speeds = (shown[..., at : at + k] for at in range(STATE, STATE + PER_DEVICE * k, k))
    put_next(shown, piece.row, piece.alone / share, piece.size / scales.largest, piece.remaining)
    costs[...] = cost / share
    mask = np.transpose(piece.mask[..., :k])
    gaps[...] = device_gaps(cost.T, np.transpose(piece.alone), np.transpose(scales.pace), mask).T
    room[...] = free / scales.largest
    speeds[...] = scales.speed
    shown[..., STATE + PER_DEVICE * k :] = piece.mask
    np.clip(shown, -LIMIT, LIMIT, out=shown)


def put_next(shown: np.ndarray, row: np.ndarray, alone: Any, size: Any, remaining: np.ndarray) -> None:
    """Put the next piece and what remains into the first columns of "flat"; its cost and bytes are shares, (..., 1)."""
    shown[..., :WIDTH], shown[..., WIDTH + 2 : STATE] = row, remaining
    shown[..., WIDTH : WIDTH + 1], shown[..., WIDTH + 1 : WIDTH + 2] = alone, size


def device_gaps(cost: np.ndarray, alone: Any, pace: Any, mask: np.ndarray | None) -> np.ndarray:
    """Gap of each device, behind / (behind + alone), from its cost, (K, ...), and that of the next piece alone.

    Behind is what the device would cost with the next piece more than the best device where the piece may go. 0 is the
    best device, 1 one where the piece may not go; no mask is one of ones.
    """
    ahead = cost + alone * pace
    if mask is not None:
        ahead = np.where(mask, ahead, FAR)
    behind = ahead - np.minimum(np.minimum.reduce(ahead, axis=0), FAR / 2)
    return behind / (behind + (alone + TINY))


def set_space(prepared: Prepared, most: int) -> spaces.Dict:
    """All tables and where they are, padded to `most` tables."""
    return _listed_space(prepared, most, placement=_box(-1, prepared.task.num_devices - 1, most, dtype=np.int64))


def set_(state: State, most: int) -> dict[str, np.ndarray]:
    """All tables, where they are, their order and the devices; past the last table is padding."""
    placement = np.full(most, -1)
    placement[state.episode.order[: state.position]] = state.actions
    return _listed(state, most, placement=placement)


def split_set_space(prepared: Prepared, most: int) -> spaces.Dict:
    """All nodes and where their pieces are, padded to `most` nodes."""
    pieces, devices = 2**MOST_HALVINGS, prepared.task.num_devices
    left, placed = _box(0, pieces, most, dtype=np.int8), _box(0, pieces, most, devices, dtype=np.int8)
    return _listed_space(prepared, most, left=left, placed=placed)


def split_set(state: State, most: int) -> dict[str, np.ndarray]:
    """All nodes, how many of their pieces wait and are on each device, their order; past the last node is padding."""
    left, placed = np.zeros(most, np.int8), np.zeros((most, len(state.free)), np.int8)
    left[state.episode.order] = state.waiting[:-1]
    np.add.at(placed, state.held(), 1)
    return _listed(state, most, left=left, placed=placed)


def _listed_space(prepared: Prepared, most: int, **where: spaces.Space) -> spaces.Dict:
    devices = prepared.task.num_devices
    shown: dict[str, spaces.Space] = {
        "tables": _box(-INF, INF, most, WIDTH - 1),
        "sizes": _box(0, INF, most),
        **where,
        "order": _box(-1, most - 1, most, dtype=np.int64),
        "position": _box(0, most, 1, dtype=np.int64),
        "capacity": _box(0, 1, devices),
        "speed": _box(0, 1, devices),
        "action_mask": _box(0, 1, prepared.num_actions, dtype=np.int8),
    }
    return spaces.Dict(list(shown.items()))  # a dict would be sorted


def _listed(state: State, most: int, **where: np.ndarray) -> dict[str, np.ndarray]:
    p, n = state.episode.prepared, len(state.episode.order)
    largest = max(p.task.memory)
    shown = {
        "tables": np.zeros((most, WIDTH - 1), np.float32),
        "sizes": np.zeros(most, np.float32),
        **where,
        "order": np.full(most, -1),
        "position": np.array([state.position]),
        "capacity": (p.task.capacity / largest).astype(np.float32),
        "speed": p.speed.astype(np.float32),
        "action_mask": state.mask(),
    }
    shown["tables"][:n] = p.features
    shown["sizes"][:n] = p.sizes / largest
    shown["order"][:n] = state.episode.order
    return shown


OBSERVATIONS = {
    "table": Observation(table_space, table),
    "full": Observation(full_space, full, needs_sums=True),
    "ahead": Observation(ahead_space, ahead, needs_sums=True),
    "flat": Observation(flat_space, flat, needs_sums=True),
    "set": Observation(set_space, set_),
}
SPLIT_OBSERVATIONS = OBSERVATIONS | {"set": Observation(split_set_space, split_set)}  # with split actions
