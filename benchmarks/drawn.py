"""Tasks of all kinds of sharding, drawn: a few tables larger than a device, and 60 to 90 % of all memory filled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shard_gym.memory.usage import table_bytes
from shard_gym.tables.pool import make_pool
from shard_gym.task.constraints import KINDS
from shard_gym.task.links import Links
from shard_gym.task.task import Task

SAMPLES = 512  # a rank, TorchRec's default
HOST = 8  # devices
DIMS = (4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512)
LARGE = 1.2, 4.4  # times the memory of a device
LINKS = {"port": 600 * 2**30 / 1e3, "uplink": HOST * 12.5 * 2**30 / 1e3}  # TorchRec's, bytes a ms


def drawn(seed: int, tables: int, devices: int) -> Task:
    """A task of so many tables on hosts of 8 devices; an equal seed gives an equal task."""
    rng = np.random.default_rng([seed, tables, devices])
    rows = np.exp(rng.uniform(np.log(1e3), np.log(2e7), tables)).astype(np.int64)
    pooling = np.clip(rng.lognormal(1.5, 1.2, tables), 0.1, 200).round(1)
    pool = make_pool(rows=rows, dim=rng.choice(DIMS, tables), pooling=pooling, dtype="fp32")
    task = Task(
        pool,
        (2**40,) * devices,
        "iteration",
        SAMPLES * devices,
        links=Links(**LINKS, group=min(HOST, devices)),
        optimizer="rowwise_adagrad",
        accounting="training",
        kinds=tuple(kind for kind in KINDS if devices > HOST or kind not in ("twrw", "grid")),
    )
    size, filled = table_bytes(task), rng.uniform(0.6, 0.9) * devices
    count = max(1, tables // 80)
    large = np.argsort(-size)[:count]
    times = rng.uniform(*LARGE, count)
    times *= min(1.0, 0.6 * filled / times.sum())
    memory = int((size.sum() - size[large].sum()) / (filled - times.sum()))
    rows[large] = times * memory / (size[large] / rows[large])
    return replace(task, tables=pool.with_(rows=rows), memory=(memory,) * devices)
