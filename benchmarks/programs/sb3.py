"""Stable-Baselines3 and sb3-contrib: five algorithms by `make_vec_env`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from sb3_contrib import MaskablePPO, RecurrentPPO
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from benchmarks.programs import ENV_ID, KINDS_ID, TABLES, Clock, Options, Row, run, trained

LONGER = 5  # times the seconds, for PPO
ON_POLICY = {"n_steps": 4 * TABLES, "batch_size": 8 * TABLES, "learning_rate": 1e-3, "gamma": 1.0}
DENSE = {"reward": "dense"}  # the same return, paid table by table
STEPS = 10_000_000  # never reached
ALGORITHMS: dict[str, tuple[Any, str, dict[str, Any], dict[str, Any]]] = {  # policy, of the environment, settings
    "PPO": (PPO, "MlpPolicy", {}, ON_POLICY),
    "A2C": (A2C, "MlpPolicy", DENSE, {"n_steps": 20, "gamma": 1.0}),
    "DQN": (
        DQN,
        "MlpPolicy",
        DENSE,
        {
            "gamma": 1.0,
            "learning_rate": 5e-4,
            "batch_size": 128,
            "learning_starts": 2_000,
            "train_freq": 1,
            "target_update_interval": 1_000,
            "exploration_fraction": 30_000 / STEPS,
        },
    ),
    "MaskablePPO": (MaskablePPO, "MlpPolicy", {}, ON_POLICY),
    "RecurrentPPO": (
        RecurrentPPO,
        "MlpLstmPolicy",
        DENSE,
        {"n_steps": TABLES, "batch_size": 4 * TABLES, "n_epochs": 4, "learning_rate": 2e-3, "gamma": 1.0}
        | {"policy_kwargs": {"lstm_hidden_size": 32}},
    ),
}
NUM_ENVS = 16


class Until(BaseCallback):
    """An end after so many seconds of CPU."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.clock, self.seconds = Clock(), seconds

    def _on_step(self) -> bool:
        return self.clock() < self.seconds


def player(model: Any) -> Callable[[Any, np.ndarray], np.ndarray]:
    """The policy's likeliest actions; recurrent policies remember their episodes."""
    memory, starts = None, np.ones(1, bool)

    def act(shown: np.ndarray, masks: np.ndarray) -> np.ndarray:
        nonlocal memory, starts
        if isinstance(model, MaskablePPO):
            return model.predict(shown, action_masks=masks.astype(bool), deterministic=True)[0]
        starts = np.ones(len(shown), bool) if memory is None else np.zeros(len(shown), bool)
        action, memory = model.predict(shown, state=memory, episode_start=starts, deterministic=True)
        return action

    return act


def train(name: str, options: Options, env_id: str = ENV_ID) -> Row:
    """One algorithm."""
    algorithm, policy, of_env, settings = ALGORITHMS[name]
    until = Until(options.seconds * (LONGER if name == "PPO" else 1))
    envs = make_vec_env(f"shard_gym:{env_id}", NUM_ENVS, seed=0, env_kwargs=of_env)
    model = algorithm(policy, envs, seed=0, device="cpu", **settings)
    model.learn(STEPS, callback=until)
    spent, told = until.clock(), {"n_envs": NUM_ENVS, **of_env, **settings}
    listed = ", ".join(f"{key}={value}" for key, value in told.items())
    return trained(model.num_timesteps, spent, player(model), listed, env_id)


if __name__ == "__main__":
    torch.set_num_threads(1)
    trials = {name: partial(train, name) for name in ALGORITHMS}
    trials["MaskablePPO, all kinds"] = partial(train, "MaskablePPO", env_id=KINDS_ID)
    run(("stable-baselines3", "sb3-contrib"), trials)
