"""A leaderboard on Ray, for `benchmarks.ray_page`: what kills do to it, and what it costs.

Searches are bounded by calls, so that the runs are those of a machine alone, to the plan. Costs are CPU seconds of all
processes, Ray's too, that a run of a search takes more, of twice as many; other work on the machine is not in them.
"""

from __future__ import annotations

import os
import resource
import tempfile
from contextlib import suppress
from pathlib import Path

from benchmarks import kills
from benchmarks.pages.ray_kills import Subject, cluster
from shard_gym.errors import SimulatorError
from shard_gym_agents.cli import main as cli
from shard_gym_agents.leaderboard.arena.processes import descendants

WORDS = "--suite dlrm-10x4 --agents lookup-greedy,random,local-search --calls 50 --tasks 12 --isolation limits"
SEARCHED = "--suite dlrm-50x4 --agents local-search --seeds 1 --calls 20000 --isolation limits --workers 1"
RUNS = 20  # searches, and twice as many


def _leaderboard(folder: Path, address: str) -> int:
    words = ["leaderboard", *WORDS.split(), "--out", str(folder), "--ray", address]
    return cli.main([*words, "--best-known", str(folder / "best"), "--update-best"])


SUBJECT = Subject("leaderboard", _leaderboard, kills._ranked, kills._standing)


def costs(turns: int) -> dict[str, list[float]]:
    """CPU seconds a run of a search, here and on a node of a cluster on this host, in turn."""
    found: dict[str, list[float]] = {"here": [], "ray": []}
    with cluster(1) as nodes, kills._adopting():
        for _ in range(turns):
            for where, place in (("here", []), ("ray", ["--ray", nodes.address])):
                once, twice = (_spent(count, place) for count in (RUNS, 2 * RUNS))
                found[where].append((twice - once) / RUNS)
                print(f"{where}: {found[where][-1]:.4f} CPU seconds a run")
    return found


def _spent(tasks: int, place: list[str]) -> float:
    """CPU seconds of a leaderboard of so many tasks."""
    before = _cpu()
    with tempfile.TemporaryDirectory() as folder:
        words = ["leaderboard", *SEARCHED.split(), "--tasks", str(tasks), "--out", folder, *place]
        if code := cli.main([*words, "--best-known", f"{folder}/best"]):
            raise SimulatorError(f"a leaderboard ends with {code}")
    return _cpu() - before


def _cpu() -> float:
    """CPU seconds of this process, of all that descend from it, and of those that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    ours = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    living = sum(one.cpu_seconds + one.waited_seconds for one in descendants(os.getpid()))
    return living + sum(used.ru_utime + used.ru_stime for used in ours)
