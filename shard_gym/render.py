"""An episode as text."""

from __future__ import annotations

from shard_gym.episodes import State
from shard_gym.tables import GB

_BAR = 30  # characters of the longest bar


def describe(state: State) -> str:
    """One line a device: its tables, memory, and predicted cost as a bar; then the next table."""
    task = state.episode.prepared.task
    cost = state.latency().cost(task.objective)
    longest = cost.max() or 1.0
    lines = [f"{'device':>6} {'tables':>6} {'GB':>8} {'of GB':>8}  cost in ms"]
    for d, (free, memory) in enumerate(zip(state.free, task.memory, strict=True)):
        bar = "#" * round(_BAR * float(cost[d] / longest))
        over = "  OVER" if free < 0 else ""
        held = f"{d:>6} {state.placed.count(d):>6} {(memory - free) / GB:>8.3f} {memory / GB:>8.3f}"
        lines.append(f"{held}  {bar:<{_BAR}} {cost[d]:.3f}{over}")
    return "\n".join([*lines, _next_table(state)])


def _next_table(state: State) -> str:
    position, episode = len(state.placed), state.episode
    if state.done:
        return "all tables are placed"
    i = int(episode.order[position])
    tables, size = episode.prepared.task.tables, episode.sizes[position]
    kind = f"{tables.rows[i]:,} rows of {tables.dim[i]}, pooling {tables.pooling[i]:.1f}, {size / GB:.3f} GB"
    return f"next: {tables.name[i]!r} ({kind}), {position + 1} of {len(episode.order)}"
