"""PPO, MaskablePPO, RecurrentPPO and a control without memory, by Stable-Baselines3. Training needs `shard-gym[sb3]`.

"ppo" and "maskable" see the observation "ahead" through a small network that scores all devices alike (see
`ppo_network`). With `residual` it begins as cost-greedy with some noise, and learns where to deviate from it; without,
it begins at random. "ppo" meets full devices by their penalty only, "maskable" never takes one that is full; as
solvers both keep to the mask. "recurrent" and "memoryless" see the observation "table", tables by size, and no devices.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from shard_gym import simulators
from shard_gym.bank import Bank
from shard_gym.env import ShardingEnv
from shard_gym.errors import InvalidTask, UnknownName
from shard_gym.simulators.base import counted
from shard_gym.suites import Suite
from shard_gym_agents.learners.checkpoints import packed, unpack
from shard_gym_agents.learners.ppo_network import DeviceNet, TableNet
from shard_gym_agents.learners.ppo_solver import TABLE, DevicePolicy, TablePolicy, kind_of
from shard_gym_agents.learners.training import episode_seeds

ALGORITHMS = ("ppo", "maskable", "recurrent", "memoryless")


@dataclass(frozen=True)
class Config:
    """Hyper-parameters; values were chosen on validation tasks."""

    algorithm: str = "maskable"
    num_envs: int = 128  # episodes an iteration, played side by side
    epochs: int = 4  # passes over them
    minibatches: int = 8  # of each pass
    learning_rate: float = 3e-3  # of Adam, at first; it falls linearly
    horizon: int = 300  # iterations until it is a tenth, where it stays
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy: float = 0.0  # weight of the policy's entropy
    baseline: float = 0.5  # weight of the value's error
    gradient: float = 0.5  # norm of the gradient, at most
    hidden: int = 64
    residual: bool = True  # begin as cost-greedy with some noise; "ppo" and "maskable"
    sharpness: float = 6.0  # how little noise, at first; where memory is tight greedy is wrong, and 3 learns faster
    reward: str = "dense"  # or "latency"

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise UnknownName("algorithm", self.algorithm, ALGORITHMS)
        least = min(self.num_envs, self.epochs, self.minibatches, self.horizon, self.hidden)
        if least < 1 or self.num_envs % self.minibatches:
            raise InvalidTask("counts are 1 or more, and num_envs is a multiple of minibatches")
        if self.sharpness <= 0:
            raise InvalidTask(f"sharpness is above 0, got {self.sharpness}")

    @property
    def sees_devices(self) -> bool:
        """Whether it is told the planner's costs, and serves any number of devices."""
        return self.algorithm in ("ppo", "maskable")


class Learner:
    """An iteration is one of SB3's: a rollout of whole episodes, and the update that follows."""

    def __init__(self, suite: Suite, config: Config, seed: int, device: str = "cpu") -> None:
        from shard_gym_agents.learners import ppo_sb3
        from shard_gym_agents.sb3_vec import ShardingVecEnv

        if suite.split_action:
            raise InvalidTask(f"these learners do not split tables: train on {suite.frozen_as}, not {suite.key}")
        self.suite, self.config, self.seed, self.iteration = suite, config, seed, 0
        self.planner, self.scaling = counted(simulators.make(suite.planner)), np.stack(suite.feature_scaling())
        bank = Bank(suite.tasks("train"), suite.feature_scaling(), suite)
        shows, order = ("ahead", None) if config.sees_devices else ("table", "size")
        env = ShardingEnv(bank, observation=shows, reward=config.reward, order=order, simulator=self.planner)
        self.order, self.envs = env.order, ShardingVecEnv(env, config.num_envs)
        with seeded(seed):
            net = self._device_net().to(device) if config.sees_devices else None
            self.model = ppo_sb3.make_model(config, self.envs, lambda _: self.rate(), net, device)
        self.net: nn.Module = net or self.model.policy

    def _device_net(self) -> DeviceNet:
        c, loads = self.config, self.envs.observation_space["devices"].shape[1] - 4  # type: ignore[index]
        return DeviceNet(self.scaling, loads, c.hidden, c.residual, c.sharpness)

    def rate(self) -> float:
        """The learning rate of this iteration."""
        return self.config.learning_rate * (1 - 0.9 * min(1.0, self.iteration / self.config.horizon))

    def iterate(self) -> dict[str, float]:
        """Whole episodes in each environment and an update."""
        from shard_gym_agents.learners import ppo_sb3

        calls, (seed,) = self.planner.calls, episode_seeds(self.seed, self.iteration, 1)
        self.envs.seed(seed)
        with seeded(seed):
            told = ppo_sb3.iteration(self.model)
        self.iteration += 1
        return {**told, "steps": self.model.num_timesteps, "simulator_calls": self.planner.calls - calls}

    def state(self) -> dict[str, Tensor]:
        """Weights, the optimizer and the counter; generators and environments are seeded anew each iteration."""
        return packed(net=self.net, optimizer=self.model.policy.optimizer, iteration=self.iteration)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from there."""
        unpack(state, net=self.net, optimizer=self.model.policy.optimizer)
        self.iteration = int(state["iteration"])

    def solver(self) -> DevicePolicy | TablePolicy:
        """The policy as it is now."""
        from shard_gym_agents.learners import ppo_sb3

        card = {"order": self.order, "suite": self.suite.key, "planner": self.suite.planner, "seed": self.seed}
        card |= {"config": asdict(self.config)}
        if isinstance(self.net, DeviceNet):
            return DevicePolicy(copy.deepcopy(self.net).cpu(), card)
        recurrent, devices = self.config.algorithm == "recurrent", self.envs.env.num_actions
        net = TableNet(self.scaling, devices, self.config.hidden, recurrent)
        ppo_sb3.copy_layers(self.net, net)
        return TablePolicy(net, card)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """The global generators, which SB3 draws from, seeded for a while."""
    before = np.random.get_state()  # noqa: NPY002  # SB3 has no other
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % 2**63)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        try:
            yield
        finally:
            np.random.set_state(before)  # noqa: NPY002


def load(path: str | Path) -> DevicePolicy | TablePolicy:
    """A trained policy, of whichever algorithm; needs no SB3."""
    return TablePolicy.load(path) if kind_of(path) == TABLE else DevicePolicy.load(path)
