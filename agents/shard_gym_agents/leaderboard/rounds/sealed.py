"""The secret of a round, and the tasks that are made of it.

A round is announced with its commitment, the hash of its rules, of a random seed and of a salt. Whoever knows the
commitment can tell afterwards that seed and rules are those of the beginning, and cannot guess the seed before.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from shard_gym.errors import CorruptFile, InvalidTask
from shard_gym.generator import tasks as drawn_tasks
from shard_gym.records.files import json_sha256, read_json, write_whole
from shard_gym.results import BENCHMARK_VERSION, versions_here
from shard_gym.tables.metasyn import metasyn
from shard_gym.tables.pool import TablePool
from shard_gym.task import suites
from shard_gym.task.suite import SPLITS, Suite
from shard_gym.task.task import Task
from shard_gym_agents.leaderboard.references import today
from shard_gym_agents.leaderboard.rounds.folder import SCHEMA, Round, parsed, public_fields

SPLIT = "test"
SAMPLE = 2  # tasks that tell whether a suite is still drawn as it was


@dataclass(frozen=True)
class Secret:
    """Random text that tasks are made of, and a salt, so that nobody can try seeds against the commitment."""

    seed: str
    salt: str

    @classmethod
    def fresh(cls) -> Secret:
        """A secret that nobody has had."""
        return cls(secrets.token_hex(32), secrets.token_hex(32))

    def commitment(self, found: Round) -> str:
        """The hash of rules and secret."""
        return json_sha256({"rules": public_fields(found), "seed": self.seed, "salt": self.salt})

    def number(self, purpose: str) -> int:
        """A number of 256 bits for one purpose."""
        return int.from_bytes(hashlib.sha256(f"{purpose}:{self.seed}".encode()).digest(), "big")

    def save(self, path: Path) -> None:
        """Write a file that only its owner can read."""
        write_whole(path, json.dumps({"schema": SCHEMA, **asdict(self)}) + "\n", mode=0o600)

    @classmethod
    def load(cls, path: Path) -> Secret:
        """Read what `save` wrote."""
        return parsed(read_json(path), cls, str(path))


def announced(suite: Suite, tasks: int, seeds: int, budget: float, time_limit: float, reference_budget: float) -> Round:
    """The rules of a round, before there is a secret."""
    return Round(
        suite=suite.key,
        tasks=tasks,
        planner=suite.planner,
        judge=suite.judge,
        seeds=seeds,
        budget=budget,
        time_limit=time_limit,
        reference_budget=reference_budget,
        definition=definition(suite),
        benchmark_version=BENCHMARK_VERSION,
        created=today(),
        versions=dict(versions_here()),
    )


def checked(found: Round, secret: Secret, where: str) -> Secret:
    """The secret, if it is that of the round, and the suite still what it was."""
    if secret.commitment(found) != found.commitment:
        raise CorruptFile(f"{where}: seed, salt and rules do not give the commitment {found.commitment[:16]}...")
    suite = suites.get(found.suite)
    if (definition(suite), suite.planner, suite.judge) != (found.definition, found.planner, found.judge):
        made = ", ".join(f"{name} {version}" for name, version in found.versions.items())
        raise InvalidTask(f"{suite.key} is not drawn as it was when the round was announced: use {made}")
    return secret


def definition(suite: Suite) -> str:
    """Hash of two tasks that everybody can draw: it changes when the suite does, or what draws it."""
    pool = metasyn(0, pool_size(suite))
    sample = drawn_tasks(suite, SPLIT, pool, SAMPLE, np.random.default_rng(0))
    return json_sha256([task.hash for task in sample])


def tasks_of(found: Round, secret: Secret) -> tuple[Task, ...]:
    """The tasks of a round: tables of a fresh pool; names tell nothing of where they come from."""
    suite = suites.get(found.suite)
    pool = _renamed(metasyn(secret.number("pool") % 2**63, pool_size(suite)))
    drawn = drawn_tasks(suite, SPLIT, pool, found.tasks, np.random.default_rng(secret.number("tasks")))
    name = f"round-{found.commitment[:8]}"
    return tuple(replace(task, name=f"{name}/{i}") for i, task in enumerate(drawn))


def pool_size(suite: Suite) -> int:
    """Tables of the pool that the suite's test tasks come from."""
    return suite.pools[SPLITS.index(SPLIT)][1]


def _renamed(pool: TablePool) -> TablePool:
    return pool.with_(name=tuple(f"table_{i}" for i in range(len(pool))))
