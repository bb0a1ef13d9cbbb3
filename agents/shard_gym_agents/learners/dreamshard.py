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
from torch import Tensor
from torch.nn import functional as F

from shard_gym import simulators
from shard_gym.errors import CorruptFile, InfeasibleTask, InvalidTask
from shard_gym.plan import Plan
from shard_gym.simulators.base import counted
from shard_gym.suites import Suite
from shard_gym.tables import FEATURES
from shard_gym.tasks import Task
from shard_gym_agents.learners import boards
from shard_gym_agents.learners.ablations import known, without
from shard_gym_agents.learners.boards import Board
from shard_gym_agents.learners.checkpoints import load_tensors, packed, save_tensors, under, unpack
from shard_gym_agents.learners.dreamshard_networks import CostNet, Nets
from shard_gym_agents.learners.dreamshard_play import log_policy, play, worth
from shard_gym_agents.learners.training import episode_seeds


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
    lean: float = -1.0  # order of tables in training, see `boards.leaning`; below 0: 0, on Tight suites 1/4
    drop: str = ""  # a group of features that both networks go without, see `ablations`
    costs_shown: bool = True  # to the policy; False: it sees zeros

    def __post_init__(self) -> None:
        known(self.drop)
        counts = (self.collect, self.cost_batch, self.tasks, self.horizon, self.buffer)
        if min(counts) < 1 or min(self.cost_updates, self.policy_updates) < 0 or self.episodes < 2:
            raise InvalidTask("counts are 1 or more, updates 0 or more, episodes 2 or more: their mean is the baseline")


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
        scaling = without(np.stack(suite.feature_scaling()), config.drop)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.nets = Nets(scaling, config.costs_shown, boards.ranges(self.tasks, scaling)).to(device)
        self.board = Board.of(self.tasks, scaling, device)
        self.lean = config.lean if config.lean >= 0 else suite.name.startswith("Tight") / 4
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
        before, played = self.planner.calls, play(self.nets, self.board.take(rows), self.lean, generator)
        placement = boards.to_table_order(played.order, played.actions)
        costs = self.ask(rows.cpu().numpy(), placement.cpu().numpy())
        found = {"row": rows, "placement": placement}
        found |= {name: torch.from_numpy(column).float().to(self.device) for name, column in costs.items()}
        if not self.plans:
            self.unit = float(costs["makespan"].mean()) or 1.0
        kept = {name: torch.cat([self.plans[name], new]) for name, new in found.items()} if self.plans else found
        self.plans = {name: column[-self.config.buffer :] for name, column in kept.items()}
        estimate = -worth(self.nets.cost, played, self.objective).mean().item()
        calls, steps = self.planner.calls - before, int(played.board.real.sum())
        makespan = float(costs["makespan"].mean())
        return {"simulator_calls": calls, "steps": steps, "makespan": makespan, "estimate": estimate}

    def ask(self, rows: np.ndarray, placements: np.ndarray) -> dict[str, np.ndarray]:
        """What the planner says of plans (P, N) of these tasks: phases (P, K, 3) and makespans (P,), ms."""
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
            loss = cost_loss(self.nets.cost, self.board.take(plans["row"]), plans)
            losses.append(_step(self.cost_optimizer, loss))
        return float(np.mean(losses[1:] or losses))

    def improve(self, generator: torch.Generator) -> dict[str, float]:
        """REINFORCE on the estimated MDP."""
        c, rewards, losses, steps = self.config, [0.0], [0.0], 0
        for _ in range(c.policy_updates):
            rows = self.draw(len(self.tasks), c.tasks, generator).repeat_interleave(c.episodes)
            played = play(self.nets, self.board.take(rows), self.lean, generator)
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
        return DreamShard(copy.deepcopy(self.nets).cpu())


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

    def __call__(self, task: Task, planner: object) -> Plan:
        _, placement, why = self._placed(task, boards.device_order(task))
        if why is not None:
            raise why
        return Plan(tuple(placement.tolist()))

    def samples(self, task: Task, planner: object, count: int, seed: int = 0) -> np.ndarray:
        """Plans drawn from the policy, (count, N), in the order of its own plan; some may not be feasible."""
        seen = np.arange(task.num_devices)
        lean, *_ = self._placed(task, seen)
        several = self._board(task).take(torch.zeros(count, dtype=torch.int64))
        generator = torch.Generator().manual_seed(seed)
        played = play(self.nets, several, lean, generator, boards.ruled(task, count, seen))
        return boards.to_table_order(played.order, played.actions).numpy()

    def _board(self, task: Task) -> Board:
        return Board.of([task], self.nets.scaling.numpy(), limits=self.nets.limits.numpy())

    def _placed(self, task: Task, seen: np.ndarray) -> tuple[float, np.ndarray, InfeasibleTask | None]:
        """The best placement in the first order without a dead end, else in the last one, and what that one missed."""
        board = self._board(task).devices(seen)
        for lean in boards.LEANS:
            played = play(self.nets, board, lean, None, boards.ruled(task, 1, seen))
            placement = seen[boards.to_table_order(played.order, played.actions)[0].numpy()]
            if (why := boards.missed(task, played.order[0].numpy(), placement)) is None:
                break
        return lean, placement, why

    def save(self, path: str | Path, **card: Any) -> None:
        """A safetensors file with a card."""
        save_tensors(path, self.nets.state_dict(), {**card, "kind": "dreamshard"})


def load(path: str | Path) -> DreamShard:
    """Read what `DreamShard.save` wrote."""
    tensors, _ = load_tensors(path, "dreamshard")
    nets = Nets(np.zeros((2, len(FEATURES))))
    try:
        nets.load_state_dict(tensors)
    except RuntimeError as error:
        raise CorruptFile(f"{path} holds other networks than DreamShard's: {error}") from error
    return DreamShard(nets)
