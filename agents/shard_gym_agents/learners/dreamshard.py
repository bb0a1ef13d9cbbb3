"""DreamShard (NeurIPS'22): plan by a cost network of one's own, and learn to plan inside it. Needs torch.

Each iteration lets the policy make a few plans, asks the planner what they cost, fits the cost network to all plans
so far, and improves the policy by REINFORCE on the *estimated* MDP, whose costs are the network's. Where this
differs from the paper (P) or its public code (C):
- the policy sees the table that it places (in P and C it does not): each device is shown as it would be with the
  table on it, its representation and its costs. The ReLU before the head makes that count: added before a
  linear head, a table would move the scores of all devices alike.
- devices without room are masked in sampling (as C) and in the loss (C does not); where none has room, all
  count (C crashes), and the episode is worth less than any feasible one.
- features are scaled by the suite's constants (C: by each task's, which divides by zero).
- costs are in units of the mean makespan of the first plans, so that settings mean the same on any hardware.
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
from torch import Tensor
from torch.nn import functional as F

from shard_gym import simulators
from shard_gym.errors import CorruptFile, InvalidTask, UnknownName
from shard_gym.plan import Plan
from shard_gym.simulators.base import counted
from shard_gym.suites import Suite
from shard_gym.tables import FEATURES
from shard_gym.tasks import Task
from shard_gym_agents.learners import boards
from shard_gym_agents.learners.boards import Board
from shard_gym_agents.learners.checkpoints import load_tensors, packed, save_tensors, under, unpack
from shard_gym_agents.learners.dreamshard_networks import CostNet, Nets, PolicyNet, composed
from shard_gym_agents.learners.training import episode_seeds
from shard_gym_agents.solver import refuse_constraints

ORDERS = ("cost", "size")


@dataclass(frozen=True)
class Config:
    """The paper's values, unless said."""

    collect: int = 10  # plans an iteration that the planner is asked about
    cost_updates: int = 300  # of the cost network, an iteration
    cost_batch: int = 64  # plans an update
    policy_updates: int = 10  # an iteration
    tasks: int = 1  # an update of the policy
    episodes: int = 10  # of each of them
    entropy: float = 0.001
    learning_rate: float = 5e-4  # of both networks' Adam, at first; it falls linearly
    horizon: int = 200  # iterations until it is 0 (paper: 10)
    buffer: int = 10_000  # plans remembered (paper: all)
    divide: bool = True  # advantages by their standard deviation: the code does, the paper does not
    head: bool = True  # the estimated MDP's makespans by the head for whole plans; False: by those of phases, better
    order: str = ""  # "cost" (as published), "size", or "": size on Tight suites, where cost order has dead ends

    def __post_init__(self) -> None:
        if self.order and self.order not in ORDERS:
            raise UnknownName("order", self.order, ORDERS)
        counts = (self.collect, self.cost_batch, self.tasks, self.horizon, self.buffer)
        if min(counts) < 1 or min(self.cost_updates, self.policy_updates) < 0 or self.episodes < 2:
            raise InvalidTask("counts are 1 or more, updates 0 or more, episodes 2 or more: their mean is the baseline")


@dataclass(frozen=True, eq=False)
class Played:
    """Whole episodes on the estimated MDP, side by side."""

    board: Board  # tables in the order they were placed
    order: Tensor  # (B, N) which table that is
    actions: Tensor  # (B, N) its device
    phases: Tensor  # (B, N, K, 3) what the policy saw of the devices' costs
    legal: Tensor  # (B, N, K) which devices it might take
    free: Tensor  # (B, K) bytes left; negative where over
    sums: Tensor  # (B, K, 32) of the cost network's representations


@torch.no_grad()
def play(nets: Nets, board: Board, order: str, generator: torch.Generator | None) -> Played:
    """Place all tables, costliest first by the cost network, or largest; devices are drawn, or the best.

    Sums are kept behind the heads' first layer, which is linear, and so is not asked again at each step.
    """
    cost, devices = nets.cost, torch.arange(board.capacity.shape[1], device=board.size.device)
    alone = cost.phases(cost.table(board.features), torch.ones_like(board.real)).sum(-1)
    ordered = board.by(alone if order == "cost" else board.size.to(torch.float64))
    board = board.in_order(ordered)
    costs = cost.table(board.features) * board.real[..., None]  # (B, N, 32)
    hidden = (costs @ cost.heads.weight.T)[:, :, None].unbind(1)  # N of (B, 1, 3 * 64)
    seen = (nets.policy.table(board.features) * board.real[..., None])[:, :, None].unbind(1)
    scale, last = cost.scale(board.slowness), cost.last_layer()
    free, sums = board.capacity, cost.heads.bias.expand(*board.capacity.shape, -1).clone()
    shown, actions, phases, legal = torch.zeros(*free.shape, 32, device=free.device), [], [], []
    for work, table, size in zip(hidden, seen, board.size.unbind(1), strict=True):
        phases.append(cost.read(sums + work, last) * scale)
        legal.append(boards.legal(size, free))
        scores = nets.policy(shown + table, phases[-1]).masked_fill(~legal[-1], boards.ILLEGAL)
        actions.append(boards.choose(scores, generator))
        taken = actions[-1][:, None] == devices
        free = free - taken * size[:, None]
        share = taken[..., None].to(work.dtype)
        sums.addcmul_(share, work)
        shown.addcmul_(share, table)
    placed = torch.stack(actions, 1)
    on = F.one_hot(placed, len(devices)).to(costs.dtype)
    stacked = (torch.stack(phases, 1), torch.stack(legal, 1), free, on.transpose(1, 2) @ costs)
    return Played(board, ordered, placed, *stacked)


def log_policy(policy: PolicyNet, played: Played) -> Tensor:
    """Log probabilities of the devices at each step, masked as they were drawn, (B, N, K)."""
    tables = policy.table(played.board.features) * played.board.real[..., None]
    added = F.one_hot(played.actions, played.legal.shape[2])[..., None] * tables[:, :, None]  # (B, N, K, 32)
    shown = added.cumsum(dim=1) - added + tables[:, :, None]
    return policy(shown, played.phases).masked_fill(~played.legal, boards.ILLEGAL).log_softmax(-1)


@torch.no_grad()
def worth(cost: CostNet, played: Played, objective: str = "") -> Tensor:
    """Reward of each episode: minus the predicted makespan; below that of all tables on one device if over memory.

    The makespan is what the head for whole plans says (the paper's), or with an objective follows from the phases.
    """
    slowness = played.board.slowness
    heap = F.pad(played.sums.sum(dim=1, keepdim=True), (0, 0, 0, slowness.shape[1] - 1))
    slow_heap = slowness.sort(dim=1, descending=True).values  # on the slowest device
    makespan, worst = (
        composed(cost.phases(sums, slow), objective) if objective else cost.makespan(sums, slow)
        for sums, slow in ((played.sums, slowness), (heap, slow_heap))
    )
    over = boards.overshoot(played.free, played.board.capacity)
    return -torch.where(over > 0, worst.maximum(makespan) + over, makespan)


def cost_loss(cost: CostNet, board: Board, plans: Mapping[str, Tensor]) -> Tensor:
    """Squared errors of the phases, summed over devices, and of the makespan (equation 1); mean over plans."""
    tables = cost.table(board.features) * board.real[..., None]
    on = F.one_hot(plans["placement"], board.capacity.shape[1]).to(tables.dtype)
    sums = on.transpose(1, 2) @ tables  # (B, K, 32)
    phases = (cost.phases(sums, board.slowness) - plans["phases"]).square().sum(dim=(1, 2))
    return (phases + (cost.makespan(sums, board.slowness) - plans["makespan"]).square()).mean()


class Learner:
    """The three stages, again and again."""

    def __init__(self, suite: Suite, config: Config, seed: int, device: str = "cpu") -> None:
        self.suite, self.config, self.seed, self.device = suite, config, seed, device
        self.tasks, self.planner = suite.tasks("train"), counted(simulators.make(suite.planner))
        scaling = np.stack(suite.feature_scaling())
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.nets = Nets(scaling).to(device)
        self.board = Board.of(self.tasks, scaling, device)
        self.order = config.order or ("size" if suite.name.startswith("Tight") else "cost")
        self.cost_optimizer = torch.optim.Adam(self.nets.cost.parameters(), config.learning_rate)
        self.policy_optimizer = torch.optim.Adam(self.nets.policy.parameters(), config.learning_rate)
        self.objective = "" if config.head else suite.objective  # see `worth`
        self.plans: dict[str, Tensor] = {}  # the buffer, costs in ms
        self.iteration, self.unit = 0, 1.0  # ms that count as 1

    def iterate(self) -> dict[str, float]:
        """Collect, fit the costs, improve the policy."""
        seed = episode_seeds(self.seed, self.iteration, 1)[0]
        generator = torch.Generator(self.device).manual_seed(int(seed))
        left = max(1, self.config.horizon - self.iteration) / self.config.horizon
        for optimizer in (self.cost_optimizer, self.policy_optimizer):
            optimizer.param_groups[0]["lr"] = self.config.learning_rate * left
        told = self.collect(generator)
        told["cost_loss"] = self.fit_costs(generator)
        told |= self.improve(generator)
        self.iteration += 1
        return told

    def collect(self, generator: torch.Generator) -> dict[str, float]:
        """Plans of random tasks, and what the planner says of them."""
        rows = self.draw(len(self.tasks), self.config.collect, generator)
        before, played = self.planner.calls, play(self.nets, self.board.take(rows), self.order, generator)
        placement = boards.to_table_order(played.order, played.actions)
        phases, makespans = [], []
        for row, devices in zip(rows.tolist(), placement.cpu().numpy(), strict=True):
            task = self.tasks[row]
            latency = self.planner.latency(task, devices[: task.num_tables])
            phases.append([latency.forward_compute, latency.backward_comm, latency.backward_compute])
            makespans.append(float(latency.makespan(task.objective)))
        costs = {"phases": np.array(phases).transpose(0, 2, 1), "makespan": np.array(makespans)}
        found = {"row": rows, "placement": placement}
        found |= {name: torch.tensor(column).float().to(self.device) for name, column in costs.items()}
        if not self.plans:
            self.unit = float(np.mean(makespans)) or 1.0
        kept = {name: torch.cat([self.plans[name], new]) for name, new in found.items()} if self.plans else found
        self.plans = {name: column[-self.config.buffer :] for name, column in kept.items()}
        estimate = -worth(self.nets.cost, played, self.objective).mean().item()
        calls, steps = self.planner.calls - before, int(played.board.real.sum())
        return {"simulator_calls": calls, "steps": steps, "makespan": float(np.mean(makespans)), "estimate": estimate}

    def fit_costs(self, generator: torch.Generator) -> float:
        """Batches from the buffer; the mean loss."""
        losses = [0.0]
        for _ in range(self.config.cost_updates):
            picked = self.draw(len(self.plans["row"]), self.config.cost_batch, generator)
            plans = {name: column[picked] for name, column in self.plans.items()}
            plans |= {name: plans[name] / self.unit for name in ("phases", "makespan")}
            loss = cost_loss(self.nets.cost, self.board.take(plans["row"]), plans)
            losses.append(_step(self.cost_optimizer, loss))
        return float(np.mean(losses[1:] or losses))

    def improve(self, generator: torch.Generator) -> dict[str, float]:
        """REINFORCE on the estimated MDP."""
        c, rewards, losses, steps = self.config, [0.0], [0.0], 0
        for _ in range(c.policy_updates):
            rows = self.draw(len(self.tasks), c.tasks, generator).repeat_interleave(c.episodes)
            played = play(self.nets, self.board.take(rows), self.order, generator)
            reward = worth(self.nets.cost, played, self.objective)
            advantage = boards.advantages(reward.view(c.tasks, c.episodes), c.divide).flatten()
            log = log_policy(self.nets.policy, played)
            loss = boards.reinforce_loss(log, played.actions, advantage, played.board.real, c.entropy)
            losses.append(_step(self.policy_optimizer, loss))
            rewards.append(reward.mean().item())
            steps += int(played.board.real.sum())
        mean = {"reward": np.mean(rewards[1:] or rewards), "policy_loss": np.mean(losses[1:] or losses)}
        return {**{name: float(value) for name, value in mean.items()}, "estimated_steps": steps}

    def draw(self, among: int, count: int, generator: torch.Generator) -> Tensor:
        """Random indices, repeats are legal."""
        return torch.randint(among, (count,), generator=generator, device=self.device)

    def state(self) -> dict[str, Tensor]:
        """Networks, optimizers, buffer and counters; generators are seeded anew each iteration."""
        parts = packed(nets=self.nets, cost=self.cost_optimizer, policy=self.policy_optimizer, iteration=self.iteration)
        plans = {f"plans/{name}": column.cpu().clone() for name, column in self.plans.items()}
        return {**parts, **plans, "unit": torch.tensor(self.unit, dtype=torch.float64)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from there."""
        unpack(state, nets=self.nets, cost=self.cost_optimizer, policy=self.policy_optimizer)
        self.iteration, self.unit = int(state["iteration"]), float(state["unit"])
        self.plans = {name: column.to(self.device) for name, column in under(state, "plans").items()}

    def solver(self) -> DreamShard:
        """A copy of the networks as they are."""
        return DreamShard(copy.deepcopy(self.nets).cpu(), self.order)


def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> float:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


@dataclass(frozen=True, eq=False)
class DreamShard:
    """Plans by its own networks alone: order, costs and choices. It never asks the planner."""

    track: ClassVar[str] = "blind"
    deterministic: ClassVar[bool] = True
    nets: Nets
    order: str = "cost"  # where it runs into a dead end, tables go by size

    @torch.inference_mode()
    def __call__(self, task: Task, planner: object) -> Plan:
        refuse_constraints(task)
        seen = boards.device_order(task)
        board = Board.of([task], self.nets.scaling.numpy()).devices(seen)
        for order in dict.fromkeys((self.order, "size")):
            played = play(self.nets, board, order, None)
            placement = seen[boards.to_table_order(played.order, played.actions)[0].numpy()]
            if (played.free >= 0).all():
                return Plan(tuple(placement.tolist()))
        boards.require_room(task, played.order[0].numpy(), placement)
        raise AssertionError("a device is over its memory")

    def save(self, path: str | Path, **card: Any) -> None:
        """A safetensors file with a card."""
        save_tensors(path, self.nets.state_dict(), {**card, "kind": "dreamshard", "order": self.order})

    @classmethod
    def load(cls, path: str | Path) -> DreamShard:
        """Read what `save` wrote."""
        tensors, card = load_tensors(path, "dreamshard")
        nets = Nets(np.zeros((2, len(FEATURES))))
        try:
            nets.load_state_dict(tensors)
            return cls(nets, ORDERS[ORDERS.index(card["order"])])
        except (RuntimeError, KeyError, ValueError) as error:
            raise CorruptFile(f"{path} holds other networks than DreamShard's: {error}") from error
