"""Stable-Baselines3's side of the PPO learners: our network in its policies, and its algorithms. Needs SB3."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from shard_gym.errors import MissingDependency
from shard_gym_agents.learners.ppo_network import DeviceNet, TableNet
from shard_gym_agents.sb3_vec import ShardingVecEnv

try:
    from sb3_contrib import MaskablePPO, RecurrentPPO
    from sb3_contrib.common.maskable.policies import MaskableMultiInputActorCriticPolicy
    from stable_baselines3 import PPO
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.policies import MultiInputActorCriticPolicy
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
except ImportError as error:
    raise MissingDependency("pip install 'shard-gym[sb3]'") from error

if TYPE_CHECKING:
    from shard_gym_agents.learners.ppo import Config

LOSSES = ("policy_gradient_loss", "value_loss", "entropy_loss", "approx_kl", "clip_fraction")  # as SB3 logs them


class _Scored(BaseFeaturesExtractor):
    """The whole network as what SB3 calls a features extractor: scores, and the value last, (B, K + 1)."""

    def __init__(self, observation_space: Any, net: DeviceNet) -> None:
        super().__init__(observation_space, observation_space["action_mask"].shape[0] + 1)
        self.net = net

    def forward(self, shown: dict[str, Tensor]) -> Tensor:
        scores, values = self.net(shown)
        return torch.cat([scores, values[:, None]], 1)


class _Columns(nn.Module):
    """In the place of SB3's last layers: some columns of the features."""

    def __init__(self, columns: slice) -> None:
        super().__init__()
        self.columns = columns

    def forward(self, features: Tensor) -> Tensor:
        return features[:, self.columns]


class _OfDevices:
    """A policy of SB3 whose scores and values are those of a `DeviceNet`."""

    def _build(self, lr_schedule: Callable[[float], float]) -> None:
        super()._build(lr_schedule)  # type: ignore[misc]
        policy: Any = self
        policy.action_net, policy.value_net = _Columns(slice(None, -1)), _Columns(slice(-1, None))
        policy.optimizer = policy.optimizer_class(policy.parameters(), lr=lr_schedule(1), **policy.optimizer_kwargs)


class _Policy(_OfDevices, MultiInputActorCriticPolicy):
    pass


class _MaskablePolicy(_OfDevices, MaskableMultiInputActorCriticPolicy):
    pass


ALGORITHMS: dict[str, tuple[Any, Any]] = {
    "ppo": (PPO, _Policy),
    "maskable": (MaskablePPO, _MaskablePolicy),
    "recurrent": (RecurrentPPO, "MlpLstmPolicy"),
    "memoryless": (PPO, "MlpPolicy"),
}


def make_model(
    config: Config, envs: ShardingVecEnv, rate: Callable[[float], float], net: DeviceNet | None, device: str
) -> Any:
    """The algorithm, ready to learn; `net` is for those that see the devices, others make their own."""
    steps = envs.env.env.most_nodes
    settings: dict[str, Any] = {
        "learning_rate": rate,
        "n_steps": steps,
        "batch_size": steps * config.num_envs // config.minibatches,
        "n_epochs": config.epochs,
        "gamma": 1.0,
        "gae_lambda": config.gae_lambda,
        "clip_range": config.clip,
        "ent_coef": config.entropy,
        "vf_coef": config.baseline,
        "max_grad_norm": config.gradient,
        "stats_window_size": config.num_envs,
        "device": device,
    }
    if net is not None:
        settings["policy_kwargs"] = {
            "features_extractor_class": _Scored,
            "features_extractor_kwargs": {"net": net},
            "net_arch": [],
            "ortho_init": False,
        }
    else:
        settings["policy_kwargs"] = {"net_arch": [config.hidden, config.hidden]}
    if config.algorithm == "recurrent":
        settings["policy_kwargs"]["lstm_hidden_size"] = config.hidden
    made, policy = ALGORITHMS[config.algorithm]
    model = made(policy, envs, **settings)
    model.set_logger(Logger(None, []))  # else every call of learn makes a folder for logs
    return model


def iteration(model: Any) -> dict[str, float]:
    """One rollout from fresh episodes and its update; what SB3 tells of it."""
    model.learn(model.n_steps * model.n_envs, log_interval=None)
    told = {name: float(model.logger.name_to_value[f"train/{name}"]) for name in LOSSES}
    returns = [episode["r"] for episode in model.ep_info_buffer]
    return {**told, "return": sum(returns) / len(returns)}


def copy_layers(policy: Any, into: TableNet) -> None:
    """The actor of SB3's MlpPolicy or MlpLstmPolicy as a network that needs no SB3."""
    pairs = [(into.layers, policy.mlp_extractor.policy_net), (into.head, policy.action_net)]
    if into.lstm is not None:
        pairs.append((into.lstm, policy.lstm_actor))
    for ours, theirs in pairs:
        ours.load_state_dict({name: value.cpu() for name, value in theirs.state_dict().items()})
