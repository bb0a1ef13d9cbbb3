"""Check every stored result again: shard-gym replay results.jsonl"""

from __future__ import annotations

import argparse

from shard_gym.records import commands
from shard_gym.results.replay import Replay
from shard_gym_agents.leaderboard.entries.validate import own_track

ABOUT = """Score the plans of stored results again, and refuse a file of which something else comes out.

What cannot be checked is said at the end."""


def replay(options: argparse.Namespace) -> None:
    """Check every stored result again."""
    replayed = Replay(options.results, track_of=own_track)
    with commands.waiting(options, "replay") as line:
        for _ in replayed:
            line.news = f"{replayed.lines} results as stored"
    lines, plans, feasible, notes = replayed.lines, replayed.plans, replayed.feasible, replayed.notes()
    told = {"file": options.results, "results": lines, "plans": plans, "feasible": feasible, "notes": notes}
    text = f"{lines} results, {plans} plans scored again, all as stored, {feasible} of them feasible"
    commands.answer(options, "replayed/1", lambda: told, lambda: "\n".join([text, *notes]))


def parser() -> commands.Parser:
    """Options of `replay`."""
    examples = ("shard-gym replay benchmarks/results/core-80x8.jsonl", "shard-gym replay results.jsonl --json")
    made = commands.parser("shard-gym replay", ABOUT, examples=examples, answer="what came out")
    made.add_argument(
        "results", metavar="RESULTS.jsonl", help="a file that `shard-gym leaderboard` or write_results wrote"
    )
    made.set_defaults(run=replay)
    return made
