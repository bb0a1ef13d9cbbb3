"""Observations in a vector environment whose tables may be of all kinds of sharding: those of
`shard_gym.envs.kind_observations`, for all at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from shard_gym.envs.kind_ahead import costs_ahead, devices_ahead, reached
from shard_gym.envs.kind_observations import (
    WIDTH,
    NextPiece,
    ahead_rows,
    end_rows,
    flat_width,
    host_free,
    kind_rows,
    put_flat,
    table_rows,
)
from shard_gym.envs.kind_states import still_left
from shard_gym.envs.vector.ends import RunningCosts, alike
from shard_gym.envs.vector.kind_states import KindStates
from shard_gym.envs.vector.view import View, scales_of
from shard_gym.plan.ways import HALVE


class TableView(View):
    """The next piece's features, the share of tables placed, and how its table is sharded by now, (n, 27)."""

    def __init__(self, states: KindStates, costs: RunningCosts | None) -> None:
        self.states = states

    def show(self, masks: np.ndarray) -> np.ndarray:
        states = self.states
        rows = states.shelf.form_rows.take(states.placing.row, axis=0)
        shown = table_rows(rows, states.placing, states.position, states.length)
        over = np.flatnonzero(states.over())
        shown[over] = end_rows(len(over))
        return shown

    def final(self, envs: np.ndarray, cost: np.ndarray) -> np.ndarray:
        return end_rows(len(envs))


class FullView(View):
    """The table view, each device's load, what remains and the mask."""

    def __init__(self, states: KindStates, costs: RunningCosts | None) -> None:
        assert costs is not None
        self.states, self.costs, self.table = states, costs, TableView(states, costs)
        self.each = np.arange(states.num_envs)

    def show(self, masks: np.ndarray) -> dict[str, np.ndarray]:
        devices = self._rows(self.each, self.costs.cost)
        return self._told(self.table.show(masks), devices, remains(self.states), masks)

    def final(self, envs: np.ndarray, cost: np.ndarray) -> dict[str, np.ndarray]:
        left, masks = np.zeros((len(envs), 5), np.float32), self.states.final_masks(len(envs))
        return self._told(self.table.final(envs, cost), self._rows(envs, cost), left, masks)

    def _rows(self, envs: np.ndarray, cost: np.ndarray) -> np.ndarray:
        """Rows of the devices, (c, K, 5 + H)."""
        placing, scales = self.states.placing, scales_of(self.states.shelf, self.states, envs)
        return kind_rows(scales, placing.free[envs], cost, placing.sums[envs], host_free(placing)[envs])

    @staticmethod
    def _told(
        table: np.ndarray, devices: np.ndarray, remaining: np.ndarray, masks: np.ndarray
    ) -> dict[str, np.ndarray]:
        return {"table": table, "devices": devices, "remaining": remaining, "action_mask": masks}


class AheadView(FullView):
    """The full view, costs of devices after each action, and bytes that it takes."""

    def show(self, masks: np.ndarray) -> dict[str, np.ndarray]:
        return super().show(masks) | self._ahead(self.each, self.states.over())

    def final(self, envs: np.ndarray, cost: np.ndarray) -> dict[str, np.ndarray]:
        return super().final(envs, cost) | self._ahead(envs, np.ones(len(envs), bool))

    def _ahead(self, envs: np.ndarray, over: np.ndarray) -> dict[str, np.ndarray]:
        states, shelf = self.states, self.states.shelf
        placing, slots = states.placing, states.slot[envs]
        ms = np.empty((len(envs), placing.actions.count, states.num_devices, 2))
        size = np.empty(ms.shape[:2])
        for part, task in alike(shelf, slots):
            told = devices_ahead(task, shelf.settings.simulator, placing, envs[part], over[part])
            ms[part], size[part] = told
        ms, size = ahead_rows(shelf.slots.total_cost[slots], placing.ways.capacity[slots], ms, size)
        return {"ahead": ms, "bytes": size}


class FlatView(View):
    """The next piece, what remains, devices, actions and the mask in one row, (n, W)."""

    def __init__(self, states: KindStates, costs: RunningCosts | None) -> None:
        assert costs is not None
        self.states, self.costs, self.table = states, costs, TableView(states, costs)
        self.each = np.arange(states.num_envs)

    def show(self, masks: np.ndarray) -> np.ndarray:
        states, shelf, over = self.states, self.states.shelf, self.states.over()
        row = states.placing.row
        alone = np.where(over, 0.0, shelf.rows.alone.take(states.row) / shelf.options.pieces.take(row))
        size = np.where(over, 0, shelf.piece_sizes.take(row))
        told = (self.table.show(masks), alone[:, None], size[:, None], remains(states))
        ahead = actions_ahead(states, self.each, over)
        return self._put(self.each, NextPiece(*told, ahead, masks), self.costs.cost)

    def final(self, envs: np.ndarray, cost: np.ndarray) -> np.ndarray:
        none, left = np.zeros((len(envs), 1)), np.zeros((len(envs), 5), np.float32)
        ahead = actions_ahead(self.states, envs, np.ones(len(envs), bool))
        piece = NextPiece(end_rows(len(envs)), none, none, left, ahead, self.states.final_masks(len(envs)))
        return self._put(envs, piece, cost)

    def _put(self, envs: np.ndarray, piece: NextPiece, cost: np.ndarray) -> np.ndarray:
        placing = self.states.placing
        shown = np.empty((len(envs), flat_width(placing.actions)), np.float32)
        free = placing.free[envs], host_free(placing)[envs]
        put_flat(shown, scales_of(self.states.shelf, self.states, envs), piece, free, cost)
        return shown


class SetView(View):
    """All tables, how they are sharded and where, their order and the devices."""

    def __init__(self, states: KindStates, costs: RunningCosts | None) -> None:
        n, k, most = states.num_envs, states.num_devices, states.shelf.settings.most_nodes
        self.states, self._reached = states, reached(states.placing.actions).astype(np.int8)
        self.each = np.arange(n)
        self.shown: dict[str, np.ndarray] = {
            "tables": np.zeros((n, most, WIDTH - 1), np.float32),
            "sizes": np.zeros((n, most), np.float32),
            "form": np.zeros((n, most, 2), np.float32),
            "kind": np.full((n, most), -1, np.int8),
            "left": np.zeros((n, most), np.int8),
            "placed": np.zeros((n, most, k), np.int8),
            "order": np.full((n, most), -1),
        }

    def placed(self) -> None:
        states, shown, placing = self.states, self.shown, self.states.placing
        node = states.shelf.rows.node[states.last_row]
        live = np.flatnonzero(node < states.length)
        node, actions = node[live], states.last_actions[live]
        does = placing.does[actions]
        shown["form"][live, node] = form_shown(states.shelf.form_rows[placing.row[live]])
        shown["left"][live, node] = placing.left[live]
        shown["kind"][live, node] = np.where(does < HALVE, does, shown["kind"][live, node])
        shown["placed"][live, node] += self._reached[actions]

    def begin(self, envs: np.ndarray) -> None:
        shown, states, shelf, most = self.shown, self.states, self.states.shelf, self.shown["order"].shape[1]
        for env, slot in zip(envs.tolist(), states.slot[envs].tolist(), strict=True):
            p = shelf.slots.episode[slot].prepared
            n = p.task.num_tables
            shown["tables"][env, :n], shown["tables"][env, n:] = p.features, 0
            shown["sizes"][env, :n], shown["sizes"][env, n:] = p.sizes / shelf.slots.largest[slot], 0
            shown["form"][env, :n], shown["form"][env, n:] = form_shown(p.form_rows[p.forms.first[:-1]]), 0
            shown["left"][env] = np.arange(most) < n
        node = shelf.rows.node[states.rows(envs)][:, :most]
        shown["order"][envs] = np.where(np.arange(node.shape[1]) < states.length[envs, None], node, -1)
        shown["kind"][envs], shown["placed"][envs] = -1, 0

    def show(self, masks: np.ndarray) -> dict[str, np.ndarray]:
        return self._whole({name: values.copy() for name, values in self.shown.items()}, self.each, masks)

    def final(self, envs: np.ndarray, cost: np.ndarray) -> dict[str, np.ndarray]:
        held = {name: values[envs] for name, values in self.shown.items()}
        return self._whole(held, envs, self.states.final_masks(len(envs)))

    def _whole(self, held: dict[str, np.ndarray], envs: np.ndarray, masks: np.ndarray) -> dict[str, np.ndarray]:
        states, of, slots = self.states, self.states.shelf.slots, self.states.slot[envs]
        largest, capacity = of.largest[slots, None], states.shelf.options.capacity[slots]
        return held | {
            "position": states.position[envs, None],
            "capacity": (capacity / largest).astype(np.float32),
            "speed": of.speed[slots].astype(np.float32),
            "free": (states.placing.free[envs] / largest).astype(np.float32),
            "host": host_free(states.placing)[envs].astype(np.float32),
            "action_mask": masks,
        }


def remains(states: KindStates) -> np.ndarray:
    """Shares of each task that are left, (n, 5)."""
    rows = (states.shelf.rows.remaining if states.orders is None else states.orders.remaining).reshape(-1, 5)
    after = states.at + ~states.over()
    return still_left(rows.take(states.at, axis=0), rows.take(after, axis=0), states.placing)


def actions_ahead(states: KindStates, envs: np.ndarray, over: np.ndarray) -> np.ndarray:
    """Costs of actions that place the next piece of some environments, (c, A - 2) ms."""
    cost = np.empty((len(envs), states.placing.actions.placing))
    for part, task in alike(states.shelf, states.slot[envs]):
        cost[part] = costs_ahead(task, states.shelf.settings.simulator, states.placing, envs[part], over[part])
    return cost


def form_shown(rows: np.ndarray) -> np.ndarray:
    """Halvings, and the share of rows in the device's memory, of rows of forms, (..., 2)."""
    return rows[..., WIDTH : WIDTH + 2]


KIND_VIEWS: dict[str, Any] = {
    "table": TableView,
    "full": FullView,
    "ahead": AheadView,
    "flat": FlatView,
    "set": SetView,
}
