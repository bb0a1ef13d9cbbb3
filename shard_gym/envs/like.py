"""Environments that play a user's tasks as a suite's environment plays its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shard_gym.envs.bank import Bank
from shard_gym.envs.env import ShardingEnv
from shard_gym.task import suites
from shard_gym.task.suites import Suite
from shard_gym.task.task import Task


def env_for(tasks: Task | Sequence[Task], suite: str | Suite, **settings: Any) -> ShardingEnv:
    """Environment that shows any task as a suite's environment does: `env_for(task, "core-80x8")`.

    It has the suite's scaling of features, order, planner, reward and actions; `settings` are arguments of
    `ShardingEnv` that take the place of these.
    """
    known = suites.get(suite) if isinstance(suite, str) else suite
    given = (tasks,) if isinstance(tasks, Task) else tasks
    bank = Bank(given, known.feature_scaling(), split_action=known.split_action)
    return ShardingEnv(bank, **{"order": known.order, "simulator": known.planner, "reward": known.reward, **settings})
