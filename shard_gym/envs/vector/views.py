"""Observations in a vector environment: those of `shard_gym.envs.observations`, for all at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from shard_gym import core
from shard_gym.envs.episodes import Scales
from shard_gym.envs.observations import (
    LIMIT,
    PER_DEVICE,
    STATE,
    WIDTH,
    Next,
    device_gaps,
    device_rows,
    flat_width,
    put_flat,
)
from shard_gym.envs.vector.ends import RunningCosts, costs_ahead
from shard_gym.envs.vector.kind_states import KindStates
from shard_gym.envs.vector.kind_views import KIND_VIEWS
from shard_gym.envs.vector.shelf import Shelf
from shard_gym.envs.vector.states import States
from shard_gym.envs.vector.view import View, scales_of


def make_view(shelf: Shelf, states: States, costs: RunningCosts | None, copy: bool) -> View:
    """The view of the observation that was asked for."""
    if isinstance(states, KindStates):
        return KIND_VIEWS[shelf.settings.observation](states, costs)
    if shelf.settings.observation == "table":
        return TableView(shelf, states, copy)
    if shelf.settings.observation == "set":
        return SetView(shelf, states, copy)
    assert costs is not None
    made = {"full": FullView, "ahead": AheadView, "flat": FlatView}[shelf.settings.observation]
    return made(shelf, states, costs, copy)


def each(shown: Any) -> list[Any]:
    """The observation of each environment."""
    if isinstance(shown, np.ndarray):
        return list(shown)
    return [dict(zip(shown, values, strict=True)) for values in zip(*shown.values(), strict=True)]


def taken(rows: np.ndarray, indices: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    """Rows taken, in an array of their own or in `out`."""
    # mode: indices are never out of range, and saying so spares a copy
    return rows.take(indices, axis=0, out=out, mode="clip")  # type: ignore[return-value]


def remains(shelf: Shelf, states: States, out: np.ndarray | None) -> np.ndarray:
    """Shares of each task that are left, (n, 5), in an array of their own or in `out`."""
    rows, pieces = shelf.rows.remaining if states.orders is None else states.orders.remaining, states.pieces
    remaining = taken(rows.reshape(-1, 5), states.at, out)
    if pieces is not None:
        np.divide(pieces.left, pieces.unit, out=remaining[:, :4], casting="same_kind")
    return remaining


class TableView(View):
    """The next piece's features and the share of pieces placed, (n, 22)."""

    def __init__(self, shelf: Shelf, states: States, copy: bool) -> None:
        self.shelf, self.states, self.copy = shelf, states, copy
        self.shown = np.empty((len(states.slot), shelf.rows.shown.shape[1]), np.float32)
        # where all episodes of a task have one order and no splits, the row on the shelf has the share too
        self.counts = states.orders is not None or states.pieces is not None

    def show(self, masks: np.ndarray) -> np.ndarray:
        shown = taken(self.shelf.rows.shown, self.states.row, None if self.copy else self.shown)
        if self.counts:
            shown[:, -1] = self.states.share()
        return shown

    def final(self, envs: np.ndarray, cost: np.ndarray) -> np.ndarray:
        shown = np.zeros((len(envs), self.shown.shape[1]), np.float32)
        shown[:, -1] = 1
        return shown


class FullView(View):
    """The table view, each device's load, what remains and the mask."""

    def __init__(self, shelf: Shelf, states: States, costs: RunningCosts, copy: bool) -> None:
        n, k = states.placing.free.shape
        self.shelf, self.states, self.costs, self.copy = shelf, states, costs, copy
        self.table = TableView(shelf, states, copy)
        self.devices = np.empty((n, k, 4 + shelf.width), np.float32)
        self.remaining = np.empty((n, 5), np.float32)
        # of each environment's task; `capacity` of each of its devices
        self.capacity, self.largest = np.zeros((n, k), np.int64), np.zeros(n, np.int64)
        self.total_cost, self.even_share = np.zeros(n), np.zeros((n, shelf.width))

    def begin(self, envs: np.ndarray) -> None:
        of, slots = self.shelf.slots, self.states.slot[envs]
        self.capacity[envs], self.largest[envs] = self.shelf.options.capacity[slots], of.largest[slots]
        self.total_cost[envs], self.even_share[envs] = of.total_cost[slots], of.even_share[slots]
        self.devices[envs] = self._rows(envs, np.zeros((len(envs), self.states.num_devices)))

    def update(self) -> None:
        placing, k = self.states.placing, self.states.num_devices
        shown = self.devices.reshape(-1, self.devices.shape[2])
        for at, free, sums in placing.touched:
            assert sums is not None
            capacity, speed = self.capacity.reshape(-1)[at], shown[at, 3]
            scales = Scales(capacity, self.largest, self.total_cost, self.even_share, speed, k)
            shown[at] = device_rows(scales, free, self.costs.cost.take(at), sums)
        if self.costs.all_changed:
            self.devices[:, :, 2] = self.costs.cost * k / self.total_cost[:, None]

    def show(self, masks: np.ndarray) -> dict[str, np.ndarray]:
        remaining = remains(self.shelf, self.states, None if self.copy else self.remaining)
        devices, masks = (self.devices.copy(), masks.copy()) if self.copy else (self.devices, masks)
        return {"table": self.table.show(masks), "devices": devices, "remaining": remaining, "action_mask": masks}

    def final(self, envs: np.ndarray, cost: np.ndarray) -> dict[str, np.ndarray]:
        return {
            "table": self.table.final(envs, cost),
            "devices": self._rows(envs, cost),
            "remaining": np.zeros((len(envs), 5), np.float32),
            "action_mask": self.states.final_masks(len(envs)),
        }

    def _rows(self, envs: np.ndarray, cost: np.ndarray) -> np.ndarray:
        """Rows of the devices, (c, K, 4 + H)."""
        placing, scales = self.states.placing, scales_of(self.shelf, self.states, envs)
        return device_rows(scales, placing.free[envs], cost, placing.sums[envs])


class AheadView(View):
    """The full view, and what each device would cost with the next piece on it."""

    def __init__(self, shelf: Shelf, states: States, costs: RunningCosts, copy: bool) -> None:
        self.shelf, self.states, self.copy = shelf, states, copy
        self.full = FullView(shelf, states, costs, copy)
        self.ahead = np.empty(states.placing.free.shape, np.float32)

    def begin(self, envs: np.ndarray) -> None:
        self.full.begin(envs)

    def update(self) -> None:
        self.full.update()
        cost = costs_ahead(self.shelf, self.states)
        cost *= self.states.num_devices
        np.divide(cost, self.full.total_cost[:, None], out=self.ahead, casting="same_kind")

    def show(self, masks: np.ndarray) -> dict[str, np.ndarray]:
        return {**self.full.show(masks), "ahead": self.ahead.copy() if self.copy else self.ahead}

    def final(self, envs: np.ndarray, cost: np.ndarray) -> dict[str, np.ndarray]:
        shown = self.full.final(envs, cost)
        return {**shown, "ahead": shown["devices"][..., 2].copy()}


class FlatView(View):
    """The next piece, what remains, the devices and the mask in one row, (n, W), kept from step to step.

    What changes at every step is worked out with devices first, (K, n): numpy is faster on few long rows.
    """

    def __init__(self, shelf: Shelf, states: States, costs: RunningCosts, copy: bool) -> None:
        self.shelf, self.states, self.costs, self.copy = shelf, states, costs, copy
        n, k = states.placing.free.shape
        self.shown = np.empty((n, flat_width(k, k + (states.pieces is not None))), np.float32)
        width = self.shown.shape[1]
        self.at = (width - k) * np.arange(n) + STATE + 2 * k  # from a device's number to where its room is shown
        self.largest, self.share, self.pace = np.ones(n), np.ones(n), np.ones((n, k))
        self.alike = self.open = False  # whether all devices have one pace, and all masks shown are ones
        self.queued = states.orders is not None or states.pieces is not None
        self.devices, self.remaining = np.empty((2 * k, n), np.float32), np.empty((n, 5), np.float32)

    def begin(self, envs: np.ndarray) -> None:
        k, scales = self.states.num_devices, self._scales(envs)
        self.largest[envs], self.share[envs] = scales.largest[:, 0], scales.cost[:, 0] / k
        self.pace[envs] = scales.pace
        self.alike = bool((self.pace == 1).all())
        room, speed = self.states.placing.free[envs] / scales.largest, scales.speed
        self.shown[envs, STATE + 2 * k : STATE + 4 * k] = np.concatenate([room, speed], axis=1)

    def update(self) -> None:
        shown = self.shown.reshape(-1)
        for at, free, _ in self.states.placing.touched:
            shown[self.at + at] = np.maximum(free / self.largest, -LIMIT)

    def show(self, masks: np.ndarray) -> np.ndarray:
        rows, row, shown = self.shelf.rows, self.states.row, self.shown
        if not core.flat(rows.flat, rows.alone, row, self.costs.cost, self.share, self.pace, masks, shown):
            self._put(row, masks)
        if self.queued:
            shown[:, WIDTH - 1] = self.states.share()
            shown[:, WIDTH + 2 : STATE] = np.minimum(remains(self.shelf, self.states, self.remaining), LIMIT)
        return shown.copy() if self.copy else shown

    def _put(self, row: np.ndarray, masks: np.ndarray) -> None:
        """Put what changes with a step: the next pieces, costs and gaps of devices, and masks."""
        k, shown, devices = self.states.num_devices, self.shown, self.devices
        shown[:, :STATE] = self.shelf.rows.flat.take(row, axis=0)
        cost, alone = np.ascontiguousarray(self.costs.cost.T), self.shelf.rows.alone.take(row)
        np.divide(cost, self.share, out=devices[:k], casting="same_kind")
        was_open, self.open = self.open, bool(masks.all())
        mask, pace = None if self.open else masks[:, :k].T, 1.0 if self.alike else self.pace.T
        devices[k:] = device_gaps(cost, alone, pace, mask)
        np.maximum(np.minimum(devices, LIMIT, out=devices), -LIMIT, out=devices)
        shown[:, STATE : STATE + 2 * k] = devices.T
        if not (self.open and was_open):
            shown[:, STATE + PER_DEVICE * k :] = masks

    def final(self, envs: np.ndarray, cost: np.ndarray) -> np.ndarray:
        shown, zeros = np.empty((len(envs), self.shown.shape[1]), np.float32), np.zeros((len(envs), 5))
        masks, row = self.states.final_masks(len(envs)), np.eye(1, WIDTH, WIDTH - 1)  # all tables are placed
        piece = Next(row, zeros[:, :1], zeros[:, :1], zeros, masks)
        put_flat(shown, self._scales(envs), piece, self.states.placing.free[envs], cost)
        return shown

    def _scales(self, envs: np.ndarray) -> Scales:
        of, slots = self.shelf.slots, self.states.slot[envs]
        largest, total, speed = of.largest[slots, None], of.total_cost[slots, None], of.speed[slots]
        return Scales(None, largest, total, None, speed, self.states.num_devices, speed[:, :1] / speed)


class SetView(View):
    """All tables, or nodes where they may be halved, where they are, their order and the devices.

    What stays as it is while episodes last is most of it: of that every step hands out the same arrays, read only,
    until an episode begins, instead of copies that would take longer than all else.
    """

    def __init__(self, shelf: Shelf, states: States, copy: bool) -> None:
        n, k = states.placing.free.shape
        self.shelf, self.states, self.copy, most = shelf, states, copy, shelf.settings.most_nodes
        self.names: tuple[str, ...] = tuple(shelf.settings.space())  # type: ignore[arg-type]
        if states.pieces is None:
            where = {"placement": np.full((n, most), -1)}
        else:
            where = {"left": np.zeros((n, most), np.int8), "placed": np.zeros((n, most, k), np.int8)}
        self.moving = tuple(where)
        self.shown: dict[str, np.ndarray] = {
            "tables": np.zeros((n, most, shelf.rows.shown.shape[1] - 1), np.float32),
            "sizes": np.zeros((n, most), np.float32),
            **where,
            "order": np.full((n, most), -1),
            "capacity": np.zeros((n, k), np.float32),
            "speed": np.zeros((n, k), np.float32),
        }

    def placed(self) -> None:
        states, shown = self.states, self.shown
        node, actions = self.shelf.rows.node[states.last_row], states.last_actions
        live = np.flatnonzero(node < states.length)
        node, actions = node[live], actions[live]
        if "placement" in shown:
            shown["placement"][live, node] = actions
            return
        halved = actions == states.num_devices
        shown["left"][live, node] -= 1
        shown["left"][live[halved], node[halved] + 1] += 2
        shown["placed"][live[~halved], node[~halved], actions[~halved]] += 1

    def begin(self, envs: np.ndarray) -> None:
        of, slots, rows = self.shelf.slots, self.states.slot[envs], self.states.rows(envs)
        shown, largest = self._own(len(envs)), of.largest[slots, None]
        most, positions = shown["order"].shape[1], np.arange(rows.shape[1])
        node, inside = self.shelf.rows.node[rows], positions < of.length[slots, None]
        by_node = np.zeros_like(node)  # the row of each node; those past the last one are the end's
        np.put_along_axis(by_node, node, rows, axis=1)
        by_node = np.where(inside, by_node, rows[:, -1:])[:, :most]
        shown["order"][envs] = np.where(inside, node, -1)[:, :most]
        shown["tables"][envs] = self.shelf.rows.shown[by_node, :-1]
        shown["sizes"][envs] = np.where(inside[:, :most], self.shelf.options.size[by_node, 0], 0) / largest
        shown["capacity"][envs], shown["speed"][envs] = self.shelf.options.capacity[slots] / largest, of.speed[slots]
        if "placement" in shown:
            shown["placement"][envs] = -1
        else:
            shown["left"][envs] = np.where(inside[:, :most], self.shelf.rows.whole[by_node], 0)
            shown["placed"][envs] = 0

    def _own(self, begin: int) -> dict[str, np.ndarray]:
        """The arrays, to be written to; those handed out stay as they are, and are copied unless all change."""
        if self.copy:
            for name in self.shown.keys() - self.moving:
                held = self.shown[name]
                self.shown[name] = np.empty_like(held) if begin == len(held) else held.copy()
        return self.shown

    def show(self, masks: np.ndarray) -> dict[str, np.ndarray]:
        shown = self._whole(self.shown, self.states.position[:, None], masks)
        if self.copy:
            for name in self.shown.keys() - self.moving:
                shown[name].flags.writeable = False
            shown |= {name: shown[name].copy() for name in (*self.moving, "position", "action_mask")}
        return shown

    def final(self, envs: np.ndarray, cost: np.ndarray) -> dict[str, np.ndarray]:
        held = {name: values[envs] for name, values in self.shown.items()}
        position, masks = self.states.position[envs, None], self.states.final_masks(len(envs))
        return self._whole(held, position, masks)

    def _whole(self, held: dict[str, np.ndarray], position: np.ndarray, masks: np.ndarray) -> dict[str, np.ndarray]:
        whole = {**held, "position": position, "action_mask": masks}
        return {name: whole[name] for name in self.names}  # as the space lists them
