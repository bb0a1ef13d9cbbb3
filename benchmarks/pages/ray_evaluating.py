"""A leaderboard on Ray, for `benchmarks.ray_page`: what kills do to it, and what it costs.

Searches are bounded by calls, so that the runs are those of a machine alone, to the plan. Costs are CPU seconds of this
process, of workers and of agents that one more run takes, of an agent that needs next to no time itself: what Ray adds
to them it adds to a run of any length. Not in them are other work on the machine, and Ray's own daemons, which take
their share of every second, however much is run.
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
QUICK, TASKS = "--suite dlrm-10x4 --agents random --isolation limits --workers 1", 50
SEEDS = 10  # and three times as many
DAEMONS = (b"gcs_server", b"raylet/raylet", b"[raylet]", b"dashboard", b"Agent", b"monitor")  # in their names


def _leaderboard(folder: Path, address: str) -> int:
    words = ["leaderboard", *WORDS.split(), "--out", str(folder), "--ray", address]
    return cli.main([*words, "--best-known", str(folder / "best"), "--update-best"])


SUBJECT = Subject("leaderboard", _leaderboard, kills._ranked, kills._standing)


def costs(turns: int) -> dict[str, list[float]]:
    """CPU seconds a run takes, here and on a node of a cluster on this host, in turn."""
    found: dict[str, list[float]] = {"here": [], "ray": []}
    with cluster(1) as nodes, kills._adopting():
        for _ in range(turns):
            for where, place in (("here", []), ("ray", ["--ray", nodes.address])):
                few, many = (_spent(seeds, place) for seeds in (SEEDS, 3 * SEEDS))
                found[where].append((many - few) / (2 * SEEDS * TASKS))
                print(f"{where}: {found[where][-1]:.5f} CPU seconds a run")
    return found


def _spent(seeds: int, place: list[str]) -> float:
    """CPU seconds of a leaderboard of so many seeds."""
    before = _cpu()
    with tempfile.TemporaryDirectory() as folder:
        words = ["leaderboard", *QUICK.split(), "--tasks", str(TASKS), "--seeds", str(seeds), "--out", folder, *place]
        if code := cli.main([*words, "--best-known", f"{folder}/best"]):
            raise SimulatorError(f"a leaderboard ends with {code}")
    return _cpu() - before


def _cpu() -> float:
    """CPU seconds of this process, of all that descend from it, and of those that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    ours = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    living = sum(one.waited_seconds + (0 if _daemon(one.pid) else one.cpu_seconds) for one in descendants(os.getpid()))
    return living + sum(used.ru_utime + used.ru_stime for used in ours)


def _daemon(process: int) -> bool:
    """True for a process of Ray that is no worker."""
    with suppress(OSError):
        name = Path(f"/proc/{process}/cmdline").read_bytes().split(b"--")[0]
        return any(word in name for word in DAEMONS)
    return False
