"""PPO of Stable-Baselines3 on the "flat" observation, its MlpPolicy as it comes. Needs sb3.

    python examples/sb3_ppo.py

Two minutes on one core. A return is minus the makespan over that of the mean random plan: random plans have about -1.
"""

import argparse

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

import shard_gym  # noqa: F401  # registers the ids


def main(env_id="ShardGym-Core-60x4-Flat", steps=300_000, num_envs=16, episodes=50):
    """Train, and tell the mean return on test tasks before and after; they are also what this returns."""
    torch.set_num_threads(1)  # networks this small are slower on more
    envs, test = make_vec_env(env_id, num_envs, seed=0), make_vec_env(env_id, seed=0, env_kwargs={"split": "test"})
    longest = envs.envs[0].spec.max_episode_steps
    model = PPO("MlpPolicy", envs, n_steps=4 * longest, batch_size=8 * longest, gamma=1.0, seed=0, device="cpu")
    before, _ = evaluate_policy(model, test, episodes)
    model.learn(steps)
    after, _ = evaluate_policy(model, test, episodes)
    print(f"return on test tasks: {before:.3f} before, {after:.3f} after {model.num_timesteps} steps")
    return float(np.mean(before)), float(np.mean(after))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-id", default="ShardGym-Core-60x4-Flat")
    parser.add_argument("--steps", type=int, default=300_000)
    main(**vars(parser.parse_args()))
