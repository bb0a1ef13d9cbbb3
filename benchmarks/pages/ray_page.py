"""Work on Ray under kills, and what Ray costs: `python -m benchmarks.ray_page --cases kills,measuring,rows --kills 20`

Kills are those of `ray_kills`. Costs: a bench that stands in for the operator, and sleeps, is measured with by the
workers of this host and by those of a Ray cluster on it, in turn, so that other work on the machine hits both alike.
Each case and seed is a part of the page; those that are kept are not done again. Linux only; needs the extra [ray].
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import RESULTS, kills, stand_in
from benchmarks.pages import ray_kills, table
from benchmarks.pages.ray_kills import VICTIMS, Subject
from shard_gym.errors import CorruptFile, SimulatorError
from shard_gym.measuring.campaign import Campaign
from shard_gym.measuring.fbgemm import Settings
from shard_gym.measuring.measurements import Measurements
from shard_gym.measuring.on_cluster import ClusterCampaign
from shard_gym.measuring.shards import Drawn
from shard_gym.records import commands, ledger
from shard_gym.records.commands import count, names
from shard_gym.records.files import read_json, write_whole
from shard_gym.results import commit_here
from shard_gym.work.cluster import Cluster, Terms
from shard_gym.work.pieces import Piece

Part = dict[str, Any]
PARTS = "ray.parts"
SETTINGS = Settings(batch=64)
KILLED_SHARDS, KILLED_SECONDS = 400, 0.01
SHARDS, SECONDS, TURNS = 600, 0.02, 5
ROWS, LOOK = 100_000, 10_000
OTHERS = ("benchmarks.pages.ray_evaluating", "benchmarks.pages.ray_training")  # each has a SUBJECT


# --- kills ---


def _measure(folder: Path, address: str) -> int:
    bench = stand_in.bench(KILLED_SECONDS)
    ClusterCampaign(folder, Drawn(KILLED_SHARDS), SETTINGS, bench=bench, modules=()).run(address)
    return 0


def _measured(folder: Path) -> list[str]:
    return [str(row["index"]) for path in sorted(folder.glob("*/rows-ray.jsonl")) for row in kills._lines(path)]


def _packed(folder: Path) -> Any:
    """The packed file but for the hour and the worker of each shard."""
    found = [Measurements.load(path) for path in folder.glob("*/measurements.npz")]
    apart = {"worker", "at"}
    return [{name: getattr(m, name).tolist() for name in m.columns if name not in apart} | m.card for m in found]


def subjects() -> list[Subject]:
    """Commands that are killed."""
    found = [Subject("measure", _measure, _measured, _packed)]
    return found + [import_module(name).SUBJECT for name in OTHERS if find_spec(name)]


def killed(options: argparse.Namespace) -> list[Part]:
    """Kills of each command."""
    parts = []
    for subject in [one for one in subjects() if one.name in options.commands or not options.commands]:
        kept = {(part["case"], part["seed"]) for part in ledger.read(options.out / PARTS)}
        if (f"kills {subject.name}", options.seed) in kept:
            continue
        with tempfile.TemporaryDirectory() as folder:
            outcome = ray_kills.trial(subject, options.kills, options.seed, Path(folder))
        parts.append({"case": f"kills {subject.name}", **asdict(outcome)})
    return parts


# --- costs ---


def measuring(options: argparse.Namespace) -> list[Part]:
    """Shards a second of one and two workers, here and on Ray, in turn."""
    rates: dict[str, list[float]] = {}
    with ray_kills.cluster(1) as one, ray_kills.cluster(2) as two:
        for _ in range(options.turns):
            for workers, nodes in ((1, one), (2, two)):
                for where, way in (("here", _here), ("ray", _on_ray)):
                    with tempfile.TemporaryDirectory() as folder:
                        _apart(way, Path(folder), workers, nodes.address)
                        found = _rate(Path(folder))
                    rates.setdefault(f"{where} {workers}", []).append(found)
                    print(f"{where}, {workers} workers: {found:.2f} shards a second")
    return [{"case": "measuring", "rates": rates, "shards": SHARDS, "seconds": SECONDS}]


def _here(folder: Path, workers: int, address: str) -> None:
    Campaign(folder, Drawn(SHARDS), SETTINGS, bench=stand_in.bench(SECONDS)).run(workers)


def _on_ray(folder: Path, workers: int, address: str) -> None:
    bench = stand_in.bench(SECONDS)
    ClusterCampaign(folder, Drawn(SHARDS), SETTINGS, bench=bench, modules=()).run(address)


def _rate(folder: Path) -> float:
    """Shards a second while all workers were at work."""
    (path,) = folder.rglob("measurements.npz")
    found = Measurements.load(path)
    times = [np.sort(found.at[found.worker == worker]) for worker in set(found.worker.tolist())]
    begin, end = max(of[0] for of in times), min(of[-1] for of in times)
    return float(sum(((of > begin) & (of <= end)).sum() for of in times) / (end - begin))


def rows(options: argparse.Namespace) -> list[Part]:
    """Rows a second that one driver keeps, of pieces that take no time, and its memory on the way."""
    with ray_kills.cluster() as nodes, tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "seen.jsonl"
        _apart(_echoes, Path(folder) / "rows.jsonl", out, nodes.address)
        seen = [json.loads(line) for line in out.read_text().splitlines()]
    return [{"case": "rows", "rows": ROWS, **{name: [look[name] for look in seen] for name in seen[0]}}]


def _echoes(out: Path, looks: Path, address: str) -> None:
    """Keep rows in a ledger, and note now and then how much memory this process has."""
    with ledger.opened(out) as kept, Cluster.joined(address) as cluster:
        start, done = time.monotonic(), 0

        def keep(key: str, row: Any) -> None:
            nonlocal done
            kept.append({"key": key, **row}, force=False)
            done += 1
            if done % LOOK == 0:
                told = {"done": done, "wall": time.monotonic() - start, "cpu": time.process_time()}
                ledger.append(looks, told | {"bytes": _memory()})

        todo = (Piece.of({"row": i}, i) for i in range(ROWS))
        cluster.work_off(todo, stand_in.Echo, keep, Terms(settle=kept.force))


def _memory() -> int:
    """Bytes of this process's own, without what libraries and Ray's store share with others."""
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def _apart(work: Callable[..., None], *given: Any) -> None:
    """Do it in a process of its own, which is forked before it knows Ray."""
    process = get_context("fork").Process(target=work, args=given)
    process.start()
    process.join()
    if process.exitcode:
        raise SimulatorError(f"{work.__name__} ended with {process.exitcode}")


# --- the page ---


HEAD = """# Work on Ray

`shard-gym measure`, `leaderboard` and `train` with `--ray`, on a cluster of two nodes on one host of two cores:
`python -m benchmarks.ray_page`.

## Kills

SIGKILL for workers, nodes (another one comes in their place) and the command itself (it is given again), at random.
Lost and twice: rows kept before a kill that are not there, or more than once, after it. Orphans: workers that outlive
the command for more than {grace:.0f} s. Failed: runs that ended badly though they were not killed. Different: ends that
are not those of an undisturbed run, row for row.
"""
COSTS = """## Measuring

A bench that stands in for the operator and sleeps {ms:.0f} ms a shard; {shards} shards, {turns} times, in turn. Shards
a second while all workers are at work, median (least to most). A worker of this host brings two lines a shard to disk
itself, begun and done; on Ray one process does so for all workers, after every round of answers.
"""
EVALUATING = """## Evaluating

A run of an agent that takes no time costs {here:.2f} ms of the CPU here, all processes together, and {ray:.2f} ms on a
node of a cluster, medians of {turns} turns. The difference is {more:+.2f} ms, {share:+.1%} of a run of 100 ms; from
turn to turn the figure here differs by up to {apart:.2f} ms.
"""
DRIVER = """## The driver

{rows:,} pieces that take no time, two workers, each row appended to a file that is forced to disk after every round of
answers: {rate:,.0f} rows a second, {cpu:.0f} µs of the driver's CPU each. Its own memory after every {look:,} rows, MB:
"""


def page(parts: Sequence[Part]) -> str:
    """The page of all parts that are kept."""
    lines = [HEAD.format(grace=kills.GRACE)]
    of: dict[str, list[Part]] = {}
    for part in parts:
        of.setdefault(part["case"], []).append(part)
    counts = ("kills", *VICTIMS, "lost", "twice", "orphans", "failed", "different")
    found = [[name.partition(" ")[2], *_counts(mine, counts)] for name, mine in of.items() if "kills" in name]
    lines += [*table(["command", "kills", *(f"of a {v}" for v in VICTIMS), *counts[4:]], found), ""]
    for part in of.get("measuring", []):
        lines += [COSTS.format(ms=1e3 * part["seconds"], shards=part["shards"], turns=len(part["rates"]["ray 1"]))]
        lines += [*table(["workers", "here", "on Ray", "Ray takes"], _rates(part["rates"])), "", _ratios(part["rates"])]
    for part in of.get("evaluating", []):
        here, ray = (1e3 * np.median(part["seconds"][where]) for where in ("here", "ray"))
        told = {"here": here, "ray": ray, "more": ray - here, "share": (ray - here) / 100}
        told["apart"] = 1e3 * float(np.ptp(part["seconds"]["here"]))
        lines += ["", EVALUATING.format(**told, turns=len(part["seconds"]["here"]))]
    for part in of.get("rows", []):
        spent = {name: (part[name][-1] - part[name][0]) / (part["rows"] - part["done"][0]) for name in ("wall", "cpu")}
        rate, cpu = 1 / spent["wall"], spent["cpu"]
        lines += ["", DRIVER.format(rows=part["rows"], rate=rate, cpu=1e6 * cpu, look=LOOK)]
        lines += [", ".join(f"{b / 1e6:.1f}" for b in part["bytes"]) + "."]
    return "\n".join(lines) + "\n"


def _counts(parts: Sequence[Part], names: Sequence[str]) -> list[str]:
    """Sums over parts."""
    return [str(sum(int({**part, **part["victims"]}[name]) for part in parts)) for name in names]


def _rates(rates: dict[str, list[float]]) -> list[list[str]]:
    """A line for each number of workers."""
    found = []
    for workers in ("1", "2"):
        here, ray = rates[f"here {workers}"], rates[f"ray {workers}"]
        told = [f"{np.median(of):.2f} ({min(of):.2f} to {max(of):.2f})" for of in (here, ray)]
        found.append([workers, *told, f"{np.median(here) / np.median(ray) - 1:+.1%}"])
    return found


def _ratios(rates: dict[str, list[float]]) -> str:
    median = {name: float(np.median(of)) for name, of in rates.items()}
    return (
        f"Two workers on Ray make {median['ray 2'] / median['ray 1']:.2f} times the shards of one, and "
        f"{median['ray 2'] / median['here 2']:.2f} times those of two workers here."
    )


def evaluating(options: argparse.Namespace) -> list[Part]:
    """CPU seconds of a run of a leaderboard, here and on Ray."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "seconds.json"
        _apart(_evaluated, out, options.turns)
        return [{"case": "evaluating", "seconds": read_json(out)}]


def _evaluated(out: Path, turns: int) -> None:
    out.write_text(json.dumps(import_module("benchmarks.pages.ray_evaluating").costs(turns)))


CASES = {"kills": killed, "measuring": measuring, "evaluating": evaluating, "rows": rows}


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill and measure, and write what came of it."""
    made = commands.parser("python -m benchmarks.ray_page", __doc__)
    made.add_argument("--cases", type=names, default=list(CASES), help=f"of {', '.join(CASES)}; default all")
    made.add_argument("--kills", type=count, default=20, help="of each command")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--turns", type=count, default=TURNS)
    made.add_argument("--commands", type=names, default=[], help="to kill; default all")
    made.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="where the page goes")
    return commands.run(made, _run, arguments)


def _run(options: argparse.Namespace) -> None:
    if not Path("/proc/self/stat").exists():
        raise CorruptFile("this page needs Linux: it looks for processes in /proc")
    path = options.out / PARTS
    if find_spec("ray"):
        import_module("ray")
    for name in options.cases:
        for found in CASES[name](options):
            ledger.append(path, {**found, "seed": options.seed, "commit": commit_here()})
            print(found)
    write_whole(options.out / "ray.md", page(ledger.read(path)))


if __name__ == "__main__":
    sys.exit(main())
