"""The report as text. Numbers are computed elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from textwrap import wrap
from typing import TypeVar

from shard_gym.tables.pool import GB
from shard_gym.torchrec.values import COMM, ESTIMATES, PHASES, Capacity, Phases, Rank, Stats, TableStats

MB = 2**20
BETWEEN = "  "
WIDTH = 100  # columns of the report
LEAST = 12  # of a column that gives way
NOT_TOLD = "-"
T = TypeVar("T")


def report(stats: Stats, top: int | None = None, assumed: str = "") -> str:
    """The whole report, in sections: a summary first, with what is assumed, where the caller tells it.

    `top` shows so many ranks and tables, those that take longest (most memory, where no time is known); None: all.
    """
    parts = [_summary(stats, top, assumed), _reserves(stats), *_ranks(stats, top), *_tables(stats, top)]
    parts += [_kernels(stats), _imbalance(stats), _peak(stats), _critical_path(stats)]
    return "\n\n".join("\n".join(map(wrapped, lines)) for part in parts if (lines := list(part)))


def _summary(stats: Stats, top: int | None, assumed: str) -> Iterator[str]:
    setup, ranks = stats.setup, stats.ranks
    if stats.makespan is not None:
        slowest = max(stats.ranks, key=lambda rank: rank.perf.total if rank.perf else 0.0)
        over = stats.imbalance().get("perf")
        mean = f", {over.max_over_mean:.2f} times the mean" if over else ""
        pace = f"slowest rank {slowest.rank}{mean}"
        yield f"makespan {stats.makespan:.3f} ms ({stats.objective}), by {stats.simulator}; {pace}"
    fullest = max(ranks, key=lambda rank: rank.hbm_bytes / rank.hbm_capacity)
    used, of = fullest.hbm_bytes, fullest.hbm_capacity
    held, room = sum(r.hbm_bytes for r in ranks), sum(r.hbm_capacity for r in ranks)
    yield (
        f"memory: fullest rank {fullest.rank}, {used / GB:.3f} of {of / GB:.3f} GiB ({used / of:.0%}); "
        f"all ranks {held / GB:.3f} of {room / GB:.3f} GiB"
    )
    shards = sum(sum(rank.shards.values()) for rank in ranks)
    yield (
        f"{len(stats.tables)} tables in {shards} shards on {len(ranks)} ranks, {setup.local_world_size} a host; "
        f"batch {setup.batch * setup.world_size:,}, {setup.batch:,} a rank; pipeline {setup.pipeline}; "
        f"bytes as {stats.accounting!r} counts them"
    )
    yield from [assumed] if assumed else []
    shown = stats.problems[:top]
    yield from (f"INFEASIBLE: {problem}" for problem in shown)
    if more := len(stats.problems) - len(shown):
        yield f"INFEASIBLE: {more} more"
    yield from (f"note: {note}" for note in stats.notes)


def _reserves(stats: Stats) -> Iterator[str]:
    if stats.capacity.hbm_bytes is None:
        yield "HBM for tables as the task has it, reserves already taken off"
        return
    yield "HBM for tables, of each rank:"
    yield f"  {reserves(stats.capacity)}"


def reserves(capacity: Capacity) -> str:
    """Reserves that are taken off, part by part, GiB."""
    told, reserve = capacity.to_dict(), capacity.reserve
    parts = {"dense": reserve.dense_bytes, "KJT": reserve.kjt_bytes, "fixed": reserve.fixed_bytes}
    off = [f"{told['share_bytes'] / GB:.3f} fragmentation reserve ({reserve.share:.0%})"]
    off += [f"{size / GB:.3f} {name}" for name, size in parts.items() if size or name != "fixed"]
    total = told["hbm_bytes"]
    return f"{total / GB:.3f} GiB - {' - '.join(off)} = {reserve.left(total) / GB:.3f} GiB"


def _ranks(stats: Stats, top: int | None) -> Iterator[Iterator[str]]:
    """Memory, then time by each estimate."""
    shown = _most(stats.ranks, top, lambda rank: rank.perf.total if rank.perf else rank.hbm_bytes)
    heads = [
        "rank",
        "HBM GiB",
        "of GiB",
        "",
        "margin GiB",
        "DDR GiB",
        *(["of GiB"] if stats.ranks[0].ddr_capacity else []),
    ]
    heads += ["input MiB", "output MiB", "shards"]
    yield cut(grid(heads, [_rank(rank) for rank in shown]), "ranks", len(stats.ranks) - len(shown))
    for which, by in zip(ESTIMATES, (stats.simulator, "TorchRec"), strict=True):
        rows = [[f"{r.rank}", *_phases(getattr(r, which))] for r in shown if getattr(r, which)]
        if rows:
            times = ["fwd ms", "fwd comm", "bwd comm", "bwd", "total", f"by {by}"]
            yield grid(["rank", *times], [[*row, ""] for row in rows])


def _rank(rank: Rank) -> list[str]:
    used, capacity = rank.hbm_bytes, rank.hbm_capacity
    cells = [f"{rank.rank}", f"{used / GB:.3f}", f"{capacity / GB:.3f}", f"{used / capacity:.0%}"]
    cells += [f"{rank.margin_bytes / GB:.3f}", f"{rank.ddr_bytes / GB:.3f}"]
    cells += [] if rank.ddr_capacity is None else [f"{rank.ddr_capacity / GB:.3f}"]
    shards = " ".join(f"{kind}:{count}" for kind, count in rank.shards.items()) or NOT_TOLD
    return [*cells, f"{rank.input_bytes / MB:.2f}", f"{rank.output_bytes / MB:.2f}", shards]


def _phases(phases: Phases) -> list[str]:
    return [f"{getattr(phases, phase):.3f}" for phase in (*PHASES, "total")]


def _tables(stats: Stats, top: int | None) -> Iterator[Iterator[str]]:
    """Kind, shape and ranks of each table, bytes and time, and how it is looked up."""
    shown = _most(stats.tables, top, lambda table: table.torchrec.total if table.torchrec else table.hbm_bytes)
    heads = ["table", "kind", "kernel", "rows", "columns", "pieces", "shards of", "ranks"]
    yield cut(grid(heads, [_layout(t) for t in shown]), "tables", len(stats.tables) - len(shown))
    heads = ["table", "pooling", "HBM GiB", "DDR GiB", "input MiB", "output MiB", "TorchRec ms"]
    yield grid(heads, [_table(t) for t in shown])
    yield grid(["table", "bags", "weighted", "batches", "sharder"], [_looked_up(t) for t in shown])


def _layout(table: TableStats) -> list[str]:
    sizes = sorted(set(table.shard_sizes), reverse=True)
    shards = " ".join(f"{rows:,}x{columns:,}" for rows, columns in sizes[:2]) + (" ..." if len(sizes) > 2 else "")
    kernel = f"{table.kernel} {table.share:g}" if 0 < table.share < 1 else table.kernel
    cells = [table.name, table.kind, kernel, f"{table.rows:,}", f"{table.dim:,}", f"{table.pieces}"]
    return [*cells, shards, runs(table.ranks)]


def _table(table: TableStats) -> list[str]:
    cells = [table.name, f"{table.pooling:.3f}", f"{table.hbm_bytes / GB:.3f}", f"{table.ddr_bytes / GB:.3f}"]
    return [*cells, f"{table.input_bytes / MB:.2f}", f"{table.output_bytes / MB:.2f}", _total(table.torchrec)]


def _looked_up(table: TableStats) -> list[str]:
    batches = " ".join(f"{samples:,}" for samples in table.batches) or NOT_TOLD
    return [table.name, f"{table.bags:g}", "yes" if table.weighted else NOT_TOLD, batches, table.sharder]


def _most(items: Sequence[T], top: int | None, cost: Callable[[T], float]) -> Sequence[T]:
    """The costliest, most first; all in their order where no more are there than are shown."""
    return items if top is None or len(items) <= top else sorted(items, key=cost, reverse=True)[:top]


def cut(lines: Iterator[str], what: str, more: int) -> Iterator[str]:
    """Lines of a grid, and how much was left out of it."""
    yield from lines
    if more:
        yield f"... and {more:,} more {what}"


def _total(phases: Phases | None) -> str:
    return NOT_TOLD if phases is None else f"{phases.total:.3f}"


def _kernels(stats: Stats) -> Iterator[str]:
    rows = [
        [kernel, f"{held['tables']}", f"{held['hbm_bytes'] / GB:.3f}", f"{held['ddr_bytes'] / GB:.3f}"]
        for kernel, held in stats.kernels().items()
    ]
    yield from grid(["compute kernel", "tables", "HBM GiB", "DDR GiB"], rows)


def _imbalance(stats: Stats) -> Iterator[str]:
    said = {"perf": f"ms by {stats.simulator}", "torchrec": "ms by TorchRec", "hbm": "HBM", "ddr": "DDR"}
    measures = {"max/mean": "max_over_mean", "total variation": "total_variation", "total distance": "total_distance"}
    measures |= {"chi divergence": "chi_divergence", "KL divergence": "kl_divergence"}
    rows = []
    for name, found in stats.imbalance().items():
        rows.append([said[name], *(f"{getattr(found, measure):.3f}" for measure in measures.values())])
    yield from grid(["imbalance of", *measures], rows)


def _peak(stats: Stats) -> Iterator[str]:
    reserve, known = stats.capacity.reserve, stats.capacity.hbm_bytes is not None
    for tier, (size, ranks) in enumerate(stats.peak()):
        held = f"{(size + reserve.dense_bytes + reserve.kjt_bytes) / GB:.3f} GiB with dense and KJT, " if known else ""
        yield f"peak HBM #{tier + 1}: {held}{size / GB:.3f} GiB of tables on {told_ranks(ranks)}"


def _critical_path(stats: Stats) -> Iterator[str]:
    for which, by in (("perf", stats.simulator), ("torchrec", "TorchRec")):
        if path := stats.critical_path(which):
            comm = sum(path[phase].ms for phase in COMM)
            total = sum(slowest.ms for slowest in path.values())
            parts = f"{comm:.3f} of communication, {total - comm:.3f} of computation"
            yield f"critical path by {by}: {total:.3f} ms, {parts}"
            for phase, slowest in path.items():
                yield f"  {phase.replace('_', ' '):16} {slowest.ms:10.3f} ms on {told_ranks(slowest.ranks)}"
                kinds = slowest.kinds.items() if len(slowest.kinds) > 1 else ()
                yield from (f"    {kind:14} {one.ms:10.3f} ms on {told_ranks(one.ranks)}" for kind, one in kinds)


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
    """Columns as wide as they need be; the first is on the left, as is the last: these two give way to WIDTH."""
    wide = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for column in (-1, 0):
        excess = sum(wide) + len(BETWEEN) * (len(wide) - 1) - WIDTH
        wide[column] = min(wide[column], max(wide[column] - excess, LEAST))
    for row in (heads, *rows):
        cells = [cell.rjust(width) for cell, width in zip(row, wide, strict=True)]
        cells[0], cells[-1] = short(row[0], wide[0]).ljust(wide[0]), short(row[-1], wide[-1])
        yield BETWEEN.join(cells).rstrip()


def short(text: str, width: int) -> str:
    """Text no longer than the width: its beginning and its end, which tells names apart."""
    end = (width - 2) // 2
    return text if len(text) <= width else f"{text[: width - 2 - end]}..{text[-end:]}"


def wrapped(line: str) -> str:
    """A line, broken where it is longer than WIDTH."""
    return line if len(line) <= WIDTH else "\n".join(wrap(line, WIDTH, subsequent_indent="  "))
