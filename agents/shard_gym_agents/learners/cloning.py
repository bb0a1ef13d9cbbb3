"""Behaviour cloning: PPO's network learns by heart where local search puts tables. Needs torch.

The control for what reinforcement learning adds to imitation: same network, same solver, same start. Demonstrations are
plans of local search on the training tasks, replayed in the order of the suite's environment; the loss is the
cross-entropy of the device that each table went to, among those that had room. How a plan numbers its devices is
arbitrary, and does not matter: the network scores all devices alike, so any numbering has the same loss and gradient.
Local search counts the plans that it asks about, not seconds, so demonstrations can be made again to the bit.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from shard_gym.envs.bank import Bank
from shard_gym.envs.env import ShardingEnv
from shard_gym.errors import InfeasibleTask, InvalidTask
from shard_gym.task.suites import Suite
from shard_gym_agents.learners.learner import SuiteLearner, descend, episode_seeds, to_a_tenth
from shard_gym_agents.learners.ppo_policy import Ahead, DeviceNet, DevicePolicy
from shard_gym_agents.learners.rollouts import ILLEGAL
from shard_gym_agents.search.local_search import LocalSearch
from shard_gym_agents.solvers.solver import require_fast

NOWHERE = -1  # pads plans of tasks with fewer tables than the largest


@dataclass(frozen=True)
class Config:
    """Hyper-parameters; values were chosen on validation tasks."""

    plans: int = 2  # of each training task
    calls: int = 20_000  # plans that local search asks the planner about for each
    updates: int = 32  # an iteration
    batch: int = 512  # tables an update
    learning_rate: float = 1e-3  # of Adam, at first; it falls linearly
    horizon: int = 100  # iterations until it is a tenth, where it stays
    hidden: int = 64
    residual: bool = True  # begin as cost-greedy with some noise
    sharpness: float = 6.0  # how little noise, at first

    def __post_init__(self) -> None:
        counts = (self.plans, self.calls, self.updates, self.batch, self.horizon, self.hidden)
        if min(counts) < 1 or self.sharpness <= 0:
            raise InvalidTask("counts are 1 or more, and sharpness is above 0")


class Learner(SuiteLearner):
    """Plans are made in the first iteration, and learnt from in all."""

    splits = kinds = False  # a demonstration is a device for each table

    def __init__(self, suite: Suite, config: Config, seed: int, device: str = "cpu") -> None:
        super().__init__(suite, config, seed, device)
        self.fast, self.bank = require_fast(self.planner), Bank(self.tasks, suite.feature_scaling(), suite)
        env = ShardingEnv(self.bank, observation="ahead", simulator=self.fast)
        self.order, loads = env.order, env.observation_space["devices"].shape[1] - 4  # type: ignore[index]
        with self.seeded():
            net = DeviceNet(np.stack(self.bank.scaling), loads, config.hidden, config.residual, config.sharpness)
        self.net = net.to(device)
        self.optimizer = torch.optim.Adam(self.net.parameters(), config.learning_rate)
        self.parts = {"net": self.net, "optimizer": self.optimizer}
        self.demonstrations = torch.empty(0, 1 + env.most_nodes, dtype=torch.int32)  # task, then devices
        self.shown: dict[str, Tensor] = {}  # at each step of each demonstration

    def iterate(self) -> dict[str, float]:
        """A few updates; means of what they tell."""
        c, calls = self.config, self.planner.calls
        if not len(self.demonstrations):
            self.demonstrations = self.demonstrate()
        if not self.shown:
            self.shown = self.replayed()
        self.optimizer.param_groups[0]["lr"] = to_a_tenth(c.learning_rate, self.iteration, c.horizon)
        generator, told = self.generator("cpu"), []
        for _ in range(c.updates):
            picked = torch.randint(len(self.shown["target"]), (c.batch,), generator=generator)
            told.append(self.update({name: column[picked].to(self.device) for name, column in self.shown.items()}))
        self.iteration += 1
        loss, agreement = np.mean(told, axis=0).tolist()
        calls = self.planner.calls - calls
        return {"loss": loss, "agreement": agreement, "steps": c.updates * c.batch, "simulator_calls": calls}

    def update(self, shown: dict[str, Tensor]) -> tuple[float, float]:
        """One step of the optimizer: the loss, and how often the network's first choice is the demonstration's."""
        scores = self.net.scores(shown).masked_fill(shown["action_mask"] == 0, ILLEGAL)
        loss = descend(self.optimizer, F.cross_entropy(scores, shown["target"]))
        return loss, (scores.argmax(1) == shown["target"]).float().mean().item()

    def demonstrate(self) -> Tensor:
        """Plans of local search, (P, 1 + N): the task's index, then the device of each table."""
        rows = []
        for i, task in enumerate(self.tasks):
            for seed in episode_seeds(self.seed, i, self.config.plans):
                try:
                    plan = LocalSearch(seed, calls=self.config.calls, splits=False)(task, self.fast)
                except InfeasibleTask:
                    break
                row = torch.full((self.demonstrations.shape[1],), NOWHERE, dtype=torch.int32)
                row[0], row[1 : 1 + task.num_tables] = i, torch.tensor(plan.device)
                rows.append(row)
        if not rows:
            raise InfeasibleTask(
                f"local search solves none of {self.suite.key}'s training tasks: there is nothing to learn"
            )
        return torch.stack(rows)

    def replayed(self) -> dict[str, Tensor]:
        """Observations at each step of the demonstrations, and as "target" the device taken."""
        parts: list[dict[str, Tensor]] = []
        for i in self.demonstrations[:, 0].unique().tolist():
            n = self.tasks[i].num_tables
            plans = self.demonstrations[self.demonstrations[:, 0] == i, 1 : 1 + n].long().numpy()
            ahead = Ahead(self.bank.prepared(self.tasks[i], self.fast), self.fast, self.order, len(plans))
            ahead.roll_out(partial(_replay, ahead, plans, parts))
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def state(self) -> dict[str, Tensor]:
        """Network, optimizer, demonstrations and counter."""
        return super().state() | {"demonstrations": self.demonstrations.clone()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        super().restore(state)
        self.demonstrations, self.shown = state["demonstrations"].clone(), {}

    def solver(self) -> DevicePolicy:
        return DevicePolicy(copy.deepcopy(self.net).cpu(), self.card(self.order), "cloning")


def _replay(
    ahead: Ahead, plans: np.ndarray, parts: list[dict[str, Tensor]], step: int, legal: np.ndarray
) -> np.ndarray:
    """The devices of these plans, (P, N), for the table of a step; what a policy would have seen goes to `parts`."""
    devices = plans[:, ahead.episode.order[step]]
    parts.append({**ahead.shown(step, legal), "target": torch.from_numpy(devices)})
    return devices


def load(path: str | Path) -> DevicePolicy:
    """A policy that `save` wrote."""
    return DevicePolicy.load(path, "cloning")
