"""A leaderboard on Ray, for `benchmarks.ray_page`: what kills do to it, and what it costs.

Searches are bounded by calls, so that the runs are those of a machine alone, to the plan. Costs are CPU seconds of this
process, of workers and of agents that one more run takes, of an agent that needs next to no time itself: what Ray adds
to them it adds to a run of any length. Not in them are other work on the machine, and Ray's own daemons, which take
their share of every second, however much is run.
"""

from __future__ import annotations

import resource
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks import kills
from benchmarks.pages.ray_kills import Nodes, Subject, cluster
from shard_gym.errors import SimulatorError
from shard_gym.work.cluster import Cluster
from shard_gym_agents.cli import main as cli
from shard_gym_agents.leaderboard.arena.processes import descendants, everyone

WORDS = "--suite dlrm-10x4 --agents lookup-greedy,random,local-search --calls 50 --tasks 12 --isolation limits"
QUICK, TASKS = "--suite dlrm-10x4 --agents random --isolation limits --workers 1", 50
SEEDS = 10  # and three times as many


def _leaderboard(folder: Path, address: str) -> int:
    words = ["leaderboard", *WORDS.split(), "--out", str(folder), "--ray", address]
    return cli.main([*words, "--best-known", str(folder / "best"), "--update-best"])


SUBJECT = Subject("leaderboard", _leaderboard, kills._ranked, kills._standing)


def costs(turns: int) -> dict[str, list[float]]:
    """CPU seconds a run takes, here and on a node of a cluster on this host, in turn."""
    found: dict[str, list[float]] = {"here": [], "ray": []}
    with cluster(1) as nodes:
        for _ in range(turns):
            for where, place in (("here", []), ("ray", ["--ray", nodes.address])):
                few, many = (_spent(seeds, place, nodes) for seeds in (SEEDS, 3 * SEEDS))
                found[where].append((many - few) / (2 * SEEDS * TASKS))
                print(f"{where}: {found[where][-1]:.5f} CPU seconds a run", flush=True)
    return found


def _spent(seeds: int, place: list[str], nodes: Nodes) -> float:
    """CPU seconds of a leaderboard of so many seeds: of this process, those that it waited for, and workers."""
    workers, before, fire = 0.0, _cpu(), Cluster.fire

    def counted(self: Cluster, worker: Any) -> None:
        nonlocal workers
        workers += sum(map(_cpu_below, nodes.hands()))
        fire(self, worker)

    with tempfile.TemporaryDirectory() as folder, patch.object(Cluster, "fire", counted):
        words = ["leaderboard", *QUICK.split(), "--tasks", str(TASKS), "--seeds", str(seeds), "--out", folder, *place]
        if code := cli.main([*words, "--best-known", f"{folder}/best"]):
            raise SimulatorError(f"a leaderboard ends with {code}")
    return workers + _cpu() - before


def _cpu() -> float:
    ours = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in ours)


def _cpu_below(process: int) -> float:
    """CPU seconds of a worker and of all that it started."""
    tree = [one for one in everyone() if one.pid == process] + descendants(process)
    return sum(one.cpu_seconds + one.waited_seconds for one in tree)
