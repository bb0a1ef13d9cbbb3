"""A policy of your own: PPO of Stable-Baselines3, which sees the devices in one row of numbers. Needs the extra sb3.

python -m my_agent.ppo             # trains it: some minutes on one core
shard-gym leaderboard --suite core-60x4 --agents cost-greedy --agent my_agent.ppo:Policy
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from shard_gym import Plan, Task, env_for
from shard_gym.simulators import Simulator

SUITE, ENV = "core-60x4", "shard_gym:ShardGym-Core-60x4-Flat"
WEIGHTS = Path(__file__).with_name("ppo.zip")
STEPS = 200_000


@dataclass(frozen=True)
class Policy:
    """The likeliest device for one table after another."""

    track: ClassVar[str] = "search"  # it sees the planner's costs
    deterministic: ClassVar[bool] = True

    def __call__(self, task: Task, planner: Simulator) -> Plan:
        env = env_for(task, SUITE, observation="flat", simulator=planner)
        shown, _ = env.reset()
        over = False
        while not over:
            device, _ = trained().predict(shown, deterministic=True)
            shown, _, over, _, _ = env.step(int(device))
        return env.plan


@cache
def trained() -> Any:
    """The policy of the file, read once."""
    torch.set_num_threads(1)  # a network as small as this is slower on more
    return PPO.load(WEIGHTS, device="cpu")


def main() -> None:
    """Train on the suite's training tasks, and write the file."""
    torch.set_num_threads(1)
    envs = make_vec_env(ENV, 16, seed=0)
    steps = envs.envs[0].spec.max_episode_steps
    model = PPO("MlpPolicy", envs, n_steps=4 * steps, batch_size=8 * steps, gamma=1.0, seed=0, device="cpu")
    model.learn(STEPS)
    model.save(WEIGHTS)
    print(f"trained for {model.num_timesteps:,} steps; wrote {WEIGHTS.name}")


if __name__ == "__main__":
    main()
