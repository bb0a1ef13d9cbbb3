"""Certificates of bounds, verified: reads tasks and simulators, and nothing of ours that bounds, solves or searches.

A certificate names a task, a simulator and the ms that no plan of the task beats, with a proof of one of six forms.

`cases` (whole tables and columns; costs that are the longest of sums). Every plan is in one of the cases, and each case
has weights, all from 0. Those of the sums of forward passes add up to 1 at most, as do, over devices, those of what
follows: the sums of backward passes, or of communication. So the makespan is at least the weighted sum, and that is at
least what each table adds to it on the device where it adds least, memory paid for by `memory` (ms a byte) and all room
given back. Cases: "any" plan; "busy", no device is empty; ["empty", k]; ["holds", t, k], a piece of table t on k;
["many", k, n], no device is empty and k holds n pieces, as many as some device must: each is worth `count` ms there.

`prices` (all kinds of sharding). No plan is faster than `guess`, or it has no shard that takes longer; then the mean of
devices is at least what tables add in their cheapest forms, with `memory` paid for as above. Devices with rows launch
passes; where some have none, the others take a larger part of the mean.

`waits` (all kinds of sharding). Collectives begin with a wait, however little they carry. Cases are `prices` of plans
that have anything to send in some `columns` of sums alone. A plan waits for each column in which it has anything, and
takes what the best case with all these columns says: the bound is the least over all sets of columns. A case has
`spans` of the slowest forward pass, each up to `most` ms: plans of a span have no shard that takes longer there. They
take the mean of all passes, and no less than the span before and the mean of what follows. The last span has no end.

`alone`. The device of `table` takes no less than a piece of it alone, wherever that fits.

`factors` (whole tables and columns; costs that are sums times growing factors). Some device holds as much as all do on
average, of `weights` that the proof tells, and costs no less than the cheapest part of all tables that weighs so much.

`every` (whole tables). There are few plans, and each is looked at: the bound is the best plan's makespan.
"""

from __future__ import annotations

from typing import Any

from shard_gym.errors import CorruptFile
from shard_gym.proofs import cases, every, factors, prices, waits
from shard_gym.records.guard import guarded
from shard_gym.simulators import FastSimulator
from shard_gym.task.task import Task

SCHEMA = "shard-gym/certificate/1"
FORMS = {
    "cases": cases.proven,
    "prices": prices.proven,
    "waits": waits.proven,
    "alone": factors.alone,
    "factors": factors.proven,
    "every": every.proven,
}


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
