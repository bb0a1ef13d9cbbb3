"""The RNN baseline of DreamShard's appendix D.2, after Mirhoseini et al. (2017). Needs torch.

Representations of tables go through an LSTM, an attention layer looks at its states so far, and a linear head scores
the devices. As in the work it follows, the LSTM is told the device of the table before; without that, choices would
not depend on one another, and the gradient would vanish where all devices are as likely. It sees no costs and has
one output a device: it cannot serve another number of devices, and it matters how they are numbered.
REINFORCE on the planner's makespans, which are counted. Where the paper is silent: tables come largest first, and
full devices are masked, in sampling and in the loss.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shard_gym.errors import InvalidTask
from shard_gym.plan.plan import Plan
from shard_gym.tables.pool import FEATURES
from shard_gym.task.suites import Suite
from shard_gym.task.task import Task
from shard_gym_agents.learners import rollouts
from shard_gym_agents.learners.learner import holds, load_tensors, mlp, num_weights, save_tensors
from shard_gym_agents.learners.rollouts import ILLEGAL, Config, Reinforce, Rollout, Sampled, TaskTensors, overshoot

__all__ = ["Config", "Learner", "load"]


class Net(nn.Module):
    """21-128-32 a table, an LSTM of 32, attention over its states, 64-K."""

    scaling: Tensor

    def __init__(self, scaling: np.ndarray, num_devices: int) -> None:
        super().__init__()
        self.num_devices = num_devices
        self.table, self.lstm = mlp(len(FEATURES), 128, 32), nn.LSTM(32, 32, batch_first=True)
        self.before = nn.Embedding(num_devices + 1, 32)  # the device of the table before; the last: there is none
        self.asks, self.answers = nn.Linear(32, 32), nn.Linear(32, 64)  # queries; keys and values
        self.head = nn.Linear(64, num_devices)
        self.register_buffer("scaling", torch.from_numpy(scaling))

    def forward(self, tasks: TaskTensors, actions: Tensor) -> Tensor:
        """Scores of devices at each step of episodes that were played, (B, N) -> (B, N, K)."""
        before = F.pad(actions[:, :-1], (1, 0), value=self.num_devices)
        states, _ = self.lstm(self.table(tasks.features) + self.before(before))  # (B, N, 32)
        keys, values = self.answers(states).chunk(2, dim=-1)
        seen = F.scaled_dot_product_attention(self.asks(states), keys, values, is_causal=True)
        return self.head(torch.cat([states, seen], -1))

    __repr__ = num_weights


@torch.no_grad()
def play(net: Net, tasks: TaskTensors, generator: torch.Generator | None) -> Rollout:
    """Place all tables in their order; devices are drawn, or the best."""
    before, carried = torch.full_like(tasks.row[:, 0], net.num_devices), None
    tables, answers = net.table(tasks.features), []

    def choose(step: int, legal: np.ndarray) -> np.ndarray:
        nonlocal before, carried
        state, carried = net.lstm((tables[:, step] + net.before(before))[:, None], carried)
        answers.append(net.answers(state))
        keys, values = torch.cat(answers, 1).chunk(2, dim=-1)
        seen = F.scaled_dot_product_attention(net.asks(state), keys, values)
        before = rollouts.choose(net.head(torch.cat([state, seen], -1))[:, 0], legal, generator)
        return before.cpu().numpy()

    return rollouts.roll_out(*tasks.begin(), choose, device=tables.device)


class Learner(Reinforce):
    """The network with its optimizer, and training tasks with the largest tables first."""

    def __init__(self, suite: Suite, config: Config, seed: int, device: str = "cpu") -> None:
        super().__init__(suite, config, seed, device)
        scaling = np.stack(suite.feature_scaling())
        with self.seeded():
            self.net = Net(scaling, self.tasks[0].num_devices).to(device)
        tensors = TaskTensors.of(self.tasks, scaling, device)
        self.tensors = tensors.by(tensors.size.double())
        self.optimizer = torch.optim.Adam(self.net.parameters(), config.learning_rate)
        self.parts = {"net": self.net, "optimizer": self.optimizer}

    def rates(self, left: int) -> tuple[float, ...]:
        return (self.config.learning_rate * left / self.config.horizon,)

    def sample(self, rows: Tensor, generator: torch.Generator) -> Sampled:
        tasks = self.tensors.take(rows)
        played = play(self.net, tasks, generator)
        log = self.net(tasks, played.actions).masked_fill(~played.legal, ILLEGAL).log_softmax(-1)
        return Sampled(
            played.actions, overshoot(played.placing), self.makespans(rows, played.devices()), log, tasks.real
        )

    def makespans(self, rows: Tensor, placements: np.ndarray) -> Tensor:
        """The planner's makespans of plans (B, N) of these tasks, those of a task side by side; (B,)."""
        found, each = [], self.config.episodes
        for row, plans in zip(rows[::each].tolist(), np.split(placements, self.config.tasks), strict=True):
            task = self.tasks[row]
            found.append(self.planner.latency(task, plans[:, : task.num_tables]).makespan(task.objective))
        return torch.tensor(np.concatenate(found)).float()

    def solver(self) -> Rnn:
        return Rnn(copy.deepcopy(self.net).cpu())


@dataclass(frozen=True, eq=False)
class Rnn:
    """Tables largest first, each to the device that the network likes best of those where it may go."""

    track: ClassVar[str] = "blind"
    deterministic: ClassVar[bool] = True
    net: Net

    @torch.inference_mode()
    def __call__(self, task: Task, planner: object) -> Plan:
        if task.num_devices != (known := self.net.num_devices):
            raise InvalidTask(f"this network was trained for {known} devices and cannot serve {task.num_devices}")
        tensors = TaskTensors.of([task], self.net.scaling.numpy())
        return play(self.net, tensors.by(tensors.size.double()), None).plan(task)

    def save(self, path: str | Path, **card: Any) -> None:
        """Write the weights and their card to a file."""
        devices = self.net.num_devices
        save_tensors(path, self.net.state_dict(), {**card, "kind": "rnn", "devices": devices})


def load(path: str | Path) -> Rnn:
    """Read what `Rnn.save` wrote."""
    tensors, card = load_tensors(path, "rnn")
    with holds(path, "the RNN's"):
        net = Net(np.zeros((2, len(FEATURES))), card["devices"])
        net.load_state_dict(tensors)
    return Rnn(net)
