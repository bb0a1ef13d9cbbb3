"""FlexShard's tables and figures from our formulas and planners, beside the published ones. No learner, no torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pages import picture, table
from shard_gym.flexshard.models import MODELS, Model, fitted_curve
from shard_gym.flexshard.network import BATCH, COPIES, OVERLAPS, Network, Rows, costs, network
from shard_gym.flexshard.tiers import RowTask, SequenceTable, TieredPlan, worth
from shard_gym.records.files import write_whole
from shard_gym_agents.solvers.flexshard import Frontier

IDEAL, MEASURED = "flexshard-4x8", "a100-4x8"
GB = 1e9

ABOUT = f"""# FlexShard's experiments, ours beside the published

Made by `python -m benchmarks.papers flexshard`. The models' row frequencies are not published: each curve below is
power laws through the coverages of the paper's Table 5, so rows and coverages of the 2-tier plan are met by
construction, and those of the 3-tier plan where it ends DP; what is left to be compared are the rows of Flex, the
reductions of Table 6 and the plans that the paper does not have. All-to-all sizes are elements, as in the paper.
Plans are memory-neutral. Times come from `{IDEAL}` (the ratio of bandwidths that the paper's break-evens use, no
latencies) and `{MEASURED}` (straight lines through its Table 6); nothing here was measured on a GPU. In Figure 1 a
pooled table's samples are summed by a reduce-scatter, to which each GPU sends its part of every sample, as TorchRec's
planner counts it.

![Figure 1](papers_flexshard_figure-1.png)
![Figure 3](papers_flexshard_figure-3.png)
![Figure 5](papers_flexshard_figure-5.png)
![Figure 6](papers_flexshard_figure-6.png)
![Figure 7](papers_flexshard_figure-7.png)
"""

SPEEDUP = f"""Communication of a step under RW over that under a plan. "Nearly 6x" is RM-2's three tiers with the
all-to-all within nodes and the all-reduce across them behind other work (`overlap="paper"`; the paper calls the two
overlappable); with all collectives one after the other it is 3.08. Published: from the times of its Table 6. Ours: by
`{MEASURED}`. `flex3` is planned for each of the two, so where Flex costs no time it takes more rows."""

GAIN = """End-to-end gains are published for RM-1 alone: 61 % and 81 %. How long the rest of a step takes is not. It is
taken to be so long that two tiers gain 61 % by the published times; with it three tiers gain the shares below. The
published 81 % lies between nothing hidden and both collectives hidden."""

MEMORY = """The paper measured 2.5 and 1.5 GiB a GPU less than RW's under plans made to take as much, and says that a
replicated row takes fewer than the 6 copies it is charged with. RM-1's plans, rows of Table 5, by copies:"""


def make(out: Path) -> None:
    """Print the page, and write it with its figures."""
    lines = [ABOUT, "## Table 5: rows and lookups by tier", "", *_table_5(), "", "## Table 6: all-to-all", ""]
    lines += [*_table_6(), "", "## Communication of a step", "", *_times(), "", "## Nearly six times", "", SPEEDUP, ""]
    lines += [*_speedups(), "", "## Throughput", "", GAIN, "", *_gains(), "", "## Memory", "", MEMORY, ""]
    lines += [*_saved(), ""]
    page = "\n".join(lines)
    print(page)
    for name, draw in (("1", _figure_1), ("3", _figure_3), ("5", _figure_5), ("6", _figure_6), ("7", _figure_7)):
        write_whole(out / f"papers_flexshard_figure-{name}.png", picture(draw, (7, 5), 110))
    write_whole(out / "papers_flexshard.md", page)


def _task(model: Model, on: str = IDEAL, overlap: str = "none", copies: float = COPIES) -> RowTask:
    where = replace(network(on), overlap=overlap)
    return RowTask((SequenceTable(model.name, fitted_curve(model.name), model.dim),), where, BATCH, copies=copies)


def _plans(task: RowTask) -> dict[str, TieredPlan]:
    frontier = Frontier(task)
    rw = TieredPlan.uniform(task, "rw")
    return {
        "RW": rw,
        "flex2": frontier.best("flex2"),
        "flex3-paper": frontier.published(),
        "flex3": frontier.best("flex3"),
    }


def _table_5() -> list[str]:
    head = ("model", "plan", "DP rows", "of lookups", "Flex rows", "of lookups", "RW of lookups", "memory over RW's")
    rows = []
    for m in MODELS.values():
        task = _task(m)
        printed = {
            "flex2": (m.dp2_rows, m.dp2_share, 0, 0.0),
            "flex3-paper": (m.dp3_rows, m.dp3_share, m.flex3_rows, m.flex3_share),
        }
        for name, plan in _plans(task).items():
            if name == "RW":
                continue
            found = worth(task, plan)
            more = found.memory_bytes / task.budget_bytes - 1
            cells = (plan.dp_rows[0], found.covered("dp"), plan.flex_rows[0], found.covered("flex"))
            rows.append([m.name, name, *_cells(*cells), f"{more:+.1e}"])
            if name in printed:
                rows.append([m.name, f"{name}, published", *_cells(*printed[name]), "about 0"])
    return table(head, rows)


def _cells(dp: int, dp_share: float, flex: int, flex_share: float) -> list[str]:
    return [f"{dp:,}", f"{dp_share:.1%}", f"{flex:,}", f"{flex_share:.1%}", f"{1 - dp_share - flex_share:.1%}"]


def _table_6() -> list[str]:
    """Table 6: what leaves a GPU is all but its own share: (U - 1) / U."""
    head = ("model", "plan", "elements", "published", "off by", "reduction", "published reduction")
    rows = []
    for m in MODELS.values():
        task = _task(m)
        leaves = 1 - 1 / task.network.gpus
        plans = _plans(task)
        whole = worth(task, plans["RW"]).lookups["rw"]
        printed = dict(zip(("RW", "flex2", "flex3-paper"), m.all_to_all, strict=True))
        reductions = dict(zip(("flex2", "flex3-paper"), m.reductions, strict=True))
        for name, plan in plans.items():
            lookups = worth(task, plan).lookups["rw"]
            elements, said = leaves * BATCH * lookups * m.dim, printed.get(name)
            told = (f"{said:,}", f"{elements / said - 1:+.1%}") if said else ("-", "-")
            published = f"{reductions[name]:.1%}" if name in reductions else "-"
            rows.append([m.name, name, f"{elements:,.0f}", *told, f"{1 - lookups / whole:.1%}", published])
    return table(head, rows)


def _times() -> list[str]:
    head = ("model", "network", "RW ms", "flex2", "flex3-paper", "flex3", "bound", "flex3 over flex3-paper")
    rows = []
    for m in MODELS.values():
        for on in (IDEAL, MEASURED):
            task = _task(m, on)
            ms = {name: worth(task, plan).comm_ms for name, plan in _plans(task).items()}
            bound = Frontier(task).bound("flex3")
            cells = [f"{ms[name]:.1f}" for name in ("RW", "flex2", "flex3-paper", "flex3")]
            rows.append([m.name, on, *cells, f"{bound:.1f}", f"{ms['flex3'] / ms['flex3-paper'] - 1:+.1%}"])
    return table(head, rows)


def _ms(model: Model, overlap: str) -> dict[str, float]:
    """Communication of a step under each plan, by the network fitted to the paper's."""
    task = _task(model, MEASURED, overlap)
    return {name: worth(task, plan).comm_ms for name, plan in _plans(task).items()}


def _speedups() -> list[str]:
    head = ("model", "plan", "all added, published", "ours", "two hidden, published", "ours")
    rows = []
    for m in MODELS.values():
        ours = {overlap: _ms(m, overlap) for overlap in OVERLAPS}
        published = {overlap: [times.added(overlap) for times in m.ms] for overlap in OVERLAPS}
        for name in ("flex2", "flex3-paper", "flex3"):
            at, cells = {"flex2": 1, "flex3-paper": 2}.get(name), []
            for overlap in OVERLAPS:
                said = published[overlap]
                cells.append(f"{said[0] / said[at]:.2f}" if at else "-")
                cells.append(f"{ours[overlap]['RW'] / ours[overlap][name]:.2f}")
            rows.append([m.name, name, *cells])
    return table(head, rows)


def _gains() -> list[str]:
    """Throughput over RW's, with the rest of a step that two tiers' published gain tells."""
    m, gain = MODELS["RM-1"], 0.61
    rw, two, _ = (times.added() for times in m.ms)
    rest = (rw - (1 + gain) * two) / gain
    head = ("plan", "published", "published times, all added", "two hidden", "ours, all added", "two hidden")
    ours, rows = {overlap: _ms(m, overlap) for overlap in OVERLAPS}, []
    for name, said, at in (("flex2", 0.61, 1), ("flex3-paper", 0.81, 2), ("flex3", None, None)):
        cells = ["-" if said is None else f"{said:.0%}"]
        cells += ["-" if at is None else f"{_gain(rest, rw, m.ms[at].added(overlap)):.0%}" for overlap in OVERLAPS]
        cells += [f"{_gain(rest, ours[overlap]['RW'], ours[overlap][name]):.0%}" for overlap in OVERLAPS]
        rows.append([name, *cells])
    return [*table(head, rows), "", f"The rest of a step: {rest:.0f} ms."]


def _gain(rest: float, rw: float, ms: float) -> float:
    return (rest + rw) / (rest + ms) - 1


def _saved() -> list[str]:
    m = MODELS["RM-1"]
    plans = {
        "flex2": (TieredPlan((m.dp2_rows,), (0,)), "2.5"),
        "flex3-paper": (TieredPlan((m.dp3_rows,), (m.flex3_rows,)), "1.5"),
    }
    rows = []
    for name, (plan, said) in plans.items():
        cells = []
        for copies in (COPIES, 3.0, 2.0, 1.0):
            task = _task(m, copies=copies)
            cells.append(f"{(task.budget_bytes - worth(task, plan).memory_bytes) / 2**30:+.2f}")
        rows.append([name, *cells, said])
    return table(("GiB saved", "6 copies", "3", "2", "1", "published, measured"), rows)


def _figure_6(figure: Any) -> None:
    """Reductions of the all-to-all over all GPUs: ours against what was observed."""
    axes = figure.subplots()
    for m in MODELS.values():
        task = _task(m)
        plans = _plans(task)
        lookups = [worth(task, plans[name]).lookups["rw"] for name in ("RW", "flex2", "flex3-paper")]
        ours = [1 - some / lookups[0] for some in lookups[1:]]
        axes.scatter(ours, m.reductions, label=m.name)
    axes.plot([0.2, 1], [0.2, 1], color="black", linewidth=0.5)
    axes.set(xlabel="reduction, ours", ylabel="reduction, observed by the paper", title="all-to-all over all GPUs")
    axes.legend()


def _figure_7(figure: Any) -> None:
    """Communication of RW over that of each plan, as published and ours, with two collectives hidden and without."""
    for axes, overlap in zip(figure.subplots(1, 2, sharey=True), OVERLAPS, strict=True):
        x = np.arange(len(MODELS))
        for i, (name, at) in enumerate((("flex2", 1), ("flex3-paper", 2))):
            said = [m.ms[0].added(overlap) / m.ms[at].added(overlap) for m in MODELS.values()]
            found = [(ms := _ms(m, overlap))["RW"] / ms[name] for m in MODELS.values()]
            axes.bar(x + 0.4 * i - 0.3, said, 0.2, label=f"{name}, published")
            axes.bar(x + 0.4 * i - 0.1, found, 0.2, label=f"{name}, ours")
        axes.set(xticks=x, xticklabels=list(MODELS), title=f"overlap: {overlap}")
    axes.legend(fontsize=7)
    figure.axes[0].set(ylabel="speedup of communication over RW")


def _figure_1(figure: Any) -> None:
    """Memory and communication of RW by the total length, up to 8 tables, as sequences and pooled."""
    on, lengths = network(IDEAL), np.arange(1, 2001, 20)
    axes = figure.subplots(2, 2)
    for column, pooled in enumerate((False, True)):
        for tables in (1, 2, 4, 8):
            of = [costs(Rows(1e6, 256, length / tables, pooled=pooled), "rw", on, BATCH) for length in lengths]
            axes[0, column].plot(lengths, [tables * c.memory_bytes / GB for c in of], label=f"{tables} tables")
            axes[1, column].plot(lengths, [tables * c.comm_ms for c in of])
        axes[0, column].set(title="pooled" if pooled else "sequence", ylabel="memory, GB a GPU")
        axes[1, column].set(xlabel="total history length", ylabel="communication, ms a step")
    axes[0, 0].legend(fontsize=7)


def _figure_3(figure: Any) -> None:
    """DP over RW for a table of E rows looked up L = alpha E times a sample."""
    on, alpha = network(IDEAL), np.geomspace(1e-6, 1, 200)
    of = {kind: [costs(Rows(1e6, 256, a * 1e6), kind, on, BATCH) for a in alpha] for kind in ("dp", "rw")}
    axes = figure.subplots()
    for name in ("memory_bytes", "comm_ms"):
        ratio = [getattr(dp, name) / getattr(rw, name) for dp, rw in zip(of["dp"], of["rw"], strict=True)]
        axes.plot(alpha, ratio, label=name.split("_")[0])
    memory, comm = _break_evens(on)
    axes.axhline(1, color="black", linewidth=0.5)
    for at in (memory, comm):
        axes.axvline(at, color="gray", linestyle=":")
    axes.set(xscale="log", yscale="log", xlabel="alpha = L / E", ylabel="DP over RW")
    axes.set_title(f"break-evens at {memory:.3e} (memory) and {comm:.3e} (communication)", fontsize=9)
    axes.legend()


def _break_evens(on: Network) -> tuple[float, float]:
    return (COPIES - 1 / on.gpus) / BATCH, on.a2a_global / on.ar_global / (2 * BATCH)


def _figure_5(figure: Any) -> None:
    """Memory and communication over RW's as ever more rows go to DP, with points A to D; and where Flex leads."""
    axes, whole = figure.subplots(1, 2)
    for colour, m in zip(("tab:blue", "tab:orange", "tab:green", "tab:red"), MODELS.values(), strict=True):
        task = _task(m)
        frontier, base = Frontier(task), worth(task, TieredPlan.uniform(task, "rw"))
        points = frontier.points()
        most = 2 * points["B"].dp_rows[0]
        curve = [worth(task, TieredPlan((int(n),), (0,))) for n in np.linspace(0, most, 120)]
        axes.plot(*_over(curve, base), color=colour, label=f"{m.name}, DP and RW")
        budgets = np.linspace(worth(task, points["A"]).memory_bytes, base.memory_bytes * 1.3, 40)
        best = [worth(task, frontier.best("flex3", float(b))) for b in budgets]
        axes.plot(*_over(best, base), color=colour, linestyle="--", label="flex3")
        ranks = np.geomspace(1, m.rows, 300)
        whole.plot(*_over([worth(task, TieredPlan((int(n),), (0,))) for n in ranks], base), color=colour)
        for name, plan in points.items():
            (x,), (y,) = _over([worth(task, plan)], base)
            (axes if name in "AB" else whole).annotate(name, (x, y))
    for part in (axes, whole):
        part.axhline(0, color="black", linewidth=0.5)
        part.set(xlabel="communication over RW's, ms a step", ylabel="memory over RW's, GB a GPU")
    whole.set(yscale="symlog", title="to all rows in DP")
    axes.set(title="the first rows")
    axes.legend(fontsize=6)


def _over(found: list[Any], base: Any) -> tuple[list[float], list[float]]:
    return [w.comm_ms - base.comm_ms for w in found], [(w.memory_bytes - base.memory_bytes) / GB for w in found]
