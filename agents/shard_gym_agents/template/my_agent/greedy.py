"""A rule, in one function: replace it by yours."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shard_gym import Plan, Task
from shard_gym.memory.usage import table_bytes
from shard_gym.simulators import Simulator


@dataclass(frozen=True)
class Greedy:
    """Slowest table first, each to the device with the least work that has room.

    A solver is called with a task and a planner, and returns a plan. Its fields are its options; `seed` and `budget`
    (seconds a task) are set by the leaderboard where there are such fields.
    """

    track: ClassVar[str] = "search"  # it asks the planner; one that does not is "blind"
    deterministic: ClassVar[bool] = True  # one seed tells all

    def __call__(self, task: Task, planner: Simulator) -> Plan:
        alone = np.where(np.eye(task.num_tables, dtype=bool), 0, -1)  # each table on device 0, and no other
        work = planner.latency(task, alone).compute[:, 0] * task.speed[0]
        size, free = table_bytes(task), np.array(task.memory)
        load = np.zeros(task.num_devices)
        device = [0] * task.num_tables
        for table in np.argsort(-work).tolist():
            fits = free >= size[table]
            chosen = int(np.where(fits, load, np.inf).argmin()) if fits.any() else int(free.argmax())
            device[table] = chosen
            free[chosen] -= size[table]
            load[chosen] += work[table] / task.speed[chosen]
        return Plan(tuple(device))
