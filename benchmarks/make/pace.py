"""Pick shards of every campaign, to be measured again in one: `python -m benchmarks.pace --out FILE.npz`

Measure what this writes with `shard-gym measure --shard-file FILE.npz ...` and keep the result as
measurements/HARDWARE-pace.npz: it tells how fast the machine was in each campaign (`pace` in
shard_gym/measuring/measurements.py).
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.measured import Hardware
from shard_gym.measuring.measurements import Measurements
from shard_gym.records import commands

EACH = 100  # shards of each file; their median ratio is known to about 1.25 * 6 % / sqrt(100) = 0.75 %
FITTED = ("planner", "judge", "test")  # roles whose shards are picked


def some(measured: Measurements, count: int, seed: int = 0) -> Measurements:
    """Different shards of a campaign, times removed."""
    keys = {measured.key(i): i for i in np.flatnonzero(np.isfinite(measured.total_ms)).tolist()}
    return blank(measured.take(np.sort(np.random.default_rng(seed).permutation(list(keys.values()))[:count])))


def blank(measured: Measurements) -> Measurements:
    """The shards without their times."""
    unknown = np.full(len(measured), np.nan)
    times = ("forward_ms", "backward_ms", "forward_spread", "backward_spread")
    return replace(measured, card={}, **dict.fromkeys(times, unknown))


def yardstick(hardware: Hardware, pool: str) -> list[Measurements]:
    """The shards of a pool that the pace file holds, times removed: measured among others they tell the pace."""
    if not hardware.pace.exists():
        return []
    reference = Measurements.load(hardware.pace)
    return [blank(reference.take(reference.pool == reference.pools.index(pool)))]


def pick(options: Namespace) -> None:
    """Write the shards."""
    hardware = Hardware(options.hardware)
    files = [path for role in FITTED for path in hardware.files(role)]
    found = Measurements.concat([some(Measurements.load(path), EACH) for path in files])
    found.save(options.out)
    print(f"{len(found)} shards to measure in {options.out}")


def main(argv: Sequence[str] | None = None) -> int:
    """Pick the shards."""
    parser = commands.parser("pace", __doc__)
    parser.add_argument("--hardware", default="cpu", help="which measurements: files HARDWARE-*.npz")
    parser.add_argument("--out", type=Path, required=True)
    return commands.run(parser, pick, argv)


if __name__ == "__main__":
    raise SystemExit(main())
