"""RLlib: PPO and IMPALA on scalar environments, and PPO on our vector environment."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import ray
import torch
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig

from benchmarks.programs import ENV_ID, TABLES, Clock, Options, Row, run, trained

NUM_ENVS = 16
BATCH = 4 * TABLES * NUM_ENVS
PPO = {"train_batch_size_per_learner": BATCH, "minibatch_size": 8 * TABLES, "num_epochs": 10, "lr": 1e-3, "gamma": 1.0}
IMPALA = {"train_batch_size_per_learner": 8 * TABLES, "lr": 1e-3, "gamma": 1.0, "entropy_coeff": 0.01}


def train(config: Any, settings: dict[str, Any], vectorize: str, reward: str, options: Options) -> Row:
    """One algorithm in this process, with the environments that RLlib makes of the id."""
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=False)
    try:
        algorithm = (
            config.environment(f"shard_gym:{ENV_ID}", env_config={"reward": reward})
            .env_runners(
                num_env_runners=0,
                num_envs_per_env_runner=NUM_ENVS,
                gym_env_vectorize_mode=vectorize,
                rollout_fragment_length="auto" if config.algo_class.__name__ == "PPO" else TABLES,
            )
            .learners(num_learners=0)
            .training(**settings)
            .debugging(seed=0)
            .build_algo()
        )
        clock, steps = Clock(), 0
        while clock() < options.seconds:
            steps = algorithm.train().get("num_env_steps_sampled_lifetime", steps)
        spent, module = clock(), algorithm.get_module()

        def act(shown: Any, masks: np.ndarray) -> np.ndarray:
            with torch.no_grad():
                logits = module.forward_inference({"obs": torch.as_tensor(shown)})["action_dist_inputs"]
            return logits.argmax(dim=1).numpy()

        told = ", ".join(f"{name}={value}" for name, value in settings.items())
        row = trained(steps, spent, act, f"{NUM_ENVS} environments, {vectorize}, reward={reward}, {told}")
        algorithm.stop()
        return row
    finally:
        ray.shutdown()


if __name__ == "__main__":
    torch.set_num_threads(1)
    trials = {
        "PPO": (PPOConfig, PPO, "sync", "latency"),
        "PPO, vector mode": (PPOConfig, PPO, "vector_entry_point", "latency"),
        "IMPALA": (IMPALAConfig, IMPALA, "sync", "dense"),
    }

    def trial(name: str, options: Options) -> Row:
        """One of them."""
        config, settings, vectorize, reward = trials[name]
        return train(config(), settings, vectorize, reward, options)

    run(("ray",), {name: partial(trial, name) for name in trials})
