"""PPO's policy where tasks allow all kinds of sharding: a network that scores actions, and its solver. Needs torch.

Each action is told by what devices would cost after it, the bytes that it takes, and what it does: it does not matter
how devices are numbered, and weights serve any number of tables, devices and hosts, and any planner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from shard_gym.envs.episodes import FIXED_ORDERS
from shard_gym.envs.kind_observations import KIND_WIDTH
from shard_gym.plan.plan import Plan
from shard_gym.simulators import Simulator
from shard_gym.tables.pool import FEATURES as TABLE
from shard_gym.task.task import Task
from shard_gym_agents.learners import rollouts
from shard_gym_agents.learners.actions import (
    FAR,
    FEATURES,
    LIFT,
    PRICES,
    Choose,
    aimed,
    best_plan,
    dearer,
    first_weights,
    leaning,
    priced,
)
from shard_gym_agents.learners.learner import holds, load_tensors, num_weights, save_tensors

KIND = "ppo-actions"  # of file
CARD = ("order", "suite", "planner", "seed", "config")  # what a card tells
STATE = 5 + 5  # what is told once: what remains, the devices summed up


class ActionNet(nn.Module):
    """Scores of actions from the observation "ahead", and the value of the state.

    All actions go through the same layers, which see them beside the state and the mean of those that are legal. A
    score is what the layers say, next to nothing at first, plus a weighted sum of features. With `residual` weights
    begin as `FIRST`: against costs, which an aim tells too, raised by a share of what is to come and with the dearest
    devices counting most; against bytes; and against halvings, rows over several devices and copies.
    """

    scaling: Tensor  # (2, 21) of features; kept with the weights, used by whoever shows them tasks

    def __init__(self, scaling: np.ndarray, hidden: int = 64, residual: bool = True, sharpness: float = 6.0) -> None:
        super().__init__()
        self.hidden, self.residual, state = hidden, residual, KIND_WIDTH + STATE
        self.of_action, self.of_state = nn.Linear(len(FEATURES), hidden), nn.Linear(state, hidden, bias=False)
        self.own, self.pooled = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden, bias=False)
        self.score = nn.Linear(hidden, 1)
        self.value = nn.Sequential(
            nn.Linear(state + len(FEATURES), hidden),
            nn.Tanh(),
            nn.Linear(hidden, hidden),
            nn.Tanh(),
            nn.Linear(hidden, 1),
        )
        self.lift = nn.Parameter(torch.tensor(LIFT))
        first = first_weights(sharpness)
        self.weights = nn.Parameter(first if residual else torch.zeros_like(first))
        self.register_buffer("scaling", torch.tensor(np.asarray(scaling), dtype=torch.float64))
        nn.init.orthogonal_(self.score.weight, 0.01)
        nn.init.zeros_(self.score.bias)

    def forward(self, shown: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Scores (B, A), masked or not as the caller likes, and values (B,)."""
        actions, state, share = self._seen(shown)
        everything = torch.cat([state, _mean(actions, share)], -1)
        return self._scores(actions, state, share), self.value(everything)[..., 0]

    def scores(self, shown: Mapping[str, Tensor], prices: Tensor | None = None) -> Tensor:
        """The scores alone; with so many times the weight of bytes, (B,)."""
        inputs = self._seen(shown)
        scores = self._scores(*inputs)
        return scores if prices is None else dearer(scores, inputs[0], self.weights, prices)

    def _scores(self, actions: Tensor, state: Tensor, share: Tensor) -> Tensor:
        first = torch.relu(self.of_action(actions) + self.of_state(state)[:, None])  # (B, A, hidden)
        second = torch.relu(self.own(first) + self.pooled(_mean(first, share))[:, None])
        return self.score(second)[..., 0] + leaning(actions, self.weights)

    def _seen(self, shown: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs of the layers, of actions (B, A, F) and the state (B, S), and shares of legal actions, (B, A)."""
        legal, cost = shown["action_mask"] > 0, shown["devices"][..., 2]
        free = 1 - shown["devices"][..., 0]
        summed = torch.stack([cost.mean(1), cost.amax(1), cost.amin(1), free.mean(1), free.amin(1)], -1)
        state = torch.cat([shown["table"], shown["remaining"], summed], -1).clamp(-FAR, FAR)
        share = legal / legal.sum(1, keepdim=True).clamp(min=1)
        return aimed(shown, self.lift), state, share

    __repr__ = num_weights


def _mean(values: Tensor, share: Tensor) -> Tensor:
    """Mean of legal actions, (B, A, F) -> (B, F)."""
    return (share[:, None] @ values)[:, 0]


@dataclass(frozen=True, eq=False)
class ActionPolicy:
    """Tables sharded as the network likes best of what is legal; it plays the environment, and sees what that shows.

    A few episodes side by side, with memory at different prices; the best plan of them. Tables come in the order of
    training; where none of these ends with a plan, by size or cost, then with memory dearer. `card` says what it was
    trained on.
    """

    track: ClassVar[str] = "search"
    deterministic: ClassVar[bool] = True
    net: ActionNet
    card: dict[str, Any]

    def __call__(self, task: Task, planner: Simulator) -> Plan:
        attempts = priced(self.card["order"], self._begin)
        return best_plan(task, planner, self.net.scaling.numpy(), attempts, len(PRICES))

    def _begin(self, prices: Tensor) -> Choose:
        def choose(shown: Mapping[str, Tensor]) -> Tensor:
            scores = self.net.scores(shown, prices)
            return rollouts.choose(scores, shown["action_mask"].numpy() > 0, None)

        return choose

    def save(self, path: str | Path, **card: Any) -> None:
        """Write the weights and their card to a file."""
        shape = {"seen": list(FEATURES), "hidden": self.net.hidden, "residual": self.net.residual}
        save_tensors(path, self.net.state_dict(), {**self.card, **card, "kind": KIND, **shape})

    @classmethod
    def load(cls, path: str | Path) -> ActionPolicy:
        """Read what `save` wrote."""
        tensors, card = load_tensors(path, KIND)
        with holds(path, "the action network"):
            net = ActionNet(np.zeros((2, len(TABLE))), card["hidden"], card["residual"])
            net.load_state_dict(tensors)
            kept = {name: card[name] for name in CARD}
            _ = FIXED_ORDERS[kept["order"]]
        return cls(net, kept)
