"""Tasks of all kinds of sharding, drawn: a few tables larger than a device, and 60 to 90 % of all memory filled.

Tables are looked up as MetaSyn's are, whose statistics are published: 16 ids a sample on average, 88 and more in one of
a hundred. They have 1,000 to 20 million rows, evenly on a scale of logarithms, and 4 to 512 columns. Memory is filled
as TorchRec's planner counts it: weights, the optimizer's state, and the input and output of a batch.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from shard_gym.memory.usage import table_bytes
from shard_gym.tables.metasyn import metasyn
from shard_gym.tables.pool import make_pool
from shard_gym.task.constraints import KINDS
from shard_gym.task.links import Links
from shard_gym.task.task import Task

SAMPLES = 512  # a rank, TorchRec's default
HOST = 8  # devices
DIMS = (4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512)
ROWS = 1e3, 2e7
LARGE = 1.2, 4.4  # times the memory of a device
LEAST_LARGE, EVERY = 2, 80  # such tables; one of so many
MOST_LARGE = 0.6  # of what is filled, by all of them
FILLED = 0.6, 0.9  # of all memory
LEAST_POOLING = 0.1  # ids a sample
LINKS = {"port": 600 * 2**30 / 1e3, "uplink": HOST * 12.5 * 2**30 / 1e3}  # TorchRec's, bytes a ms


def drawn(seed: int, tables: int, devices: int) -> Task:
    """A task of so many tables on hosts of 8 devices; an equal seed gives an equal task."""
    rng = np.random.default_rng([seed, tables, devices])
    rows = np.exp(rng.uniform(*np.log(ROWS), tables)).astype(np.int64)
    pooling = np.maximum(metasyn(seed, tables).pooling.astype(np.float64), LEAST_POOLING).round(1)
    pool = make_pool(rows=rows, dim=rng.choice(DIMS, tables), pooling=pooling, dtype="fp32")
    task = Task(
        pool,
        (2**44,) * devices,
        "iteration",
        SAMPLES * devices,
        links=Links(**LINKS, group=min(HOST, devices)),
        optimizer="rowwise_adagrad",
        accounting="torchrec",
        kinds=tuple(kind for kind in KINDS if devices > HOST or kind not in ("twrw", "grid")),
        name=f"drawn-{tables}x{devices}-{seed}",
    )
    size, filled = table_bytes(task), rng.uniform(*FILLED) * devices
    large = np.argsort(-size)[: max(LEAST_LARGE, tables // EVERY)]
    times = rng.uniform(*LARGE, len(large))
    times = np.maximum(LARGE[0], times * min(1.0, MOST_LARGE * filled / times.sum()))
    memory = int((size.sum() - size[large].sum()) / (filled - times.sum()))
    rows[large] = times * memory / (size[large] / rows[large])
    return replace(task, tables=pool.with_(rows=rows), memory=(memory,) * devices)
