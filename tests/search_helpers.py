"""Small tasks whose every placement can be looked at."""

from itertools import product

import numpy as np

from shard_gym import Task, simulators
from shard_gym.memory.usage import device_bytes
from tests.pool_helpers import fp16_pool as make_pool

SIMULATOR = simulators.make("roofline:rtx2080ti-x4-v1")


def draw_task(seed: int, objective: str = "kernel", room: float = 1.3, splits: bool = False, tables: int = 6) -> Task:
    """Up to `tables` tables on two or three devices of two speeds, each with `room` times its share of the bytes."""
    rng = np.random.default_rng(seed)
    n, k = int(rng.integers(2, tables + 1)), int(rng.integers(2, 4))
    pool = make_pool(rows=rng.integers(10, 10**6, n), dim=rng.choice([4, 16, 64], n), pooling=rng.exponential(30, n))
    capacity = max(1, int(room * pool.weight_bytes.sum() / k))
    speed = tuple(rng.choice([1.0, 0.6], k).tolist())
    return Task(pool, (capacity,) * k, objective=objective, speed=speed, splits_allowed=splits)


def best_by_force(task: Task) -> float:
    """The least makespan of all feasible placements without splits; infinity where there is none."""
    every = np.array(list(product(range(task.num_devices), repeat=task.num_tables)))
    fits = (device_bytes(task, every) <= task.capacity).all(axis=1)
    return float(SIMULATOR.latency(task, every[fits]).makespan(task.objective).min()) if fits.any() else np.inf
