"""An episode as text, and what a picture of it tells in words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shard_gym.envs.kind_states import KindState
from shard_gym.envs.states import State
from shard_gym.memory.usage import piece_bytes
from shard_gym.tables.pool import GB

_BAR = 30  # characters of the longest bar
_UNITS = {"GiB": GB, "MiB": 2**20, "KiB": 2**10}


@dataclass(frozen=True)
class Waiting:
    """Tables still to be placed: the one that comes next, or the piece of one, and how much there is in all."""

    name: str
    rows: int
    dim: int
    pooling: float
    size: int  # bytes on its device
    alone: float | None  # ms on a device of its own; None where the simulator would have to measure it
    shares: np.ndarray  # (2, 17) of the rows touched, and of the lookups, by uses of a row in a batch
    count: int  # tables that wait, this one among them
    total: int  # bytes of all that wait


def waiting(state: State) -> Waiting | None:
    """Tables still to be placed; None at the end."""
    if state.done:
        return None
    return _piece_waiting(state) if isinstance(state, KindState) else _table_waiting(state)


def _piece_waiting(state: KindState) -> Waiting:
    p, row, table = state.prepared, state.row, state.episode.nodes[state.position]
    tables, level = p.task.tables, int(p.forms.level[row])
    residence, share = p.forms.residences[p.forms.residence[row]]
    kept = {"hbm": "", "uvm": ", in uvm", "cached": f", {share:.0%} cached"}[residence]
    later = p.sizes[state.episode.order[state.position + 1 :]].sum()
    return Waiting(
        name=("" if level == 0 else f"1/{2**level} of ") + tables.name[table] + kept,
        rows=int(tables.rows[table]),
        dim=int(tables.dim[table]) >> level,
        pooling=float(tables.pooling[table]),
        size=int(p.piece_sizes[row]),
        alone=p.cost_alone(row),
        shares=np.stack([tables.uses[table], tables.accesses[table]]),
        count=state.num_pieces - state.num_placed,
        total=int(later + p.sizes[table] * state.left // 2**level),
    )


def _table_waiting(state: State) -> Waiting:
    p, node = state.episode.prepared, int(state.episode.order[state.position])
    tables, level, plan = p.nodes.pieces.tables, int(p.nodes.level[node]), state.plan()
    left, (source, _, dim) = np.array(plan.device) < 0, p.task.pieces(plan.splits)
    return Waiting(
        name=tables.name[node] if level == 0 else f"1/{2**level} of {tables.name[node]}",
        rows=int(tables.rows[node]),
        dim=int(tables.dim[node]),
        pooling=float(tables.pooling[node]),
        size=int(p.sizes[node]),
        alone=None if p.embedding is None else float(p.alone[node]),
        shares=np.stack([tables.uses[node], tables.accesses[node]]),
        count=int(left.sum()),
        total=int(piece_bytes(p.task, *(np.array(column)[left] for column in (source, dim))).sum()),
    )


def in_units(size: float) -> str:
    """A number of bytes for people."""
    unit, name = unit_of(size)
    return f"{size / unit:.3g} {name}"


def unit_of(size: float) -> tuple[int, str]:
    """The unit that a number of bytes is best told in, and its name."""
    return next(((unit, name) for name, unit in _UNITS.items() if size >= unit), (1, "bytes"))


def describe(state: State) -> str:
    """One line a device: its tables, memory, and predicted cost as a bar; then the next table."""
    task = state.episode.prepared.task
    cost, held = state.latency().cost(task.objective), state.held()[1].tolist()
    longest = cost.max() or 1.0
    lines = [f"{'device':>6} {'tables':>6} {'GiB':>8} {'of GiB':>8}  cost in ms"]
    for d, (free, memory) in enumerate(zip(state.free, task.memory, strict=True)):
        bar = "#" * round(_BAR * float(cost[d] / longest))
        over = "  OVER" if free < 0 else ""
        line = f"{d:>6} {held.count(d):>6} {(memory - free) / GB:>8.3f} {memory / GB:>8.3f}"
        lines.append(f"{line}  {bar:<{_BAR}} {cost[d]:.3f}{over}")
    for host, left in enumerate(state.host_free()):
        lines.append(f"host {host}: {1 - left:.0%} of its memory used{'  OVER' if left < 0 else ''}")
    return "\n".join([*lines, _next_table(state)])


def _next_table(state: State) -> str:
    table = waiting(state)
    if table is None:
        return "all tables are placed"
    kind = f"{table.rows:,} rows of {table.dim}, pooling {table.pooling:.1f}, {table.size / GB:.3f} GiB"
    return f"next: {table.name!r} ({kind}), {state.num_placed + 1} of {state.num_pieces}"
