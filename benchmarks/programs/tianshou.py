"""Tianshou: PPO by its high-level experiment builder."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tianshou.highlevel.config import OnPolicyTrainingConfig
from tianshou.highlevel.env import EnvFactoryRegistered, VectorEnvType
from tianshou.highlevel.experiment import ExperimentConfig, PPOExperimentBuilder
from tianshou.highlevel.params.algorithm_params import PPOParams

from benchmarks.programs import ENV_ID, TABLES, Clock, Options, Row, run, trained

PACE = 1_500  # steps a second that are hoped for: it stops after steps
NUM_ENVS = 16
STEPS = 4 * TABLES * NUM_ENVS  # of a rollout
SETTINGS = {"gamma": 1.0, "lr": 1e-3, "ent_coef": 0.01}


def ppo(options: Options) -> Row:
    """PPO, and its actor afterwards."""
    rollouts = max(1, int(options.seconds * PACE) // STEPS)
    training = OnPolicyTrainingConfig(
        max_epochs=1,
        epoch_num_steps=rollouts * STEPS,
        num_training_envs=NUM_ENVS,
        num_test_envs=1,
        test_step_num_episodes=1,
        buffer_size=STEPS,
        collection_step_num_env_steps=STEPS,
        batch_size=8 * TABLES,
        update_step_num_repetitions=10,
    )
    experiment = (
        PPOExperimentBuilder(
            EnvFactoryRegistered(task=f"shard_gym:{ENV_ID}", venv_type=VectorEnvType.DUMMY),
            ExperimentConfig(seed=0, device="cpu", watch=False, persistence_enabled=False),
            training,
        )
        .with_ppo_params(PPOParams(**SETTINGS))
        .with_actor_factory_default(hidden_sizes=(64, 64))
        .with_critic_factory_default(hidden_sizes=(64, 64))
        .build()
    )
    clock = Clock()
    done = experiment.run()
    spent, actor = clock(), done.world.algorithm.policy.actor

    def act(shown: Any, masks: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return actor(torch.as_tensor(shown))[0].argmax(dim=1).numpy()

    told = f"{NUM_ENVS} environments, rollouts of {STEPS} steps, batches of {8 * TABLES}, 10 repetitions"
    settings = ", ".join([told, *(f"{name}={value}" for name, value in SETTINGS.items())])
    return trained(rollouts * STEPS, spent, act, settings)


if __name__ == "__main__":
    torch.set_num_threads(1)
    run(("tianshou",), {"PPO": ppo})
