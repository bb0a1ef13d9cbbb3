"""Made-up measurements with a known truth that no network here has the form of."""

import numpy as np

from shard_gym import Task
from shard_gym.measuring.measurements import Measurements, pool_named
from shard_gym.tables.metasyn import load_metasyn
from shard_gym.tables.pool import TablePool

BATCH = 2048
DIMS = (4, 8, 16, 32, 64, 128)


def true_ms(tables: TablePool, batch: int = BATCH) -> tuple[float, float]:
    """Forward and backward ms of a shard: work of its tables, dearer when more rows compete for the cache."""
    lookups = tables.pooling.astype(float) * batch
    row = tables.dim * 2.0
    reused = tables.accesses[:, 6:].sum(axis=1)  # lookups of rows used often
    footprint = (lookups * (1 - reused) * (row + 64)).sum()
    crowding = 0.8 + 0.14 * np.log2(1 + footprint / 3e6)
    issue = lookups * (60 + 2.0 * tables.dim) * 1e-6
    memory = lookups * (1 - 0.7 * reused) * (110 + 0.9 * row) * (1 + 0.15 * np.log10(tables.rows)) * 1e-6
    backward = 0.12 + (np.maximum(issue, memory) * crowding + 0.4 * np.minimum(issue, memory)).sum()
    return float(0.02 + 0.09 * memory.sum() * crowding**0.5), float(backward)


def made_up(shards: int, seed: int = 0, pool: str = "metasyn_0_856", noise: float = 0.045) -> Measurements:
    """Random shards of 1 to 16 tables with lognormal noise."""
    rng, tables = np.random.default_rng(seed), pool_named(pool)
    drawn = [rng.choice(len(tables), rng.integers(1, 17), replace=False) for _ in range(shards)]
    dims = [rng.choice(DIMS, len(d)) for d in drawn]
    times = np.array([true_ms(tables.take(t).with_(dim=d)) for t, d in zip(drawn, dims, strict=True)])
    times *= np.exp(noise * rng.standard_normal((shards, 1)) + 0.01 * rng.standard_normal((shards, 2)))
    one = np.zeros(shards)
    return Measurements(
        offsets=np.cumsum([0, *map(len, drawn)]),
        pool=one,
        table=np.concatenate(drawn),
        dim=np.concatenate(dims),
        forward_ms=times[:, 0],
        backward_ms=times[:, 1],
        forward_spread=times[:, 0] * noise,
        backward_spread=times[:, 1] * noise,
        kind=one + 1,
        round=one,
        pools=(pool,),
        card={"batch": BATCH, "hardware": "made up"},
    )


def draw_task(seed: int, objective: str = "kernel", n: int = 40, **changes) -> Task:
    """Tables of many widths, up to n of them, on eight devices with room for all."""
    rng, pool = np.random.default_rng(seed), load_metasyn()
    tables = pool.take(rng.choice(len(pool), int(rng.integers(1, n)))).with_()
    tables = tables.with_(dim=rng.choice([4, 16, 64, 128], len(tables)))
    return Task(tables, memory=(2**40,) * 8, objective=objective, **({"batch": BATCH} | changes))
