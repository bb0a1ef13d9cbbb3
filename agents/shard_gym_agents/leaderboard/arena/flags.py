"""Flags of commands that run agents in the arena, and the rules that they make."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from shard_gym.errors import ShardGymError
from shard_gym.records.commands import count, seconds
from shard_gym_agents.leaderboard.arena.rules import FULL, GB, LIMITS, Rules

BUILD_LIMIT = 120.0  # seconds to import and build an agent; torch takes its time
LEAST_MEMORY = 4 * GB  # an agent's, where it is not told; torch takes most of it


def add_arena(parser: argparse.ArgumentParser, isolation: str, workers: int) -> None:
    """Add the flags, with the level and the number of agents at a time that are taken where none is told."""
    add = parser.add_argument
    limit = "to import and build an agent; default 120s"
    add("--build-limit", type=seconds, default=BUILD_LIMIT, metavar="TIME", help=limit)
    add("--isolation", choices=("auto", FULL, LIMITS), default=isolation, help=f"of agents; default {isolation}")
    add("--memory-gb", type=float, metavar="GiB", help="of an agent; default the machine's, shared by the workers")
    add("--read", action="append", default=[], metavar="PATH", help="what agents may read beside their own; repeatable")
    imported = "that registers suites or simulators, here and where agents run; repeatable"
    add("--import", action="append", default=[], dest="imports", metavar="MODULE", help=imported)
    add("--env", action="append", default=[], metavar="NAME", help="an environment variable to keep; repeatable")
    add(
        "--workers",
        type=count,
        default=workers,
        metavar="N",
        help=f"agents that run at a time, on each machine; default {workers}",
    )
    add("--verbose", action="store_true", help="show what agents print, and their tracebacks")


def rules_of(options: argparse.Namespace, secret: Iterable[Path]) -> Rules:
    """Limits of agents, and the files that they may and may not see."""
    return Rules(
        isolation=options.isolation,
        build_seconds=options.build_limit,
        memory=share_of_memory(options.workers) if options.memory_gb is None else options.memory_gb * GB,
        environment=tuple(options.env),
        readable=tuple(options.read),
        secret=tuple(map(str, secret)),
        verbose=options.verbose,
        modules=tuple(options.imports),
    )


def share_of_memory(workers: int) -> float:
    """Bytes of an agent, of so many that divide this machine's among them."""
    return max(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / workers, LEAST_MEMORY)


def import_modules(modules: Iterable[str]) -> None:
    """Import modules that register suites and simulators."""
    for module in modules:
        try:
            import_module(module)
        except ImportError as error:
            raise ShardGymError(f"--import {module}: {error}") from error
