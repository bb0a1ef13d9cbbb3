"""TorchRL: its collector, advantage and clipped loss on environments that its GymEnv makes of the id."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.envs import EnvBase, GymEnv, GymWrapper, SerialEnv
from torchrl.modules import MLP, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

import shard_gym  # noqa: F401  # registers the ids, in this process
from benchmarks.programs import ENV_ID, TABLES, Clock, Options, Row, run, trained

NUM_ENVS = 16
ROLLOUT = 4 * TABLES  # steps of each environment
BATCH, EPOCHS, RATE = 8 * TABLES, 10, 1e-3


def ppo(envs: EnvBase, options: Options) -> Row:
    """PPO as TorchRL's examples put it together."""
    torch.manual_seed(0)
    envs.set_seed(0)
    width, actions = envs.observation_spec["observation"].shape[-1], envs.full_action_spec["action"].space.n
    net: dict[str, Any] = {"num_cells": [64, 64], "activation_class": nn.Tanh}
    logits = TensorDictModule(MLP(width, actions, **net), in_keys=["observation"], out_keys=["logits"])
    actor = ProbabilisticActor(
        logits, in_keys=["logits"], distribution_class=torch.distributions.Categorical, return_log_prob=True
    )
    critic = ValueOperator(MLP(width, 1, **net), in_keys=["observation"])
    loss, advantage = ClipPPOLoss(actor, critic, entropy_coeff=0.01), GAE(gamma=1.0, lmbda=0.95, value_network=critic)
    optimizer, clock, steps = torch.optim.Adam(loss.parameters(), lr=RATE), Clock(), 0
    frames = ROLLOUT * envs.batch_size.numel()
    collector = Collector(envs, actor, frames_per_batch=frames, total_frames=-1)
    for data in collector:
        for _ in range(EPOCHS):
            with torch.no_grad():
                advantage(data)
            flat = data.reshape(-1)
            for picked in torch.randperm(len(flat)).split(BATCH):
                found = loss(flat[picked])
                total = found["loss_objective"] + found["loss_critic"] + found["loss_entropy"]
                optimizer.zero_grad()
                total.backward()
                nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optimizer.step()
        steps += data.numel()
        if clock() >= options.seconds:
            break
    spent = clock()
    collector.shutdown()

    def act(shown: Any, masks: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return logits.module(torch.as_tensor(shown)).argmax(dim=-1).numpy()

    told = f"rollouts of {ROLLOUT}, batches of {BATCH}, {EPOCHS} epochs, lr={RATE}, gamma=1.0"
    return trained(steps, spent, act, f"{type(envs).__name__}, {NUM_ENVS} environments, {told}")


def made() -> EnvBase:
    """One environment of the id, by TorchRL."""
    return GymEnv(f"shard_gym:{ENV_ID}", categorical_action_encoding=True)


def serial(options: Options) -> Row:
    """Environments side by side, as TorchRL does it."""
    return ppo(SerialEnv(NUM_ENVS, made), options)


def vector(mode: gym.vector.AutoresetMode, options: Options) -> Row:
    """Our vector environment in TorchRL's wrapper."""
    envs = gym.make_vec(f"shard_gym:{ENV_ID}", num_envs=NUM_ENVS, autoreset_mode=mode)
    return ppo(GymWrapper(envs, categorical_action_encoding=True), options)


if __name__ == "__main__":
    torch.set_num_threads(1)
    trials = {"PPO, SerialEnv": serial}
    for mode in (gym.vector.AutoresetMode.SAME_STEP, gym.vector.AutoresetMode.DISABLED):
        trials[f"PPO, our vector environment, {mode.name}"] = lambda options, mode=mode: vector(mode, options)
    run(("torchrl", "tensordict"), trials)
