"""Actions of all kinds of sharding: what learners are told of them, and plans by playing them. Needs torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from shard_gym.envs.bank import Bank
from shard_gym.envs.env import ShardingEnv
from shard_gym.envs.kind_ahead import reached
from shard_gym.envs.vector_env import ShardingVectorEnv
from shard_gym.errors import InfeasibleTask
from shard_gym.plan.forms import ALL, COPY, HOST, beyond_columns
from shard_gym.plan.plan import Plan
from shard_gym.plan.ways import CACHE, HALVE, Actions
from shard_gym.simulators import Simulator
from shard_gym.task.task import Task
from shard_gym_agents.learners.scores import SHARP
from shard_gym_agents.solvers.solver import require_fast, require_number

LOUD = 100.0  # what differences between actions are multiplied with: those of good ones are a hundredth of a share
FAR = 20.0  # numbers are cut off there
SMALL = 0.01  # shares of memory are added to, where they are divided by
DOES = (HOST, ALL, COPY, HALVE, CACHE)  # what actions do; the others take one device
TOLD = (
    *("makespan", "dearest", "mean"),  # of devices' costs after it, above the least of legal actions
    *("bytes", "tension", "fill", "legal"),  # of devices' memory: of all; over what is free; at most of a device's
    *("by_host", "by_rows", "copied", "halves", "caches"),
)
FEATURES = ("aim", *TOLD)
FIRST = {"aim": -1.0, "makespan": -0.3, "mean": -0.3, "bytes": -1.5, "fill": -0.6}  # weights that training begins with
FIRST |= {"halves": -2.0, "by_host": -20.0, "by_rows": -20.0, "copied": -20.0}
BYTES = FEATURES.index("bytes")
POWER = 8  # of devices' costs in the aim
LIFT = (0.3, 0.7)  # shares of what is to come, of forward computation and of the rest, that the aim begins with
TINY = 1e-6
ORDER = "cost"  # of tables
PRICES = (0.6, 0.8, 1.0, 1.3)  # of memory, that plans are made at
DEARER = (2.0, 4.0, 8.0, 16.0)  # where there is no plan at those


class Reach(NamedTuple):
    """Devices of actions, which all tasks of so many devices and hosts share."""

    used: Tensor  # (A, K) 1 for devices that an action uses; all of them where it changes the table
    placed: Tensor  # (A, K) the share of the piece that it puts there
    does: Tensor  # (A, 5)


@cache
def reach_of(actions: int, devices: int, where: str = "cpu") -> Reach:
    """The reach of so many actions."""
    known = Actions(devices, actions - devices - 4)
    puts = torch.from_numpy(reached(known)).float()
    used = puts.clone()
    used[known.placing :] = 1
    does = torch.from_numpy(known.does[:, None] == np.array(DOES)).float()
    return Reach(*(column.to(where) for column in (used, puts / puts.sum(1, keepdim=True).clamp(min=1), does)))


def told(shown: Mapping[str, Tensor]) -> Tensor:
    """Numbers of each action, from the observation "ahead", (B, A, 12)."""
    cost, legal = shown["ahead"][..., 0], shown["action_mask"] > 0
    used, _, does = reach_of(*cost.shape[1:], str(cost.device))
    costs = torch.stack([cost.amax(-1), (cost * used).amax(-1), cost.mean(-1)], -1)
    free = (1 - shown["devices"][..., 0]).clamp(min=0)
    size, left = shown["bytes"], shown["remaining"][:, 2:3]
    each = size * used.shape[1] / used.sum(1)
    tightest = free[:, None].masked_fill(used == 0, torch.inf).amin(-1)
    tension, fill = 10 * size * left / (free.mean(1, keepdim=True) + SMALL), each / (tightest + SMALL)
    memory = torch.stack([LOUD * size, tension, fill, legal.to(cost.dtype)], -1)
    return torch.cat([above(costs, legal), memory, does.expand(len(cost), -1, -1)], -1).clamp(-FAR, FAR)


def aimed(shown: Mapping[str, Tensor], lift: Tensor | None = None) -> Tensor:
    """The aim of each action, and what is told of it, (B, A, 13)."""
    aims = _aim(shown, torch.tensor(LIFT, device=shown["ahead"].device) if lift is None else lift)
    return torch.cat([above(aims[..., None], shown["action_mask"] > 0), told(shown)], -1)


def _aim(shown: Mapping[str, Tensor], lift: Tensor) -> Tensor:
    """Forward computation, and the rest of what devices cost after each action, evened out apart; (B, A)."""
    cost, forward = shown["ahead"].unbind(-1)
    parts = torch.stack([forward, cost - forward.amax(-1, keepdim=True)], -1)  # all wait for the slowest
    raised = parts + lift.abs() * shown["remaining"][:, None, None, 1:2]
    return raised.clamp(min=TINY).pow(POWER).mean(2).pow(1 / POWER).sum(-1)


def first_weights(sharpness: float) -> Tensor:
    """Weights of `FEATURES` that make a policy near a greedy; the sharper, the less noise, (13,)."""
    return sharpness / SHARP * torch.tensor([FIRST.get(name, 0.0) for name in FEATURES])


def above(values: Tensor, legal: Tensor) -> Tensor:
    """Values of actions, (B, A, F), above the least of those that are legal, (B, A); cut off, as `told`."""
    least = values.masked_fill(~legal[..., None], torch.inf).amin(1, keepdim=True)
    least = torch.where(least < torch.inf, least, values.amin(1, keepdim=True))
    return (LOUD * (values - least)).clamp(-FAR, FAR)


Choose = Callable[[Mapping[str, Tensor]], Tensor]  # what is shown of episodes side by side -> their actions


def priced(order: str, begin: Callable[[Tensor], Choose]) -> list[tuple[str, Callable[[], Choose]]]:
    """Attempts at a plan: memory at different prices, in that order of tables, by size or by cost; then dearer."""
    orders = dict.fromkeys((order, "size", ORDER))
    return [(name, partial(begin, torch.tensor(prices))) for prices in (PRICES, DEARER) for name in orders]


def leaning(actions: Tensor, weights: Tensor) -> Tensor:
    """The weighted sum of what is seen of each action, (..., A, 13)."""
    return SHARP * (actions @ weights)


def dearer(scores: Tensor, actions: Tensor, weights: Tensor, prices: Tensor) -> Tensor:
    """Scores (B, A) of actions (B, A, 13) with so many times the weight of bytes, (B,)."""
    return scores + SHARP * (prices[:, None] - 1) * weights[BYTES] * actions[..., BYTES]


def best_plan(
    task: Task,
    planner: Simulator,
    scaling: np.ndarray,
    attempts: Iterable[tuple[str, Callable[[], Choose]]],
    count: int = 1,
) -> Plan:
    """The best plan of so many episodes side by side, in the first attempt in which one of them ends with a plan.

    An attempt is an order of tables, and what begins to choose.
    """
    if not beyond_columns(task):  # to be played as such tasks are, with a constraint that says what holds
        rules = replace(task.constraints, kinds=((0, task.kinds_of(0)),))
        task = replace(task, constraints=rules)
    fast, bank = require_fast(planner), Bank((task,), (scaling[0], scaling[1]))
    for order, begin in attempts:
        env = ShardingEnv(bank, observation="ahead", order=order, simulator=fast, info="full")
        if (plan := _played(ShardingVectorEnv(env, count), begin())) is not None:
            return plan
    raise InfeasibleTask(
        f"some table found no room in any order, devices' {sum(task.memory):,} bytes were too few: that does not prove "
        "that there is no plan"
    )


@torch.inference_mode()
def _played(envs: ShardingVectorEnv, choose: Choose) -> Plan | None:
    """The best plan of an episode each; None if none can be used."""
    best, plan = np.inf, None
    (shown, _), waits = envs.reset(seed=0), np.ones(envs.num_envs, bool)
    while waits.any():
        require_number(float(shown["ahead"].sum()), envs.simulator)
        chosen = choose({name: torch.from_numpy(column) for name, column in shown.items()})
        shown, _, over, _, info = envs.step(chosen.numpy())
        for i in np.flatnonzero(over & waits).tolist():
            if info["feasible"][i] and info["makespan"][i] < best:
                best, plan = float(info["makespan"][i]), info["plan"][i]
        waits &= ~over
    return plan
