"""A sequence table in tiers that really runs: on torch.distributed, gloo on CPUs or nccl on GPUs. Needs torch.

Rows are dealt out in descending frequency, the one at position q of a tier to the tier's rank q mod its size. Gradients
are sums over all processes, whatever the tier. Every lookup and every backward pass begins with a word of each process
on where it is, so that one that skips a step is named instead of waited for.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shard_gym.errors import InvalidPlan, InvalidTask, RankFailed

COLLECTIVES = ("a2a_global", "a2a_intra", "ar_global", "ar_cross", "ids")
PASSES = ("lookup", "backward pass of lookup")


class TieredEmbedding(nn.Module):
    """The rows that this process keeps: `dp` on all, `flex` in every node, `rw` once; `forward` gives rows of ids.

    `order` lists the table's rows, most frequent first, on the device of `weight`. Processes are nodes times
    `per_node`, ranks node by node. `traffic` counts the bytes that this process hands to each collective, what stays
    with it included. `whole` puts the table together again, and `kept` takes a part of one: that is how training goes
    on with another number of processes, or other cuts.
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
        self.every = ((0, 1), (rank % per_node, per_node), (rank, world))  # tier by tier: of rows from, one in
        self.dp, self.flex, self.rw = map(nn.Parameter, self.kept(weight.detach()))
        self.traffic = dict.fromkeys(COLLECTIVES, 0)
        self.lookups = 0

    def kept(self, whole: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rows of DP, Flex and RW that this process keeps of a whole table, or of what goes with one: (E, ...)."""
        tiers = whole[self.position.argsort()].tensor_split(self.cuts)
        dp, flex, rw = (tier[first::step].clone() for tier, (first, step) in zip(tiers, self.every, strict=True))
        return dp, flex, rw

    @torch.no_grad()
    def whole(self, kept: tuple[Tensor, Tensor, Tensor] | None = None) -> Tensor:
        """The whole table on every process, or what goes with it as each process keeps it, say an optimizer's state."""
        dp, flex, rw = (self.dp, self.flex, self.rw) if kept is None else kept
        first, second = self.cuts
        flex = _dealt_back(flex, second - first, self.intra)
        return torch.cat([dp, flex, _dealt_back(rw, len(self.position) - second, None)])[self.position]

    def forward(self, input: Tensor) -> Tensor:  # as torch.nn.Embedding calls it
        """The row of each id, (n, D); all processes call it together."""
        ids = input
        self.lookups += 1
        self.agree(0, self.lookups, _wrong(ids, len(self.position)))
        position = self.position[ids]
        first, second = self.cuts
        wanted = (position < first, (position >= first) & (position < second), position >= second)
        flex = _Exchange(self, position[wanted[1]] - first, self.intra, "a2a_intra")
        rw = _Exchange(self, position[wanted[2]] - second, None, "a2a_global")
        return _Lookup.apply(self.dp, self.flex, self.rw, self, position, wanted, flex, rw, self.lookups)

    def agree(self, what: int, number: int, wrong: str = "") -> None:
        """Go on if every process is at the same pass of the same lookup, with ids that are in the table."""
        mine = torch.tensor([number, what, bool(wrong)], device=self.position.device)
        words = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(words, mine)
        told = torch.stack(words).tolist()
        if wrong:
            raise InvalidTask(wrong)
        for rank, (_, _, refused) in enumerate(told):
            if refused:
                raise RankFailed(f"rank {rank} was given ids that are not in the table")
        if len({(n, w) for n, w, _ in told}) > 1:
            where = ", ".join(f"rank {rank} at {PASSES[w]} {n}" for rank, (n, w, _) in enumerate(told))
            raise RankFailed(f"processes are not at the same step: {where}; each looks up, and goes back, as often")


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
        position, (in_dp, in_flex, in_rw), by_node, by_all = how[1:5]
        ctx.how, ctx.weights = how, (dp, flex, rw)
        found = dp.new_empty(len(position), dp.shape[1])
        found[in_dp] = dp[position[in_dp]]
        found[in_flex] = by_node.rows(flex)
        found[in_rw] = by_all.rows(rw)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (of_rows,) = gradients
        table, position, (in_dp, in_flex, in_rw), by_node, by_all, number = ctx.how
        table.agree(1, number)
        dp, flex, rw = ctx.weights
        of_dp = torch.zeros_like(dp).index_add_(0, position[in_dp], of_rows[in_dp])
        of_flex = by_node.gradient(flex, of_rows[in_flex])
        of_rw = by_all.gradient(rw, of_rows[in_rw])
        for gradient, group, kind in ((of_dp, None, "ar_global"), (of_flex, table.cross, "ar_cross")):
            if gradient.numel():
                dist.all_reduce(gradient, group=group)
                table.traffic[kind] += gradient.numel() * gradient.element_size()
        return of_dp, of_flex, of_rw, *[None] * len(ctx.how)


def _groups(world: int, per_node: int) -> tuple[Any, Any]:
    """Groups of processes: this one's node, and those that keep the same Flex rows; every process makes all of them."""
    rank, ranks = dist.get_rank(), torch.arange(world).reshape(-1, per_node)
    intra = [dist.new_group(node.tolist()) for node in ranks]
    cross = [dist.new_group(peers.tolist()) for peers in ranks.T]
    return intra[rank // per_node], cross[rank % per_node]


def _wrong(ids: Tensor, rows: int) -> str:
    """Reason to refuse ids; nothing where they are rows of the table."""
    if ids.dim() != 1 or ids.dtype not in (torch.int32, torch.int64):
        return f"ids are one row of whole numbers, got {ids.dtype} of shape {tuple(ids.shape)}: flatten them"
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < rows:
        return f"ids are 0..{rows - 1}, the rows of the table, got {int(ids.min())}..{int(ids.max())}"
    return ""


def _dealt_back(mine: Tensor, rows: int, group: Any) -> Tensor:
    """All rows of a tier, (rows, ...), from those that each process of a group was dealt in turn."""
    size = dist.get_world_size(group)
    most = -(-rows // size)
    padded = mine.new_zeros(most, *mine.shape[1:])
    padded[: len(mine)] = mine
    dealt = [torch.empty_like(padded) for _ in range(size)]
    dist.all_gather(dealt, padded, group=group)
    return torch.stack(dealt, 1).flatten(0, 1)[:rows]
