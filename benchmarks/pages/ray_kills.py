"""Kills of workers, nodes and the driver of a command on a Ray cluster of two nodes on this host. Linux only.

As `kills` has it: the command is run to its end once, then again and again under kills, each at a random moment. A
killed worker's or node's command must go on by itself, a killed driver's is given again; each then has to lose nothing
that was kept, to keep nothing twice, and to end as the one that nobody disturbed.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import kills
from shard_gym.errors import SimulatorError
from shard_gym.work.cluster import QUIET

VICTIMS = ("worker", "node", "driver")
MARK = "SHARD_GYM_KILLS"  # in the environment of the cluster's processes
STORE = 100 * 2**20  # bytes of a node's object store
STUCK = 300.0  # seconds without an end, of a command that nobody disturbs any more
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Subject:
    """A command on the cluster at an address that writes to a folder, what it has kept, and what is there at last."""

    name: str
    command: Callable[[Path, str], int | None]
    kept: Callable[[Path], list[str]]
    end: Callable[[Path], Any]

    def at(self, address: str) -> kills.Subject:
        """The command as `kills` knows it."""
        return kills.Subject(self.name, lambda folder: self.command(folder, address), self.kept, self.end)


@dataclass
class Outcome(kills.Outcome):
    """Counts of what went wrong, and how often each victim was killed."""

    victims: dict[str, int] = field(default_factory=lambda: dict.fromkeys(VICTIMS, 0))


class Nodes:
    """A cluster of a head without workers and some nodes of one CPU each, which can be killed and replaced.

    Another process keeps it: this one forks the commands, and may have no threads of Ray's.
    """

    def __init__(self, count: int) -> None:
        context = get_context("spawn")
        self.count, (self.pipe, there) = count, context.Pipe()
        self.keeper = context.Process(target=_keep, args=(there, count))
        self.keeper.start()
        there.close()
        self.address = str(self.pipe.recv())

    def kill(self, rng: np.random.Generator) -> bool:
        """Kill one of the nodes, and have another one come."""
        self.pipe.send(int(rng.integers(self.count)))
        return bool(self.pipe.recv())

    def hands(self) -> list[int]:
        """Processes of workers."""
        found, ours = [], f"{MARK}={os.environ[MARK]}".encode()
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (path / "cmdline").read_bytes().startswith(b"ray::_Hand"):
                    found += [int(path.name)] * (ours in (path / "environ").read_bytes())
        return found

    def close(self) -> None:
        """End the cluster."""
        self.pipe.close()
        self.keeper.join()


def _keep(pipe: Any, count: int) -> None:
    """Keep a cluster until the other end of the pipe is closed; kill the nodes whose numbers come."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE}
    kept = Cluster(initialize_head=True, head_node_args=head)
    nodes = [kept.add_node(num_cpus=1, object_store_memory=STORE) for _ in range(count)]
    kept.wait_for_nodes()
    pipe.send(kept.address)
    try:
        while True:
            number = pipe.recv()
            kept.remove_node(nodes[number], allow_graceful=False)
            nodes[number] = kept.add_node(num_cpus=1, object_store_memory=STORE)
            pipe.send(True)
    except EOFError:
        kept.shutdown()


@contextmanager
def cluster(count: int = 2) -> Iterator[Nodes]:
    """A cluster of so many nodes."""
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "agents")))
    os.environ |= dict.fromkeys(QUIET, "0") | {"PYTHONPATH": paths, MARK: str(os.getpid())}
    nodes = Nodes(count)
    try:
        yield nodes
    finally:
        nodes.close()


def trial(subject: Subject, count: int, seed: int, folder: Path, tell: Callable[[str], None] = print) -> Outcome:
    """Run the command to its end, then under so many kills, and compare."""
    outcome, rng, killed = Outcome(), np.random.default_rng(seed), folder / "killed"
    with cluster() as nodes:
        command, start = subject.at(nodes.address), time.monotonic()
        if code := kills._ended(kills._started(command, folder / "whole")):
            raise SimulatorError(f"{subject.name} ends with {code} though nobody kills it")
        takes, wanted = time.monotonic() - start, subject.end(folder / "whole")
        while outcome.kills < count:
            if _disturbed(command, killed, nodes, rng, (takes, count), outcome):
                _finish(command, killed, wanted, outcome)
            tell(f"{subject.name}: {outcome}")
    return outcome


def _disturbed(
    command: kills.Subject,
    folder: Path,
    nodes: Nodes,
    rng: np.random.Generator,
    plan: tuple[float, int],
    outcome: Outcome,
) -> bool:
    """Run the command once and kill what belongs to it now and then; false if it was killed itself."""
    takes, count = plan
    before, process = kills._kept(command, folder), kills._started(command, folder)
    while outcome.kills < count:
        if (code := _waited(process, float(rng.uniform(0, takes)))) is not None:
            outcome.failed += code != 0
            break
        victim = str(rng.choice(VICTIMS))
        if not _killed(victim, process, nodes, rng):
            continue
        outcome.kills += 1
        outcome.victims[victim] += 1
        if victim == "driver":
            kills._ended(process)
            _count(command, folder, before, outcome)
            outcome.orphans += _orphans(nodes)
            return False
        before = _count(command, folder, before, outcome)
    else:
        code = _waited(process, STUCK)
        outcome.failed += code != 0
        if code is None:
            os.kill(process, signal.SIGKILL)
            kills._ended(process)
    _count(command, folder, before, outcome)
    return True


def _waited(process: int, seconds: float) -> int | None:
    """The exit code, if the command ends within so many seconds."""
    until = time.monotonic() + seconds
    while (code := kills._code(process)) is None and time.monotonic() < until:
        time.sleep(0.005)
    return code


def _killed(victim: str, process: int, nodes: Nodes, rng: np.random.Generator) -> bool:
    """Kill a worker, a node or the driver; false where there is none."""
    if victim == "node":
        return nodes.kill(rng)
    found = nodes.hands() if victim == "worker" else [process]
    if not found:
        return False
    with suppress(ProcessLookupError):
        os.kill(int(rng.choice(found)), signal.SIGKILL)
    return True


def _count(command: kills.Subject, folder: Path, before: Sequence[str], outcome: Outcome) -> list[str]:
    """Count what was lost and doubled since; what is kept now."""
    now = kills._kept(command, folder)
    outcome.lost += len(set(before) - set(now))
    outcome.twice += len(now) - len(set(now))
    return now


def _finish(command: kills.Subject, folder: Path, wanted: Any, outcome: Outcome) -> None:
    """Let the command say that nothing is left; the end must be that of the undisturbed run."""
    kills._finish(command, folder, wanted, outcome)
    shutil.rmtree(folder)


def _orphans(nodes: Nodes) -> int:
    """Workers that outlive the driver, which are ended here."""
    until = time.monotonic() + kills.GRACE
    while (left := nodes.hands()) and time.monotonic() < until:
        time.sleep(0.05)
    for process in left:
        os.kill(process, signal.SIGKILL)
    return len(left)
