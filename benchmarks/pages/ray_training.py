"""AutoShard's actors in processes and on Ray: `python -m benchmarks.ray_training`

Portions of episodes a second by one actor and by two, in local processes and on a Ray cluster of this host, in turns;
what one call costs; and how many answers a second the driver takes from a thousand actors, of which a few processes
play the part: each answers at once with episodes that it has played before. `ray_page` kills a training.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import kills
from benchmarks.pages import Found, Row, parser, ray_kills, run, table
from shard_gym.measuring.host import hardware
from shard_gym.records.commands import count, names, seconds
from shard_gym.records.files import read_json
from shard_gym.task import suites
from shard_gym.work.cluster import Cluster
from shard_gym.work.terms import Node, Slot, Terms
from shard_gym_agents.cli import main as cli
from shard_gym_agents.leaderboard.arena.processes import descendants
from shard_gym_agents.learners.autoshard import Config, Learner
from shard_gym_agents.learners.autoshard_actors import Answer, Request
from shard_gym_agents.learners.crew_ray import Begin, OnRay, Player, Store
from shard_gym_agents.learners.crews import Crew, Order, Place, Processes, arrays_of

SCHEMA = "ray-training/1"
SUITE = "metasyn-80x8"
PARTS = ("store", "learning", "rates", "trainings", "messages")
PORTIONS = 8  # of a request
AHEAD = 2  # requests under way
ACTORS = (1, 2)
KILLED = "autoshard --suite dlrm-10x2 --num-envs 8 --batch 4 --portion 2 --iterations 20 --validate-every 5"


# --- kills ---


def _train(folder: Path, address: str) -> int:
    words = ["train", *KILLED.split(), "--checkpoint-seconds", "0.01", "--out", str(folder), "--ray", address]
    return cli.main(words)


SUBJECT = ray_kills.Subject("train", _train, kills._trained, kills._policy)

# --- speed ---


def cpu_seconds() -> float:
    """CPU time of this process and of all that it has started, Ray's own processes among them."""
    ticks = 0
    for process in (os.getpid(), *(one.pid for one in descendants(os.getpid()))):
        with suppress(OSError):
            told = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, told[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def paced(place: Place, request: Request, duration: float, portions: int = PORTIONS) -> Row:
    """Portions a second, and CPU seconds of each, of all processes and of this one, once all actors have begun."""
    crew = Crew(place, portions)
    for _ in range(AHEAD + 1):
        crew.send(request)
    crew.receive()
    start, before, here, done = time.monotonic(), cpu_seconds(), time.process_time(), 0
    while time.monotonic() - start < duration:
        crew.send(request)
        crew.receive()
        done += portions
    took, here = time.monotonic() - start, time.process_time() - here
    row = {"portions_s": done / took, "cpu_s": (cpu_seconds() - before) / done, "driver_cpu_s": here / done}
    place.end()
    return row


def both(cluster: Cluster, learner: Learner, options: argparse.Namespace) -> list[Row]:
    """Rates of both places, in turns."""
    each, request, rows = learner.config.portion, _request(learner), []
    for turn in range(options.turns):
        for actors in ACTORS:
            made: dict[str, Callable[[], Place]] = {
                "processes": lambda actors=actors: Processes(learner.stage, each, actors),
                "ray": lambda actors=actors: OnRay(cluster, learner.stage, each, actors),
            }
            for name, place in made.items():
                row = paced(place(), request, options.seconds)
                rows.append({"place": name, "actors": actors, "turn": turn, "portion": each, **row})
                print(rows[-1], file=sys.stderr, flush=True)
    return rows


def trained(learner: Callable[[], Learner], iterations: int) -> float:
    """Iterations a second of a whole training, once its actors have begun."""
    made = learner()
    made.iterate()
    start = time.monotonic()
    for _ in range(iterations):
        made.iterate()
    took = time.monotonic() - start
    made.end()
    return iterations / took


# --- a thousand actors ---


class Canned:
    """A worker that plays a portion once and answers with that ever after."""

    def __init__(self, player: Player) -> None:
        self.player = player
        self.answer: Answer | None = None

    def do(self, order: Order) -> Answer:
        """The same episodes again; the weights are taken from the store as an actor takes them."""
        if self.answer is None:
            self.answer = self.player.do(order)
        self.player.store.get(order.weights)
        return self.answer


_worker: list[Canned] = []  # of this process, for all actors whose part it plays


@dataclass(frozen=True)
class BeginCanned:
    """Makes such a worker, once a process."""

    begin: Begin

    def __call__(self, slot: Slot) -> Canned:
        if not _worker:
            _worker.append(Canned(self.begin(slot)))
        return _worker[0]


@dataclass
class Many:
    """A cluster of one node with many actors, played by few processes of a real one."""

    cluster: Cluster
    actors: int
    processes: list[Any] = field(default_factory=list)
    number: int = 0

    def nodes(self) -> list[Node]:
        """One large node."""
        return [replace(self.cluster.nodes()[0], resources={"CPU": float(self.actors)})]

    def hired(self, node: Node, terms: Terms) -> Any:
        """The process whose turn it is."""
        self.number += 1
        return self.processes[self.number % len(self.processes)]

    def fire(self, worker: Any) -> None:
        """Nothing: processes are ended together."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cluster, name)


def messages(cluster: Cluster, learner: Learner, actors: int, processes: int, duration: float) -> Row:
    """Answers a second that the driver takes from so many actors."""
    node, terms = cluster.nodes()[0], Terms(cpus=0.1)
    many = Many(cluster, actors, [cluster.hired(node, terms) for _ in range(processes)])
    place = OnRay(many, learner.stage, learner.config.portion, actors)  # type: ignore[arg-type]
    object.__setattr__(place, "make", BeginCanned(place.make))
    row = paced(place, _request(learner), duration, portions=actors)
    for process in many.processes:
        cluster.fire(process)
    return {"actors": actors, "processes": processes, **row}


def calls(learner: Learner, store: Store, repeats: int = 50) -> Row:
    """Milliseconds of the store with an iteration's weights, and bytes of weights and of an answer."""
    crew, weights = learner.crew, learner.past[0]
    crew.send(_request(learner))
    answer = crew.receive()
    arrays = arrays_of(weights)
    took = {"put": [], "get": []}  # type: dict[str, list[float]]
    for _ in range(repeats):
        start = time.perf_counter()
        held = store.put(arrays)
        took["put"].append(time.perf_counter() - start)
        start = time.perf_counter()
        store.get(held)
        took["get"].append(time.perf_counter() - start)
    episodes = sum(column.numel() * column.element_size() for column in vars(answer.episodes).values())
    found = {f"{name}_ms": float(np.median(values)) * 1e3 for name, values in took.items()}
    share = learner.config.portion / learner.config.num_envs
    return {**found, "weights_bytes": sum(a.nbytes for a in arrays.values()), "answer_bytes": int(episodes * share)}


def learning(learner: Learner, repeats: int = 5) -> Row:
    """CPU seconds that the driver learns from an iteration's episodes, in batches; the median."""
    learner.crew.send(_request(learner))
    episodes, took = learner.crew.receive().episodes, []
    for _ in range(repeats):
        start = time.process_time()
        for part in torch.arange(learner.config.num_envs).split(learner.config.batch):
            learner._update(episodes.some(part))
        took.append(time.process_time() - start)
    return {"episodes": learner.config.num_envs, "cpu_s": float(np.median(took))}


def _request(learner: Learner) -> Request:
    weights = learner.past[0]
    return Request(0, int(weights["version"]), weights)


def measure(options: argparse.Namespace) -> Found:
    """The parts asked for, on this host, beside what is kept of others."""
    torch.set_num_threads(1)
    config, suite = Config(portion=options.portion), suites.get(SUITE)
    learner = Learner(suite, config, seed=0)
    kept = options.out / "ray_training.json"
    found: Found = read_json(kept) if kept.exists() and options.parts != list(PARTS) else {}
    for name in ("schema", "commit", "command"):
        found.pop(name, None)
    with Cluster.joined() as cluster:
        made: dict[str, Callable[[], Learner]] = {
            "this process": lambda: Learner(suite, config, 0),
            "one process beside": lambda: Learner(suite, replace(config, actors=1), 0),
            "one actor on Ray": lambda: Learner(suite, replace(config, actors=1), 0, cluster=cluster),
        }
        parts: dict[str, Callable[[], Any]] = {
            "store": lambda: calls(learner, Store()),
            "learning": lambda: learning(Learner(suite, config, 0)),
            "rates": lambda: both(cluster, learner, options),
            "trainings": lambda: {name: trained(each, options.iterations) for name, each in made.items()},
            "messages": lambda: [messages(cluster, learner, n, 2, options.seconds) for n in (10, 100, 1_000)],
        }
        found |= {name: parts[name]() for name in options.parts}
    commands = {**found.get("commands", {}), **dict.fromkeys(options.parts, options.command)}
    return {**found, "commands": commands, "machine": hardware("cpu")["device"], "cores": len(os.sched_getaffinity(0))}


def _rates(rates: Sequence[Row]) -> list[list[str]]:
    """Rows of portions a second and their CPU seconds, of both places, and Ray's over the other's."""

    def median(what: str, place: str, actors: int) -> float:
        mine = [row[what] for row in rates if (row["place"], row["actors"]) == (place, actors)]
        return float(np.median(mine))

    wall, cpu = (
        {place: [median(what, place, n) for n in ACTORS] for place in ("processes", "ray")}
        for what in ("portions_s", "cpu_s")
    )
    rows = [
        [place, *(f"{v:.2f}" for v in wall[place]), f"{wall[place][1] / wall[place][0]:.2f}"]
        + [f"{v:.3f}" for v in cpu[place]]
        for place in wall
    ]
    over = [[f"{r / p:.3f}" for r, p in zip(of["ray"], of["processes"], strict=True)] for of in (wall, cpu)]
    return [*rows, ["ray over processes", *over[0], "", *over[1]]]


def page(found: Found) -> str:
    """Markdown of it."""
    size = found["rates"][0]["portion"]
    store = found["store"]
    learnt, made = found["learning"], {}  # type: Row, dict[str, list[str]]
    for part, command in found["commands"].items():
        made.setdefault(command, []).append(part)
    lines = [
        "# AutoShard's actors on Ray",
        "",
        f"{found['machine']}, {found['cores']} cores; {SUITE}, portions of {size} episodes. Parts "
        "are made by these commands:",
        "",
        *(f"- {', '.join(parts)}: `{command}`" for command, parts in made.items()),
        "",
        f"## Portions a second, and CPU seconds of each; medians of {len(found['rates']) // 4} turns",
        "",
        *table(("place", "one actor", "two", "two over one", "CPU s, one", "CPU s, two"), _rates(found["rates"])),
        "",
        "CPU time is that of all processes: the driver's, the actors', and Ray's own.",
        "",
        "## Iterations of 64 episodes a second, learning included",
        "",
        *table(("who plays", "iterations a second"), [[k, f"{v:.3f}"] for k, v in found["trainings"].items()]),
        "",
        "## Answers a second that the driver takes",
        "",
        "Actors whose part a few processes play; each answers at once, with episodes of full size.",
        "",
        *table(
            ("actors", "processes", "answers a second", "CPU ms of the driver, each"),
            [
                [str(r["actors"]), str(r["processes"]), f"{r['portions_s']:.0f}", f"{1e3 * r['driver_cpu_s']:.2f}"]
                for r in found["messages"]
            ],
        ),
        "",
        f"Weights of {store['weights_bytes']:,} bytes go to the object store in {store['put_ms']:.2f} ms and come "
        f"from it in {store['get_ms']:.2f} ms (medians); an answer has {store['answer_bytes']:,} bytes. "
        f"Learning from {learnt['episodes']} episodes takes {learnt['cpu_s']:.2f} s of CPU.",
        "",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and make the page."""
    made = parser("ray_training", __doc__)
    made.add_argument("--seconds", type=seconds, default=20.0, help="of each rate")
    made.add_argument("--turns", type=count, default=3)
    made.add_argument("--iterations", type=count, default=5, help="of each training")
    made.add_argument("--parts", type=names, default=list(PARTS), help=f"of {', '.join(PARTS)}; others are kept")
    made.add_argument("--portion", type=count, default=16, help="episodes")
    return run(made, measure, page, arguments, schema=SCHEMA)


if __name__ == "__main__":
    sys.exit(main())
