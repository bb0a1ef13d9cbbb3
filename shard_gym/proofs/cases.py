"""Proofs by cases, for whole tables and columns where costs are the longest of some sums: see `proofs`."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from shard_gym.plan.forms import beyond_columns
from shard_gym.proofs.common import MS, ROUNDING, depths, number, require
from shard_gym.records.numbers import whole
from shard_gym.simulators import FastSimulator
from shard_gym.task.task import Task

LINKS = ("sent", "received", "left", "entered")  # of a device's port, and of its group's uplink


def proven(task: Task, simulator: FastSimulator, proof: Any) -> float:
    """The least bound of all cases, ms."""
    require(not beyond_columns(task), "cases are of tables and columns")
    pieces, devices, cases = Pieces(task, simulator), range(task.num_devices), proof["cases"]
    where = [_where(case["where"]) for case in cases]
    held = {told[1] for told in where if told[0] == "holds"}
    empty, most = {("empty", k) for k in devices}, -(-task.num_tables // len(devices))
    complete = "any" in where or {"busy", *empty} <= set(where)
    complete |= {*empty, *(("many", k, most) for k in devices)} <= set(where)
    complete |= any({("holds", table, k) for k in devices} <= set(where) for table in held)
    require(complete and len(cases) <= 2 * len(devices) + 1, "some plans are in none of the cases, or these too many")
    return min(pieces.least(told, case) for told, case in zip(where, cases, strict=True))


def _where(told: Any) -> Any:
    return told if isinstance(told, str) else (told[0], *map(whole, told[1:]))


class Pieces:
    """Pieces of all tables, one an array of sums: whole, halves, quarters and so on, (V, N)."""

    def __init__(self, task: Task, simulator: FastSimulator) -> None:
        phases = ("both",) if task.objective == "kernel" else ("forward", "backward")
        self.task, self.maxima = task, {n: told for n in phases if (told := simulator.maxima(n))}
        require(len(self.maxima) == len(phases), f"costs of {simulator.id} are no longest of sums")
        self.wires = None if task.objective == "kernel" else simulator.all_to_all(task)
        require(self.wires is not None or task.objective == "kernel", f"{simulator.id} has no all-to-all")
        found = list(zip(*depths(task, simulator), strict=True))
        self.may, self.bytes, self.columns, self.embedding = (np.stack(column) for column in found)
        self.parts = 2.0 ** np.arange(len(self.may))[:, None]

    def least(self, where: Any, case: Any) -> float:
        """The least makespan of the plans of a case, ms."""
        task, speed = self.task, np.array(self.task.speed)
        price = _of_devices(task, case.get("memory", []))
        by_column, latency = self.links(case)
        cost = self.columns[..., None] * by_column + price * self.bytes[..., None]  # (V, N, K)
        fixed = np.zeros(task.num_devices)
        for name, longest in self.maxima.items():
            weights = self._weights(case, name, len(longest.sums))
            for of_sum, columns in zip(weights, longest.sums, strict=True):
                cost = cost + self.embedding[..., list(columns)].sum(axis=-1)[..., None] * (MS * of_sum / speed)
            fixed += longest.fixed_ms * weights.sum(axis=0) / speed
        many = where[0] == "many"
        gain = number(case.get("count", 0.0)) if many else 0.0  # for each piece on the device that holds many
        cost[..., where[1] if many else 0] -= gain
        can = self.may[..., None] & (self.bytes[..., None] <= task.capacity)
        if where[0] == "empty":
            can[..., where[1]] = False
        if not can.any(axis=(0, 2)).all():
            return np.inf  # a table fits nowhere: no plan is in this case
        each = np.where(can, cost * self.parts[..., None], np.inf).min(axis=(0, 2))  # (N,)
        pays = np.full(task.num_devices, where == "busy" or many)
        if where[0] == "holds":
            table, k = where[1:]
            pays[k] = True
            rest = (1 - 1 / self.parts[:, 0]) * each[table]
            each[table] = np.where(can[:, table, k], cost[:, table, k] + rest, np.inf).min()
        gained = gain * where[2] if many else 0.0
        paid, room = float(each.sum() + fixed[pays].sum() + latency + gained), float(price @ task.capacity)
        added_up = paid + room + 2 * gain * float(self.parts.max()) * task.num_tables
        return paid - room - ROUNDING * added_up if paid < np.inf else np.inf

    def _weights(self, case: Any, name: str, sums: int) -> np.ndarray:
        """Weights of a phase's sums, (S, K), within what the case may give in all; with links if these follow."""
        weights = np.zeros((sums, self.task.num_devices))
        for k, chosen, weight in case[name]:
            weights[whole(chosen), whole(k)] += number(weight)
        links = self._of_links(case) if name == "backward" else np.zeros((len(LINKS), 0))
        used = [weights, *(pair for pair in (links[:2], links[2:]) if pair.size)]
        shared = [[sum(map(Fraction, column)) for column in told.T.tolist()] for told in used]
        require(sum(map(max, zip(*shared, strict=True))) <= 1, f"weights of {name} add up to more than 1")
        return weights

    def links(self, case: Any) -> tuple[np.ndarray, float]:
        """Ms that a column on each device adds through the links, (K,), and that all add: there and back."""
        devices = self.task.num_devices
        if self.wires is None or devices == 1:
            return np.zeros(devices), 0.0
        (links, batch), index = self.wires, np.arange(devices)
        size = links.group if 0 < links.group < devices else devices
        together = (index[:, None] // size == index // size).astype(np.float64)  # (K, K)
        group, own = together.sum(axis=1), np.eye(devices)
        one = 2 * 4.0 * batch / devices  # bytes there and back, for the samples of one device
        sent, received, left, entered = self._of_links(case)
        if links.peer_to_peer:
            near = (sent * (group - 1)) @ own + received @ (together - own)
            far = (left * (devices - group)) @ together + (entered * group) @ (1 - together)
        else:
            near = (sent * (devices - 1)) @ own + received @ (1 - own)
            far = (left * (devices - 1)) @ together + entered @ (group[:, None] - together)
        used = float((sent + received).sum())
        by_column = near / links.port + far / links.uplink + used * (devices - 1) / links.fabric
        return one * by_column, 2 * links.latency_ms * used

    def _of_links(self, case: Any) -> np.ndarray:
        return np.stack([_of_devices(self.task, case.get(link, [])) for link in LINKS])  # (4, K)


def _of_devices(task: Task, told: Any) -> np.ndarray:
    """Numbers by device, (K,)."""
    found = np.zeros(task.num_devices)
    for k, one in told:
        found[whole(k)] += number(one)
    return found
