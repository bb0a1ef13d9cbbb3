"""Observations where tables may be of all kinds of sharding: those of `envs.observations`, and what kinds need.

The functions on arrays are for one episode or for many, a row each.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from gymnasium import spaces

from shard_gym.envs.episodes import Prepared, Scales
from shard_gym.envs.kind_ahead import costs_ahead, devices_ahead
from shard_gym.envs.kind_states import KindState, share_placed, stage_shown
from shard_gym.envs.kinds import EXTRA
from shard_gym.envs.observations import FAR, INF, LIMIT, TINY, WIDTH, Observation, _box, device_rows
from shard_gym.plan.nodes import MOST_HALVINGS
from shard_gym.plan.sharing import Sharing
from shard_gym.plan.ways import Actions

KIND_WIDTH = WIDTH + EXTRA
STATE = KIND_WIDTH + 7  # numbers of "flat" before those of devices and actions
PER_DEVICE = 4  # numbers of "flat" for each device


def table_space(prepared: Prepared, most: int) -> spaces.Box:
    """The next piece's features, the share of tables placed, and how the table is sharded by now."""
    low, high = np.full((2, KIND_WIDTH), INF, np.float32)
    low *= -1
    low[WIDTH - 1 :], high[WIDTH - 1 :] = 0, 1
    return spaces.Box(low, high, dtype=np.float32)


def table(state: KindState, most: int) -> np.ndarray:
    """The next piece's 21 standardised features, the share of tables placed, halvings, the share of its rows in the
    device's memory, pieces that wait, and whether they go to devices, or to hosts, only; a fresh (27,) float32."""
    if state.done:
        return end_rows(1)[0]
    one = np.array([state.position]), np.array([len(state.episode.nodes)])
    row: np.ndarray = table_rows(state.prepared.form_rows.take([state.row], axis=0), state.placing, *one)[0]
    return row


def table_rows(rows: np.ndarray, placing: Sharing, position: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Rows of the next pieces' forms, (B, 27), which are filled in."""
    rows[:, WIDTH - 1] = share_placed(placing, position, length)
    rows[:, -3:] = stage_shown(placing)
    return rows


def end_rows(count: int) -> np.ndarray:
    """Rows of episodes that are over: zeros, and all is placed."""
    rows = np.zeros((count, KIND_WIDTH), np.float32)
    rows[:, WIDTH - 1] = 1
    return rows


def full_space(prepared: Prepared, most: int) -> spaces.Dict:
    """The next piece, each device's load, what remains."""
    assert prepared.embedding is not None
    devices, width = prepared.task.num_devices, 5 + prepared.embedding.shape[1]
    return spaces.Dict(
        table=table_space(prepared, most),
        devices=_box(-INF, INF, devices, width),
        remaining=_box(0, 1, 5),
        action_mask=_box(0, 1, prepared.num_actions, dtype=np.int8),
    )


def full(state: KindState, most: int) -> dict[str, np.ndarray]:
    """The next piece, each device's load, what remains; units are shares of the task."""
    p = state.prepared
    cost, host = state.latency().cost(p.task.objective), host_free(state.placing)[0]
    return {
        "table": table(state, most),
        "devices": kind_rows(p.scales, state.free, cost, state.sums, host),
        "remaining": state.remaining(),
        "action_mask": state.mask(),
    }


def kind_rows(scales: Scales, free: np.ndarray, cost: np.ndarray, sums: np.ndarray, host: np.ndarray) -> np.ndarray:
    """Rows of devices as `device_rows`, and last the share of its host's memory that each has left, (..., 5 + H)."""
    rows = device_rows(scales, free, cost, sums)
    return np.concatenate([rows, host[..., None].astype(np.float32)], axis=-1)


def host_free(placing: Sharing) -> np.ndarray:
    """Share of its host's memory that each device has left, (B, K); 0 where there is none."""
    return placing.host / np.maximum(placing.ways.host[placing.task], 1)


def ahead_space(prepared: Prepared, most: int) -> spaces.Dict:
    """The space of `full`, and what each action leads to."""
    actions = Actions.of(prepared.task)
    shown = ("ahead", _box(-INF, INF, actions.count, actions.devices, 2)), ("bytes", _box(0, INF, actions.count))
    return spaces.Dict([*full_space(prepared, most).spaces.items(), *shown])


def ahead(state: KindState, most: int) -> dict[str, np.ndarray]:
    """Observation `full`; costs of devices after each action, and bytes that it takes, see `devices_ahead`."""
    p, shown = state.prepared, full(state, most)
    told = devices_ahead(p.task, p.simulator, state.placing, np.zeros(1, np.int64), np.array([state.done]))
    ms, size = ahead_rows(np.array([p.total_cost]), p.task.capacity[None], *told)
    return shown | {"ahead": ms[0], "bytes": size[0]}


def ahead_rows(
    total_cost: np.ndarray, capacity: np.ndarray, ms: np.ndarray, size: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """`devices_ahead` over even shares of single costs, and over all devices' memory, float32."""
    share, memory = total_cost / capacity.shape[1], capacity.sum(axis=1)
    return (ms / share[:, None, None, None]).astype(np.float32), (size / memory[:, None]).astype(np.float32)


class NextPiece(NamedTuple):
    """The next pieces of episodes, zeros at ends, a row each."""

    row: np.ndarray  # (B, 27) the "table" observation
    alone: np.ndarray  # (B, 1) single cost of its table over its pieces, ms
    size: np.ndarray  # (B, 1) bytes of all its rows in a device's memory
    remaining: np.ndarray  # (B, 5)
    ahead: np.ndarray  # (B, A - 2) costs of actions, ms
    mask: np.ndarray  # (B, A)


def flat_width(actions: Actions) -> int:
    """Numbers of "flat"."""
    return STATE + PER_DEVICE * actions.devices + actions.placing + actions.count


def flat_space(prepared: Prepared, most: int) -> spaces.Box:
    """One row of numbers within LIMIT of 0."""
    return _box(-LIMIT, LIMIT, flat_width(Actions.of(prepared.task)))


def flat(state: KindState, most: int) -> np.ndarray:
    """The next piece, what remains, each device, each action, and last the mask, in one row."""
    p, placing, alone, size = state.prepared, state.placing, 0.0, 0
    if not state.done:
        alone = p.alone[state.episode.nodes[state.position]] / p.ways.pieces[state.row]
        size = p.piece_sizes[state.row]
    over, plan = np.array([state.done]), np.zeros(1, np.int64)
    piece = NextPiece(
        table(state, most)[None],
        np.array([[alone]]),
        np.array([[size]]),
        state.remaining()[None],
        costs_ahead(p.task, p.simulator, placing, plan, over),
        state.mask()[None],
    )
    cost = state.latency().cost(p.task.objective)[None]
    shown = np.empty((1, flat_width(placing.actions)), np.float32)
    put_flat(shown, p.scales, piece, (placing.free, host_free(placing)), cost)
    return shown[0]


def put_flat(
    shown: np.ndarray, scales: Scales, piece: NextPiece, free: tuple[np.ndarray, np.ndarray], cost: np.ndarray
) -> None:
    """Put the observation "flat" into (B, W), from bytes left on devices, shares left of hosts', and costs, (B, K).

    An action's gap is behind / (behind + alone): how much more the dearest device that it uses would cost than by the
    best action that is legal, and what the piece costs alone. 0 is the best action, 1 one that is not legal.
    """
    k, share = scales.num_devices, scales.cost / scales.num_devices
    costs, room, hosts, speeds = (shown[:, at : at + k] for at in range(STATE, STATE + PER_DEVICE * k, k))
    first, placing = STATE + PER_DEVICE * k, piece.ahead.shape[1]
    shown[:, :KIND_WIDTH] = piece.row
    shown[:, KIND_WIDTH : KIND_WIDTH + 1] = piece.alone / share
    shown[:, KIND_WIDTH + 1 : KIND_WIDTH + 2] = piece.size / scales.largest
    shown[:, KIND_WIDTH + 2 : STATE] = piece.remaining
    costs[...], room[...], hosts[...] = cost / share, free[0] / scales.largest, free[1]
    speeds[...] = scales.speed
    ahead = np.where(piece.mask[:, :placing], piece.ahead, FAR)
    behind = ahead - np.minimum(ahead.min(axis=1, keepdims=True), FAR / 2)
    shown[:, first : first + placing] = behind / (behind + (piece.alone + TINY))
    shown[:, first + placing :] = piece.mask
    np.clip(shown, -LIMIT, LIMIT, out=shown)


def set_space(prepared: Prepared, most: int) -> spaces.Dict:
    """All tables, how they are sharded and where, padded to `most` tables."""
    devices, pieces = prepared.task.num_devices, 2**MOST_HALVINGS
    shown: dict[str, spaces.Space] = {
        "tables": _box(-INF, INF, most, WIDTH - 1),
        "sizes": _box(0, INF, most),
        "form": _box(0, 1, most, 2),
        "kind": _box(-1, 3, most, dtype=np.int8),
        "left": _box(0, pieces, most, dtype=np.int8),
        "placed": _box(0, pieces, most, devices, dtype=np.int8),
        "order": _box(-1, most - 1, most, dtype=np.int64),
        "position": _box(0, most, 1, dtype=np.int64),
        "capacity": _box(0, 1, devices),
        "speed": _box(0, 1, devices),
        "free": _box(-INF, 1, devices),
        "host": _box(-INF, 1, devices),
        "action_mask": _box(0, 1, prepared.num_actions, dtype=np.int8),
    }
    return spaces.Dict(list(shown.items()))  # a dict would be sorted


def set_(state: KindState, most: int) -> dict[str, np.ndarray]:
    """All tables, how they are sharded and where, their order and the devices; past the last table is padding."""
    p, n = state.prepared, len(state.episode.nodes)
    forms, largest = p.forms, max(p.task.memory)
    shown: dict[str, np.ndarray] = {
        "tables": np.zeros((most, WIDTH - 1), np.float32),
        "sizes": np.zeros(most, np.float32),
        "form": np.zeros((most, 2), np.float32),
        "kind": np.full(most, -1, np.int8),
        "left": np.zeros(most, np.int8),
        "placed": np.zeros((most, p.task.num_devices), np.int8),
        "order": np.full(most, -1),
    }
    form = forms.first[:-1].copy()
    shown["left"][:n] = 1
    for table, (of, choice, targets) in state.chosen.items():
        form[table], shown["kind"][table] = of, choice
        shown["left"][table] = forms.pieces[of] - len(targets)
    if not state.done:
        form[state.episode.nodes[state.position]] = state.row
        shown["left"][state.episode.nodes[state.position]] = state.left
    held, devices = state.held()
    np.add.at(shown["placed"], (forms.table[held], devices), 1)
    shown["tables"][:n], shown["sizes"][:n] = p.features, p.sizes / largest
    shown["form"][:n] = p.form_rows[form, -EXTRA : -EXTRA + 2]
    shown["order"][:n] = state.episode.order
    return shown | {
        "position": np.array([state.position]),
        "capacity": (p.task.capacity / largest).astype(np.float32),
        "speed": p.speed.astype(np.float32),
        "free": (state.free / largest).astype(np.float32),
        "host": host_free(state.placing)[0].astype(np.float32),
        "action_mask": state.mask(),
    }


KIND_OBSERVATIONS = {
    "table": Observation(table_space, table),
    "full": Observation(full_space, full, needs_sums=True),
    "ahead": Observation(ahead_space, ahead, needs_sums=True),
    "flat": Observation(flat_space, flat, needs_sums=True),
    "set": Observation(set_space, set_),
}
