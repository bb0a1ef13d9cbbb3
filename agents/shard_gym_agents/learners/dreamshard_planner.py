"""DreamShard with the planner in the loop: the MDP that its policy learns in is the planner's own. Needs torch.

No cost network is collected for or fitted, and REINFORCE sees true makespans. Beside the sum of its tables'
representations, the policy is shown what the planner says of each device with the next table on it, and what
memory would be left there. A device's score is a weighted sum of these, plus a small network's. Training begins
where the only weight is that of the device's cost above the least one, so that the first policy *is* cost-greedy, and
learns where to deviate; `greedy=False` begins with no weights at all.
Where tables find no room in the order of their costs, the solver tries orders that lean more and more to size.
Where tasks allow all kinds of sharding, or actions halve tables, options of tables are scored in the place of devices,
see `options`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from shard_gym.envs.vector.shelf import decoded_alike
from shard_gym.errors import CorruptFile, InvalidTask
from shard_gym.memory.usage import table_bytes
from shard_gym.plan.forms import beyond_columns
from shard_gym.plan.plan import Plan
from shard_gym.simulators import FastSimulator, Simulator, single_costs
from shard_gym.tables.pool import FEATURES as TABLE
from shard_gym.task.suites import Suite
from shard_gym.task.task import Task
from shard_gym_agents.learners import rollouts
from shard_gym_agents.learners.learner import holds, load_tensors, save_tensors
from shard_gym_agents.learners.offers import FEATURES as SEEN
from shard_gym_agents.learners.options import KIND, OPTIONS, OptionPlanner
from shard_gym_agents.learners.rollouts import ILLEGAL, Reinforce, Rollout, Sampled, TaskTensors, overshoot
from shard_gym_agents.learners.scores import WIDTH, Game, ScoreNet
from shard_gym_agents.learners.trained import read_card
from shard_gym_agents.solvers.solver import require_fast, require_number

LOUD = 10.0  # what differences between devices are multiplied with: nearly full ones are close to one another
FEATURES = (
    *("cost", "makespan", "forward", "comm", "backward"),  # of the device, and the plan, with the next table on it
    *("cost_excess", "makespan_excess"),  # above the least of all devices
    *("forward_excess", "comm_excess", "backward_excess"),  # above the mean of all devices
    *("table", "to_come"),  # what the table costs alone, and an even share of later ones
    *("room", "fill", "tightness"),  # left beside an even share of what is to come; taken; to come of all there is
)


@dataclass(frozen=True)
class Config(rollouts.Config):
    """Ours, not the paper's."""

    tasks: int = 4
    episodes: int = 32
    entropy: float = 0.0
    learning_rate: float = 1e-3
    weights_rate: float = 1e-2  # that of the weighted sum; it falls as well
    greedy: bool = True  # training begins at cost-greedy


def new_net(scaling: np.ndarray, greedy: bool = True) -> ScoreNet:
    """A network that has not learned yet."""
    return ScoreNet(scaling, FEATURES, {"cost_excess": -1.0} if greedy else {})


@dataclass(frozen=True, eq=False)
class Costed:
    """B tasks that the planner decodes alike, N tables in the order they are placed."""

    tasks: TaskTensors  # tables add the planner's embeddings to sums
    bytes_to_come: np.ndarray  # (B, N) after this table
    coming: np.ndarray  # (B, N, 2) the table's single cost; an even share of those after it; over the unit
    unit: np.ndarray  # (B,) ms: the makespan if each device held an even share of every table

    @classmethod
    def of(cls, tasks: Sequence[Task], planner: FastSimulator, scaling: np.ndarray, leans: np.ndarray) -> Costed:
        """`scaling` is the mean and the deviation of features, (2, 21); `leans` (B,) see `rollouts.leaning`."""
        if not all(decoded_alike(tasks[0], task) for task in tasks):
            raise InvalidTask("these tasks differ in speed, links, batch or objective: train on one kind of hardware")
        vectors = [planner.embed(task) for task in tasks]
        tensors = TaskTensors.of(tasks, scaling, vectors=vectors)
        order = np.tile(np.arange(tensors.row.shape[1]), (len(tasks), 1))
        bytes_to_come, coming, unit = np.zeros_like(order), np.zeros((*order.shape, 2)), np.empty(len(tasks))
        for i, (task, added) in enumerate(zip(tasks, vectors, strict=True)):
            n, k, size = task.num_tables, task.num_devices, table_bytes(task)
            alone = single_costs(planner, _as_shown(task))
            require_number(float(alone.sum()), planner)
            by = rollouts.leaning(torch.from_numpy(alone), torch.from_numpy(size), leans[i]).numpy()
            order[i, :n] = found = np.argsort(-by, kind="stable")
            even = np.broadcast_to(added.sum(axis=0) / k, (k, added.shape[1]))
            unit[i] = max(float(planner.cost(task, even).max()), 1e-12)
            alone, size = alone[found] / unit[i], size[found]
            bytes_to_come[i, :n] = size.sum() - size.cumsum()
            coming[i, :n] = np.stack([LOUD / 2 * alone, (alone.sum() - alone.cumsum()) / k], axis=1)
        return cls(tensors.ordered(torch.from_numpy(order)), bytes_to_come, coming, unit)

    def take(self, rows: np.ndarray) -> Costed:
        """Some of the tasks; repeats are legal."""
        tasks = self.tasks.take(torch.from_numpy(rows))
        return Costed(tasks, self.bytes_to_come[rows], self.coming[rows], self.unit[rows])


def _as_shown(task: Task) -> Task:
    """The task with its devices in the order of `device_order`: single costs are those of the first one."""
    if len(set(zip(task.memory, task.speed, strict=True))) == 1:
        return task
    shown = rollouts.device_order(task).tolist()
    memory, speed = (tuple(values[d] for d in shown) for values in (task.memory, task.speed))
    return replace(task, memory=memory, speed=speed)


class Forecast:
    """The planner's word on each device of B tasks, were the next table on it; seen in the order of `device_order`."""

    def __init__(self, costed: Costed, planner: FastSimulator) -> None:
        self.costed, self.planner, self.task = costed, planner, costed.tasks.options.tasks[0]
        self.placing, self.rows = costed.tasks.begin(track=True)
        self.tables, self.size = self.placing.options.vector[self.rows, 0], self.placing.options.size[self.rows]
        self.seen = rollouts.device_order(self.task)
        self.cost, self.next_cost = np.zeros((2, *self.placing.free.shape))  # ms, now and with the next table
        self.own, self.each = np.eye(len(self.seen), dtype=bool), np.arange(len(self.rows))

    def costs_with(self, step: int) -> np.ndarray:
        """Cost, makespan, forward, comm and backward in ms if a device took the next table, (B, K, 5)."""
        task, sums, table = self.task, self.placing.sums, self.tables[:, step]
        costs = np.empty((*self.cost.shape, 5))
        if task.objective == "kernel":  # devices do not touch: one decode for all
            latency = self.planner.decode(task, sums + table[:, None])
            costs[..., 0] = cost = latency.compute
            others = np.where(self.own, 0, self.cost[:, None]).max(axis=-1)
            np.maximum(cost, others, out=costs[..., 1])
            costs[..., 2], costs[..., 4] = latency.forward_compute, latency.backward_compute
            costs[..., 3] = 0
            return costs
        plans = sums[:, None] + self.own[..., None] * table[:, None, None]  # (B, K, K, H)
        latency = self.planner.decode(task, plans)
        cost = latency.cost(task.objective)
        phases = (latency.forward_compute, latency.backward_comm, latency.backward_compute)
        for i, values in ((0, cost), *enumerate(phases, start=2)):
            costs[..., i] = np.diagonal(values, axis1=1, axis2=2)
        np.maximum.reduce(cost, axis=2, out=costs[..., 1])
        return costs

    def look(self, step: int) -> np.ndarray:
        """Features of each device that the policy sees, float32 (B, K, 15)."""
        c, size, k = self.costed, self.size[:, step], len(self.seen)
        costs, free = self.costs_with(step), self.placing.free[:, self.seen]
        self.next_cost = costs[..., 0]
        costs = costs[:, self.seen] / c.unit[:, None, None]
        least = np.minimum.reduce(costs[..., :2], axis=1, keepdims=True)
        mean = np.add.reduce(costs[..., 2:], axis=1, keepdims=True) / k
        to_come = c.bytes_to_come[:, step, None]
        room, seen = np.maximum(free - size, 0), np.empty((*free.shape, len(FEATURES)), np.float32)
        seen[..., :5] = costs
        seen[..., 5:7] = LOUD * (costs[..., :2] - least)
        seen[..., 7:10] = LOUD * (costs[..., 2:] - mean)
        seen[..., 10:12] = c.coming[:, step, None]
        seen[..., 12] = room / (room + (to_come / k + 1))
        seen[..., 13] = size / np.maximum(np.maximum(free, size), 1)
        total = np.add.reduce(free, axis=1, keepdims=True) - size
        seen[..., 14] = np.minimum(to_come / np.maximum(total, 1), 2)
        return seen

    def take(self, chosen: np.ndarray) -> None:
        """Note the costs of the devices, (B,), that take the tables looked at."""
        taken = self.each, self.seen[chosen]
        self.cost[taken] = self.next_cost[taken]

    def makespan(self) -> np.ndarray:
        """Makespans so far, (B,) ms."""
        return self.planner.cost(self.task, self.placing.sums).max(axis=-1)


@dataclass(frozen=True, eq=False)
class Played:
    """Whole episodes, side by side."""

    rollout: Rollout
    seen: Tensor  # (B, N, K, 15)
    forecast: Forecast  # at the end


@torch.no_grad()
def play(net: ScoreNet, costed: Costed, planner: FastSimulator, generator: torch.Generator | None) -> Played:
    """Place all tables; devices are drawn, or the best."""
    forecast, where = Forecast(costed, planner), net.weights.device
    tables = _tables(net, costed)[:, :, None]
    sums, each = tables.new_zeros(*forecast.cost.shape, WIDTH), torch.arange(len(forecast.own), device=where)
    looks: list[Tensor] = []

    def choose(step: int, legal: np.ndarray) -> np.ndarray:
        looks.append(torch.from_numpy(forecast.look(step)).to(where))
        chosen = rollouts.choose(net(sums + tables[:, step], looks[-1]), legal, generator)
        sums.addcmul_((chosen[:, None] == each)[..., None], tables[:, step])
        forecast.take(devices := chosen.cpu().numpy())
        return devices

    rollout = rollouts.roll_out(forecast.placing, forecast.rows, choose, forecast.seen, where)
    return Played(rollout, torch.stack(looks, 1), forecast)


def log_policy(net: ScoreNet, costed: Costed, played: Played) -> Tensor:
    """Log probabilities of the devices at each step, masked as they were drawn, (B, N, K)."""
    tables = _tables(net, costed)[:, :, None]
    added = F.one_hot(played.rollout.actions, played.seen.shape[2])[..., None] * tables  # (B, N, K, 64)
    sums = added.cumsum(dim=1) - added + tables
    return net(sums, played.seen).masked_fill(~played.rollout.legal, ILLEGAL).log_softmax(-1)


def _tables(net: ScoreNet, costed: Costed) -> Tensor:
    """Representations, (B, N, 64); zeros where padded."""
    where = net.weights.device
    return net.table(costed.tasks.features.to(where)) * costed.tasks.real.to(where)[..., None]


def begin(tasks: Sequence[Task], planner: FastSimulator, scaling: np.ndarray) -> Costed:
    """Tasks, each in the first order in which cost-greedy finds room for all of its tables."""
    greedy, leans = new_net(scaling), np.zeros(len(tasks))
    for lean in rollouts.LEANS[1:]:
        costed = Costed.of(tasks, planner, scaling, leans)
        dead_end = (play(greedy, costed, planner, None).rollout.placing.free < 0).any(axis=1)
        if not dead_end.any():
            return costed
        leans[dead_end] = lean
    return Costed.of(tasks, planner, scaling, leans)


def sampled(net: ScoreNet, costed: Costed, planner: FastSimulator, generator: torch.Generator) -> Sampled:
    """Episodes of these tasks."""
    played, real = play(net, costed, planner, generator), costed.tasks.real.to(net.weights.device)
    makespans, over = torch.from_numpy(played.forecast.makespan()), overshoot(played.rollout.placing)
    return Sampled(played.rollout.actions, over, makespans, log_policy(net, costed, played), real)


class Learner(Reinforce):
    """The network with its optimizer, and training tasks in orders that have room for all tables."""

    def __init__(self, suite: Suite, config: Config, seed: int, device: str = "cpu") -> None:
        super().__init__(suite, config, seed, device)
        self.fast, scaling = require_fast(self.planner), np.stack(suite.feature_scaling())
        self.game = OPTIONS if beyond_columns(self.tasks[0]) or suite.split_action else DEVICES
        with self.seeded():
            self.net = self.game.new_net(scaling, config.greedy)
        self.played = self.game.begin(self.tasks, self.fast, scaling)
        self.net.to(device)
        others = [p for name, p in self.net.named_parameters() if name != "weights"]
        self.optimizer = torch.optim.Adam([{"params": others}, {"params": [self.net.weights]}], lr=0.0)
        self.parts = {"net": self.net, "optimizer": self.optimizer}

    def rates(self, left: int) -> tuple[float, ...]:
        share = left / self.config.horizon
        return self.config.learning_rate * share, self.config.weights_rate * share

    def sample(self, rows: Tensor, generator: torch.Generator) -> Sampled:
        drawn: Sampled = self.game.sampled(self.net, self.played.take(rows.cpu().numpy()), self.fast, generator)
        return drawn

    def solver(self) -> Any:
        return self.game.solver(copy.deepcopy(self.net).cpu())


@dataclass(frozen=True, eq=False)
class DreamShardPlanner:
    """Each table to the device of the highest score where it may go, as the planner's costs and the policy have it."""

    track: ClassVar[str] = "search"
    deterministic: ClassVar[bool] = True
    net: ScoreNet

    def __call__(self, task: Task, planner: Simulator) -> Plan:
        _, rollout = self._placed(task, require_fast(planner))
        return rollout.plan(task)

    def samples(self, task: Task, planner: Simulator, count: int, seed: int = 0) -> np.ndarray:
        """Plans drawn from the policy, (count, N), in the order of its own plan; some may not be feasible."""
        planner, generator = require_fast(planner), torch.Generator().manual_seed(seed)
        costed, _ = self._placed(task, planner)
        return play(self.net, costed.take(np.zeros(count, np.int64)), planner, generator).rollout.devices()

    def _placed(self, task: Task, planner: FastSimulator) -> tuple[Costed, Rollout]:
        """The best placement in the first order without a dead end, else in the last one."""
        for lean in rollouts.LEANS:
            costed = Costed.of([task], planner, self.net.scaling.numpy(), np.array([lean]))
            rollout = play(self.net, costed, planner, None).rollout
            if rollout.refused(task) is None:
                break
        return costed, rollout

    def save(self, path: str | Path, **card: Any) -> None:
        """Write the weights and their card to a file."""
        save_tensors(path, self.net.state_dict(), {**card, "kind": "dreamshard-planner", "seen": list(FEATURES)})


def load(path: str | Path) -> DreamShardPlanner | OptionPlanner:
    """Read what `save` wrote, of either game."""
    options = read_card(Path(path)).get("kind") == KIND
    kept, card = load_tensors(path, KIND if options else "dreamshard-planner")
    game, seen = (OPTIONS, SEEN) if options else (DEVICES, FEATURES)
    net = game.new_net(np.zeros((2, len(TABLE))), True)
    with holds(path, "the policy's"):
        net.load_state_dict(kept)
    if card.get("seen") != list(seen):
        raise CorruptFile(f"{path} expects to see {card.get('seen')}, here it is {list(seen)}")
    solver: DreamShardPlanner | OptionPlanner = game.solver(net)
    return solver


DEVICES = Game(new_net, begin, sampled, DreamShardPlanner)
