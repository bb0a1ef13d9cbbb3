"""FlexShard's planner against every plan of small tasks, whose costs are worked out here from the paper's formulas."""

import numpy as np
import pytest

from shard_gym.errors import InfeasibleTask, InvalidTask
from shard_gym.flexshard.curves import from_rows
from shard_gym.flexshard.network import Network, Rows, costs
from shard_gym.flexshard.tiers import RowTask, SequenceTable, TieredPlan, worth
from shard_gym_agents.solvers.flexshard import Frontier

DP, FLEX, RW = 1, 2, 4  # tiers as bits
KINDS = {DP: "dp", FLEX: "flex", RW: "rw"}


def odd_task(rng, pooled=False):
    """Any network, tables with ties and rows that are never looked up, any budget."""
    rates = 10 ** rng.uniform(4.5, 7, 4) if rng.random() < 0.7 else rng.choice([1e5, 1e6], 4)
    latencies = rng.choice([0, 0, 1e-4, 1e-2, 10.0], 4)
    on = Network(int(rng.integers(1, 5)), int(rng.choice([1, 2, 8])), *rates, *latencies)
    tables = []
    for n in range(int(rng.integers(1, 4))):
        rows = int(rng.integers(1, 6 if n < 2 else 4))
        some = np.minimum(1, rng.pareto(1, rows) * 10 ** rng.uniform(-4, 0))
        p = some if rng.random() < 0.7 else rng.choice([0, 0.001, 0.1, 1.0], rows)
        dim = int(rng.choice([1, 4, 8, 10**6], p=[0.2, 0.4, 0.3, 0.1]))
        tables.append(SequenceTable(f"t{n}", from_rows(p), dim, pooled=pooled and rng.random() < 0.6))
    copies, batch = float(rng.choice([1, 1.5, 6])), int(10 ** rng.uniform(0, 4))
    rw = RowTask(tuple(tables), on, batch, 0.0, copies).budget_bytes
    extra = float(rng.choice([0, rng.uniform(0, 6) * rw, -rng.uniform(0, 1) * rw, -rng.uniform(0, 0.1) * rw, 1e12]))
    return RowTask(tuple(tables), on, batch, extra, copies)


def row_costs(task, row_bytes, p):
    """(memory, ms) of one row in DP, Flex and RW."""
    on, b = task.network, task.batch
    w, u = on.gpus_per_node, on.nodes * on.gpus_per_node
    memory = (task.copies + b * p, task.copies / w + 2 * b * p, 1 / u + 2 * b * p)
    ms = (1 / on.ar_global, 2 * b * p / on.a2a_intra + 1 / w / on.ar_cross, 2 * b * p / on.a2a_global)
    return [(m * row_bytes, t * row_bytes) for m, t in zip(memory, ms, strict=True)]


def choices(task, table):
    """(memory, ms without latencies, tiers) of each way to share out a table, a row."""
    n, p = table.curve.num_rows, np.repeat(table.curve.probability, table.curve.rows)
    if table.pooled:
        rows = Rows(n, table.dim, table.curve.length, table.element_bytes, pooled=True)
        found = {tier: costs(rows, kind, task.network, task.batch, task.copies) for tier, kind in KINDS.items()}
        return [(c.memory_bytes, c.comm_ms - latency(task, tier), tier) for tier, c in found.items()]
    of_rows = [row_costs(task, table.row_bytes, each) for each in p]
    ways = []
    for dp in range(n + 1):
        for flex in range(n + 1 - dp):
            tier = [0] * dp + [1] * flex + [2] * (n - dp - flex)
            memory, ms = np.sum([cost[t] for cost, t in zip(of_rows, tier, strict=True)], axis=0)
            ways.append((memory, ms, sum({1 << t for t in tier})))
    return ways


def latency(task, tiers):
    on = task.network
    of_tiers = {DP: on.ar_global_ms, FLEX: 2 * on.a2a_intra_ms + on.ar_cross_ms, RW: 2 * on.a2a_global_ms}
    return sum(ms for tier, ms in of_tiers.items() if tiers & tier)


def every_plan(task):
    """(memory, ms, tiers) of all plans, as arrays."""
    memory, ms, tiers = np.zeros(1), np.zeros(1), np.zeros(1, int)
    for table in task.tables:
        more_memory, more_ms, used = (np.array(column) for column in zip(*choices(task, table), strict=True))
        memory = np.add.outer(memory, more_memory).ravel()
        ms = np.add.outer(ms, more_ms).ravel()
        tiers = np.bitwise_or.outer(tiers, used).ravel()
    return memory, ms + np.array([latency(task, used) for used in range(8)])[tiers], tiers


def dearest_row(task):
    """Most that one row can add to the cost."""
    found = [row_costs(task, t.row_bytes, p) for t in task.tables if not t.pooled for p in t.curve.probability]
    return max((max(ms) - min(ms) for ms in (list(zip(*cost, strict=True))[1] for cost in found)), default=0.0)


def planned(plan):
    try:
        return plan()
    except InfeasibleTask:
        return None


@pytest.mark.parametrize("pooled", [False, True])
def test_no_plan_is_better_by_more_than_a_row_nor_below_the_bound(pooled):
    fitted = refused = 0
    for seed in range(150):
        task = odd_task(np.random.default_rng([seed, pooled]), pooled)
        frontier, (memory, ms, tiers) = Frontier(task), every_plan(task)
        fits = memory <= task.budget_bytes * (1 + 1e-12)
        for method, all_fit in (("flex2", fits & (tiers & FLEX == 0)), ("flex3", fits)):
            plan = planned(lambda f=frontier, m=method: f.best(m))
            assert (plan is None) == (not all_fit.any()), seed
            if plan is None:
                refused += 1
                assert frontier.bound(method) == np.inf
                continue
            fitted += 1
            found, best = worth(task, plan), ms[all_fit].min()
            assert found.memory_bytes <= task.budget_bytes * (1 + 1e-9), seed
            assert frontier.bound(method) <= best * (1 + 1e-9) + 1e-12, seed
            assert best * (1 - 1e-9) <= found.comm_ms, seed
            if not any(table.pooled for table in task.tables):
                assert found.comm_ms <= frontier.bound(method) + dearest_row(task) * (1 + 1e-9) + 1e-12, seed
    assert fitted > 100 and refused > 20


def test_the_published_procedure_keeps_to_the_budget_or_says_what_is_missing():
    kept = refused = 0
    for seed in range(200):
        task = odd_task(np.random.default_rng([seed, 2]))
        plan = planned(Frontier(task).published)
        a = Frontier(task).points()["A"]
        if plan is None:
            refused += 1
            assert worth(task, a).memory_bytes > task.budget_bytes
            continue
        kept += 1
        assert worth(task, plan).memory_bytes <= task.budget_bytes * (1 + 1e-9)
        assert plan.dp_rows == a.dp_rows  # DP while it saves memory, whatever else the budget has room for
    assert kept > 100 and refused > 10


def test_the_published_procedure_by_hand():
    """Two GPUs, B = 100, rows of 4 bytes. DP saves memory above p = (6 - 1/2) / 100 = 0.055: 44.5 + 0.5 rows or 180
    bytes by two rows. Each row in Flex takes (6/2 - 1/2) * 4 = 10 bytes, and gains above p = 1/2 / 150: three more.
    """
    on = Network(1, 2, a2a_global=1e3, a2a_intra=4e3, ar_global=3e3, ar_cross=1e3)
    table = SequenceTable("t", from_rows(np.array([0.5, 0.06, 0.05, 0.04, 0.0034, 0.0033, 0.0])), 1)
    for extra_bytes, flex_rows in ((0, 3), (1e6, 3), (-149, 3), (-155, 2), (-165, 1), (-175, 0), (-181, None)):
        plan = planned(Frontier(RowTask((table,), on, 100, extra_bytes)).published)
        assert plan == (None if flex_rows is None else TieredPlan((2,), (flex_rows,))), extra_bytes


def test_a_bound_without_a_limit_is_what_is_found():
    frontier = Frontier(odd_task(np.random.default_rng(0)))
    best = worth(frontier.task, frontier.best(budget_bytes=np.inf)).comm_ms
    assert frontier.bound(budget_bytes=np.inf) == pytest.approx(best)


def test_the_least_budget_is_the_least():
    for seed in range(40):
        frontier = Frontier(odd_task(np.random.default_rng([seed, 3]), pooled=True))
        memory, _, tiers = every_plan(frontier.task)
        assert frontier.least_bytes() == pytest.approx(memory.min())
        assert frontier.least_bytes("flex2") == pytest.approx(memory[tiers & FLEX == 0].min())
        assert frontier.best(budget_bytes=frontier.least_bytes()) is not None


@pytest.mark.parametrize(
    "settings", [{"copies": 0.5}, {"copies": np.nan}, {"extra_bytes": np.inf}, {"batch": 1.5}, {"batch": 0}]
)
def test_a_task_of_rows_that_cannot_be_is_refused(settings):
    table = SequenceTable("t", from_rows(np.array([0.5])), 4)
    with pytest.raises(InvalidTask):
        RowTask((table,), Network(1, 2, 1, 1, 1, 1), **{"batch": 10, **settings})
    with pytest.raises(InvalidTask, match="dim"):
        SequenceTable("t", table.curve, 1.5)


def test_sharers_of_a_pooled_table_each_send_their_part_of_every_sample():
    on = Network(4, 8, 25e6, 250e6, 75e6, 25e6)
    table = Rows(1_000, 4, 20.0, pooled=True)
    sent = {kind: costs(table, kind, on, 64).dynamic_comm_bytes for kind in ("rw", "cw", "dp", "flex", "tw")}
    sample_bytes = 64 * 16
    assert sent == {
        "rw": 32 * sample_bytes,
        "cw": sample_bytes,
        "dp": 0,
        "flex": 8 * sample_bytes,
        "tw": 32 * sample_bytes,
    }


def test_uniform_plans_are_worth_what_whole_tables_cost():
    task = odd_task(np.random.default_rng(5), pooled=True)
    for tier in ("dp", "flex", "rw"):
        parts = [Rows(t.curve.num_rows, t.dim, t.curve.length, 4, t.pooled) for t in task.tables]
        found = [costs(rows, tier, task.network, task.batch, task.copies) for rows in parts]
        told = worth(task, TieredPlan.uniform(task, tier))
        assert told.memory_bytes == pytest.approx(sum(c.memory_bytes for c in found))
        once = sum(c.comm_ms for c in found) - (len(found) - 1) * task.lines[tier].latency_ms
        assert told.comm_ms == pytest.approx(once)
