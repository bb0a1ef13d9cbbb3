"""Shards of every campaign, to be measured again in one: `python -m benchmarks.pace --out FILE.npz`.

Measure what this writes with `shard-gym measure --shard-file FILE.npz ...` and keep the result as
measurements/cpu-pace.npz: it tells how fast the machine was in each campaign (shard_gym/repeats.py).
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.measured import ROLES, files, pace_file
from shard_gym.measurements import Measurements

EACH = 100  # shards of each file; their median ratio is known to about 1.25 * 6 % / sqrt(100) = 0.75 %


def some(measured: Measurements, count: int, seed: int = 0) -> Measurements:
    """Different shards of a campaign, times removed."""
    keys = {measured.key(i): i for i in np.flatnonzero(np.isfinite(measured.total_ms)).tolist()}
    return blank(measured.take(np.sort(np.random.default_rng(seed).permutation(list(keys.values()))[:count])))


def blank(measured: Measurements) -> Measurements:
    """The shards without their times."""
    unknown = np.full(len(measured), np.nan)
    times = ("forward_ms", "backward_ms", "forward_spread", "backward_spread")
    return replace(measured, card={}, **dict.fromkeys(times, unknown))


def yardstick(pool: str) -> Measurements:
    """The shards of a pool that the pace file holds, times removed: measured among others they tell the pace."""
    reference = Measurements.load(pace_file())
    return blank(reference.take(reference.pool == reference.pools.index(pool)))


def main() -> None:
    """Write the shards."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    found = Measurements.concat([some(Measurements.load(path), EACH) for role in ROLES for path in files(role)])
    found.save(options.out)
    print(f"{len(found)} shards to measure in {options.out}")


if __name__ == "__main__":
    main()
