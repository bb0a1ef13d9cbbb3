"""Mean makespans of random plans, which speedups are over; and random plans over all kinds of sharding.

Of all kinds tables are whole, each on a random device, its rows in a random one of the places they may live in, as far
as there is room; the largest come first. A table larger than a device, or than what is left of any device in all of
these plans, lies by rows on all of them. Copies and pieces are left out: a random plan with copies of large tables is
many times slower than any that is meant to be good.
"""

from __future__ import annotations

import numpy as np

from shard_gym.errors import InfeasibleTask, SimulatorError
from shard_gym.memory.usage import table_bytes
from shard_gym.plan.forms import ALL, DEVICE, Forms, beyond_columns
from shard_gym.plan.random_plans import random_placements
from shard_gym.plan.violations import rooms
from shard_gym.simulators import FastSimulator, Simulator
from shard_gym.task.task import Task

REFERENCE_PLANS, PLANS_OF_KINDS = 1_000, 100  # of a frozen reference


def random_makespan(task: Task, simulator: Simulator, rng: np.random.Generator) -> float:
    """Mean makespan of random plans of a task, ms.

    Tasks that no known plan solves without splits take uniform placements, full devices or not.
    """
    if beyond_columns(task):
        if not isinstance(simulator, FastSimulator):
            raise SimulatorError(f"{simulator.id} measures plans of whole tables only")
        return float(random_makespans(task, simulator, PLANS_OF_KINDS, rng).mean())
    makespans = []
    for _ in range(10):  # in parts, to bound memory at 1000 x 128
        try:
            placements = random_placements(task, REFERENCE_PLANS // 10, rng)
        except InfeasibleTask:
            placements = rng.integers(task.num_devices, size=(REFERENCE_PLANS // 10, task.num_tables))
        makespans.append(simulator.latency(task, placements).makespan(task.objective))
    return float(np.concatenate(makespans).mean())


def random_makespans(task: Task, simulator: FastSimulator, count: int, rng: np.random.Generator) -> np.ndarray:
    """Makespans of so many random plans, without those in which some table found no room, ms."""
    forms = Forms.of(task, lambda shards: simulator.embed_shards(task, shards))
    free = np.repeat(np.stack(rooms(task))[None], count, axis=0)  # (P, 2, K)
    sums = np.zeros((count, task.num_devices, forms.vector.shape[2]))
    stuck, plans = np.zeros(count, bool), np.arange(count)
    for table in np.argsort(-table_bytes(task), kind="stable").tolist():
        rows = slice(forms.first[table], forms.first[table] + len(forms.residences))
        choice, size = DEVICE, forms.bytes[:, rows, DEVICE]  # (2, r, K)
        fits = np.all(size <= free[:, :, None], axis=1)  # (P, r, K)
        if not (forms.fits[rows.start, DEVICE] and fits.any()):
            choice, size = ALL, forms.bytes[:, rows, ALL]
            fits = np.all(size <= free[:, :, None], axis=(1, 3))[:, :, None]
        vector = forms.vector[rows][:, forms.column[choice]]  # (r, K, H)
        drawn = np.where(fits, rng.random(fits.shape), -1.0).reshape(count, -1)
        residence, device = np.divmod(drawn.argmax(axis=1), fits.shape[2])
        stuck |= drawn.max(axis=1) < 0
        if choice == ALL:
            free -= size[:, residence].swapaxes(0, 1)
            sums += vector[residence]
        else:
            free[plans, :, device] -= size[:, residence, device].T
            sums[plans, device] += vector[residence, device]
    if stuck.all():
        raise InfeasibleTask("random plans of whole tables find no room")
    makespans: np.ndarray = simulator.decode(task, sums[~stuck]).makespan(task.objective)
    return makespans
