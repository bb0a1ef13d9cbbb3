"""Solvers that learn; their modules need torch, this one does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# name -> module with a `Config`, a `Learner` and a `load`, and what differs from the config's defaults
LEARNERS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "autoshard": ("shard_gym_agents.learners.autoshard", {}),
    "dreamshard": ("shard_gym_agents.learners.dreamshard", {}),
    "dreamshard-planner": ("shard_gym_agents.learners.dreamshard_planner", {}),
    "rnn": ("shard_gym_agents.learners.rnn", {}),
    "ppo": ("shard_gym_agents.learners.ppo", {"algorithm": "ppo"}),
    "maskable-ppo": ("shard_gym_agents.learners.ppo", {"algorithm": "maskable"}),
    "recurrent-ppo": ("shard_gym_agents.learners.ppo", {"algorithm": "recurrent"}),
    "memoryless-ppo": ("shard_gym_agents.learners.ppo", {"algorithm": "memoryless"}),
    "cloning": ("shard_gym_agents.learners.cloning", {}),
}
