"""What is published of the dlrm_datasets files: how often rows are used in a batch, summed over all tables."""

from __future__ import annotations

import re
from dataclasses import dataclass

from shard_gym.errors import CorruptFile
from shard_gym.tables import NUM_BINS, REFERENCE_BATCH


@dataclass(frozen=True)
class LocalityStats:
    """Totals of one file: lookups, rows touched, and both spread over the 17 bins of uses a batch."""

    indices: int
    distinct: int
    uses: tuple[float, ...]  # share of the rows touched
    accesses: tuple[float, ...]  # share of the lookups
    tables: int = 856
    batch: int = REFERENCE_BATCH


# fbgemm_t856_bs65536 of 2021, the file that AutoShard and DreamShard used.
BASE_2021 = LocalityStats(
    indices=887_017_990,
    distinct=128_435_723,
    uses=(0.473, 0.152, 0.139, 0.112, 0.072, 0.032, 0.011, 0.005, 0.002, 0.001, 0, 0, 0, 0, 0, 0, 0),
    accesses=(
        *(0.069, 0.044, 0.068, 0.101, 0.121, 0.104, 0.073, 0.058, 0.052),
        *(0.050, 0.049, 0.048, 0.048, 0.043, 0.031, 0.023, 0.019),
    ),
)

_TITLE = re.compile(r"^(\S*t(\d+)_bs(\d+)\S*)\s*$")
_BIN = re.compile(r"^\((\d+)(?:, (\d+)\]|\+): ([\d.]+)\s*$")


def parse_locality_stats(text: str) -> dict[str, LocalityStats]:
    """The statistics of each file that a locality_stats text describes, by file name."""
    found: dict[str, LocalityStats] = {}
    lines = text.splitlines()
    titles = [i for i, line in enumerate(lines) if _TITLE.match(line)]
    if not titles:
        raise CorruptFile("no locality statistics: a block begins with a file name such as fbgemm_t856_bs65536.pt")
    for start, end in zip(titles, [*titles[1:], len(lines)], strict=True):
        match = _TITLE.match(lines[start])
        assert match
        found[match[1]] = _parse_one(lines[start:end], int(match[2]), int(match[3]), start + 1)
    return found


def _parse_one(lines: list[str], tables: int, batch: int, number: int) -> LocalityStats:
    shares = [float(m[3]) for line in lines if (m := _BIN.match(line))]
    totals = {}
    for key, label in (("indices", "# of indices:"), ("distinct", "# of unique cols:")):
        values = [line.rsplit(":", 1)[1] for line in lines if label in line]
        if len(values) != 1 or not values[0].strip().isdigit():
            raise CorruptFile(f"block at line {number}: expected one whole number after {label!r}")
        totals[key] = int(values[0])
    if len(shares) != 2 * NUM_BINS:
        raise CorruptFile(f"block at line {number}: expected 2 histograms of {NUM_BINS} bins, got {len(shares)} lines")
    return LocalityStats(
        **totals, uses=tuple(shares[:NUM_BINS]), accesses=tuple(shares[NUM_BINS:]), tables=tables, batch=batch
    )
