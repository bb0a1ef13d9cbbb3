"""Measure shards on this host: `python -m shard_gym.simulators.measure --device cpu --budget 8m --out DIR`.

`... measure comm` measures all-to-alls between processes instead. Needs numpy, torch and FBGEMM only.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from shard_gym.errors import ShardGymError
from shard_gym.measurements import Measurements
from shard_gym.simulators.campaign import PACKED, Campaign
from shard_gym.simulators.fbgemm import STATISTICS, Settings
from shard_gym.simulators.host import CLOCKS
from shard_gym.simulators.operator import DTYPES, OPTIMIZERS
from shard_gym.simulators.shards import MIN_POOLING, SHARES, Drawn, Listed

UNITS = {"s": 1, "m": 60, "h": 3600}
ENDLESS = 1_000_000  # shards, where only the budget ends a campaign


def seconds(text: str) -> float:
    """ "90s", "8m" or "2h" in seconds; a bare number is seconds."""
    number, unit = (text[:-1], UNITS[text[-1]]) if text[-1:] in UNITS else (text, 1)
    value = float(number) * unit
    if not value > 0:
        raise ValueError(text)
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; errors that we foresaw are one line and exit code 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if given[:1] == ["comm"]:
            from shard_gym.simulators import comm

            comm.main(given[1:])
        else:
            options = parser().parse_args(given)
            sys.stdout.write(report(run(options), options.out))
    except ShardGymError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


def run(options: argparse.Namespace) -> Measurements:
    """Measure, or pack what an earlier run left."""
    campaign = Campaign(options.out, _source(options), _settings(options))
    if options.pack:
        return campaign.pack()
    return campaign.run(options.workers, options.budget)


def parser() -> argparse.ArgumentParser:
    """Flags of the command."""
    made = argparse.ArgumentParser(prog="python -m shard_gym.simulators.measure", description=__doc__)
    made.add_argument("--out", type=Path, required=True, help="folder of the campaign; the same folder resumes it")
    made.add_argument("--device", default="cpu", help="cpu, cuda (all GPUs) or cuda:N")
    made.add_argument("--budget", type=seconds, default=math.inf, help="stop after this long, such as 90s, 8m or 2h")
    made.add_argument("--workers", type=int, default=0, help="processes, each on a core or GPU of its own; 0: all")
    made.add_argument("--pack", action="store_true", help="measure nothing, write measurements.npz from what is there")
    drawn = made.add_argument_group("shards drawn at random")
    drawn.add_argument("--shards", type=int, help="how many; default 4000, or endless within a budget")
    drawn.add_argument("--pool", default="metasyn_0_856")
    drawn.add_argument("--kinds", type=lambda text: tuple(text.split(",")), default=tuple(SHARES))
    drawn.add_argument("--min-pooling", type=float, default=MIN_POOLING, help="redraw shards with fewer ids a sample")
    drawn.add_argument("--round", type=int, default=0, help="written beside each shard")
    made.add_argument("--seed", type=int, default=0)
    listed = made.add_argument_group("shards from a file")
    listed.add_argument("--shard-file", type=Path, help="a file of measurements, whose times are ignored")
    listed.add_argument("--repeats", type=int, default=1, help="passes over the file, each in another order")
    how = made.add_argument_group("how each shard is measured")
    how.add_argument("--batch", type=int, default=0, help="0: 2048 on cpu, 65536 on cuda")
    how.add_argument("--optimizer", choices=tuple(OPTIMIZERS), default=Settings.optimizer)
    how.add_argument("--dtype", choices=tuple(DTYPES), default=Settings.dtype)
    how.add_argument("--statistic", choices=STATISTICS, default=Settings.statistic)
    how.add_argument("--clock", choices=tuple(CLOCKS), default=Settings.clock)
    for name in ("warmups", "runs", "drop"):
        how.add_argument(f"--{name}", type=int, default=getattr(Settings, name))
    how.add_argument("--arena-gb", type=float, default=0.0, help="memory of each process; 0: 4 on cpu, 8 on cuda")
    return made


def report(m: Measurements, folder: Path) -> str:
    """What was measured, in a few lines."""
    known = m.total_ms[m.total_ms >= 0]
    noise = m.card["noise"]
    lines = [f"{len(known)} shards measured on {m.card['hardware']['device']} as {m.card['simulator']}"]
    if len(known):
        lines.append(f"{known.mean():.1f} ms on average, {known.min():.2f} to {known.max():.1f}")
    if noise["pairs"]:
        lines.append(f"repeats differ by {noise['median_relative_difference']:.1%} ({noise['pairs']} pairs, median)")
    if m.card["failed"]:
        lines.append(f"{len(m.card['failed'])} shards failed; the card says why")
    return "\n".join([*lines, f"written to {folder / PACKED}", ""])


def _settings(options: argparse.Namespace) -> Settings:
    values: dict[str, Any] = {f.name: getattr(options, f.name) for f in fields(Settings) if hasattr(options, f.name)}
    return Settings(**values)


def _source(options: argparse.Namespace) -> Drawn | Listed:
    if options.shard_file:
        return Listed(options.shard_file, options.repeats, options.seed)
    count = options.shards
    if count is None:
        count = 4_000 if options.budget == math.inf else ENDLESS
    return Drawn(count, options.pool, options.kinds, options.seed, options.min_pooling, options.round)


if __name__ == "__main__":
    sys.exit(main())
