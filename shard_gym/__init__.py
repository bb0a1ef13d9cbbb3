"""ShardGym: environments, simulators and tasks for sharding the embedding tables of recommendation models."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from shard_gym import simulators
from shard_gym.errors import ShardGymError
from shard_gym.plan.plan import Plan
from shard_gym.tables.pool import TablePool, make_pool
from shard_gym.task import suites
from shard_gym.task.task import Constraints, Task

if TYPE_CHECKING:  # readers of files, and environments, are imported when they are asked for
    from shard_gym.envs.like import env_for
    from shard_gym.task.own import make_task

__version__ = "0.1.0"
__all__ = [
    "Constraints",
    "Plan",
    "ShardGymError",
    "TablePool",
    "Task",
    "env_for",
    "make_pool",
    "make_task",
    "simulators",
    "suites",
]


def __getattr__(name: str) -> Any:
    if name == "make_task":
        from shard_gym.task.own import make_task

        return make_task
    if name == "env_for":
        from shard_gym.envs.like import env_for

        return env_for
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if find_spec("gymnasium"):  # a bare host that only measures has none
    import gymnasium

    from shard_gym.flexshard import NAMES

    for _suite in suites.SUITES.values():
        suites.register(_suite)
    for _bank in NAMES:  # rows of sequence tables, see shard_gym.flexshard
        gymnasium.register(
            f"ShardGym-Flex-{_bank}",
            entry_point="shard_gym.flexshard.env:FlexEnv",
            vector_entry_point="shard_gym.flexshard.vector_env:make_flex_vector_env",
            reward_threshold=suites.thresholds()[f"flex-{_bank.lower()}"],
            max_episode_steps=65,
            kwargs={"tasks": _bank},
        )
    gymnasium.register(  # tasks drawn from a user's own tables
        "ShardGym-Own",
        entry_point="shard_gym.envs.own:make_own_env",
        vector_entry_point="shard_gym.envs.own:make_own_vector_env",
    )
