"""RLlib's PPO or IMPALA on a `-Flat` id, with random devices and cost-greedy beside it.

Needs torch and `pip install "ray[rllib]"`, which brings gymnasium 1.2: that will do.

python examples/rllib_train.py --algorithm ppo --seconds 60
"""

import argparse
import time

import gymnasium as gym
import numpy as np
import ray
import torch
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig

ENVS, EPISODES = 16, 100


def config_of(algorithm, env_id, tables, runners):
    """Settings of an algorithm; `runners` processes play, 0: this one does."""
    if algorithm == "ppo":
        batch = 4 * tables * ENVS
        settings = {"train_batch_size_per_learner": batch, "minibatch_size": batch // 8, "num_epochs": 10}
    else:
        settings = {"train_batch_size_per_learner": 8 * tables, "entropy_coeff": 0.01}
    config, reward = (PPOConfig(), "latency") if algorithm == "ppo" else (IMPALAConfig(), "dense")
    return (
        config.environment(f"shard_gym:{env_id}", env_config={"reward": reward})
        .env_runners(
            num_env_runners=runners,
            num_envs_per_env_runner=ENVS,
            gym_env_vectorize_mode="vector_entry_point",  # all environments of a process step together
            rollout_fragment_length="auto" if algorithm == "ppo" else tables,
        )
        .learners(num_learners=0)
        .training(lr=1e-3, gamma=1.0, **settings)
        .debugging(seed=0)
    )


def mean_return(env_id, act, **settings):
    """Mean return of the first episodes on test tasks; `act` gives actions from observations and masks."""
    envs = gym.make_vec(f"shard_gym:{env_id}", num_envs=EPISODES, split="test", **settings)
    shown, infos = envs.reset(seed=0)
    total, playing = np.zeros(EPISODES), np.ones(EPISODES, bool)
    while playing.any():
        shown, rewards, over, _, infos = envs.step(np.asarray(act(shown, infos["action_mask"])))
        total += np.where(playing, rewards, 0)
        playing &= ~over
    return float(total.mean())


def levels(env_id):
    """Mean returns of random devices that have room, and of cost-greedy."""
    rng = np.random.default_rng(0)
    random = mean_return(env_id, lambda shown, masks: np.where(masks, rng.random(masks.shape), -1).argmax(1))
    ahead = {"observation": "ahead", "order": "cost"}  # what devices would cost with the next table on them
    return random, mean_return(env_id, lambda shown, masks: np.where(masks, shown["ahead"], np.inf).argmin(1), **ahead)


def policy(algorithm):
    """The most probable actions by the network of an algorithm."""
    module = algorithm.get_module()

    def act(shown, masks):
        with torch.no_grad():
            logits = module.forward_inference({"obs": torch.as_tensor(shown)})["action_dist_inputs"]
        return logits.argmax(dim=1).numpy()

    return act


def main(algorithm="ppo", env_id="ShardGym-Core-60x4-Flat", seconds=60.0, runners=0):
    """Train for some time; mean returns on test tasks: trained, random, cost-greedy."""
    torch.set_num_threads(1)  # networks this small are slower on more
    tables = gym.make(f"shard_gym:{env_id}").unwrapped.bank.tasks[0].num_tables
    ray.init(address="local", num_cpus=max(runners, 1) + 1, include_dashboard=False, log_to_driver=False)
    try:
        trained, until, steps = (
            config_of(algorithm, env_id, tables, runners).build_algo(),
            time.monotonic() + seconds,
            0,
        )
        while not steps or time.monotonic() < until:
            steps = trained.train().get("num_env_steps_sampled_lifetime", steps)
        found = mean_return(env_id, policy(trained)), *levels(env_id)
        trained.stop()
    finally:
        ray.shutdown()
    print(f"{algorithm}, {steps:,.0f} steps: {found[0]:.3f}; random {found[1]:.3f}, cost-greedy {found[2]:.3f}")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", choices=("ppo", "impala"), default="ppo")
    parser.add_argument("--env-id", default="ShardGym-Core-60x4-Flat")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--runners", type=int, default=0, help="processes that play; 0: the one that learns plays, too")
    main(**vars(parser.parse_args()))
