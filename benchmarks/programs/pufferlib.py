"""PufferLib: its emulation, vectorisation and PPO, from the unpacked source of 3.0.0.

Its build wants raylib from outside the package index, and fails where its games are left out; of its compiled code the
PPO needs one file of C++, which is compiled here.
"""

from __future__ import annotations

import configparser
import sys
from ast import literal_eval
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch.utils import cpp_extension

from benchmarks.programs import ENV_ID, TABLES, Clock, Options, Row, run, trained

NUM_ENVS, STEPS = 16, 4 * TABLES
SETTINGS: dict[str, Any] = {
    "use_rnn": False,
    "optimizer": "adam",
    "learning_rate": 1e-3,
    "anneal_lr": False,
    "gamma": 1.0,
    "bptt_horizon": TABLES,
    "batch_size": NUM_ENVS * STEPS,
    "minibatch_size": 8 * TABLES,
    "update_epochs": 10,
}


def prepare(source: Path) -> None:
    """Put PufferLib on the path, with the advantage kernel of its PPO compiled in this folder."""
    sys.path.insert(0, str(source))
    import pufferlib

    Path("kernel").mkdir(exist_ok=True)
    code = source / "pufferlib" / "extensions" / "pufferlib.cpp"
    kernel = cpp_extension.load("_C", [str(code)], build_directory="kernel")
    sys.modules["pufferlib._C"] = pufferlib._C = kernel


def ppo(options: Options) -> Row:
    """PPO with its own settings, but for SETTINGS, and its policy afterwards."""
    assert options.source
    prepare(options.source)
    import pufferlib.emulation
    import pufferlib.models
    import pufferlib.pufferl
    import pufferlib.vector

    def make(buf: Any = None, seed: int = 0) -> Any:
        return pufferlib.emulation.GymnasiumPufferEnv(gym.make(ENV_ID), buf=buf, seed=seed)

    torch.manual_seed(0)
    envs = pufferlib.vector.make(make, num_envs=NUM_ENVS, backend=pufferlib.vector.Serial, seed=0)
    policy = pufferlib.models.Default(envs.driver_env, hidden_size=64)
    config = {**defaults(options.source), **SETTINGS, "env": ENV_ID, "device": "cpu", "total_timesteps": 10**9}
    trainer, clock = pufferlib.pufferl.PuffeRL(config, envs, policy), Clock()
    try:
        while clock() < options.seconds:
            trainer.evaluate()
            trainer.train()
    finally:
        trainer.utilization.stop()  # a thread, which would keep the program
    spent = clock()

    def act(shown: Any, masks: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return policy.forward_eval(torch.as_tensor(shown))[0].argmax(dim=1).numpy()

    told = ", ".join([f"{NUM_ENVS} environments, Serial", *(f"{name}={value}" for name, value in SETTINGS.items())])
    return trained(trainer.global_step, spent, act, told)


def defaults(source: Path) -> dict[str, Any]:
    """Read the settings that PufferLib trains with unless told otherwise."""
    parser = configparser.ConfigParser()
    parser.read(source / "pufferlib" / "config" / "default.ini")
    return {name: _value(text) for name, text in parser["train"].items()}


def _value(text: str) -> Any:
    try:
        return literal_eval(text)
    except (SyntaxError, ValueError):
        return text  # a word


if __name__ == "__main__":
    torch.set_num_threads(1)
    run((), {"PPO": ppo})
