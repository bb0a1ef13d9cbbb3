"""Certificates of bounds, verified: reads tasks and simulators, and nothing of ours that bounds, solves or searches.

A certificate names a task, a simulator and the ms that no plan of the task beats, with a proof of one of three forms.

`cases` (whole tables and columns; costs that are the longest of sums). Every plan is in one of the cases, and each case
has weights, all from 0. Those of the sums of forward passes add up to 1 at most, as do, over devices, those of what
follows: the sums of backward passes, or of communication. So the makespan is at least the weighted sum, and that is at
least what each table adds to it on the device where it adds least, memory paid for by `memory` (ms a byte) and all room
given back. Cases: "any" plan; "busy", no device is empty; ["empty", k]; ["holds", t, k], a piece of table t on k.

`prices` (all kinds of sharding). No plan is faster than `guess`, or it has no shard that takes longer; then the mean of
devices is at least what tables add in their cheapest forms, with `memory` paid for as above.

`alone`. The device of `table` takes no less than a piece of it alone, wherever that fits.

Sums are in float64; `ROUNDING` of all that is added up is taken off, far more than they can be wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from shard_gym.errors import CorruptFile
from shard_gym.memory.usage import piece_bytes
from shard_gym.plan.forms import DEVICE, HOST, Forms, beyond_columns
from shard_gym.plan.violations import rooms
from shard_gym.records.guard import guarded
from shard_gym.records.numbers import whole
from shard_gym.simulators import FastSimulator
from shard_gym.task.constraints import Constraints
from shard_gym.task.task import Task

SCHEMA = "shard-gym/certificate/1"
ROUNDING = 2.0**-36  # of sums of at most MOST_TERMS numbers
MOST_TERMS = 10_000
MS = 1e-3  # of a microsecond
LINKS = ("sent", "received", "left", "entered")  # of a device's port, and of its group's uplink


def verify(certificate: Any, task: Task, simulator: FastSimulator) -> float:
    """The ms that a certificate proves; raises CorruptFile where that is less than it claims, or not of this task."""
    with guarded("not a certificate"):
        told = (certificate["schema"], certificate["task"], certificate["simulator"])
        if told != (expected := (SCHEMA, task.hash, simulator.id)):
            raise CorruptFile(f"a certificate of {', '.join(told)}, not of {', '.join(expected)}")
        bound, proof = certificate["bound"], certificate["proof"]
        proven = FORMS[proof["form"]](task, simulator, proof)
        if not isinstance(bound, float) or not 0 <= bound <= proven:
            raise CorruptFile(f"a certificate claims {bound!r:.40} ms, and proves {proven!r} ms")
    return proven


def _cases(task: Task, simulator: FastSimulator, proof: Any) -> float:
    _require(not beyond_columns(task), "cases are of tables and columns")
    pieces, devices, cases = _Pieces(task, simulator), range(task.num_devices), proof["cases"]
    where = [_where(case["where"]) for case in cases]
    held = {told[1] for told in where if told[0] == "holds"}
    complete = "any" in where or {"busy", *(("empty", k) for k in devices)} <= set(where)
    complete |= any({("holds", table, k) for k in devices} <= set(where) for table in held)
    _require(complete, "some plans are in none of the cases")
    return min(pieces.least(told, case) for told, case in zip(where, cases, strict=True))


def case_bound(task: Task, simulator: FastSimulator, case: Any) -> float:
    """The least makespan of the plans of one case, ms."""
    return _Pieces(task, simulator).least(_where(case["where"]), case)


def _where(told: Any) -> Any:
    return told if isinstance(told, str) else (told[0], *map(whole, told[1:]))


class _Pieces:
    """Pieces of all tables, one an array of sums: whole, halves, quarters and so on, (V, N)."""

    def __init__(self, task: Task, simulator: FastSimulator) -> None:
        phases = ("both",) if task.objective == "kernel" else ("forward", "backward")
        self.task, self.maxima = task, {name: simulator.maxima(name) for name in phases}
        _require(None not in self.maxima.values(), f"costs of {simulator.id} are no longest of sums")
        self.wires = None if task.objective == "kernel" else simulator.all_to_all(task)
        _require(self.wires is not None or task.objective == "kernel", f"{simulator.id} has no all-to-all")
        found = list(_depths(task, simulator))
        self.embedding, self.bytes, self.columns = (np.stack(column) for column in zip(*found, strict=True))
        self.parts = 2.0 ** np.arange(len(found))[:, None]
        self.may = np.array([size > 0 for _, size, _ in found])  # a piece that cannot be is told by no bytes
        _require(self.may[0].all() and self.may.size <= MOST_TERMS, "too many tables, or some without bytes")

    def least(self, where: Any, case: Any) -> float:
        """The least makespan of the plans of a case, ms."""
        task, speed = self.task, np.array(self.task.speed)
        price = _of_devices(task, case.get("memory", []))
        cost = self.columns[..., None] * self._links(case) + price * self.bytes[..., None]  # (V, N, K)
        fixed = np.zeros(task.num_devices)
        for name, longest in self.maxima.items():
            weights = self._weights(case, name, len(longest.sums))
            for of_sum, columns in zip(weights, longest.sums, strict=True):
                cost = cost + self.embedding[..., list(columns)].sum(axis=-1)[..., None] * (MS * of_sum / speed)
            fixed += longest.fixed_ms * weights.sum(axis=0) / speed
        can = self.may[..., None] & (self.bytes[..., None] <= task.capacity)
        if where[0] == "empty":
            can[..., where[1]] = False
        if not can.any(axis=(0, 2)).all():
            return np.inf  # a table fits nowhere: no plan is in this case
        each = np.where(can, cost * self.parts[..., None], np.inf).min(axis=(0, 2))  # (N,)
        pays = np.full(task.num_devices, where == "busy")
        if where[0] == "holds":
            table, k = where[1:]
            pays[k] = True
            rest = (1 - 1 / self.parts[:, 0]) * each[table]
            each[table] = np.where(can[:, table, k], cost[:, table, k] + rest, np.inf).min()
        paid, room = float(each.sum() + fixed[pays].sum() + self._latency(case)), float(price @ task.capacity)
        return paid - room - ROUNDING * (paid + room) if paid < np.inf else np.inf

    def _weights(self, case: Any, name: str, sums: int) -> np.ndarray:
        """Weights of a phase's sums, (S, K), within what the case may give in all; with links if these follow."""
        weights = np.zeros((sums, self.task.num_devices))
        for k, number, weight in case[name]:
            weights[whole(number), whole(k)] += _number(weight)
        most = [sum(map(Fraction, column)) for column in weights.T.tolist()]
        if name == "backward":
            links = [_of_devices(self.task, case.get(link, [])).tolist() for link in LINKS]
            near, far = (zip(*pair, strict=True) for pair in (links[:2], links[2:]))
            most = [
                max(m, sum(map(Fraction, n)), sum(map(Fraction, f))) for m, n, f in zip(most, near, far, strict=True)
            ]
        _require(sum(most) <= 1, f"weights of {name} add up to more than 1")
        return weights

    def _links(self, case: Any) -> np.ndarray:
        """What a column on each device adds through the links, ms, (K,): an all-to-all there and one back."""
        devices = self.task.num_devices
        if self.wires is None or devices == 1:
            return np.zeros(devices)
        (links, batch), index = self.wires, np.arange(devices)
        size = links.group if 0 < links.group < devices else devices
        together = (index[:, None] // size == index // size).astype(np.float64)  # (K, K)
        group, own = together.sum(axis=1), np.eye(devices)
        one = 2 * 4.0 * batch / devices  # bytes there and back, for the samples of one device
        sent, received, left, entered = (_of_devices(self.task, case.get(link, [])) for link in LINKS)
        if links.peer_to_peer:
            near = (sent * (group - 1)) @ own + received @ (together - own)
            far = (left * (devices - group)) @ together + (entered * group) @ (1 - together)
        else:
            near = (sent * (devices - 1)) @ own + received @ (1 - own)
            far = (left * (devices - 1)) @ together + entered @ (group[:, None] - together)
        everything = (sent + received).sum() * (devices - 1)
        return one * (near / links.port + far / links.uplink + everything / links.fabric)

    def _latency(self, case: Any) -> float:
        if self.wires is None or self.task.num_devices == 1:
            return 0.0
        sent, received = (_of_devices(self.task, case.get(link, [])) for link in LINKS[:2])
        return float(2 * self.wires[0].latency_ms * (sent + received).sum())


def _depths(task: Task, simulator: FastSimulator) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """What a piece of each table adds, its bytes (0 where it cannot be so small) and columns: whole, halves, ..."""
    dim, may = task.tables.dim, np.full(task.num_tables, True)
    while may.any():
        pieces = replace(task, tables=task.tables.with_(dim=dim), constraints=Constraints())
        size = piece_bytes(pieces, np.arange(task.num_tables), dim)
        yield simulator.embed(pieces), np.where(may, size, 0), pieces.tables.columns_sent
        may = may & task.splits_allowed & (dim % 8 == 0)
        may[list(task.constraints.no_split)] = False
        dim = np.where(may, dim // 2, dim)


def _prices(task: Task, simulator: FastSimulator, proof: Any) -> float:
    _require(beyond_columns(task), "prices are of tasks of more kinds of sharding than columns")
    forms, number = Forms.of(task, lambda shards: simulator.embed_shards(task, shards)), proof["sum"]
    guess, price = _number(proof["guess"]), np.array([_number(one) for one in proof["memory"]])
    loads, speed = forms.loads(simulator.floors(task)[number]), np.array(task.speed)
    dearest = loads.max(axis=2)
    dearest[:, DEVICE], dearest[:, HOST] = loads[:, DEVICE].min(axis=1), _hosts(forms, loads).max(axis=2).min(axis=1)
    loads = forms.loads(simulator.averages(task)[number]) * (speed / speed.sum())
    total = loads.sum(axis=2)
    total[:, DEVICE] = loads[:, DEVICE].min(axis=1) * forms.pieces
    total[:, HOST] = _hosts(forms, loads).sum(axis=2).min(axis=1) * forms.pieces
    cost = np.where(forms.fits & (dearest <= guess), total + np.tensordot(price, forms.taken, axes=1), np.inf)
    each = np.minimum.reduceat(cost.min(axis=1), forms.first[:-1])
    _require(len(each) <= MOST_TERMS, "too many tables")
    paid, room = float(each.sum()), float(price @ [memory.sum() for memory in rooms(task)])
    mean = paid - room - ROUNDING * (paid + room) if paid < np.inf else np.inf
    return min(guess, mean) * (1 - ROUNDING) + simulator.least_ms(task)


def _alone(task: Task, simulator: FastSimulator, proof: Any) -> float:
    factors = simulator.factors()
    grows = simulator.maxima("both") is not None
    grows |= factors is not None and min(a.min() for a in (factors.hidden, factors.out, factors.fixed)) >= 0
    _require(not beyond_columns(task) and grows, f"costs of {simulator.id} may fall as tables are added")
    table, speed, least = whole(proof["table"]), np.array(task.speed), np.inf
    for embedding, size, _ in _depths(task, simulator):
        fits = task.capacity >= size[table] if size[table] else np.zeros(task.num_devices, bool)
        alone = float(simulator.decode(task.computation(), embedding[table][None]).compute[0])
        least = min(least, alone / float(speed[fits].max())) if fits.any() else least
    return least * (1 - ROUNDING)


def _hosts(forms: Forms, loads: np.ndarray) -> np.ndarray:
    return forms.by_host(loads[:, HOST])


def _of_devices(task: Task, told: Any) -> np.ndarray:
    """Numbers by device, (K,)."""
    found = np.zeros(task.num_devices)
    for k, number in told:
        found[whole(k)] += _number(number)
    return found


def _number(told: Any) -> float:
    _require(isinstance(told, int | float) and 0 <= told < np.inf, f"{told!r:.40} is no number from 0")
    return float(told)


def _require(holds: Any, otherwise: str) -> None:
    if not holds:
        raise CorruptFile(otherwise)


FORMS = {"cases": _cases, "prices": _prices, "alone": _alone}
