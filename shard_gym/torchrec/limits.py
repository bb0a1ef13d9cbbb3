"""Bytes that the tables of a task take beside those that its devices have: is there a plan, and what is missing?"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from shard_gym.memory.usage import table_bytes
from shard_gym.plan.feasibility import quick
from shard_gym.plan.proposals import proposals
from shard_gym.tables.pool import GB
from shard_gym.task.task import Task

SCHEMA = "shard-gym/room/2"


@dataclass(frozen=True)
class Limits:
    """Bytes that a task's tables take and that its devices have, by the task's accounting."""

    feasible: bool | None  # None: neither a plan is found nor a proof that there is none
    reason: str
    accounting: str
    largest_table: str
    largest_bytes: int
    largest_device_bytes: int
    table_bytes: int  # of all tables
    device_bytes: int  # of all devices
    constraints: tuple[str, ...]  # those that the task has
    proposals: tuple[str, ...]  # changes that give it a plan, where none is known

    @property
    def least_bytes(self) -> int:
        """Bytes that the largest of devices in these proportions must have, whatever the plan, if no table is split."""
        return max(self.largest_bytes, -(-self.table_bytes * self.largest_device_bytes // self.device_bytes))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, schema `shard-gym/room/2`; missing bytes are negative where some are left."""
        return {"schema": SCHEMA} | asdict(self) | {"missing_bytes": self.missing(), "least_bytes": self.least_bytes}

    def missing(self) -> dict[str, int]:
        """Bytes by which each limit is broken; negative where some are left."""
        return {
            "largest table": self.largest_bytes - self.largest_device_bytes,
            "all tables": self.table_bytes - self.device_bytes,
        }

    def text(self) -> str:
        """The verdict, then each limit."""
        said = {True: "there is a plan", False: "NO PLAN", None: "not known"}[self.feasible]
        lines = [
            f"{said}: {self.reason}",
            f"{'bytes as ' + repr(self.accounting):22} {'needed GiB':>12} {'of GiB':>12}",
        ]
        lines[1] += f" {'missing bytes':>20}"
        missing = self.missing()
        limits = (self.largest_bytes, self.largest_device_bytes), (self.table_bytes, self.device_bytes)
        for (limit, short), (needed, has) in zip(missing.items(), limits, strict=True):
            told = f"{short:,}" if short > 0 else f"none, {-short:,} left"
            lines.append(f"{limit:22} {needed / GB:12.3f} {has / GB:12.3f} {told:>20}")
        lines.append(f"largest table: {self.largest_table}")
        least = f"{self.least_bytes:,} bytes"
        lines.append(f"for whole tables, the largest of devices in these proportions needs at least {least}")
        lines += [f"constraints: {', '.join(self.constraints)}"] if self.constraints else []
        lines += [f"what helps: {said}" for said in self.proposals]
        return "\n".join(lines)


def limits(task: Task) -> Limits:
    """Tell whether a task has a plan, as far as can be said at once."""
    verdict, size = quick(task), table_bytes(task)
    largest, told = int(size.argmax()), asdict(task.constraints)
    return Limits(
        feasible=verdict.feasible,
        reason=verdict.reason,
        accounting=task.accounting,
        largest_table=f"{task.tables.name[largest]!r} (table {largest})",
        largest_bytes=int(size[largest]),
        largest_device_bytes=int(task.capacity.max()),
        table_bytes=int(size.sum()),
        device_bytes=int(task.capacity.sum()),
        constraints=tuple(name for name, value in told.items() if value not in ((), None)),
        proposals=() if verdict.feasible else proposals(task),
    )
