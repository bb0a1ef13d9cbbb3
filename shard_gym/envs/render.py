"""An episode as text, and what a picture of it tells in words."""

from __future__ import annotations

from shard_gym.envs.states import State
from shard_gym.tables.pool import GB

_BAR = 30  # characters of the longest bar


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
    table = state.coming()
    if table is None:
        return "all tables are placed"
    kind = f"{table.rows:,} rows of {table.dim}, pooling {table.pooling:.1f}, {table.size / GB:.3f} GiB"
    return f"next: {table.name!r} ({kind}), {state.num_placed + 1} of {state.num_pieces}"
