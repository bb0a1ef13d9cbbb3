"""Certificates of lower bounds: proofs small enough to be stored, which `verify` accepts or refuses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

import numpy as np

from shard_gym.bounds import certificate as bounded
from shard_gym.bounds.kinds import BELOW, ByWaits
from shard_gym.bounds.shares import factor_shares, no_bound
from shard_gym.plan.forms import beyond_columns
from shard_gym.proofs import FORMS, SCHEMA
from shard_gym.proofs.cases import Pieces
from shard_gym.proofs.every import is_small
from shard_gym.simulators import FastSimulator
from shard_gym.task.task import Task

WIDER = 1e-6  # are the intervals of a proof by factors
MOST_DEVICES = 32  # for a case of each device that is empty
Proof = dict[str, Any]


def certified(task: Task, simulator: FastSimulator, more: Iterable[Proof] = ()) -> dict[str, Any]:
    """The certificate of the highest bound that is proved here, or by the proofs given."""
    fast = simulator.uncounted
    found = [(_worth(task, fast, proof), i, proof) for i, proof in enumerate((*proofs(task, fast), *more))]
    if not found:
        raise no_bound(simulator)
    bound, _, proof = max(found, key=lambda told: told[0])
    return {"schema": SCHEMA, "task": task.hash, "simulator": simulator.id, "bound": bound, "proof": proof}


def proofs(task: Task, simulator: FastSimulator) -> Iterator[Proof]:
    """All proofs that can be written down at once."""
    if is_small(task):
        yield {"form": "every"}
    if beyond_columns(task):
        yield from _of_kinds(task, simulator)
        return
    if simulator.maxima("both") is not None:
        cases = Cases(task, simulator)
        yield {"form": "cases", "cases": cases.busy_or_not()}
    table = bounded(task, simulator, 0.0).table
    if table is not None and simulator.maxima("both") is not None:
        yield {"form": "cases", "cases": cases.holding(table)}
    elif table is not None:
        yield {"form": "alone", "table": table}
    for held in factor_shares(task, simulator):
        told = {"weights": held.weights, "phi": held.phi, "edges": np.append(held.low[:1] * (1 - WIDER), held.high)}
        told["edges"][-1] *= 1 + WIDER
        multipliers = [multiplier.tolist() for multiplier in held.multipliers]
        yield {"form": "factors", **{name: array.tolist() for name, array in told.items()}, "multipliers": multipliers}


def _of_kinds(task: Task, simulator: FastSimulator) -> Iterator[Proof]:
    """Prices of memory for each case of what plans wait for, by the best sum that is no more than a device's cost."""
    if simulator.floors(task):
        yield {"form": "waits", "cases": ByWaits(task, simulator).proofs}


class Cases:
    """Cases with weights that are written down at once: even ones, by the speed of devices, or all on one device."""

    def __init__(self, task: Task, simulator: FastSimulator) -> None:
        self.task, self.simulator, self.pieces = task, simulator, Pieces(task, simulator)
        self.phases = ("both",) if task.objective == "kernel" else ("forward", "backward")
        self.sums = [range(len(simulator.maxima(name).sums)) for name in self.phases]  # type: ignore[union-attr]
        self.numbers = self._best_sums()

    def busy_or_not(self) -> list[Proof]:
        """Cases of all devices in use, and of each that is empty; of very many devices one case of any plan."""
        devices = range(self.task.num_devices)
        if len(devices) > MOST_DEVICES:
            return [self.even("any", devices, self.numbers)]
        empty = [self.even(["empty", k], [d for d in devices if d != k], self.numbers) for k in devices]
        return [self.even("busy", devices, self.numbers), *empty]

    def holding(self, table: int) -> list[Proof]:
        """Cases of each device that may hold the table; weights are of one kind, the best on the first."""
        kinds = list(self._held(table, 0))
        best = max(range(len(kinds)), key=lambda i: self._worth(kinds[i]))
        return [list(self._held(table, k))[best] for k in range(self.task.num_devices)]

    def even(self, where: Any, devices: Iterable[int], numbers: tuple[int, ...]) -> Proof:
        """Weights by speed on these devices, all on one sum of each phase."""
        chosen, speed = list(devices), np.array(self.task.speed)
        share = {k: float(speed[k] / speed[chosen].sum()) * BELOW for k in chosen}
        case: Proof = {"where": where}
        for name, number in zip(self.phases, numbers, strict=True):
            case[name] = [[k, number, weight] for k, weight in share.items()]
        return case | self._levelled(share)

    def _held(self, table: int, k: int) -> Iterator[Proof]:
        """Weights on device k alone or even ones, phase by phase; of links what k sends, or what all must."""
        where = ["holds", table, k]
        for numbers in product(*self.sums):
            own = {name: [[k, n, BELOW]] for name, n in zip(self.phases, numbers, strict=True)}
            even = self.even(where, range(self.task.num_devices), numbers)
            if len(self.phases) == 1:
                yield {"where": where, **own}
                continue
            sends = {"sent": [[k, BELOW]], "left": [[k, BELOW]]}
            for links in (sends, self._levelled({k: BELOW})):
                yield {"where": where, **own, **links}
                yield {"where": where, **own, **links, "forward": even["forward"]}
            yield even | {"forward": own["forward"]}

    def _levelled(self, share: dict[int, float]) -> Proof:
        """Weights of links under which it makes no difference to the device, or its group, who holds a column."""
        found = None if len(self.phases) == 1 else self.simulator.all_to_all(self.task)
        devices = self.task.num_devices
        if found is None or devices == 1:
            return {}
        links, group = found[0], found[0].group or devices
        told: Proof = {name: [] for name in ("sent", "received", "left", "entered")}
        for k, weight in share.items():
            size = min(group, devices - k // group * group)
            near = 1 / (size if links.peer_to_peer else devices)
            far = (size if links.peer_to_peer else 1) / devices
            for one, other, part in (("sent", "received", near), ("left", "entered", far)):
                told[one].append([k, weight * part * BELOW])
                told[other].append([k, weight * (1 - part) * BELOW])
        return told

    def _best_sums(self) -> tuple[int, ...]:
        """The sum of each phase that even weights are best on."""
        every = range(self.task.num_devices)
        return max(product(*self.sums), key=lambda numbers: self._worth(self.even("any", every, numbers)))

    def _worth(self, case: Proof) -> float:
        where = case["where"]
        return self.pieces.least(where if isinstance(where, str) else tuple(where), case)


def _worth(task: Task, simulator: FastSimulator, proof: Proof) -> float:
    """The bound that a proof has, 0 where it is none."""
    try:
        return max(0.0, FORMS[proof["form"]](task, simulator, proof))
    except ValueError:
        return 0.0
