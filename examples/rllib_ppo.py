"""One iteration of RLlib's PPO on the "flat" observation. Needs `pip install "ray[rllib]"` and torch.

python examples/rllib_ppo.py
"""

import argparse

import gymnasium as gym
import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.tune.registry import register_env


def make_env(settings):
    """An environment; made in RLlib's processes too, so it imports what it needs."""
    import shard_gym  # noqa: F401  # registers the ids

    return gym.make(settings["id"], reward="dense")


def main(env_id="ShardGym-DLRM-20x4-Flat", steps=2_000, iterations=1):
    """Train, and tell the mean return of each iteration's episodes."""
    torch.set_num_threads(1)  # networks this small are slower on more
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=False)
    try:
        register_env("shard-gym", make_env)
        config = (
            PPOConfig()
            .environment("shard-gym", env_config={"id": env_id})
            .env_runners(num_env_runners=0, num_envs_per_env_runner=4)
            .training(train_batch_size_per_learner=steps, minibatch_size=steps // 4, num_epochs=2, gamma=1.0)
            .debugging(seed=0)
        )
        algorithm, returns = config.build_algo(), []
        for number in range(iterations):
            returns.append(algorithm.train()["env_runners"]["episode_return_mean"])
            print(f"iteration {number + 1}: mean return {returns[-1]:.3f}")
        algorithm.stop()
    finally:
        ray.shutdown()
    return returns


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-id", default="ShardGym-DLRM-20x4-Flat")
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--iterations", type=int, default=1)
    main(**vars(parser.parse_args()))
