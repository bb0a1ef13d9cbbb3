"""RL Baselines3 Zoo: its `train` command with a hyperparameter file."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3 import PPO

from benchmarks.programs import ENV_ID, TABLES, Options, Row, run, trained

PACE = 3_000  # steps a second that are hoped for: it stops after steps
SETTINGS = {
    "n_envs": 16,
    "policy": "MlpPolicy",
    "n_steps": 4 * TABLES,
    "batch_size": 8 * TABLES,
    "learning_rate": 1e-3,
    "gamma": 1.0,
}


def ppo(options: Options) -> Row:
    """PPO, its settings in a file; the model that the command leaves is loaded."""
    settings = {ENV_ID: {**SETTINGS, "n_timesteps": int(options.seconds * PACE)}}
    Path("hyperparameters.yml").write_text(json.dumps(settings))  # YAML holds JSON
    flags = f"--algo ppo --env {ENV_ID} --gym-packages shard_gym --conf-file hyperparameters.yml --log-folder logs"
    fixed = "--seed 0 --device cpu --num-threads 1 --eval-freq -1"
    subprocess.run([sys.executable, "-m", "rl_zoo3.train", *flags.split(), *fixed.split()], check=True)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    model = PPO.load(Path("logs") / "ppo" / f"{ENV_ID}_1" / f"{ENV_ID}.zip", device="cpu")

    def act(shown: Any, masks: np.ndarray) -> np.ndarray:
        return model.predict(shown, deterministic=True)[0]

    told = ", ".join(f"{name}: {value}" for name, value in SETTINGS.items())
    return trained(model.num_timesteps, spent.ru_utime + spent.ru_stime, act, f"{flags}; {told}")


if __name__ == "__main__":
    run(("rl-zoo3", "stable-baselines3"), {"rl_zoo3.train": ppo})
