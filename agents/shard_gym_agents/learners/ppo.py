"""PPO, MaskablePPO, RecurrentPPO and a control without memory, by Stable-Baselines3. Training needs the extra `sb3`.

"ppo" and "maskable" see the observation "ahead" through a small network that scores all devices alike (see
`ppo_policy`). With `residual` it begins as cost-greedy with some noise, and learns where to deviate from it; without,
it begins at random. "ppo" meets full devices by their penalty only, "maskable" never takes one that is full; as
solvers both keep to the mask. "recurrent" and "memoryless" see the observation "table", tables by size, and no devices.
Where tasks allow all kinds of sharding, "ppo" and "maskable" score actions alike (see `action_policy`), dearest tables
first, and begin near a greedy of ours; the other two are refused.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shard_gym.envs.bank import Bank
from shard_gym.envs.env import ShardingEnv
from shard_gym.errors import InvalidTask, MissingDependency, UnknownName
from shard_gym.records.installing import install
from shard_gym.task.suites import Suite
from shard_gym_agents.learners.action_policy import ActionNet, ActionPolicy
from shard_gym_agents.learners.actions import ORDER
from shard_gym_agents.learners.learner import SuiteLearner, to_a_tenth
from shard_gym_agents.learners.ppo_policy import DeviceNet, DevicePolicy, TableNet, TablePolicy, load

__all__ = ["Config", "Learner", "load"]

ALGORITHMS = ("ppo", "maskable", "recurrent", "memoryless")
STEPS_OF_KINDS = 3  # an iteration, for each table: changes and pieces take steps; episodes are cut there
LOSSES = ("policy_gradient_loss", "value_loss", "entropy_loss", "approx_kl", "clip_fraction")  # as SB3 logs them


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
        """True if it is told the planner's costs, and serves any number of devices."""
        return self.algorithm in ("ppo", "maskable")


class Learner(SuiteLearner):
    """An iteration is one of SB3's: a rollout of whole episodes, and the update that follows."""

    splits = False

    def __init__(self, suite: Suite, config: Config, seed: int, device: str = "cpu") -> None:
        from shard_gym_agents.learners.sb3_vec import ShardingVecEnv

        if suite.kinds and not config.sees_devices:
            why = f"{config.algorithm} PPO places whole tables, on devices that it does not see"
            raise InvalidTask(f"{why}: train maskable-ppo on {suite.key}, which chooses among all kinds")
        super().__init__(suite, config, seed, device)
        self.scaling = np.stack(suite.feature_scaling())
        bank = Bank(self.tasks, suite.feature_scaling(), suite)
        shows, order = ("ahead", ORDER if suite.kinds else None) if config.sees_devices else ("table", "size")
        env = ShardingEnv(bank, observation=shows, reward=config.reward, order=order, simulator=self.planner)
        self.order, self.envs = env.order, ShardingVecEnv(env, config.num_envs)
        with self.seeded():
            net = self._new_net().to(device) if config.sees_devices else None
            self.model = self._model(net)
        self.net: nn.Module = net or self.model.policy
        self.parts = {"net": self.net, "optimizer": self.model.policy.optimizer}

    def _new_net(self) -> DeviceNet | ActionNet:
        """The network that sees devices, or actions of all kinds of sharding."""
        c, loads = self.config, self.envs.observation_space["devices"].shape[1] - 4  # type: ignore[index]
        if self.suite.kinds:
            return ActionNet(self.scaling, c.hidden, c.residual, c.sharpness)
        return DeviceNet(self.scaling, loads, c.hidden, c.residual, c.sharpness)

    def _model(self, net: DeviceNet | ActionNet | None) -> Any:
        """SB3's algorithm, ready to learn; `net` is for those that see the devices, others make their own."""
        from stable_baselines3.common.logger import Logger

        c, steps, algorithm = self.config, self.envs.env.env.most_nodes, _algorithm(self.config.algorithm)
        steps *= STEPS_OF_KINDS if self.suite.kinds else 1
        policy, settings = "MultiInputPolicy", {"features_extractor_class": _Scored, "ortho_init": False}
        settings |= {"features_extractor_kwargs": {"net": net}, "net_arch": []}
        if net is None:
            policy, settings = "MlpPolicy", {"net_arch": [c.hidden, c.hidden]}
        if c.algorithm == "recurrent":
            policy, settings["lstm_hidden_size"] = "MlpLstmPolicy", c.hidden
        model = algorithm(
            policy,
            self.envs,
            learning_rate=lambda _: self.rate(),
            n_steps=steps,
            batch_size=steps * c.num_envs // c.minibatches,
            n_epochs=c.epochs,
            gamma=1.0,
            gae_lambda=c.gae_lambda,
            clip_range=c.clip,
            ent_coef=c.entropy,
            vf_coef=c.baseline,
            max_grad_norm=c.gradient,
            stats_window_size=c.num_envs,
            device=self.device,
            policy_kwargs=settings,
        )
        model.set_logger(Logger(None, []))  # else every call of learn makes a folder for logs
        if net is not None:
            _take_over(model.policy, self.rate())
        return model

    def rate(self) -> float:
        """The learning rate of this iteration."""
        return to_a_tenth(self.config.learning_rate, self.iteration, self.config.horizon)

    def iterate(self) -> dict[str, float]:
        """Whole episodes in each environment and an update."""
        calls = self.planner.calls
        self.envs.seed(self.iteration_seed)
        with self.seeded(self.iteration_seed):
            self.model.learn(self.model.n_steps * self.model.n_envs, log_interval=None)
        self.iteration += 1
        told = {name: float(self.model.logger.name_to_value[f"train/{name}"]) for name in LOSSES}
        returns = [episode["r"] for episode in self.model.ep_info_buffer]
        calls = self.planner.calls - calls
        steps = self.model.num_timesteps
        return {**told, "return": sum(returns) / max(len(returns), 1), "steps": steps, "simulator_calls": calls}

    def solver(self) -> DevicePolicy | ActionPolicy | TablePolicy:
        card = self.card(self.order)
        if isinstance(self.net, ActionNet):
            return ActionPolicy(copy.deepcopy(self.net).cpu(), card)
        if isinstance(self.net, DeviceNet):
            return DevicePolicy(copy.deepcopy(self.net).cpu(), card)
        recurrent, devices = self.config.algorithm == "recurrent", self.envs.env.num_actions
        net = TableNet(self.scaling, devices, self.config.hidden, recurrent)
        _copy_layers(self.model.policy, net)
        return TablePolicy(net, card)


def _algorithm(name: str) -> Any:
    """SB3's class of that algorithm."""
    try:
        from sb3_contrib import MaskablePPO, RecurrentPPO
        from stable_baselines3 import PPO
    except ImportError as error:
        raise MissingDependency(install("sb3")) from error
    return {"maskable": MaskablePPO, "recurrent": RecurrentPPO}.get(name, PPO)


class _Scored(nn.Module):
    """The whole network as what SB3 calls a features extractor: scores, and the value last, (B, A + 1)."""

    def __init__(self, observation_space: Any, net: DeviceNet | ActionNet) -> None:
        super().__init__()
        self.features_dim, self.net = observation_space["action_mask"].shape[0] + 1, net

    def forward(self, shown: dict[str, Tensor]) -> Tensor:
        scores, values = self.net(shown)
        return torch.cat([scores, values[:, None]], 1)


class _Columns(nn.Module):
    """Columns of the features, in the place of SB3's last layers."""

    def __init__(self, columns: slice) -> None:
        super().__init__()
        self.columns = columns

    def forward(self, features: Tensor) -> Tensor:
        return features[:, self.columns]


def _take_over(policy: Any, rate: float) -> None:
    """Make scores and values of a policy of SB3 those of its features, without layers of its own."""
    policy.action_net, policy.value_net = _Columns(slice(None, -1)), _Columns(slice(-1, None))
    policy.optimizer = policy.optimizer_class(policy.parameters(), lr=rate, **policy.optimizer_kwargs)


def _copy_layers(policy: Any, into: TableNet) -> None:
    """The actor of SB3's MlpPolicy or MlpLstmPolicy as a network that needs no SB3."""
    pairs = [(into.layers, policy.mlp_extractor.policy_net), (into.head, policy.action_net)]
    if into.lstm is not None:
        pairs.append((into.lstm, policy.lstm_actor))
    for ours, theirs in pairs:
        ours.load_state_dict({name: value.cpu() for name, value in theirs.state_dict().items()})
