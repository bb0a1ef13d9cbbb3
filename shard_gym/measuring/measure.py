"""Measure shards on this host; the same command goes on where it was stopped.

Also as `python -m shard_gym.measuring.measure`, which needs numpy, torch and FBGEMM only. `shard-gym measure comm`
measures all-to-alls between processes instead."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from shard_gym.errors import SimulatorError
from shard_gym.measuring.campaign import ENDLESS, PACKED, Campaign
from shard_gym.measuring.comm import comm_parser, whole_numbers
from shard_gym.measuring.fbgemm import STATISTICS, Settings
from shard_gym.measuring.host import CLOCKS
from shard_gym.measuring.measurements import Measurements
from shard_gym.measuring.on_cluster import ClusterCampaign
from shard_gym.measuring.operator import DTYPES, OPTIMIZERS
from shard_gym.measuring.shards import ALL_DIMS, MIN_POOLING, SHARES, Drawn, Listed
from shard_gym.records import commands
from shard_gym.records.commands import seconds
from shard_gym.work.parts import add_places

EXAMPLES = (
    "shard-gym measure --device cpu --budget 8m --out campaign",
    "shard-gym measure --device cuda --shards 2000 --seed 1 --out campaign",
    "shard-gym measure --shard-file shards.npz --repeats 3 --out again",
)
DRAWN = ("shards", "pool", "kinds", "dims", "min_pooling", "round")  # flags of shards that are drawn


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure shards, or all-to-alls."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    made = comm_parser() if given[:1] == ["comm"] else parser()
    return commands.run(made, lambda options: options.run(options), given[given[:1] == ["comm"] :])


def measure(options: argparse.Namespace) -> None:
    """Measure, or pack what an earlier run left."""
    _refuse_odd(options)
    source, settings = _source(options), settings_of(options)
    if options.ray is not None and not options.pack:
        spread = ClusterCampaign(options.out, source, settings, options.part, options.noise)
        for campaign in spread.run(options.ray, options.workers, options.budget):
            _answer(options, Measurements.load(campaign.folder / PACKED), campaign.folder)
        return
    campaign = Campaign(options.out, source, settings, part=options.part)
    found = campaign.pack() if options.pack else campaign.run(options.workers, options.budget)
    _answer(options, found, options.out)


def _answer(options: argparse.Namespace, found: Measurements, folder: Path) -> None:
    """Tell what was measured."""
    known = found.total_ms[found.total_ms >= 0]
    told = {
        "folder": folder,
        "file": folder / PACKED,
        "shards": len(known),
        "mean_ms": known.mean() if len(known) else None,
    }
    card = {name: found.card[name] for name in ("simulator", "noise", "failed")}
    commands.answer(options, "measured/1", lambda: told | card, lambda: report(found, folder))


def _refuse_odd(options: argparse.Namespace) -> None:
    """Refuse flags that would say nothing beside others."""
    if options.shard_file:
        drawn = [name for name in DRAWN if getattr(options, name) is not None]
        if drawn:
            raise SimulatorError(f"--{drawn[0].replace('_', '-')} is of shards that are drawn: not with --shard-file")
    elif options.repeats is not None:
        raise SimulatorError("--repeats needs --shard-file, whose shards are measured again")
    if options.noise is not None and options.ray is None:
        raise SimulatorError("--noise is of nodes: not without --ray")


def parser() -> commands.Parser:
    """Flags of the command."""
    kept = ""  # the campaign itself says what is kept
    made = commands.parser("shard-gym measure", __doc__, examples=EXAMPLES, answer="what was measured", kept=kept)
    out = "folder of the campaign; the same folder resumes it"
    made.add_argument("--out", type=Path, required=True, metavar="DIR", help=out)
    told = "stop after this long, such as 90s, 8m or 2h; default: when all shards are measured"
    made.add_argument("--budget", type=partial(seconds, unit="s"), default=math.inf, metavar="TIME", help=told)
    made.add_argument("--pack", action="store_true", help="measure nothing, write measurements.npz from what is there")
    _add_shards(made)
    add_settings(made)
    add_places(made)
    told = "with --ray: leave out a node whose repeats differ by more in the median; default 0.02, on a CPU 0.3"
    made.add_argument("--noise", type=float, metavar="SHARE", help=told)
    made.set_defaults(run=measure)
    return made


def _add_shards(made: argparse.ArgumentParser) -> None:
    """Flags that say which shards are measured."""
    drawn = made.add_argument_group("shards drawn at random")
    told = "how many; default 4000, or endless within a budget"
    drawn.add_argument("--shards", type=int, metavar="N", help=told)
    drawn.add_argument("--pool", metavar="NAME", help=f"tables that shards are drawn from; default {Drawn.pool}")
    kinds = f"of shards, some of {', '.join(SHARES)}; default all, in their shares"
    drawn.add_argument("--kinds", type=lambda text: tuple(text.split(",")), metavar="KIND,...", help=kinds)
    dims = f"columns that half the shards draw from; default {','.join(map(str, ALL_DIMS))}"
    drawn.add_argument("--dims", type=whole_numbers, metavar="D,...", help=dims)
    least = f"redraw shards with fewer ids a sample; default {MIN_POOLING:g}"
    drawn.add_argument("--min-pooling", type=float, metavar="IDS", help=least)
    drawn.add_argument("--round", type=int, metavar="N", help="a number that is written beside each shard; default 0")
    made.add_argument("--seed", type=int, default=0, metavar="N", help="of shards, ids and order; default 0")
    listed = made.add_argument_group("shards from a file")
    told = "a file of measurements, whose times are ignored"
    listed.add_argument("--shard-file", type=Path, metavar="FILE", help=told)
    told = "passes over the file, each in another order; default 1"
    listed.add_argument("--repeats", type=int, metavar="N", help=told)


def add_settings(made: argparse.ArgumentParser) -> None:
    """Flags that say where and how each shard is measured."""
    how = made.add_argument_group("how each shard is measured")
    add = how.add_argument
    add("--device", default="cpu", help="cpu, cuda (all GPUs) or cuda:N; default cpu")
    told = "processes, each on a core or GPU of its own; default 0: all there are"
    add("--workers", type=int, default=0, metavar="N", help=told)
    told = "a step; default 0: 2048 on cpu, 65536 on cuda"
    add("--batch", type=int, default=0, metavar="SAMPLES", help=told)
    for name, choices, told in (
        ("optimizer", OPTIMIZERS, "that the backward pass applies"),
        ("dtype", DTYPES, "of the weights"),
        ("statistic", STATISTICS, "of the runs that are kept"),
        ("clock", CLOCKS, "of a CPU; thread leaves out what other processes take"),
    ):
        default = getattr(Settings, name)
        add(f"--{name}", choices=tuple(choices), default=default, help=f"{told}; default {default}")
    for name, told in (
        ("warmups", "runs of each shard before those that count"),
        ("runs", "runs of each shard that count"),
        ("drop", "highest and lowest runs left out of the mean"),
    ):
        default = getattr(Settings, name)
        add(f"--{name}", type=int, default=default, metavar="N", help=f"{told}; default {default}")
    memory = "default 0: 4 on cpu, seven tenths of a GPU's memory; large tables must not share it"
    told = f"memory for tables of each process, 2**30 bytes; {memory}"
    add("--arena-gb", type=float, default=0.0, metavar="GiB", help=told)
    told = "memory for drawn ids, 2**30 bytes; default 0: an eighth of what is left"
    add("--cache-gb", type=float, default=0.0, metavar="GiB", help=told)
    add("--warm", dest="cold", action="store_false", help="same ids in warm caches: a quick rehearsal")
    add("--production", action="store_true", help="stochastic rounding and FBGEMM's check of ids")


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
    return "\n".join([*lines, f"written to {folder / PACKED}"])


def _source(options: argparse.Namespace) -> Drawn | Listed:
    if options.shard_file:
        return Listed(options.shard_file, options.repeats or 1, options.seed)
    count = options.shards
    if count is None:
        count = 4_000 if options.budget == math.inf else ENDLESS
    names = ("pool", "kinds", "min_pooling", "round", "dims")
    told = {name: value for name in names if (value := getattr(options, name)) is not None}
    return Drawn(count, seed=options.seed, **told)


if __name__ == "__main__":
    sys.exit(main())
