"""A sequence table in tiers that really runs: on torch.distributed, gloo on CPUs or nccl on GPUs. Needs torch.

Rows are dealt out in descending frequency, the one at position q of a tier to the tier's rank q mod its size. Gradients
are sums over all processes, whatever the tier.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shard_gym.errors import InvalidPlan, InvalidTask

COLLECTIVES = ("a2a_global", "a2a_intra", "ar_global", "ar_cross", "ids")


class TieredEmbedding(nn.Module):
    """The rows that this process keeps: `dp` on all, `flex` in every node, `rw` once; `forward` gives rows of ids.

    `order` lists the table's rows, most frequent first, on the device of `weight`. Processes are nodes times
    `per_node`, ranks node by node. `traffic` counts the bytes that this process hands to each collective, what stays
    with it included.
    """

    position: Tensor  # of each row in `order`

    def __init__(self, weight: Tensor, order: Tensor, dp_rows: int, flex_rows: int, per_node: int) -> None:
        super().__init__()
        world, rank = dist.get_world_size(), dist.get_rank()
        if per_node < 1 or world % per_node:
            raise InvalidTask(f"{world} processes are not whole nodes of {per_node}")
        positions = torch.arange(len(order), device=order.device)
        if order.shape != weight.shape[:1] or not torch.equal(order.sort().values, positions):
            raise InvalidPlan(f"order lists each of the {len(weight)} rows once")
        if min(dp_rows, flex_rows) < 0 or dp_rows + flex_rows > len(weight):
            raise InvalidPlan(f"{dp_rows} DP and {flex_rows} Flex rows are not part of {len(weight)} rows")
        self.cuts = (dp_rows, dp_rows + flex_rows)
        self.register_buffer("position", torch.empty_like(order).scatter_(0, order, positions))
        self.intra, self.cross = _groups(world, per_node)
        sorted_rows = weight.detach()[order]
        dp, flex, rw = sorted_rows.tensor_split(self.cuts)
        self.dp = nn.Parameter(dp.clone())
        self.flex = nn.Parameter(flex[rank % per_node :: per_node].clone())
        self.rw = nn.Parameter(rw[rank::world].clone())
        self.traffic = dict.fromkeys(COLLECTIVES, 0)

    def forward(self, ids: Tensor) -> Tensor:
        """The row of each id, (n, D); all processes call it together."""
        position = self.position[ids]
        first, second = self.cuts
        wanted = (position < first, (position >= first) & (position < second), position >= second)
        flex = _Exchange(self, position[wanted[1]] - first, self.intra, "a2a_intra")
        rw = _Exchange(self, position[wanted[2]] - second, None, "a2a_global")
        return _Lookup.apply(self.dp, self.flex, self.rw, self, position, wanted, flex, rw)


class _Exchange:
    """One batch's way through a tier that is split over a group: ids went out, rows come in, gradients go back."""

    def __init__(self, table: TieredEmbedding, position: Tensor, group: Any, kind: str) -> None:
        self.table, self.group, self.kind = table, group, kind
        size = dist.get_world_size(group)
        owner = position % size
        self.by_owner = owner.argsort(stable=True)
        self.asks = owner.bincount(minlength=size)
        self.asked = torch.empty_like(self.asks)
        dist.all_to_all_single(self.asked, self.asks, group=group)
        self.local = torch.empty(int(self.asked.sum()), dtype=torch.int64, device=position.device)
        self._move(self.local, (position // size)[self.by_owner], self.asked, self.asks, "ids")

    def rows(self, weight: Tensor) -> Tensor:
        """Rows of the ids in their order, (n, D)."""
        found = weight.new_empty(len(self.by_owner), weight.shape[1])
        self._move(found, weight[self.local], self.asks, self.asked, self.kind)
        return torch.empty_like(found).index_copy_(0, self.by_owner, found)

    def gradient(self, weight: Tensor, of_rows: Tensor) -> Tensor:
        """Sum over all processes of the group for the rows kept here."""
        came = weight.new_empty(len(self.local), weight.shape[1])
        self._move(came, of_rows[self.by_owner], self.asked, self.asks, self.kind)
        return torch.zeros_like(weight).index_add_(0, self.local, came)

    def _move(self, into: Tensor, out: Tensor, come: Tensor, go: Tensor, kind: str) -> None:
        out = out.contiguous()
        dist.all_to_all_single(into, out, come.tolist(), go.tolist(), group=self.group)
        self.table.traffic[kind] += out.numel() * out.element_size()


class _Lookup(torch.autograd.Function):
    """All tiers in one step, so that every process meets the collectives in the same order in both passes."""

    @staticmethod
    def forward(ctx: Any, dp: Tensor, flex: Tensor, rw: Tensor, *how: Any) -> Tensor:
        position, (in_dp, in_flex, in_rw), by_node, by_all = how[1:]
        ctx.how, ctx.weights = how, (dp, flex, rw)
        found = dp.new_empty(len(position), dp.shape[1])
        found[in_dp] = dp[position[in_dp]]
        found[in_flex] = by_node.rows(flex)
        found[in_rw] = by_all.rows(rw)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (of_rows,) = gradients
        table, position, (in_dp, in_flex, in_rw), by_node, by_all = ctx.how
        dp, flex, rw = ctx.weights
        of_dp = torch.zeros_like(dp).index_add_(0, position[in_dp], of_rows[in_dp])
        of_flex = by_node.gradient(flex, of_rows[in_flex])
        of_rw = by_all.gradient(rw, of_rows[in_rw])
        for gradient, group, kind in ((of_dp, None, "ar_global"), (of_flex, table.cross, "ar_cross")):
            if gradient.numel():
                dist.all_reduce(gradient, group=group)
                table.traffic[kind] += gradient.numel() * gradient.element_size()
        return of_dp, of_flex, of_rw, *[None] * 5


def _groups(world: int, per_node: int) -> tuple[Any, Any]:
    """Groups of processes: this one's node, and those that keep the same Flex rows; every process makes all of them."""
    rank, ranks = dist.get_rank(), torch.arange(world).reshape(-1, per_node)
    intra = [dist.new_group(node.tolist()) for node in ranks]
    cross = [dist.new_group(peers.tolist()) for peers in ranks.T]
    return intra[rank // per_node], cross[rank % per_node]
