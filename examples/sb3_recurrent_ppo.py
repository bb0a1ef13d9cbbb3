"""Recurrent PPO of sb3-contrib on the "table" observation, which shows no devices: the policy must remember. Needs sb3.

    python examples/sb3_recurrent_ppo.py

A minute on one core. Returns are minus the makespan over that of the mean random plan.
"""

import argparse

import numpy as np
import torch
from sb3_contrib import RecurrentPPO

from shard_gym.envs.env import ShardingEnv
from shard_gym_agents.learners.sb3_vec import ShardingVecEnv


def evaluate(model, suite, episodes):
    """Mean return of the policy's likeliest devices on test tasks."""
    envs = ShardingVecEnv(ShardingEnv(suite, split="test"), num_envs=episodes)
    envs.seed(0)
    seen, memory, starts = envs.reset(), None, np.ones(episodes, bool)
    returns = np.full(episodes, np.nan)  # of the first episode of each
    while np.isnan(returns).any():
        action, memory = model.predict(seen, state=memory, episode_start=starts, deterministic=True)
        seen, rewards, starts, _ = envs.step(action)
        returns = np.where(np.isnan(returns) & starts, rewards, returns)  # all of it comes with the last table
    return float(returns.mean())


def main(suite="dlrm-20x4", steps=120_000, num_envs=64, episodes=50):
    """Train, and tell the return on test tasks before and after."""
    torch.set_num_threads(1)  # networks this small are slower on more
    env = ShardingEnv(suite, reward="dense")
    envs = ShardingVecEnv(env, num_envs)
    envs.seed(0)
    tables = max(task.num_tables for task in env.bank.tasks)
    model = RecurrentPPO(
        "MlpLstmPolicy",
        envs,
        n_steps=tables,
        batch_size=tables * num_envs // 4,
        n_epochs=6,
        gamma=1.0,
        learning_rate=2e-3,
        policy_kwargs={"lstm_hidden_size": 64, "net_arch": [64]},
        seed=0,
        device="cpu",
    )
    before = evaluate(model, suite, episodes)
    model.learn(steps)
    after = evaluate(model, suite, episodes)
    print(f"return on test tasks: {before:.3f} before, {after:.3f} after {model.num_timesteps} steps")
    return before, after


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", default="dlrm-20x4")
    parser.add_argument("--steps", type=int, default=120_000)
    main(**vars(parser.parse_args()))
