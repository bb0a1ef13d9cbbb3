"""Make the published rows entries: `python -m benchmarks.entries [RUN]`, of a run at a clean commit.

RUN is the folder of a leaderboard, by default benchmarks/results. Each agent there becomes an entry in
benchmarks/results/entries, with a card of what its weights took, and is checked as `shard-gym validate --strict` does.
`make entries` checks all of them again.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import RESULTS
from shard_gym import __version__
from shard_gym.errors import InvalidTask
from shard_gym.records import commands
from shard_gym.results import results_in
from shard_gym_agents.leaderboard.entries.card import Card
from shard_gym_agents.leaderboard.entries.command import packed, told
from shard_gym_agents.leaderboard.entries.entry import MOST_BYTES, Claims
from shard_gym_agents.learners import LEARNERS
from shard_gym_agents.learners.trained import read_card, shipped

FOLDER = RESULTS / "entries"
BUDGET = 10_000_000  # bytes of all entries together


def claims_in(run: Path) -> dict[str, Claims]:
    """Claims of each agent of a run."""
    found: dict[str, Claims] = {}
    for path in sorted(run.glob("*.jsonl")):
        for result in results_in(path):
            found.setdefault(result.agent, Claims()).add(result)
    return found


def card_of(agent: str, claims: Claims, hardware: str) -> Card:
    """The card of an agent of ours."""
    suites, seeds = sorted(claims.suites), sorted(set().union(*claims.seeds.values()))
    files, asked = _weights(agent, claims), f"--suite {','.join(suites)} --agents {agent} --seeds {len(seeds)}"
    if claims.budgets:
        asked += f" --budgets {','.join(f'{budget:g}s' for budget in sorted(claims.budgets))}"
    return Card(
        agent=agent,
        authors=("ShardGym",),
        command=f"python -m benchmarks.leaderboard {asked}",
        version=__version__,
        licence="Apache-2.0",
        link="",
        track=" ".join(sorted(claims.tracks)),
        suites=tuple(suites),
        seeds=tuple(seeds),
        hardware=hardware,
        training=_training(files),
        checkpoints=tuple(files),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Make an entry of each agent."""
    parser = commands.parser("python -m benchmarks.entries", __doc__)
    parser.add_argument("run", nargs="?", type=Path, default=RESULTS, metavar="RUN")
    parser.add_argument("--out", type=Path, default=FOLDER, metavar="DIR")
    parser.add_argument("--hardware", default=f"{os.cpu_count()} cores ({platform.machine()})")

    def command(options: argparse.Namespace) -> None:
        found = claims_in(options.run)
        if not found:
            raise InvalidTask(f"{options.run} holds no results (*.jsonl): run `make leaderboard` first")
        for agent, claims in found.items():
            card = card_of(agent, claims, options.hardware)
            commands.show(told(packed(options.run, card, options.out / agent, strict=True)))
        size = sum((options.out / agent / name).stat().st_size for agent in found for name in MOST_BYTES)
        commands.show(f"{len(found)} entries, {size:,} bytes")
        if size > BUDGET:
            raise InvalidTask(f"{size:,} bytes of entries are more than the {BUDGET:,} that are kept in the repository")

    return commands.run(parser, command, arguments)


def _weights(agent: str, claims: Claims) -> dict[str, dict[str, Any]]:
    """Hash of each file of weights that the runs used, with its card."""
    files = shipped(agent).values() if agent in LEARNERS else ()
    hashes = {hashlib.sha256(path.read_bytes()).hexdigest(): read_card(path) for path in files}
    return {found: card for found, card in hashes.items() if any(found.startswith(used) for used in claims.weights)}


def _training(files: dict[str, dict[str, Any]]) -> str:
    """The time that the weights took, one core each."""
    each = [f"{card['minutes']} minutes for {card['suite']}" for card in files.values()]
    notes = sorted({str(card["note"]) for card in files.values()} - {""})
    return "; ".join([*each, *notes]) + ", each on one core" if each else "none"


if __name__ == "__main__":
    sys.exit(main())
