"""A leaderboard on Ray, for `benchmarks.ray_page`: what kills do to it, and what it costs.

Searches are bounded by calls, so that the runs are those of a machine alone, to the plan.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks import kills
from benchmarks.pages.ray_kills import Subject
from shard_gym_agents.cli import main as cli

WORDS = "--suite dlrm-10x4 --agents lookup-greedy,random,local-search --calls 500 --tasks 24 --isolation limits"


def _leaderboard(folder: Path, address: str) -> int:
    words = ["leaderboard", *WORDS.split(), "--out", str(folder), "--ray", address]
    return cli.main([*words, "--best-known", str(folder / "best"), "--update-best"])


SUBJECT = Subject("leaderboard", _leaderboard, kills._ranked, kills._standing)
