"""Agents that go wrong, one way each, for the tests of whatever runs other people's agents."""

import json
import os
import time

import numpy as np

from shard_gym.plan.plan import Plan
from shard_gym.plan.random_plans import random_placements


class Raises:
    def __call__(self, task, planner):
        raise ValueError("no idea")


class Nonsense:
    def __call__(self, task, planner):
        return [0] * task.num_tables


class Short:
    def __call__(self, task, planner):
        return Plan((0,))


class OffDevice:
    def __call__(self, task, planner):
        return Plan((99,) * task.num_tables)


class Heap:
    """Everything on one device, which is too small for it."""

    deterministic = True

    def __call__(self, task, planner):
        return Plan((0,) * task.num_tables)


class Exits:
    def __call__(self, task, planner):
        os._exit(3)


class Sleeps:
    def __call__(self, task, planner):
        time.sleep(1000)


class Unbuilt:
    def __init__(self):
        raise RuntimeError("no checkpoint")


class Peeks:
    """Says that it asks the planner nothing, and asks it."""

    track = "blind"

    def __call__(self, task, planner):
        return planner.latency(task, np.zeros((1, task.num_tables), int))


class Diary:
    """Sound but slow; writes every call down in the file $DIARY."""

    def __init__(self, seed=0):
        self.seed = seed

    def __call__(self, task, planner):
        with open(os.environ["DIARY"], "a") as diary:
            diary.write(f"{os.getpid()} {task.hash}\n")
        time.sleep(0.1)
        return Plan(tuple(random_placements(task, 1, np.random.default_rng(self.seed))[0].tolist()))


class Nosy:
    """Fails with what it was given, and whether its process holds the registry open or has its path."""

    def __call__(self, *arguments, **named):
        fds = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
        told = json.dumps([fds, dict(os.environ)])
        given = [type(argument).__name__ for argument in arguments]
        raise RuntimeError(json.dumps([given, sorted(named), "best_known" in told]))
