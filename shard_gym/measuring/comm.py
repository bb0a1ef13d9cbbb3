"""All-to-alls between processes of this host, measured, and the links that explain them."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.errors import SimulatorError, UnknownName
from shard_gym.measuring.host import elapsed_ms, hardware, mark, versions
from shard_gym.measuring.operator import imported, require_cuda
from shard_gym.records import commands
from shard_gym.records.files import read_json, write_whole
from shard_gym.records.processes import end_with_parent
from shard_gym.task.links import Links

SCHEMA = "shard-gym/all-to-all/1"
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
BATCHES = {"cpu": (512, 2_048), "cuda": (8_192, 65_536)}
COLUMNS = (32, 128, 512)  # per rank, on average
WARMUPS, RUNS, DROP = 5, 10, 2
COMM = """Measure all-to-alls between real processes, and fit the links that explain them.

As after a model-parallel embedding: each rank sends the pooled rows of its tables, a slice of the batch to every other
rank."""
COMM_EXAMPLES = (
    "shard-gym measure comm --device cpu --world 2,4 --out comm.json",
    "shard-gym measure comm --device cuda --world 8 --batch 65536 --out comm.json",
)


def whole_numbers(text: str) -> tuple[int, ...]:
    """Whole numbers, separated by commas."""
    return tuple(int(part) for part in text.split(","))


def comm_parser() -> commands.Parser:
    """Flags of `measure comm`."""
    made = commands.parser("shard-gym measure comm", COMM, examples=COMM_EXAMPLES, answer="the links and their errors")
    made.add_argument("--device", default="cpu", choices=tuple(BACKENDS), help="of the ranks; default cpu")
    world = "numbers of ranks; default 2,4"
    made.add_argument("--world", type=whole_numbers, default=(2, 4), metavar="N,...", help=world)
    batch = "samples a step, of all ranks; default 512,2048 on cpu, 8192,65536 on cuda"
    made.add_argument("--batch", type=whole_numbers, default=(), metavar="SAMPLES,...", help=batch)
    made.add_argument("--seed", type=int, default=0, metavar="N", help="of the sizes that are sent; default 0")
    made.add_argument("--out", type=Path, required=True, metavar="FILE", help="times and links, as JSON")
    made.set_defaults(run=measure_comm)
    return made


def measure_comm(options: argparse.Namespace) -> None:
    """Measure all-to-alls, and write what came out."""
    batches = options.batch or BATCHES[options.device]
    with commands.waiting(options, "measuring all-to-alls"):
        answer = all_to_alls(options.device, options.world, batches, options.seed)
    write_whole(options.out, json.dumps(answer, indent=1))
    commands.answer(
        options,
        "links/1",
        lambda: {"file": options.out, "fit": answer["fit"]},
        lambda: "\n".join(
            f"{world} ranks: {found['links']}, mean error {found['mean_relative_error']:.1%}"
            for world, found in answer["fit"].items()
        ),
    )


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
