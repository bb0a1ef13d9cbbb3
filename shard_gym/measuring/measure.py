"""Measure shards on this host: `python -m shard_gym.measuring.measure --device cpu --budget 8m --out DIR`.

`... measure comm` measures all-to-alls between processes instead. Needs numpy, torch and FBGEMM only.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.errors import SimulatorError, UnknownName
from shard_gym.measuring.campaign import ENDLESS, PACKED, Campaign
from shard_gym.measuring.fbgemm import STATISTICS, Settings
from shard_gym.measuring.host import CLOCKS, elapsed_ms, hardware, mark, versions
from shard_gym.measuring.measurements import Measurements
from shard_gym.measuring.on_cluster import ClusterCampaign
from shard_gym.measuring.operator import DTYPES, OPTIMIZERS, imported, require_cuda
from shard_gym.measuring.shards import ALL_DIMS, MIN_POOLING, SHARES, Drawn, Listed
from shard_gym.records import commands
from shard_gym.records.commands import seconds
from shard_gym.records.files import read_json, write_whole
from shard_gym.records.processes import end_with_parent
from shard_gym.task.links import Links
from shard_gym.work.parts import add_places

SCHEMA = "shard-gym/all-to-all/1"
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
BATCHES = {"cpu": (512, 2_048), "cuda": (8_192, 65_536)}
COLUMNS = (32, 128, 512)  # per rank, on average
WARMUPS, RUNS, DROP = 5, 10, 2
COMM = """All-to-alls between real processes, measured, and the links that explain them.

`python -m shard_gym.measuring.measure comm --device cpu --world 2,4 --out FILE`. As after a model-parallel
embedding: each rank sends the pooled rows of its tables, a slice of the batch to every other rank.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure shards, or all-to-alls."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["comm"]:
        return commands.run(comm_parser(), measure_comm, given[1:])
    return commands.run(parser(), measure, given)


def measure(options: argparse.Namespace) -> None:
    """Measure, or pack what an earlier run left."""
    source, settings = _source(options), settings_of(options)
    if options.ray is not None and not options.pack:
        spread = ClusterCampaign(options.out, source, settings, options.part, options.noise)
        for campaign in spread.run(options.ray, options.workers, options.budget):
            sys.stdout.write(report(Measurements.load(campaign.folder / PACKED), campaign.folder))
        return
    campaign = Campaign(options.out, source, settings, part=options.part)
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
    add_places(made)
    told = "with --ray: leave out a node whose repeats differ by more in the median; default 0.02, on a CPU 0.3"
    made.add_argument("--noise", type=float, metavar="SHARE", help=told)
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


def comm_parser() -> argparse.ArgumentParser:
    """Flags of `measure comm`."""
    made = commands.parser("measure comm", COMM)
    made.add_argument("--device", default="cpu", choices=tuple(BACKENDS))
    made.add_argument("--world", type=_whole_numbers, default=(2, 4), help="numbers of ranks, such as 2,4")
    made.add_argument("--batch", type=_whole_numbers, default=(), help="default 512,2048 on cpu, 8192,65536 on cuda")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--out", type=Path, required=True)
    return made


def measure_comm(options: argparse.Namespace) -> None:
    """Measure all-to-alls, and write what came out."""
    answer = all_to_alls(options.device, options.world, options.batch or BATCHES[options.device], options.seed)
    write_whole(options.out, json.dumps(answer, indent=1))
    for world, found in answer["fit"].items():
        sys.stdout.write(f"{world} ranks: {found['links']}, mean error {found['mean_relative_error']:.1%}\n")


def cases(world: int, batches: Sequence[int], seed: int) -> list[tuple[int, list[int]]]:
    """Pairs (batch, summed columns of each rank): all equal, a ramp, one rank with most, and random splits."""
    rng = np.random.default_rng([seed, world])
    ramp = np.linspace(0.25, 1.75, world)
    one = np.full(world, 0.5)
    one[0] += world / 2
    shapes = [np.ones(world), ramp, one, *(rng.dirichlet(np.ones(world)) * world for _ in range(3))]
    splits = [np.maximum(np.rint(shape * columns / 4) * 4, 4) for columns in COLUMNS for shape in shapes]
    return [(batch, split.astype(int).tolist()) for batch in batches for split in splits]


def all_to_alls(device: str, worlds: Sequence[int], batches: Sequence[int], seed: int = 0) -> dict[str, Any]:
    """Times of all cases of all world sizes, with a fit for each and one for all of them."""
    torch = imported("torch", "pip install torch==2.13.0")
    if device not in BACKENDS:
        raise UnknownName("device", device, BACKENDS)
    if device == "cuda":
        require_cuda(torch, device)
    for world in worlds:
        if world < 2 or any(batch % world for batch in batches):
            raise SimulatorError(f"a world needs 2 ranks or more and must divide the batches {batches}, got {world}")
        if device == "cuda" and world > torch.cuda.device_count():
            raise SimulatorError(f"{world} ranks need as many GPUs, torch sees {torch.cuda.device_count()}")
    rows = [row for world in worlds for row in _world(device, world, cases(world, batches, seed))]
    fits = {str(world): fit_links([r for r in rows if r["world"] == world]) for world in worlds}
    return {
        "schema": SCHEMA,
        "backend": BACKENDS[device],
        "method": ["all_to_all_single"],
        "hardware": hardware(device),
        "versions": versions(),
        "settings": {"warmups": WARMUPS, "runs": RUNS, "drop": DROP, "batches": list(batches), "seed": seed},
        "fit": fits | {"all": fit_links(rows)},
        "rows": rows,
    }


def fit_links(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Latency, port and fabric rates (none negative) with the least squared relative error, and that error."""
    terms = np.concatenate([_terms(row["dims"], row["batch"]) for row in rows])  # (rows x ranks, 3)
    ms = np.concatenate([row["ms"] for row in rows])
    best, least = np.zeros(3), math.inf
    for used in itertools.product((False, True), repeat=3):  # the best of all sets of terms that stay positive
        picked = np.flatnonzero(used)
        if not set(picked) & {1, 2}:
            continue
        solution = np.linalg.lstsq(terms[:, picked] / ms[:, None], np.ones(len(ms)), rcond=None)[0]
        error = float(((terms[:, picked] @ solution / ms - 1) ** 2).sum())
        if (solution > 0).all() and error < least:
            best, least = np.zeros(3), error
            best[picked] = solution
    relative = np.abs(terms @ best / ms - 1)
    with np.errstate(divide="ignore"):
        latency, port, fabric = float(best[0]), float(1 / best[1]), float(1 / best[2])
    links = Links(port=port, latency_ms=latency, fabric=fabric)
    return {
        "links": {k: None if v == math.inf else v for k, v in asdict(links).items()},
        "mean_relative_error": float(relative.mean()),
        "max_relative_error": float(relative.max()),
        "measured": len(ms),
    }


def _terms(dims: Sequence[int], batch: int) -> np.ndarray:
    """Factors that `Links.all_to_all_ms` multiplies with latency, 1/port and 1/fabric, (K, 3)."""
    held = np.array(dims, float)
    flat = np.ones(len(dims))
    near = Links(port=1.0).all_to_all_ms(held, batch)
    crossing = Links(port=math.inf, fabric=1.0).all_to_all_ms(held, batch)
    return np.stack([flat, near, crossing], axis=1)


def _world(device: str, world: int, todo: list[tuple[int, list[int]]]) -> list[dict[str, Any]]:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=_rank, args=(device, rank, world, todo, folder), daemon=True)
            for rank in range(world)
        ]
        try:
            for process in ranks:
                process.start()
            for process in ranks:
                process.join()
        finally:
            for process in ranks:
                process.terminate()
        if failed := [process.exitcode for process in ranks if process.exitcode]:
            raise SimulatorError(f"{len(failed)} of {world} ranks ended with {failed[0]}; see their output above")
        found: list[dict[str, Any]] = read_json(Path(folder) / "answer.json")
        return found


def _rank(device: str, rank: int, world: int, todo: list[tuple[int, list[int]]], folder: str) -> None:
    """One process: take part in every all-to-all; rank 0 writes down what all ranks saw."""
    end_with_parent()
    import torch
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this host, whatever its name resolves to
    torch.set_num_threads(1)
    where = torch.device(device if device == "cpu" else f"cuda:{rank}")
    if device == "cuda":
        torch.cuda.set_device(where)
    dist.init_process_group(BACKENDS[device], init_method=f"file://{folder}/store", rank=rank, world_size=world)
    rows = []
    for batch, dims in todo:
        mine = torch.tensor(_times(rank, batch, dims, where), device=where)  # (2,)
        everyone = [torch.empty_like(mine) for _ in range(world)]
        dist.all_gather(everyone, mine)
        ms, spread = torch.stack(everyone).T.tolist()
        rows.append({"world": world, "batch": batch, "dims": dims, "ms": ms, "spread": spread})
    if rank == 0:
        write_whole(Path(folder) / "answer.json", json.dumps(rows))
    dist.barrier()
    dist.destroy_process_group()


def _times(rank: int, batch: int, dims: list[int], where: Any) -> list[float]:
    """Mean and standard deviation of this rank's milliseconds, extremes dropped."""
    import torch
    import torch.distributed as dist

    share = batch // len(dims)
    sent = torch.ones(batch * dims[rank], device=where)
    received = torch.empty(share * sum(dims), device=where)
    sizes = [share * d for d in dims], [share * dims[rank]] * len(dims)
    times = []
    for _ in range(WARMUPS + RUNS):
        dist.barrier()
        start = mark(where.type)
        dist.all_to_all_single(received, sent, *sizes)
        times.append(elapsed_ms(start, mark(where.type)))
    kept = np.sort(times[WARMUPS:])[DROP : RUNS - DROP]
    return [float(kept.mean()), float(kept.std(ddof=1))]


if __name__ == "__main__":
    sys.exit(main())
