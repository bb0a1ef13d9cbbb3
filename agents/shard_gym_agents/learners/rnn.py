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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shard_gym import simulators
from shard_gym.errors import CorruptFile, InvalidTask
from shard_gym.plan import Plan
from shard_gym.simulators.base import counted
from shard_gym.suites import Suite
from shard_gym.tables import FEATURES
from shard_gym.tasks import Task
from shard_gym_agents.learners import boards
from shard_gym_agents.learners.boards import Board, Ruled
from shard_gym_agents.learners.checkpoints import load_tensors, packed, save_tensors, unpack
from shard_gym_agents.learners.dreamshard_networks import mlp
from shard_gym_agents.learners.training import episode_seeds


@dataclass(frozen=True)
class Config:
    """DreamShard's values where it has them."""

    updates: int = 10  # of the policy, an iteration
    tasks: int = 1  # an update
    episodes: int = 10  # of each of them
    entropy: float = 0.001
    learning_rate: float = 5e-4  # of Adam, at first; it falls linearly
    horizon: int = 200  # iterations until it is 0
    divide: bool = True  # advantages by their standard deviation

    def __post_init__(self) -> None:
        if min(self.updates, self.tasks, self.horizon) < 1 or self.episodes < 2:
            raise InvalidTask("counts are 1 or more, and episodes 2 or more: their mean is the baseline")


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

    def forward(self, board: Board, actions: Tensor) -> Tensor:
        """Scores of devices at each step of episodes that were played, (B, N) -> (B, N, K)."""
        before = F.pad(actions[:, :-1], (1, 0), value=self.num_devices)
        states, _ = self.lstm(self.table(board.features) + self.before(before))  # (B, N, 32)
        keys, values = self.answers(states).chunk(2, dim=-1)
        seen = F.scaled_dot_product_attention(self.asks(states), keys, values, is_causal=True)
        return self.head(torch.cat([states, seen], -1))

    def __repr__(self) -> str:  # results of solvers hold it
        return f"{sum(p.numel() for p in self.parameters())} weights"


@dataclass(frozen=True, eq=False)
class Played:
    """Whole episodes, side by side."""

    actions: Tensor  # (B, N) the device of each table
    legal: Tensor  # (B, N, K) which devices had room for it
    free: Tensor  # (B, K) bytes left; negative where over


@torch.no_grad()
def play(net: Net, board: Board, generator: torch.Generator | None, rules: Ruled | None = None) -> Played:
    """Place all tables in the board's order; devices are drawn, or the best."""
    devices, free = torch.arange(net.num_devices, device=board.size.device), board.capacity
    before, carried = torch.full_like(free[:, 0], net.num_devices), None
    actions, legal, answers = [], [], []
    columns = (net.table(board.features), board.table, board.size)
    for shown, table, size in zip(*(column.unbind(1) for column in columns), strict=True):
        state, carried = net.lstm((shown + net.before(before))[:, None], carried)
        answers.append(net.answers(state))
        keys, values = torch.cat(answers, 1).chunk(2, dim=-1)
        seen = F.scaled_dot_product_attention(net.asks(state), keys, values)
        legal.append(boards.legal(size, free) if rules is None else torch.from_numpy(rules.legal(table.numpy())))
        score = net.head(torch.cat([state, seen], -1))[:, 0].masked_fill(~legal[-1], boards.ILLEGAL)
        before = boards.choose(score, generator)
        actions.append(before)
        if rules is not None:
            rules.place(table.numpy(), before.numpy())
        free = free - (before[:, None] == devices) * size[:, None]
    return Played(torch.stack(actions, 1), torch.stack(legal, 1), free)


class Learner:
    """REINFORCE, an update after the episodes of a few tasks."""

    def __init__(self, suite: Suite, config: Config, seed: int, device: str = "cpu") -> None:
        self.suite, self.config, self.seed, self.device = suite, config, seed, device
        self.tasks, self.planner = suite.tasks("train"), counted(simulators.make(suite.planner))
        scaling = np.stack(suite.feature_scaling())
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.net = Net(scaling, self.tasks[0].num_devices).to(device)
        board = Board.of(self.tasks, scaling, device)
        self.order = board.by(board.size.double())
        self.board = board.in_order(self.order)
        self.optimizer = torch.optim.Adam(self.net.parameters(), config.learning_rate)
        self.iteration = 0

    def iterate(self) -> dict[str, float]:
        """A few updates; means of what they tell."""
        c, before = self.config, self.planner.calls
        seed = episode_seeds(self.seed, self.iteration, 1)[0]
        generator = torch.Generator(self.device).manual_seed(int(seed))
        self.optimizer.param_groups[0]["lr"] = c.learning_rate * max(1, c.horizon - self.iteration) / c.horizon
        told = np.array([self.update(generator) for _ in range(c.updates)])
        self.iteration += 1
        means = dict(zip(("makespan", "policy_loss"), told[:, :2].mean(axis=0).tolist(), strict=True))
        return {"steps": int(told[:, 2].sum()), "simulator_calls": self.planner.calls - before, **means}

    def update(self, generator: torch.Generator) -> tuple[float, float, int]:
        """Mean makespan in ms, loss, and steps."""
        c = self.config
        rows = torch.randint(len(self.tasks), (c.tasks,), generator=generator, device=self.device)
        many = rows.repeat_interleave(c.episodes)
        board = self.board.take(many)
        played = play(self.net, board, generator)
        placement = boards.to_table_order(self.order[many], played.actions).cpu().numpy()
        makespans = self.makespans(rows, placement.reshape(c.tasks, c.episodes, -1))
        over = boards.overshoot(played.free, board.capacity).view(c.tasks, c.episodes)
        advantage = boards.advantages(boards.rewards(makespans, over), c.divide).flatten()
        log = self.net(board, played.actions).masked_fill(~played.legal, boards.ILLEGAL).log_softmax(-1)
        loss = boards.reinforce_loss(log, played.actions, advantage, board.real, c.entropy)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return makespans.mean().item(), loss.item(), int(board.real.sum())

    def makespans(self, rows: Tensor, placements: np.ndarray) -> Tensor:
        """What the planner says of each task's plans, (tasks, episodes, N) -> (tasks, episodes)."""
        found = []
        for row, plans in zip(rows.tolist(), placements, strict=True):
            task = self.tasks[row]
            found.append(self.planner.latency(task, plans[:, : task.num_tables]).makespan(task.objective))
        return torch.tensor(np.stack(found)).float().to(self.device)

    def state(self) -> dict[str, Tensor]:
        """Network, optimizer and counter; generators are seeded anew each iteration."""
        return packed(net=self.net, optimizer=self.optimizer, iteration=self.iteration)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from there."""
        unpack(state, net=self.net, optimizer=self.optimizer)
        self.iteration = int(state["iteration"])

    def solver(self) -> Rnn:
        """A copy of the network as it is."""
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
        board = Board.of([task], self.net.scaling.numpy())
        order = board.by(board.size.double())
        board = board.in_order(order)
        played = play(self.net, board, None, boards.ruled(task, 1, np.arange(known)))
        placement = boards.to_table_order(order, played.actions)[0].numpy()
        if (why := boards.missed(task, order[0].numpy(), placement)) is not None:
            raise why
        return Plan(tuple(placement.tolist()))

    def save(self, path: str | Path, **card: Any) -> None:
        """A safetensors file with a card."""
        devices = self.net.num_devices
        save_tensors(path, self.net.state_dict(), {**card, "kind": "rnn", "devices": devices})


def load(path: str | Path) -> Rnn:
    """Read what `Rnn.save` wrote."""
    tensors, card = load_tensors(path, "rnn")
    try:
        net = Net(np.zeros((2, len(FEATURES))), card["devices"])
        net.load_state_dict(tensors)
    except (RuntimeError, KeyError, TypeError) as error:
        raise CorruptFile(f"{path} holds another network than the RNN's: {error}") from error
    return Rnn(net)
