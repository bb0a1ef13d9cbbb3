"""DreamShard's experiments (its Tables 6 to 11) with our learners, beside the published values.

Each suite's policy is trained once and serves all tables. Numbers are mean makespans in ms, as in the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.pages import Found, Paper, Section, table
from benchmarks.policies import Lab, TrainedRun, Wanted, spent
from benchmarks.published import (
    ABLATED,
    DREAMSHARD_TABLE_11,
    DREAMSHARD_TABLES_6_7,
    DREAMSHARD_TRANSFER,
    STRATEGIES,
    TARGETS,
)
from shard_gym_agents.learners.rollouts import GROUPS

ITERATIONS = 60
SPLITS = ("train", "test")
Options = tuple[tuple[str, str | bool | int], ...]
OPTIONS: dict[str, Options] = {
    **{f"w/o {group}": (("drop", group),) for group in GROUPS},
    "w/o cost": (("costs_shown", False),),
    "dreamshard": (),
}
SOURCES = {"table-8": TARGETS["table-8"], "table-9": TARGETS["table-10"], "table-10": TARGETS["table-9"]}
OWN = "trained on the target"

ABOUT = """DreamShard's experiments, ours beside the published

Ours: `roofline:rtx2080ti-x4-v1` plans and judges, an analytic model of the paper's RTX 2080 Ti whose rates and links
were fitted to the paper's figures of random and expert placements (see [papers.md](papers.md)); tables are of our
synthetic MetaSyn pool. Nothing here was measured on a GPU: milliseconds near the published ones show how well the
model was fitted, and only the order of the strategies and the gaps between them say something about the learners.
Numbers are mean makespans in ms (mean over training seeds where there are several), in brackets the speedup over
random placement as the paper has it: random's milliseconds over the strategy's, less 1. "-": cannot be read."""


def _suite(tables: int, devices: int) -> str:
    return f"dlrm-{tables}x{devices}"


def _wanted(lab: Lab, learner: str, suite: str, options: Options = ()) -> list[Wanted]:
    iterations = lab.iterations or ITERATIONS
    decayed = (("horizon", iterations), *options)  # the learning rate falls to 0 at the end
    return [Wanted(learner, suite, seed, iterations, decayed) for seed in range(lab.seeds or 1)]


def _ms(lab: Lab, runs: Sequence[TrainedRun], suite: str, split: str = "test") -> float:
    """Mean over tasks and seeds; a task without a feasible plan counts as a mean random one."""
    return float(np.mean([lab.scored(one, suite, split).filled.mean() for one in runs]))


def _sizes(lab: Lab, sizes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    return [size for size in dict.fromkeys(sizes) if not lab.sizes or size[0] in lab.sizes]


def strategies(devices: int) -> Callable[[Lab], Found]:
    """Tables 6 and 7: experts and learners on training and test tasks."""

    def measure(lab: Lab) -> Found:
        sizes = _sizes(lab, [(n, k) for n, k, _ in DREAMSHARD_TABLES_6_7 if k == devices])
        learners = ("rnn", "dreamshard")
        wanted = {(size, name): _wanted(lab, name, _suite(*size)) for size in sizes for name in learners}
        runs = lab.train([one for some in wanted.values() for one in some])
        rows = {}
        for size in sizes:
            key = _suite(*size)
            for split in SPLITS:
                ms = [lab.scored("cost-greedy", key, split).random.mean()]
                ms += [lab.scored(f"{name}-greedy", key, split).filled.mean() for name in STRATEGIES[1:-2]]
                ms += [_ms(lab, [runs[one] for one in wanted[size, name]], key, split) for name in learners]
                ms.append(lab.scored("cost-greedy", key, split).filled.mean())
                rows[f"{key} {split}"] = [float(one) for one in ms]
        return {"rows": rows, "spent": spent(list(runs.values()))}

    return measure


def transfer(name: str) -> Callable[[Lab], Found]:
    """Tables 8 to 10: a policy on tasks of another number of tables or devices."""

    def measure(lab: Lab) -> Found:
        sources, targets = _sizes(lab, SOURCES[name]), _sizes(lab, TARGETS[name])
        wanted = {_suite(*size): _wanted(lab, "dreamshard", _suite(*size)) for size in (*sources, *targets)}
        runs = lab.train([one for some in wanted.values() for one in some])
        by_suite = {key: [runs[one] for one in some] for key, some in wanted.items()}
        keys = [_suite(*size) for size in targets]
        rows = {_suite(*size): [_ms(lab, by_suite[_suite(*size)], key) for key in keys] for size in sources}
        own = [_ms(lab, by_suite[key], key) for key in keys]
        return {"targets": keys, "rows": {**rows, OWN: own}, "spent": spent(list(runs.values()))}

    return measure


def table_11(lab: Lab) -> Found:
    """Ablations: features hidden from both networks, and costs from the policy."""
    wanted = {
        (key, name): _wanted(lab, "dreamshard", key, options)
        for key in lab.ablated
        for name, options in OPTIONS.items()
    }
    runs = lab.train([one for some in wanted.values() for one in some])
    rows = {
        f"{key} {split}": {name: _ms(lab, [runs[one] for one in wanted[key, name]], key, split) for name in OPTIONS}
        for key in lab.ablated
        for split in SPLITS
    }
    return {"rows": rows, "spent": spent(list(runs.values()))}


def _cell(ms: float | None, random: float | None) -> str:
    return "-" if ms is None else f"{ms:.1f}" if not random else f"{ms:.1f} ({random / ms - 1:+.1%})"


def show_strategies(found: Found) -> list[str]:
    """Two rows a suite and split: published, and ours."""
    rows = []
    for name, ours in found["rows"].items():
        size, split = name.removeprefix("dlrm-").split()
        tables, devices = map(int, size.split("x"))
        printed = DREAMSHARD_TABLES_6_7[tables, devices, split]
        cells = [_cell(printed[0], None), *(_cell(ms, printed[0]) for ms in printed[1:]), "-"]
        rows.append([f"DLRM-{tables} ({devices}) {split}", "published", *cells])
        rows.append(["", "ours", _cell(ours[0], None), *(_cell(ms, ours[0]) for ms in ours[1:])])
    better = sum(ours[-2] <= min(ours[1:5]) for ours in found["rows"].values())
    greedy = sum(ours[-2] <= ours[-1] for ours in found["rows"].values())
    count = len(found["rows"])
    note = (
        f"Of {count} rows, our DreamShard is at least as good as the best of the four experts in {better}, and as "
        f"cost-greedy, which the paper does not have, in {greedy}."
    )
    return [*table(("task", "", *STRATEGIES, "cost-greedy"), rows), "", note]


def show_transfer(name: str) -> Callable[[Found], list[str]]:
    """Ours / published, trained on the row and tested on the column."""

    def show(found: Found) -> list[str]:
        rows = []
        printed = {key if isinstance(key, str) else _suite(*key): row for key, row in DREAMSHARD_TRANSFER[name].items()}
        columns = {_suite(*size): i for i, size in enumerate(TARGETS[name])}
        own = found["rows"][OWN]
        losses = []
        for source, ours in found["rows"].items():
            told = printed["own" if source == OWN else source]
            cells = []
            for target, ms, base in zip(found["targets"], ours, own, strict=True):
                published = told[columns[target]]
                cells.append(f"{ms:.1f} / {'-' if published is None else format(published, '.1f')}")
                if source not in (OWN, target):
                    losses.append(ms / base - 1)
            rows.append([source, *cells])
        note = "Ours / published."
        if losses:
            note += (
                f" Against policies trained on the target, ours take {np.mean(losses):+.1%} on average and "
                f"{max(losses):+.1%} at worst."
            )
        return [*table(("trained on", *found["targets"]), rows), "", note]

    return show


def show_table_11(found: Found) -> list[str]:
    """Ours / published."""
    rows = []
    for name, ours in found["rows"].items():
        suite, split = name.split()
        tables = int(suite.removeprefix("dlrm-").split("x")[0])
        printed = dict(zip(ABLATED, DREAMSHARD_TABLE_11[tables, split], strict=True))
        cells = []
        for column in OPTIONS:
            published = printed.get(column)
            cells.append(f"{ours[column]:.1f} / {'-' if published is None else format(published, '.1f')}")
        rows.append([name, *cells])
    note = (
        "Ours / published. A group of features is 0 for both networks; without cost the policy sees no costs, and its "
        "training still does. All tables of these suites have 16 columns, so that leaving dim out changes nothing. "
        'Left out: "w/ RNN", as the appendix does not say what is replaced.'
    )
    return [*table(("task", *OPTIONS), rows), "", note]


PAPER = Paper(
    "papers_dreamshard",
    ABOUT,
    {
        "table-6": Section("Table 6: 4 devices", strategies(4), show_strategies),
        "table-7": Section("Table 7: 2 devices", strategies(2), show_strategies),
        "table-8": Section("Table 8: other numbers of tables", transfer("table-8"), show_transfer("table-8")),
        "table-9": Section("Table 9: from 4 devices to 2", transfer("table-9"), show_transfer("table-9")),
        "table-10": Section("Table 10: from 2 devices to 4", transfer("table-10"), show_transfer("table-10")),
        "table-11": Section("Table 11: ablations", table_11, show_table_11),
    },
)
