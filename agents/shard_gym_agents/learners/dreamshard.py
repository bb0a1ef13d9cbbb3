"""DreamShard (NeurIPS'22): plan by a cost network of one's own, and learn to plan inside it. Needs torch.

Each iteration lets the policy make a few plans, asks the planner what they cost, fits the cost network to all plans
so far, and improves the policy by REINFORCE on the *estimated* MDP, whose costs are the network's. Where this
differs from the paper (P) or its public code (C):
- the policy sees the table that it places (in P and C it does not): each device is shown as it would be with the
  table on it, its representation and its costs. The ReLU before the head makes that count: added before a
  linear head, a table would move the scores of all devices alike.
- devices without room are masked in sampling (as C) and in the loss (C does not); where none has room, all
  count (C crashes), and the episode is worth less than any feasible one.
- features are scaled by the suite's constants (C: by each task's, which divides by zero), and kept to the range
  of the training tables: some test tables are as far as 90 deviations outside.
- costs are in units of the mean makespan of the first plans, so that settings mean the same on any hardware.
- where tables find no room in the order of their costs, the solver tries orders that lean more and more to size.
- on devices of unequal speed the forward and backward heads predict a device of speed 1, and times are scaled.
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

from shard_gym.errors import InvalidTask
from shard_gym.plan.plan import Plan
from shard_gym.tables.pool import FEATURES
from shard_gym.task.suites import Suite
from shard_gym.task.task import Task
from shard_gym_agents.learners import rollouts
from shard_gym_agents.learners.learner import (
    SuiteLearner,
    descend,
    holds,
    load_tensors,
    mlp,
    num_weights,
    save_tensors,
    under,
)
from shard_gym_agents.learners.rollouts import ILLEGAL, Rollout, TaskTensors

LOUD = 10.0  # costs of 1 as the policy sees them: differences between nearly full devices have to show
FARTHEST = float(np.finfo(np.float32).max)  # limit of features where none is known


@dataclass(frozen=True)
class Config:
    """The paper's values in brackets, where ours differ."""

    collect: int = 100  # plans an iteration that the planner is asked about (10)
    cost_updates: int = 100  # of the cost network, an iteration (300)
    cost_batch: int = 64  # plans an update
    policy_updates: int = 20  # an iteration (10)
    tasks: int = 4  # an update of the policy (1)
    episodes: int = 10  # of each of them
    entropy: float = 0.001
    learning_rate: float = 1e-3  # of both networks' Adam, at first; it falls linearly (5e-4)
    horizon: int = 200  # iterations until it is 0 (10)
    buffer: int = 10_000  # plans remembered (all)
    divide: bool = True  # advantages by their standard deviation: the code does, the paper does not
    head: bool = False  # the estimated MDP's makespans by the head for whole plans (True), else by those of phases
    lean: float = -1.0  # order of tables in training, see `rollouts.leaning`; below 0: 0, on Tight suites 1/4
    drop: str = ""  # a group of features that both networks go without, see `rollouts.GROUPS`
    costs_shown: bool = True  # to the policy; False: it sees zeros

    def __post_init__(self) -> None:
        rollouts.require_group(self.drop)
        counts = (self.collect, self.cost_batch, self.tasks, self.horizon, self.buffer)
        if min(counts) < 1 or min(self.cost_updates, self.policy_updates) < 0 or self.episodes < 2:
            raise InvalidTask("counts are 1 or more, updates 0 or more, episodes 2 or more: their mean is the baseline")


class CostNet(nn.Module):
    """Costs of a device's tables: 21-128-32 a table, summed; 32-64-1 for each phase, and for the whole plan."""

    PHASES = ("forward", "comm", "backward")  # comm is the backward one; the forward one mirrors it

    def __init__(self) -> None:
        super().__init__()
        self.table, self.makespan_head = mlp(len(FEATURES), 128, 32), mlp(32, 64, 1)
        self.heads = nn.Linear(32, 3 * 64)  # three heads in one go, initialised as three
        self.last = nn.Parameter(torch.empty(3, 64).uniform_(-1 / 8, 1 / 8))
        self.bias = nn.Parameter(torch.empty(3).uniform_(-1 / 8, 1 / 8))

    def phases(self, sums: Tensor, slowness: Tensor) -> Tensor:
        """Phases of each device, (..., K, 32) and (..., K) -> (..., K, 3)."""
        return self.read(self.heads(sums), self.last_layer()) * self.scale(slowness)

    def last_layer(self) -> Tensor:
        """The heads' last layers as one, (3, 3 * 64)."""
        return torch.block_diag(*self.last.split(1))

    def read(self, hidden: Tensor, last: Tensor) -> Tensor:
        """Phases on devices of speed 1, from what the heads' first layers give, (..., 3 * 64) -> (..., 3)."""
        return F.linear(F.relu(hidden), last, self.bias)

    def scale(self, slowness: Tensor) -> Tensor:
        """Factors for the phases of devices of these speeds, (..., K) -> (..., K, 3); 1 for communication."""
        return torch.stack([slowness, torch.ones_like(slowness), slowness], -1)

    def makespan(self, sums: Tensor, slowness: Tensor) -> Tensor:
        """The plan's makespan, by the largest of each element over devices; half the speed counts as twice the work."""
        return self.makespan_head((sums * slowness[..., None]).amax(dim=-2))[..., 0]


class PolicyNet(nn.Module):
    """Scores a device by its own tables and costs: 21-128-32 a table, summed; 3-64-32 the costs; 64-1."""

    loud: Tensor

    def __init__(self, costs_shown: bool = True) -> None:
        super().__init__()
        self.table, self.cost, self.head = mlp(len(FEATURES), 128, 32), mlp(3, 64, 32), nn.Linear(64, 1)
        self.register_buffer("loud", torch.tensor(LOUD if costs_shown else 0.0))

    def forward(self, sums: Tensor, phases: Tensor) -> Tensor:
        """(..., K, 32) and (..., K, 3) with the table on each device -> (..., K)."""
        return self.head(F.relu(torch.cat([sums, self.cost(self.loud * phases)], -1)))[..., 0]


class Nets(nn.Module):
    """Both networks, with the mean, the deviation and the range of the features; for any number of tables and devices.

    Outside the range of the training tables features count as at its edge: networks have no idea what is beyond.
    """

    scaling: Tensor
    limits: Tensor

    def __init__(self, scaling: np.ndarray, costs_shown: bool = True, limits: np.ndarray | None = None) -> None:
        super().__init__()
        self.cost, self.policy = CostNet(), PolicyNet(costs_shown)
        if limits is None:
            limits = np.array([[-FARTHEST], [FARTHEST]]).repeat(len(FEATURES), axis=1)
        self.register_buffer("scaling", torch.from_numpy(scaling))
        self.register_buffer("limits", torch.from_numpy(limits))

    __repr__ = num_weights


def composed(phases: Tensor, objective: str) -> Tensor:
    """The makespan that phases (..., K, 3) add up to; forward communication takes as long as backward."""
    forward, comm, backward = phases.unbind(-1)
    if objective == "kernel":
        return (forward + backward).amax(-1)
    return forward.amax(-1) + (2 * comm + backward).amax(-1)


@dataclass(frozen=True, eq=False)
class Played:
    """Whole episodes on the estimated MDP, side by side."""

    tasks: TaskTensors  # tables in the order they were placed
    rollout: Rollout
    phases: Tensor  # (B, N, K, 3) what the policy saw of the devices' costs
    sums: Tensor  # (B, K, 32) of the cost network's representations


@torch.no_grad()
def play(
    nets: Nets,
    tasks: TaskTensors,
    lean: float,
    generator: torch.Generator | None,
    seen: np.ndarray | None = None,
) -> Played:
    """Place all tables, costliest first by the cost network if `lean` is 0; devices are drawn, or the best.

    `seen` is the order in which the policy sees the devices.
    Sums are kept behind the heads' first layer, which is linear, and so is not asked again at each step.
    """
    cost, count = nets.cost, tasks.slowness.shape[1]
    alone = cost.phases(cost.table(tasks.features), torch.ones_like(tasks.real)).sum(-1)
    tasks = tasks.by(rollouts.leaning(alone * tasks.real, tasks.size, lean))
    costs = cost.table(tasks.features) * tasks.real[..., None]  # (B, N, 32)
    work = (costs @ cost.heads.weight.T)[:, :, None].unbind(1)  # N of (B, 1, 3 * 64)
    tables = (nets.policy.table(tasks.features) * tasks.real[..., None])[:, :, None].unbind(1)
    scale, last = cost.scale(tasks.slowness if seen is None else tasks.slowness[:, seen]), cost.last_layer()
    sums = cost.heads.bias.expand(*tasks.slowness.shape, -1).clone()
    shown, devices = torch.zeros(*tasks.slowness.shape, 32, device=sums.device), torch.arange(count, device=sums.device)
    phases: list[Tensor] = []

    def choose(step: int, legal: np.ndarray) -> np.ndarray:
        phases.append(cost.read(sums + work[step], last) * scale)
        chosen = rollouts.choose(nets.policy(shown + tables[step], phases[-1]), legal, generator)
        share = (chosen[:, None] == devices)[..., None].to(sums.dtype)
        sums.addcmul_(share, work[step])
        shown.addcmul_(share, tables[step])
        return chosen.cpu().numpy()

    rollout = rollouts.roll_out(*tasks.begin(), choose, seen, sums.device)
    on = F.one_hot(rollout.actions, count).to(costs.dtype)
    return Played(tasks, rollout, torch.stack(phases, 1), on.transpose(1, 2) @ costs)


def log_policy(policy: PolicyNet, played: Played) -> Tensor:
    """Log probabilities of the devices at each step, masked as they were drawn, (B, N, K)."""
    tables = policy.table(played.tasks.features) * played.tasks.real[..., None]
    added = F.one_hot(played.rollout.actions, played.phases.shape[2])[..., None] * tables[:, :, None]  # (B, N, K, 32)
    shown = added.cumsum(dim=1) - added + tables[:, :, None]
    return policy(shown, played.phases).masked_fill(~played.rollout.legal, ILLEGAL).log_softmax(-1)


@torch.no_grad()
def worth(cost: CostNet, played: Played, objective: str = "") -> Tensor:
    """Reward of each episode: minus the predicted makespan; below that of all tables on one device if over memory.

    The makespan is what the head for whole plans says (the paper's), or with an objective follows from the phases.
    """
    slowness = played.tasks.slowness
    heap = F.pad(played.sums.sum(dim=1, keepdim=True), (0, 0, 0, slowness.shape[1] - 1))
    slow_heap = slowness.sort(dim=1, descending=True).values  # on the slowest device
    makespan, worst = (
        composed(cost.phases(sums, slow), objective) if objective else cost.makespan(sums, slow)
        for sums, slow in ((played.sums, slowness), (heap, slow_heap))
    )
    over = rollouts.overshoot(played.rollout.placing).to(makespan.device)
    return -torch.where(over > 0, worst.maximum(makespan) + over, makespan)


def cost_loss(cost: CostNet, tasks: TaskTensors, plans: Mapping[str, Tensor]) -> Tensor:
    """Squared errors of the phases, summed over devices, and of the makespan (equation 1); mean over plans."""
    tables = cost.table(tasks.features) * tasks.real[..., None]
    on = F.one_hot(plans["placement"], tasks.slowness.shape[1]).to(tables.dtype)
    sums = on.transpose(1, 2) @ tables  # (B, K, 32)
    phases = (cost.phases(sums, tasks.slowness) - plans["phases"]).square().sum(dim=(1, 2))
    return (phases + (cost.makespan(sums, tasks.slowness) - plans["makespan"]).square()).mean()


class Learner(SuiteLearner):
    """The three stages, again and again."""

    def __init__(self, suite: Suite, config: Config, seed: int, device: str = "cpu") -> None:
        super().__init__(suite, config, seed, device)
        scaling = rollouts.without(np.stack(suite.feature_scaling()), config.drop)
        with self.seeded():
            limits = rollouts.ranges(self.tasks, scaling)
            self.nets = Nets(scaling, config.costs_shown, limits).to(device)
        self.tensors = TaskTensors.of(self.tasks, scaling, device)
        self.lean = config.lean if config.lean >= 0 else (suite.order == "size") / 4
        self.cost_optimizer = torch.optim.Adam(self.nets.cost.parameters(), config.learning_rate)
        self.policy_optimizer = torch.optim.Adam(self.nets.policy.parameters(), config.learning_rate)
        self.parts = {"nets": self.nets, "cost": self.cost_optimizer, "policy": self.policy_optimizer}
        self.objective = "" if config.head else suite.objective  # see `worth`
        self.plans: dict[str, Tensor] = {}  # the buffer, costs in ms
        self.unit = 1.0  # ms that count as 1

    def iterate(self) -> dict[str, float]:
        """Collect, fit the costs, improve the policy."""
        generator = self.generator()
        left = max(1, self.config.horizon - self.iteration) / self.config.horizon
        for optimizer in (self.cost_optimizer, self.policy_optimizer):
            optimizer.param_groups[0]["lr"] = self.config.learning_rate * left
        told = self.collect(generator)
        told["cost_loss"] = self.fit_costs(generator)
        told |= self.improve(generator)
        self.iteration += 1
        return told

    def collect(self, generator: torch.Generator) -> dict[str, float]:
        """Add plans of random tasks to the buffer, with the planner's costs."""
        rows = self.draw(len(self.tasks), self.config.collect, generator)
        before, played = self.planner.calls, play(self.nets, self.tensors.take(rows), self.lean, generator)
        placement = played.rollout.devices()
        costs = self.ask(rows.cpu().numpy(), placement)
        found = {"row": rows, "placement": torch.from_numpy(placement).to(self.device)}
        found |= {name: torch.from_numpy(column).float().to(self.device) for name, column in costs.items()}
        if not self.plans:
            self.unit = float(costs["makespan"].mean()) or 1.0
        kept = {name: torch.cat([self.plans[name], new]) for name, new in found.items()} if self.plans else found
        self.plans = {name: column[-self.config.buffer :] for name, column in kept.items()}
        estimate = -worth(self.nets.cost, played, self.objective).mean().item()
        calls, steps = self.planner.calls - before, int(played.tasks.real.sum())
        makespan = float(costs["makespan"].mean())
        return {"simulator_calls": calls, "steps": steps, "makespan": makespan, "estimate": estimate}

    def ask(self, rows: np.ndarray, placements: np.ndarray) -> dict[str, np.ndarray]:
        """The planner's answers about plans (P, N) of these tasks: phases (P, K, 3) and makespans (P,), ms."""
        phases, makespans = np.empty((len(rows), self.tasks[0].num_devices, 3)), np.empty(len(rows))
        for row in np.unique(rows).tolist():  # in one call for all plans of a task
            task, same = self.tasks[row], rows == row
            latency = self.planner.latency(task, placements[same, : task.num_tables])
            columns = (latency.forward_compute, latency.backward_comm, latency.backward_compute)
            phases[same], makespans[same] = np.stack(columns, -1), latency.makespan(task.objective)
        return {"phases": phases, "makespan": makespans}

    def fit_costs(self, generator: torch.Generator) -> float:
        """Batches from the buffer; the mean loss."""
        losses = [0.0]
        for _ in range(self.config.cost_updates):
            picked = self.draw(len(self.plans["row"]), self.config.cost_batch, generator)
            plans = {name: column[picked] for name, column in self.plans.items()}
            plans |= {name: plans[name] / self.unit for name in ("phases", "makespan")}
            loss = cost_loss(self.nets.cost, self.tensors.take(plans["row"]), plans)
            losses.append(descend(self.cost_optimizer, loss))
        return float(np.mean(losses[1:] or losses))

    def improve(self, generator: torch.Generator) -> dict[str, float]:
        """REINFORCE on the estimated MDP."""
        c, rewards, losses, steps = self.config, [0.0], [0.0], 0
        for _ in range(c.policy_updates):
            rows = self.draw(len(self.tasks), c.tasks, generator).repeat_interleave(c.episodes)
            played = play(self.nets, self.tensors.take(rows), self.lean, generator)
            reward = worth(self.nets.cost, played, self.objective)
            advantage = rollouts.advantages(reward.view(c.tasks, c.episodes), c.divide).flatten()
            log = log_policy(self.nets.policy, played)
            actions, real = played.rollout.actions, played.tasks.real
            loss = rollouts.reinforce_loss(log, actions, advantage, real, c.entropy)
            losses.append(descend(self.policy_optimizer, loss))
            rewards.append(reward.mean().item())
            steps += int(real.sum())
        mean = {"reward": np.mean(rewards[1:] or rewards), "policy_loss": np.mean(losses[1:] or losses)}
        return {**{name: float(value) for name, value in mean.items()}, "estimated_steps": steps}

    def draw(self, among: int, count: int, generator: torch.Generator) -> Tensor:
        """Random indices, repeats are legal."""
        return torch.randint(among, (count,), generator=generator, device=self.device)

    def state(self) -> dict[str, Tensor]:
        """Networks, optimizers, buffer and counters."""
        plans = {f"plans/{name}": column.cpu().clone() for name, column in self.plans.items()}
        return {**super().state(), **plans, "unit": torch.tensor(self.unit, dtype=torch.float64)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        super().restore(state)
        self.unit = float(state["unit"])
        self.plans = {name: column.to(self.device) for name, column in under(state, "plans").items()}

    def solver(self) -> DreamShard:
        return DreamShard(copy.deepcopy(self.nets).cpu())


@dataclass(frozen=True, eq=False)
class DreamShard:
    """Plans by its own networks alone: order, costs and choices. It never asks the planner."""

    track: ClassVar[str] = "blind"
    deterministic: ClassVar[bool] = True
    nets: Nets

    def __call__(self, task: Task, planner: object) -> Plan:
        _, rollout = self._placed(task, rollouts.device_order(task))
        return rollout.plan(task)

    def samples(self, task: Task, planner: object, count: int, seed: int = 0) -> np.ndarray:
        """Plans drawn from the policy, (count, N), in the order of its own plan; some may not be feasible."""
        lean, _ = self._placed(task)
        several = self.tensors(task).take(torch.zeros(count, dtype=torch.int64))
        return play(self.nets, several, lean, torch.Generator().manual_seed(seed)).rollout.devices()

    def tensors(self, task: Task) -> TaskTensors:
        """The task as the networks see it."""
        return TaskTensors.of([task], self.nets.scaling.numpy(), limits=self.nets.limits.numpy())

    def _placed(self, task: Task, seen: np.ndarray | None = None) -> tuple[float, Rollout]:
        """The best placement in the first order without a dead end, else in the last one."""
        tensors = self.tensors(task)
        for lean in rollouts.LEANS:
            rollout = play(self.nets, tensors, lean, None, seen).rollout
            if rollout.refused(task) is None:
                break
        return lean, rollout

    def save(self, path: str | Path, **card: Any) -> None:
        """Write the weights and their card to a file."""
        save_tensors(path, self.nets.state_dict(), {**card, "kind": "dreamshard"})


def load(path: str | Path) -> DreamShard:
    """Read what `DreamShard.save` wrote."""
    tensors, _ = load_tensors(path, "dreamshard")
    nets = Nets(np.zeros((2, len(FEATURES))))
    with holds(path, "DreamShard's"):
        nets.load_state_dict(tensors)
    return DreamShard(nets)
