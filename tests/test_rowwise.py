"""FlexShard's costs, row curves and tiers: formulas by hand, invariants, and the optimum against brute force."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym.errors import CorruptFile, InfeasibleTask, InvalidPlan, InvalidPool, InvalidTask, UnknownName
from shard_gym.flexshard.curves import Curve, from_counts, from_rows, of_formula, power_law, zipf_mandelbrot
from shard_gym.flexshard.models import MODELS
from shard_gym.flexshard.network import KINDS, Network, Rows, costs, network
from shard_gym.flexshard.tiers import RowTask, SequenceTable, TieredPlan, merged, worth
from shard_gym_agents.solvers.flexshard import SETS, Frontier

PAPER = network("flexshard-4x8")  # 4 nodes of 8, ar = 3 * a2a
SMALL = Network(2, 2, a2a_global=1e3, a2a_intra=4e3, ar_global=3e3, ar_cross=1e3)


def task_of(probabilities, dim=1, on=SMALL, batch=10, **settings):
    tables = [SequenceTable(f"t{i}", from_rows(np.array(p)), dim) for i, p in enumerate(probabilities)]
    return RowTask(tuple(tables), on, batch, **settings)


def comm(task, plan):
    return worth(task, plan).comm_ms


# --- the tables of the paper


def test_uniform_costs_are_those_of_the_tables():
    table = Rows(rows=3200, dim=256, length=100)
    rw, cw, dp, flex = (costs(table, kind, PAPER, 4096) for kind in ("rw", "cw", "dp", "flex"))
    row = 1024
    assert (rw.static_bytes, rw.dynamic_bytes) == (100 * row, 2 * 409_600 * row)
    assert (cw.static_bytes, cw.input_ids, cw.accessed_dim) == (100 * row, 32 * 409_600, 8)
    assert (dp.static_bytes, dp.dynamic_bytes, dp.input_ids) == (6 * 3200 * row, 409_600 * row, 0)
    assert (flex.static_bytes, flex.dynamic_bytes) == (6 * 400 * row, 2 * 409_600 * row)
    assert rw.dynamic_comm_ms == 2 * 409_600 * row / 25e6
    assert dp.comm_ms == 3200 * row / 75e6
    assert flex.comm_ms == pytest.approx(2 * 409_600 * row / 250e6 + 400 * row / 25e6)
    assert {rw.rows_accessed, dp.rows_accessed, flex.rows_accessed} == {409_600}


def test_what_other_work_hides_takes_no_time():
    hidden, table = replace(SMALL, overlap="paper"), Rows(rows=3200, dim=256, length=100)
    for kind in KINDS:
        seen, behind = costs(table, kind, SMALL, 10), costs(table, kind, hidden, 10)
        assert behind.comm_ms == (0 if kind == "flex" else seen.comm_ms)
        assert behind.memory_bytes == seen.memory_bytes and behind.static_comm_bytes == seen.static_comm_bytes
    two = [MODELS[name].ms for name in ("RM-1", "RM-2")]
    assert [rw.added() / flex3.added("paper") for rw, _, flex3 in two] == [307 / 102, 308 / 52]  # "nearly 6x"
    assert [rw.added() / flex3.added() for rw, _, flex3 in two] == [307 / 146, 308 / 100]
    with pytest.raises(UnknownName, match="paper"):
        replace(SMALL, overlap="all")


@given(st.lists(st.floats(0, 1), min_size=1, max_size=7), st.floats(0, 60))
def test_with_flex_hidden_no_other_plan_is_better(probabilities, extra_bytes):
    task = task_of([sorted(probabilities, reverse=True)], on=replace(SMALL, overlap="paper"), extra_bytes=extra_bytes)
    frontier, n = Frontier(task), len(probabilities)
    plans = [TieredPlan((dp,), (flex,)) for dp in range(n + 1) for flex in range(n + 1 - dp)]
    fit = [comm(task, plan) for plan in plans if worth(task, plan).memory_bytes <= task.budget_bytes * (1 + 1e-12)]
    assert frontier.bound() <= min(fit) * (1 + 1e-9) + 1e-12
    most = max(probabilities) * 2 * 10 * 4 / 1e3 + 4 / 3e3  # a row at its dearest
    assert comm(task, frontier.best()) <= min(fit) + most + 1e-9


def test_a_whole_table_on_one_node_or_gpu_loads_it_more():
    table = Rows(rows=3200, dim=4, length=10)
    rw, twrw, tw = (costs(table, kind, PAPER, 64) for kind in ("rw", "twrw", "tw"))
    assert [c.static_bytes for c in (rw, twrw, tw)] == [100 * 16, 400 * 16, 3200 * 16]
    assert [c.dynamic_comm_bytes for c in (rw, twrw, tw)] == [640 * 16, 4 * 640 * 16, 32 * 640 * 16]


def test_pooled_costs_do_not_grow_with_length_and_sequence_costs_do():
    for kind in KINDS:
        short, long = (costs(Rows(1000, 4, n, pooled=True), kind, PAPER, 64) for n in (1, 50))
        assert (short.memory_bytes, short.comm_ms) == (long.memory_bytes, long.comm_ms)
        short, long = (costs(Rows(1000, 4, n), kind, PAPER, 64) for n in (1, 50))
        assert long.dynamic_bytes == pytest.approx(50 * short.dynamic_bytes)


def test_break_evens_are_the_published_ones():
    frontier = Frontier(task_of([[0.5]], on=PAPER, batch=4096))
    assert frontier._crossing("dp", "rw", np.inf) == pytest.approx(0.0014572, rel=1e-5)
    assert frontier._crossing("dp", "rw", 0.0) == pytest.approx(4.069e-5, rel=1e-4)
    line = frontier.task.lines
    assert line["flex"].memory[0] - line["rw"].memory[0] == 0.71875


# --- curves


def test_a_curve_of_rows_and_one_of_counts_agree():
    by_rows = from_rows(np.array([0.5, 0.0, 0.25, 0.5]))
    by_counts = from_counts(np.array([4, 4, 2]), samples=8, num_rows=4)
    for curve in (by_rows, by_counts):
        assert (curve.probability.tolist(), curve.rows.tolist()) == ([0.5, 0.25, 0.0], [2, 1, 1])
        assert (curve.num_rows, curve.length, curve.covered(3), curve.covered(1)) == (4, 1.25, 1.25, 0.5)


def test_buckets_of_a_formula_sum_as_its_rows_do():
    curve = power_law(100_000, 20.0, 0.9)
    weights = np.arange(1, 100_001) ** -0.9
    exact = weights * 20 / weights.sum()  # none above 1
    assert exact.max() < 1
    assert curve.error < 1e-3
    for rows in (1, 100, 5_000, 70_000, 100_000):
        assert curve.covered(rows) == pytest.approx(exact[:rows].sum(), rel=curve.error)


@given(st.integers(1, 10**9), st.floats(0, 1), st.floats(0, 3), st.floats(0, 100))
@settings(max_examples=25, deadline=None)
def test_formulas_keep_their_rows_and_length(rows, share, exponent, shift):
    length = share * min(rows, 1000)
    curve = zipf_mandelbrot(rows, length, exponent, shift)
    assert curve.num_rows == rows
    assert curve.length == pytest.approx(length, rel=1e-6)


@given(st.lists(st.floats(0, 1, allow_subnormal=False), min_size=1, max_size=60), st.floats(1e-3, 0.9))
@settings(max_examples=30, deadline=None)
def test_a_coarser_curve_is_off_by_no_more_than_it_says(probabilities, grain):
    fine = from_rows(np.array(probabilities))
    coarse = fine.coarser(grain)
    assert coarse.num_rows == fine.num_rows and coarse.length == pytest.approx(fine.length)
    assert coarse.error <= grain * (1 + 1e-9)
    true, told = (np.repeat(curve.probability, curve.rows) for curve in (fine, coarse))
    assert (np.abs(true - told) <= told * (coarse.error + 1e-12)).all()


def test_a_probability_for_each_of_millions_of_rows_is_planned_in_thousands_of_buckets():
    p = np.minimum(1, 900 * np.arange(1, 2_000_001) ** -0.9 / 30)
    fine = Curve(p, np.ones(len(p), np.int64))
    coarse = fine.coarser()
    assert len(coarse.rows) < 15_000 < len(fine.rows)
    tasks = [RowTask((SequenceTable("t", curve, 64),), PAPER, 4096) for curve in (fine, coarse)]
    plans = [Frontier(task).best() for task in tasks]
    assert plans[1].dp_rows[0] == pytest.approx(plans[0].dp_rows[0], rel=1e-3)
    assert comm(tasks[0], plans[1]) == pytest.approx(comm(tasks[0], plans[0]), rel=1e-6)
    assert worth(tasks[0], plans[1]).memory_bytes <= tasks[0].budget_bytes * (1 + 1e-6)
    with pytest.raises(InvalidPool, match="grain"):
        fine.coarser(0)


def test_a_curve_is_kept_in_a_file(tmp_path):
    curve = power_law(10_000, 5.0, 1.1)
    curve.save(tmp_path / "curve.safetensors")
    again = Curve.load(tmp_path / "curve.safetensors")
    assert (again.probability == curve.probability).all() and (again.rows == curve.rows).all()
    assert again.error == curve.error
    (tmp_path / "broken").write_bytes((tmp_path / "curve.safetensors").read_bytes()[:100])
    with pytest.raises(CorruptFile):
        Curve.load(tmp_path / "broken")


@pytest.mark.parametrize(
    ("probability", "rows"),
    [
        ([0.5, 1.5], [1, 1]),
        ([-0.1], [1]),
        ([np.nan], [1]),
        ([0.1, 0.2], [1, 1]),
        ([0.5], [0]),
        ([0.5], [1.5]),
        ([], []),
    ],
)
def test_what_is_no_curve_is_refused(probability, rows):
    with pytest.raises(InvalidPool):
        Curve(np.array(probability), np.array(rows))


def test_other_bad_input_is_refused():
    with pytest.raises(InvalidTask, match="32, not gpus=31"):
        Network(4, 8, 1, 1, 1, 1, gpus=31)
    with pytest.raises(InvalidTask, match="ar_cross"):
        Network(4, 8, 1, 1, 1, 0)
    with pytest.raises(UnknownName):
        costs(Rows(1, 1, 1), "diagonal", PAPER, 1)
    with pytest.raises(InvalidPool):
        power_law(10, 11.0, 1.0)
    with pytest.raises(InvalidPool):
        of_formula(lambda rank: rank, 10, 1.0)
    with pytest.raises(InfeasibleTask, match="bytes"):
        Frontier(task_of([[0.1] * 50], extra_bytes=-1e6)).best()
    with pytest.raises(InvalidPlan):
        worth(task_of([[0.1]]), TieredPlan((1,), (1,)))


def test_a_plan_is_kept_in_a_file_for_its_own_tables(tmp_path):
    task = task_of([[0.5, 0.2, 0.1], [0.3]])
    plan = TieredPlan((1, 0), (1, 1))
    plan.save(tmp_path / "plan.json", task)
    assert TieredPlan.load(tmp_path / "plan.json", task) == plan
    with pytest.raises(InvalidPlan):
        TieredPlan.load(tmp_path / "plan.json", task_of([[0.5, 0.2], [0.3]]))


# --- the algorithm


@st.composite
def small_tasks(draw):
    on = Network(
        draw(st.integers(1, 4)),
        draw(st.integers(1, 8)),
        *(draw(st.floats(1e5, 1e7)) for _ in range(4)),
        *(draw(st.sampled_from([0.0, 1e-4, 1e-2])) for _ in range(4)),
    )
    p = st.lists(st.floats(0, 1).map(lambda x: round(x**4, 6)), min_size=1, max_size=12)
    tables = tuple(
        SequenceTable(f"t{i}", from_rows(np.array(draw(p))), draw(st.sampled_from([4, 8, 32])))
        for i in range(draw(st.integers(1, 3)))
    )
    return RowTask(tables, on, draw(st.integers(1, 3000)), draw(st.sampled_from([0.0, 0.0, 500.0, 1e5])))


@settings(max_examples=100, deadline=None)
@given(small_tasks())
def test_tiers_are_at_the_bound_and_never_worse_than_fewer(task):
    frontier, rw = Frontier(task), TieredPlan.uniform(task, "rw")
    flex2, flex3, paper = frontier.best("flex2"), frontier.best("flex3"), frontier.published()
    for plan in (flex2, flex3, paper):
        found = worth(task, plan)
        assert found.memory_bytes <= task.budget_bytes * (1 + 1e-9)  # memory-neutral where extra_bytes is 0
        assert sum(found.lookups.values()) == pytest.approx(sum(t.curve.length for t in task.tables))
    assert comm(task, flex3) <= comm(task, flex2) * (1 + 1e-12) <= comm(task, rw) * (1 + 1e-12)
    for method, plan in (("flex2", flex2), ("flex3", flex3)):
        assert frontier.bound(method) <= comm(task, plan) * (1 + 1e-9)
        assert comm(task, plan) - frontier.bound(method) <= dearest_row(task) + 1e-9


def dearest_row(task):
    """Most that one row can add to the cost: the gap of whole rows to the relaxation."""
    p, _, row_bytes, _ = merged(task)
    ms = np.array([line.ms[0] * row_bytes + line.ms[1] * row_bytes * p for line in task.lines.values()])
    return float((ms.max(axis=0) - ms.min(axis=0)).max())


@settings(max_examples=100, deadline=None)
@given(small_tasks())
def test_with_one_divisible_row_the_bound_is_reached(task):
    frontier, budget = Frontier(task), task.budget_bytes
    for tiers in SETS["flex3"]:
        found = frontier._priced(tiers, budget)
        if found is None or found.beyond is None:
            continue
        dear, _, cheap = found
        here, there = frontier._memory(dear), frontier._memory(cheap)
        share = (budget - here) / (there - here) if there > here else 0.0
        divided = (1 - share) * frontier._ms(dear) + share * frontier._ms(cheap)
        latency = sum(task.lines[tier].latency_ms for tier in tiers)
        assert divided + latency == pytest.approx(frontier._relaxed(tiers, budget), rel=1e-6, abs=1e-9)


def test_points_go_along_the_curve():
    task = RowTask((SequenceTable("t", power_law(2_000_000, 50.0, 1.0), 64),), PAPER, 4096)
    found = [worth(task, plan) for plan in Frontier(task).points().values()]
    memory, ms = [w.memory_bytes for w in found], [w.comm_ms for w in found]
    assert memory == sorted(memory)
    assert memory[1] == pytest.approx(task.budget_bytes, abs=6 * 256)  # a row in DP
    assert ms[0] > ms[1] > ms[2] < ms[3]


def test_more_memory_is_never_slower():
    task = RowTask((SequenceTable("t", power_law(50_000, 30.0, 0.8), 64),), PAPER, 1024)
    frontier = Frontier(task)
    ms = [comm(task, frontier.best("flex3", task.budget_bytes * share)) for share in (1.0, 1.01, 1.1, 2.0, 10.0)]
    assert ms == sorted(ms, reverse=True) and ms[0] > ms[-1]


def test_a_row_goes_by_its_probability_whatever_its_table():
    whole = power_law(2_000, 10.0, 1.0).probability
    together = task_of([whole], dim=4, on=PAPER, batch=4096)
    apart = task_of([whole[::2], whole[1::2]], dim=4, on=PAPER, batch=4096)
    one, two = (Frontier(task).best() for task in (together, apart))
    assert one.dp_rows[0] == sum(two.dp_rows) and abs(one.flex_rows[0] - sum(two.flex_rows)) <= 1


def pooled_task(extra_bytes=0.0, rows=(50, 5_000)):
    tables = [SequenceTable(f"p{i}", power_law(n, min(n, 20.0), 1.0), 8, pooled=True) for i, n in enumerate(rows)]
    history = SequenceTable("h", power_law(3_000, 30.0, 1.0), 8)
    return RowTask((*tables, history), PAPER, 256, extra_bytes)


def test_a_pooled_table_goes_to_one_tier():
    task = pooled_task(rows=(50, 5_000, 200_000))
    plan = Frontier(task).best()  # a small one is replicated, a larger one in every node, the largest split over all
    assert (plan.dp_rows[:3], plan.flex_rows[:3]) == ((50, 0, 0), (0, 5_000, 0))
    assert worth(task, plan).memory_bytes <= task.budget_bytes
    with pytest.raises(InvalidPlan, match="pooled"):
        worth(task, TieredPlan((10, 0, 0, 0), (0, 0, 0, 0)))


@pytest.mark.parametrize("extra_bytes", [0.0, 3e4, 1e6])
def test_pooled_tables_are_at_the_bound_but_for_one(extra_bytes):
    task = pooled_task(extra_bytes, rows=(50, 200, 1_000, 5_000))
    frontier, found = Frontier(task), None
    choices = [[(0, 0), (t.curve.num_rows, 0), (0, t.curve.num_rows)] for t in task.tables[:4]]
    for chosen in product(*choices):
        fixed = TieredPlan((*(c[0] for c in chosen), 0), (*(c[1] for c in chosen), 0))
        if worth(task, fixed).memory_bytes <= task.budget_bytes:
            found = min(found or np.inf, comm(task, fixed))
    best = comm(task, frontier.best())
    assert frontier.bound() <= best * (1 + 1e-9)
    assert best <= found  # of all choices for pooled tables, with the sequence table split
