"""The report as text. Numbers are computed elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shard_gym.stats.values import ESTIMATES, PHASES, Budget, Phases, Rank, Stats, TableStats
from shard_gym.tables import GB

MB = 2**20
BETWEEN = "   "
NOT_TOLD = "-"


def report(stats: Stats) -> str:
    """All of it, in sections."""
    sections = (_head, _reserves, _ranks, _tables, _kernels, _imbalance, _peak, _critical_path)
    return "\n\n".join("\n".join(lines) for section in sections if (lines := list(section(stats))))


def _head(stats: Stats) -> Iterator[str]:
    setup = stats.setup
    if stats.makespan is not None:
        yield f"makespan {stats.makespan:.3f} ms ({stats.objective}), by {stats.simulator}"
    yield (
        f"{len(stats.ranks)} ranks, {setup.local_world_size} a host; batch {setup.batch * setup.world_size:,}, "
        f"{setup.batch:,} a rank; pipeline {setup.pipeline}; bytes as {stats.accounting!r} counts them"
    )
    yield from (f"INFEASIBLE: {problem}" for problem in stats.problems)
    yield from (f"note: {note}" for note in stats.notes)


def _reserves(stats: Stats) -> Iterator[str]:
    if stats.budget.hbm_bytes is None:
        yield "HBM for tables as the task has it, reserves already taken off"
        return
    yield f"HBM for tables, of each rank: {reserves(stats.budget)}"


def reserves(budget: Budget) -> str:
    """What is taken off, part by part, GB."""
    told, reserve = budget.to_dict(), budget.reserve
    parts = {"dense": reserve.dense_bytes, "KJT": reserve.kjt_bytes, "fixed": reserve.fixed_bytes}
    off = [f"{told['share_bytes'] / GB:.3f} fragmentation reserve ({reserve.share:.0%})"]
    off += [f"{size / GB:.3f} {name}" for name, size in parts.items() if size or name != "fixed"]
    total = told["hbm_bytes"]
    return f"{total / GB:.3f} GB - {' - '.join(off)} = {reserve.left(total) / GB:.3f} GB"


def _ranks(stats: Stats) -> Iterator[str]:
    heads = ["rank", "HBM GB", "of GB", "", "margin GB", "DDR GB", *(["of GB"] if stats.budget.ddr_bytes else [])]
    timed = [(which, by) for which, by in zip(ESTIMATES, ("", "TorchRec "), strict=True) if stats.phases(which)]
    for _, by in timed:
        heads += [f"{by}fwd ms", "fwd comm", "bwd comm", "bwd", "total"]
    yield from grid([*heads, "input MB", "output MB", "shards"], [_rank(r, [w for w, _ in timed]) for r in stats.ranks])


def _rank(rank: Rank, timed: Sequence[str]) -> list[str]:
    used, capacity = rank.hbm_bytes, rank.hbm_capacity
    cells = [f"{rank.rank}", f"{used / GB:.3f}", f"{capacity / GB:.3f}", f"{used / capacity:.0%}"]
    cells += [f"{rank.margin_bytes / GB:.3f}", f"{rank.ddr_bytes / GB:.3f}"]
    cells += [] if rank.ddr_capacity is None else [f"{rank.ddr_capacity / GB:.3f}"]
    for which in timed:
        phases = getattr(rank, which)
        cells += [f"{getattr(phases, phase):.3f}" for phase in (*PHASES, "total")]
    shards = " ".join(f"{kind}:{count}" for kind, count in rank.shards.items()) or NOT_TOLD
    return [*cells, f"{rank.input_bytes / MB:.2f}", f"{rank.output_bytes / MB:.2f}", shards]


def _tables(stats: Stats) -> Iterator[str]:
    heads = ["table", "kind", "kernel", "rows", "columns", "shards of", "pooling", "HBM GB", "DDR GB"]
    yield from grid([*heads, "input MB", "output MB", "TorchRec ms", "ranks"], [_table(t) for t in stats.tables])


def _table(table: TableStats) -> list[str]:
    sizes = sorted(set(table.shard_sizes), reverse=True)
    shards = " ".join(f"{rows:,}x{columns:,}" for rows, columns in sizes[:2]) + (" ..." if len(sizes) > 2 else "")
    cells = [table.name, table.kind, table.kernel, f"{table.rows:,}", f"{table.dim:,}", shards]
    cells += [f"{table.pooling:.3f}", f"{table.hbm_bytes / GB:.3f}", f"{table.ddr_bytes / GB:.3f}"]
    cells += [f"{table.input_bytes / MB:.2f}", f"{table.output_bytes / MB:.2f}", _total(table.torchrec)]
    return [*cells, runs(table.ranks)]


def _total(phases: Phases | None) -> str:
    return NOT_TOLD if phases is None else f"{phases.total:.3f}"


def _kernels(stats: Stats) -> Iterator[str]:
    rows = [
        [kernel, f"{held['tables']}", f"{held['hbm_bytes'] / GB:.3f}", f"{held['ddr_bytes'] / GB:.3f}"]
        for kernel, held in stats.kernels().items()
    ]
    yield from grid(["compute kernel", "tables", "HBM GB", "DDR GB"], rows)


def _imbalance(stats: Stats) -> Iterator[str]:
    heads = ["imbalance of", "max/mean", "total variation", "total distance", "chi divergence", "KL divergence"]
    said = {"perf": f"ms by {stats.simulator}", "torchrec": "ms by TorchRec", "hbm": "HBM", "ddr": "DDR"}
    rows = [
        [
            said[name],
            *(
                f"{value:.3f}"
                for value in (
                    found.max_over_mean,
                    found.total_variation,
                    found.total_distance,
                    found.chi_divergence,
                    found.kl_divergence,
                )
            ),
        ]
        for name, found in stats.imbalance().items()
    ]
    yield from grid(heads, rows)


def _peak(stats: Stats) -> Iterator[str]:
    reserve, known = stats.budget.reserve, stats.budget.hbm_bytes is not None
    for tier, (size, ranks) in enumerate(stats.peak()):
        held = f"{(size + reserve.dense_bytes + reserve.kjt_bytes) / GB:.3f} GB with dense and KJT, " if known else ""
        yield f"peak HBM #{tier + 1}: {held}{size / GB:.3f} GB of tables on {told_ranks(ranks)}"


def _critical_path(stats: Stats) -> Iterator[str]:
    for which, by in (("perf", stats.simulator), ("torchrec", "TorchRec")):
        if path := stats.critical_path(which):
            yield f"critical path by {by}: {sum(slowest.ms for slowest in path.values()):.3f} ms"
            for phase, slowest in path.items():
                yield f"  {phase.replace('_', ' '):16} {slowest.ms:10.3f} ms on {told_ranks(slowest.ranks)}"


def told_ranks(ranks: Sequence[int]) -> str:
    """`rank 3`, or `ranks 0-7`."""
    return f"rank{'s' if len(ranks) > 1 else ''} {runs(ranks)}"


def runs(ranks: Sequence[int]) -> str:
    """Ranks in the order given, those that follow each other as 0-7."""
    found: list[list[int]] = []
    for rank in ranks:
        if found and rank == found[-1][-1] + 1:
            found[-1][1:] = [rank]
        else:
            found.append([rank])
    return ",".join("-".join(map(str, run)) for run in found)


def grid(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns as wide as they need be; the first is on the left, as is the last."""
    wide = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for row in (heads, *rows):
        cells = [cell.rjust(width) for cell, width in zip(row, wide, strict=True)]
        cells[0], cells[-1] = row[0].ljust(wide[0]), row[-1]
        yield BETWEEN.join(cells).rstrip()
