"""Whole episodes on DreamShard's estimated MDP, whose costs are its own network's. Needs torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from shard_gym_agents.learners import boards
from shard_gym_agents.learners.boards import Board, Ruled
from shard_gym_agents.learners.dreamshard_networks import CostNet, Nets, PolicyNet, composed


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
def play(
    nets: Nets, board: Board, lean: float, generator: torch.Generator | None, rules: Ruled | None = None
) -> Played:
    """Place all tables, costliest first by the cost network if `lean` is 0; devices are drawn, or the best.

    Sums are kept behind the heads' first layer, which is linear, and so is not asked again at each step.
    """
    cost, devices = nets.cost, torch.arange(board.capacity.shape[1], device=board.size.device)
    alone = cost.phases(cost.table(board.features), torch.ones_like(board.real)).sum(-1)
    ordered = board.by(boards.leaning(alone * board.real, board.size, lean))
    board = board.in_order(ordered)
    costs = cost.table(board.features) * board.real[..., None]  # (B, N, 32)
    hidden = (costs @ cost.heads.weight.T)[:, :, None].unbind(1)  # N of (B, 1, 3 * 64)
    seen = (nets.policy.table(board.features) * board.real[..., None])[:, :, None].unbind(1)
    scale, last = cost.scale(board.slowness), cost.last_layer()
    free, sums = board.capacity, cost.heads.bias.expand(*board.capacity.shape, -1).clone()
    shown, actions, phases, legal = torch.zeros(*free.shape, 32, device=free.device), [], [], []
    for work, table, size, index in zip(hidden, seen, board.size.unbind(1), board.table.unbind(1), strict=True):
        phases.append(cost.read(sums + work, last) * scale)
        legal.append(boards.legal(size, free) if rules is None else torch.from_numpy(rules.legal(index.numpy())))
        scores = nets.policy(shown + table, phases[-1]).masked_fill(~legal[-1], boards.ILLEGAL)
        actions.append(boards.choose(scores, generator))
        if rules is not None:
            rules.place(index.numpy(), actions[-1].numpy())
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
