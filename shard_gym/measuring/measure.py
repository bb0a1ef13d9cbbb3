"""Measure shards on this host: `python -m shard_gym.measuring.measure --device cpu --budget 8m --out DIR`.

`... measure comm` measures all-to-alls between processes instead. Needs numpy, torch and FBGEMM only.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from shard_gym.measuring.campaign import ENDLESS, PACKED, Campaign
from shard_gym.measuring.fbgemm import STATISTICS, Settings
from shard_gym.measuring.host import CLOCKS
from shard_gym.measuring.measurements import Measurements
from shard_gym.measuring.operator import DTYPES, OPTIMIZERS
from shard_gym.measuring.shards import ALL_DIMS, MIN_POOLING, SHARES, Drawn, Listed
from shard_gym.records import commands
from shard_gym.records.commands import seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure shards, or all-to-alls."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["comm"]:
        from shard_gym.measuring import comm

        return comm.main(given[1:])
    return commands.run(parser(), measure, given)


def measure(options: argparse.Namespace) -> None:
    """Measure, or pack what an earlier run left."""
    campaign = Campaign(options.out, _source(options), settings_of(options))
    found = campaign.pack() if options.pack else campaign.run(options.workers, options.budget)
    sys.stdout.write(report(found, options.out))


def parser() -> argparse.ArgumentParser:
    """Flags of the command."""
    made = commands.parser("measure", __doc__)
    made.add_argument("--out", type=Path, required=True, help="folder of the campaign; the same folder resumes it")
    made.add_argument(
        "--budget",
        type=partial(seconds, unit="s"),
        default=math.inf,
        help="stop after this long, such as 90s, 8m or 2h",
    )
    made.add_argument("--pack", action="store_true", help="measure nothing, write measurements.npz from what is there")
    drawn = made.add_argument_group("shards drawn at random")
    drawn.add_argument("--shards", type=int, help="how many; default 4000, or endless within a budget")
    drawn.add_argument("--pool", default="metasyn_0_856")
    drawn.add_argument("--kinds", type=lambda text: tuple(text.split(",")), default=tuple(SHARES))
    drawn.add_argument("--dims", type=_whole_numbers, default=ALL_DIMS, help="columns that half the shards draw from")
    drawn.add_argument("--min-pooling", type=float, default=MIN_POOLING, help="redraw shards with fewer ids a sample")
    drawn.add_argument("--round", type=int, default=0, help="written beside each shard")
    made.add_argument("--seed", type=int, default=0)
    listed = made.add_argument_group("shards from a file")
    listed.add_argument("--shard-file", type=Path, help="a file of measurements, whose times are ignored")
    listed.add_argument("--repeats", type=int, default=1, help="passes over the file, each in another order")
    add_settings(made)
    return made


def add_settings(made: argparse.ArgumentParser) -> None:
    """Flags that say where and how each shard is measured."""
    how = made.add_argument_group("how each shard is measured")
    how.add_argument("--device", default="cpu", help="cpu, cuda (all GPUs) or cuda:N")
    how.add_argument("--workers", type=int, default=0, help="processes, each on a core or GPU of its own; 0: all")
    how.add_argument("--batch", type=int, default=0, help="0: 2048 on cpu, 65536 on cuda")
    how.add_argument("--optimizer", choices=tuple(OPTIMIZERS), default=Settings.optimizer)
    how.add_argument("--dtype", choices=tuple(DTYPES), default=Settings.dtype)
    how.add_argument("--statistic", choices=STATISTICS, default=Settings.statistic)
    how.add_argument("--clock", choices=tuple(CLOCKS), default=Settings.clock)
    for name in ("warmups", "runs", "drop"):
        how.add_argument(f"--{name}", type=int, default=getattr(Settings, name))
    memory = "0: 4 on cpu, seven tenths of a GPU's memory; large tables must not share it"
    how.add_argument("--arena-gb", type=float, default=0.0, help=f"memory for tables of each process; {memory}")
    how.add_argument("--cache-gb", type=float, default=0.0, help="memory for drawn ids; 0: an eighth of what is left")
    how.add_argument("--warm", dest="cold", action="store_false", help="same ids in warm caches: a quick rehearsal")
    how.add_argument("--production", action="store_true", help="stochastic rounding and FBGEMM's check of ids")


def settings_of(options: argparse.Namespace) -> Settings:
    """The settings that the flags give."""
    values: dict[str, Any] = {f.name: getattr(options, f.name) for f in fields(Settings) if hasattr(options, f.name)}
    return Settings(**values)


def report(m: Measurements, folder: Path) -> str:
    """Summary of what was measured, in a few lines."""
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


def _source(options: argparse.Namespace) -> Drawn | Listed:
    if options.shard_file:
        return Listed(options.shard_file, options.repeats, options.seed)
    count = options.shards
    if count is None:
        count = 4_000 if options.budget == math.inf else ENDLESS
    return Drawn(count, options.pool, options.kinds, options.seed, options.min_pooling, options.round, options.dims)


def _whole_numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
