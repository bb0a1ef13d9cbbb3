"""DreamShard with the planner in the loop where tables may be sharded or halved: a policy over options of tables.

Beside a table's features, the policy is shown what the planner says of the plan with each option, whose pieces go where
they cost least. Training begins near cost-greedy, with four weights: of an aim (what devices cost, raised by an even
share of what is to come, and bytes at their price), of halvings, and of rows over several devices. The solver tries
orders by cost and by size, with memory dearer after each two. Needs torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from shard_gym.errors import InfeasibleTask
from shard_gym.plan.plan import Plan
from shard_gym.simulators import FastSimulator, Simulator
from shard_gym.task.task import Task
from shard_gym_agents.learners import rollouts
from shard_gym_agents.learners.learner import save_tensors
from shard_gym_agents.learners.menus import ATTEMPTS, Menu
from shard_gym_agents.learners.offers import FEATURES, FIRST, Offers
from shard_gym_agents.learners.rollouts import ILLEGAL, Sampled
from shard_gym_agents.learners.scores import Game, ScoreNet
from shard_gym_agents.search.kinds import Search
from shard_gym_agents.search.state import Budget
from shard_gym_agents.solvers.solver import require_fast

PLANS = 2  # that are made, where there is room; by cost and by size, mostly
KIND = "dreamshard-planner-options"  # of file


def new_net(scaling: np.ndarray, greedy: bool = True) -> ScoreNet:
    """A network that has not learned yet."""
    return ScoreNet(scaling, FEATURES, FIRST if greedy else {})


@dataclass(frozen=True, eq=False)
class Played:
    """Whole episodes, side by side."""

    offers: Offers  # at the end
    actions: Tensor  # (B, N) options
    seen: Tensor  # (B, N, M, F)
    legal: Tensor  # (B, N, M); all options where none is
    times: np.ndarray  # (B, N, K) pieces on each device
    alive: np.ndarray  # (B,) True if every item had an option that is legal

    def over(self) -> Tensor:
        """The most that a memory is over, as a share of it, (B,); 0 if none is."""
        menu = self.offers.menu
        over = np.maximum(-self.offers.free / np.maximum(menu.capacity, 1), 0).max(axis=(1, 2))
        return torch.from_numpy(over.astype(np.float32))


@torch.no_grad()
def play(net: ScoreNet, menu: Menu, planner: FastSimulator, generator: torch.Generator | None) -> Played:
    """Place all items; options are drawn, or the best."""
    offers, where = Offers(menu, planner), net.weights.device
    tables, alive, each = _tables(net, menu), np.ones(len(menu.task), bool), np.arange(len(menu.task))
    options, steps, times = _options(net, menu), list[tuple[Tensor, Tensor, Tensor]](), list[np.ndarray]()
    for step in range(menu.item.shape[1]):
        found, legal = offers.look(step)
        real, dead_end = menu.choice[:, step] >= 0, ~legal.any(axis=1)
        padded = np.logical_not(np.any(real, axis=1))
        alive[dead_end & ~padded] = False
        legal[dead_end] = (real | padded[:, None])[dead_end]
        seen = torch.from_numpy(found).to(where)
        chosen = rollouts.choose(net(tables[:, step, None], seen, options[:, step]), legal, generator)
        at = each, chosen.cpu().numpy()
        offers.take(at[1])
        steps.append((chosen, seen, torch.from_numpy(legal).to(where)))
        times.append(offers.times[at])
    actions, shown, open_ = (torch.stack(column, 1) for column in zip(*steps, strict=True))
    return Played(offers, actions, shown, open_, np.stack(times, 1), alive)


def log_policy(net: ScoreNet, played: Played) -> Tensor:
    """Log probabilities of the options at each step, masked as they were drawn, (B, N, M)."""
    tables = _tables(net, played.offers.menu)[:, :, None]
    scores = net(tables, played.seen, _options(net, played.offers.menu))
    return scores.masked_fill(~played.legal, ILLEGAL).log_softmax(-1)


def _tables(net: ScoreNet, menu: Menu) -> Tensor:
    """Representations of items, (B, N, 64)."""
    return net.table(torch.from_numpy(menu.features).to(net.weights.device))


def _options(net: ScoreNet, menu: Menu) -> Tensor:
    """1 for each option that there is, 0 for padding, (B, N, M)."""
    return torch.from_numpy(menu.choice >= 0).to(net.weights.device, torch.float32)


def begin(tasks: Sequence[Task], planner: FastSimulator, scaling: np.ndarray) -> Menu:
    """Menus of tasks, each in the first attempt in which the policy that has not learned finds room for all tables."""
    searches = [Search(task, planner, Budget(np.inf, 0)) for task in tasks]
    first, attempts = new_net(scaling), np.zeros(len(tasks), np.int64)
    for attempt in range(1, ATTEMPTS):
        menu = Menu.of(searches, planner, scaling, attempts)
        if (alive := play(first, menu, planner, None).alive).all():
            return menu
        attempts[~alive] = attempt
    return Menu.of(searches, planner, scaling, attempts)


def sampled(net: ScoreNet, menu: Menu, planner: FastSimulator, generator: torch.Generator) -> Sampled:
    """Episodes of these tasks."""
    played = play(net, menu, planner, generator)
    real = torch.from_numpy(menu.item >= 0).to(played.actions.device, torch.float32)
    makespans = torch.from_numpy(played.offers.makespan())
    return Sampled(played.actions, played.over(), makespans, log_policy(net, played), real)


@dataclass(frozen=True, eq=False)
class OptionPlanner:
    """Each table by the option of the highest score where there is room; of the first two plans the better."""

    track: ClassVar[str] = "search"
    deterministic: ClassVar[bool] = True
    net: ScoreNet

    def __call__(self, task: Task, planner: Simulator) -> Plan:
        found: list[Played] = []
        for played in self._attempts(task, require_fast(planner)):
            if played.alive[0]:
                found.append(played)
            if len(found) == PLANS:
                break
        if found:
            best = min(found, key=lambda played: float(played.offers.makespan()[0]))
            return best.offers.menu.plan(best.actions[0].numpy(), best.times[0])
        raise InfeasibleTask(
            f"some table found no room in {ATTEMPTS} orders, which does not prove that there is no plan"
        )

    def _attempts(self, task: Task, planner: FastSimulator) -> Iterator[Played]:
        search, scaling = Search(task, planner, Budget(np.inf, 0)), self.net.scaling.numpy()
        for attempt in range(ATTEMPTS):
            yield play(self.net, Menu.of([search], planner, scaling, np.array([attempt])), planner, None)

    def save(self, path: str | Path, **card: Any) -> None:
        """Write the weights and their card to a file."""
        save_tensors(path, self.net.state_dict(), {**card, "kind": KIND, "seen": list(FEATURES)})


OPTIONS = Game(new_net, begin, sampled, OptionPlanner)
