"""AutoShard's cost network, trained from what a measuring planner says while the policy learns. Needs torch.

Algorithm 1: after each batch of episodes, 20 updates on 512 shards of the last 5,000. Its table representations are
the policy's too; they learn from costs alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from shard_gym.cost_models.networks import on_grid
from shard_gym.simulators import FastSimulator, Latency
from shard_gym.tables import FEATURES
from shard_gym.tasks import Task
from shard_gym_agents.learners import boards
from shard_gym_agents.learners.autoshard_network import TABLE


class CostNet(nn.Module):
    """21-128-32 a table, summed over a shard, 32-64-1; in units of the mean shard of the first batch."""

    unit: Tensor  # ms

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Sequential(nn.Linear(len(FEATURES), 128), nn.ReLU(), nn.Linear(128, TABLE))
        self.head = nn.Sequential(nn.Linear(TABLE, 64), nn.ReLU(), nn.Linear(64, 1))
        self.register_buffer("unit", torch.ones(()))


class OwnCosts(FastSimulator):
    """What the network says now, as a planner."""

    id = "autoshard:own-costs"

    def __init__(self, weights: Mapping[str, Tensor], scaling: np.ndarray) -> None:
        self.net, self.scaling = CostNet(), scaling
        self.net.load_state_dict(dict(weights))
        first, last = self.net.head[0], self.net.head[2]
        assert isinstance(first, nn.Linear) and isinstance(last, nn.Linear)
        self.layers = [
            part.detach().double().numpy() for part in (first.weight.T, first.bias, last.weight.T, last.bias)
        ]

    @torch.no_grad()
    def embed(self, task: Task) -> np.ndarray:
        """The count and the representation of each table."""
        tables = self.net.table(standardised(task, self.scaling)).double().numpy()
        return np.concatenate([np.ones((len(tables), 1)), on_grid(tables)], axis=1)

    def decode(self, task: Task, sums: np.ndarray) -> Latency:
        """Computation alone, all of it told as forward."""
        weight, bias, last, last_bias = self.layers
        hidden = np.maximum(sums[..., 1:] @ weight + bias, 0)
        cost = np.maximum((hidden @ last + last_bias)[..., 0], 0) * (sums[..., 0] > 0) * float(self.net.unit)
        nothing = np.zeros_like(cost)
        return Latency(on_grid(cost) / np.array(task.speed), nothing, nothing, nothing)


def standardised(task: Task, scaling: np.ndarray) -> Tensor:
    """Features by the scaling, (N, 21)."""
    return torch.from_numpy(boards.standardised(task, scaling).astype(np.float32))


@dataclass(frozen=True)
class Fitting:
    """Algorithm 1's settings."""

    updates: int = 20  # an iteration
    batch: int = 512  # shards
    buffer: int = 5_000  # shards


class CostLearner:
    """The network, its own Adam, and the shards measured last."""

    def __init__(self, tasks: tuple[Task, ...], scaling: np.ndarray, learning_rate: float, fitting: Fitting) -> None:
        self.tasks, self.fitting, self.net = tasks, fitting, CostNet()
        self.optimizer = torch.optim.Adam(self.net.parameters(), learning_rate)
        self.features = [standardised(task, scaling) for task in tasks]
        self.shards: deque[tuple[int, np.ndarray, float]] = deque(maxlen=fitting.buffer)

    def remember(self, plans: list[tuple[int, np.ndarray]], costs: list[np.ndarray]) -> None:
        """Plans, as the index of their task and the device of each table, and what each device took, ms."""
        if not self.shards:
            self.net.unit.fill_(float(np.mean([cost[cost > 0].mean() for cost in costs])))
        for (index, device), cost in zip(plans, costs, strict=True):
            for d in np.unique(device).tolist():
                speed = self.tasks[index].speed[d]
                self.shards.append((index, np.flatnonzero(device == d), float(cost[d]) * speed))

    def fit(self, generator: torch.Generator) -> float:
        """A few updates; the mean squared error over the unit's square."""
        losses = []
        for _ in range(self.fitting.updates):
            picked = torch.randint(len(self.shards), (self.fitting.batch,), generator=generator).tolist()
            shards = [self.shards[i] for i in picked]
            tables = torch.cat([self.features[index][rows] for index, rows, _ in shards])
            owner = torch.repeat_interleave(torch.tensor([len(rows) for _, rows, _ in shards]))
            sums = torch.zeros(len(shards), TABLE).index_add(0, owner, self.net.table(tables))
            times = torch.tensor([cost for *_, cost in shards]) / self.net.unit
            loss = (self.net.head(sums)[:, 0] - times).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(float(loss.detach()))
        return float(np.mean(losses))

    def state(self) -> dict[str, Tensor]:
        """The buffer as tensors."""
        index, rows, costs = zip(*self.shards, strict=True) if self.shards else ((), (), ())
        counts = [len(of) for of in rows]
        flat = np.concatenate([np.zeros(0, np.int64), *rows])
        return {
            "index": torch.tensor(index, dtype=torch.int64),
            "counts": torch.tensor(counts, dtype=torch.int64),
            "rows": torch.from_numpy(flat),
            "costs": torch.tensor(costs, dtype=torch.float64),
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """What `state` told."""
        rows = np.split(state["rows"].numpy(), np.cumsum(state["counts"].numpy())[:-1])
        found = zip(state["index"].tolist(), rows, state["costs"].tolist(), strict=True)
        self.shards = deque(found if len(state["index"]) else (), maxlen=self.fitting.buffer)
