"""The report on a plan: TorchRec's numbers, and numbers that can be worked out by hand."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym import Plan, Task, make_pool
from shard_gym.errors import InvalidPlan, InvalidTask, UnknownName
from shard_gym.memory.shards import Feature, Setup, shards
from shard_gym.memory.storage import storage
from shard_gym.memory.usage import device_bytes
from shard_gym.results.evaluate import score
from shard_gym.simulators import Latency
from shard_gym.simulators.torchrec import TorchRecPerf
from shard_gym.tables.pool import GB
from shard_gym.task.links import Links
from shard_gym.task.task import Constraints
from shard_gym.torchrec.limits import limits
from shard_gym.torchrec.report import report, runs
from shard_gym.torchrec.stats import plan_stats, table_index, tables_of
from shard_gym.torchrec.values import Capacity, Reserve, imbalance
from tests.storage_helpers import collection, constraint

# TorchRec and FBGEMM tell those who write them what is deprecated
pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning")]

KINDS, ALL = ("tw", "cw", "rw", "twrw", "dp"), (0, 1, 2, 3)
ALL_KINDS = Plan((0, 1, 0, 2, 0), (), KINDS, ((0,), (1, 3), ALL, (2, 3), ALL))


class OneMsATable:
    """Forward takes 1 ms a table, communication 1 ms and backward 2, on ranks that hold any."""

    id = "one-ms"

    def latency(self, task, placements):
        count = np.bincount(placements, minlength=task.num_devices).astype(float)
        return Latency(count, 1.0 * (count > 0), 1.0 * (count > 0), 2 * count)


def four_ranks(**settings):
    """Five tables on four ranks, two hosts; 1,000 samples a rank."""
    tables = make_pool([1_000, 2_000, 30, 400, 7], [16, 32, 8, 64, 4], [3, 0.5, 2, 1, 1], dtype="fp32")
    return Task(tables, (GB,) * 4, batch=4_000, links=Links(port=1e9, group=2), **settings)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=128).filter(lambda load: sum(load) > 1e-9))
def test_measures_are_those_of_torchrecs_planner(load):
    theirs = pytest.importorskip("torchrec.distributed.planner.stats")
    shares, ours = theirs._normalize_float(load), imbalance(load)
    found = (ours.total_variation, ours.total_distance, ours.chi_divergence, ours.kl_divergence)
    expected = [measure(shares) for measure, _ in theirs.IMBALANCE_STAT_MEASURE.values()]
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_only_max_over_mean_shows_a_straggler():
    found = imbalance([1.3, *[(96 - 1.3) / 95] * 95])  # of mean 1
    assert found.max_over_mean == pytest.approx(1.3)
    assert round(found.total_variation, 3) == 0.003
    assert max(found.chi_divergence, found.kl_divergence) < 0.001


def test_an_even_load_has_no_imbalance():
    assert vars(imbalance([2, 2, 2])).values() == pytest.approx([0, 0, 0, 0, 1])
    assert list(vars(imbalance([5])).values()) == [0, 0, 0, 0, 1]
    assert imbalance([0, 0]) is None


def test_a_report_by_hand():
    tables = make_pool(rows=[100, 200, 300], dim=[4, 8, 4], pooling=[2, 3, 0.5], dtype="fp32")
    task = Task(tables, (6_000, 7_000), objective="iteration", batch=20)
    stats = plan_stats(task, Plan((0, 1, 1)), OneMsATable())
    first, second = stats.ranks
    assert (first.hbm_bytes, second.hbm_bytes) == (100 * 4 * 4, 200 * 8 * 4 + 300 * 4 * 4)
    assert (first.margin_bytes, second.margin_bytes) == (6_000 - 1_600, 7_000 - 11_200)
    assert (first.input_bytes, second.input_bytes) == (2 * 20 * 8, (3 + 0.5) * 20 * 8)
    assert (first.output_bytes, second.output_bytes) == (20 * 4 * 4, 20 * (8 + 0.5 * 4) * 4)
    assert (first.shards, second.shards) == ({"tw": 1}, {"tw": 2})
    assert (first.perf.total, second.perf.total) == (1 + 1 + 1 + 2, 2 + 1 + 1 + 4)
    assert stats.makespan == 8
    assert stats.problems == ("rank 1 needs 11,200 bytes of HBM, has 7,000: 4,200 too few",)
    assert stats.imbalance()["hbm"].max_over_mean == 11_200 / 6_400
    slowest = stats.critical_path("perf")
    assert [(s.ms, s.ranks) for s in slowest.values()] == [(2, (1,)), (1, (0, 1)), (1, (0, 1)), (4, (1,))]
    assert stats.peak() == [(11_200, (0, 1))]  # less than a megabyte apart
    assert stats.kernels() == {"fused": {"tables": 3, "hbm_bytes": 12_800, "ddr_bytes": 0}}


@pytest.mark.parametrize("accounting", ["weights", "training", "torchrec", "true"])
def test_ranks_hold_what_the_task_counts(accounting, roofline):
    task = four_ranks(optimizer="rowwise_adagrad", accounting=accounting, splits_allowed=True, objective="iteration")
    whole, halved = Plan((0, 1, 1, 3, 0)), Plan((0, 1, 1, 3, 0, 2), (1,))
    for plan in (whole, halved):
        stats = plan_stats(task, plan, roofline)
        used = device_bytes(task.split(plan.splits), np.array(plan.device))
        assert stats.makespan == score(task, plan, roofline).makespan
        held = np.array([rank.hbm_bytes for rank in stats.ranks])
        if accounting == "torchrec" and plan.splits:  # it has one row-wise state for both halves
            assert (used - held).tolist() == [0, 4_000, 4_000, 0]
        else:
            assert held.tolist() == used.tolist()


def test_every_kind_is_reported():
    task, plan = four_ranks(accounting="torchrec"), ALL_KINDS
    stats, setup = plan_stats(task, plan, OneMsATable()), Setup.of(task)
    assert setup == Setup(4, 1_000, 2)
    assert [dict(rank.shards) for rank in stats.ranks] == [
        {"dp": 1, "rw": 1, "tw": 1},
        {"cw": 1, "dp": 1, "rw": 1},
        {"dp": 1, "rw": 1, "twrw": 1},
        {"cw": 1, "dp": 1, "rw": 1, "twrw": 1},
    ]
    tables = [replace(t, kernel="dense") if i == 4 else t for i, t in enumerate(tables_of(task))]
    counted = storage(shards(tables, plan.kind, setup, [None, 16, None, None, None]), setup)
    assert sum(rank.hbm_bytes for rank in stats.ranks) == counted.hbm.bytes.sum()
    assert sum(table.hbm_bytes for table in stats.tables) == counted.hbm.bytes.sum()
    assert [table.kernel for table in stats.tables] == ["fused"] * 4 + ["dense"]
    assert stats.tables[1].shard_sizes == ((2_000, 16), (2_000, 16))
    assert stats.tables[3].ranks == (2, 3)
    # a simulator that knows whole tables tells no time; one that knows shards does
    assert stats.makespan is None and stats.ranks[0].perf is None and "one-ms costs whole tables" in stats.notes[0]
    assert "table 1 ('table_1') is cw: the task allows tw" in stats.notes[1]
    timed = plan_stats(replace(task, objective="iteration"), plan, TorchRecPerf())
    assert timed.makespan == pytest.approx(max(rank.torchrec.total for rank in timed.ranks), abs=1e-6)
    assert "NaN" not in report(stats)


def test_column_shards_are_timed():
    task = four_ranks(objective="iteration")
    plan = Plan((0, 1, 0, 2, 3), (), ("tw", "cw", "tw", "tw", "tw"), ((0,), (1, 3), (0,), (2,), (3,)))
    halved = plan_stats(replace(task, splits_allowed=True), Plan((0, 1, 0, 2, 3, 3), (1,)), TorchRecPerf())
    stats = plan_stats(task, plan, TorchRecPerf())
    assert stats.makespan == halved.makespan > 0
    assert [r.torchrec for r in stats.ranks] == [r.torchrec for r in halved.ranks]


def test_ranks_are_those_of_torchrecs_own_statistics():
    planner = pytest.importorskip("torchrec.distributed.planner")
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.planner import stats as theirs
    from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
    from torchrec.distributed.planner.types import Storage

    rng, n = np.random.default_rng(4), 12
    tables = make_pool(rng.integers(10, 10**5, n), rng.choice([16, 64, 128], n), rng.uniform(0.2, 9, n), dtype="fp32")
    tables = tables.with_(bags=rng.choice([1, 2, 4], n))
    task = Task(tables, (GB,) * 4, "iteration", 2_000, optimizer="rowwise_adagrad", accounting="torchrec")
    plan, setup = Plan(rng.integers(4, size=n)), Setup.of(task)
    module, _ = collection(tables_of(task), ["RowWiseAdagrad"] * n)
    told = {f"t{i}": constraint(table, "tw", None, setup) for i, table in enumerate(tables_of(task))}
    topology = planner.Topology(4, "cuda", local_world_size=4)
    options = EmbeddingEnumerator(topology, setup.batch, told).enumerate(module, [EmbeddingBagCollectionSharder()])
    for option in options:
        option.shards[0].rank = plan.device[int(option.name[1:])]
    dense, ids = Storage(hbm=10**6, ddr=0), Storage(hbm=10**5, ddr=0)
    _, hbm, _, perf = theirs._compute_mem_usage_and_perf(topology, options, dense, ids)
    stats = plan_stats(task, plan)
    assert [rank.hbm_bytes + 10**6 + 10**5 for rank in stats.ranks] == hbm
    expected = [(p.fwd_compute, p.fwd_comms, p.bwd_comms, p.bwd_compute, p.total) for p in perf]
    found = [tuple(vars(rank.torchrec).values()) for rank in stats.ranks]
    assert np.array(found) == pytest.approx(np.array(expected), rel=1e-12)
    path = theirs._calculate_critical_path(options).total()
    assert sum(slowest.ms for slowest in stats.critical_path("torchrec").values()) == pytest.approx(path, rel=1e-12)


def test_capacity_is_what_reserves_leave():
    capacity = Capacity(10**9, 2 * 10**9, Reserve(0.15, dense_bytes=10**8, kjt_bytes=10**7))
    stats = plan_stats(four_ranks(), Plan((0,) * 5), capacity=capacity)
    assert {(r.hbm_capacity, r.ddr_capacity) for r in stats.ranks} == {(740_000_000, 2 * 10**9)}
    assert stats.to_dict()["budget"]["share_bytes"] == 150_000_000
    assert "0.931 GiB - 0.140 fragmentation reserve (15%) - 0.093 dense - 0.009 KJT = 0.689 GiB" in report(stats)


def test_tables_in_host_memory_fill_ddr():
    task = replace(four_ranks(), accounting="torchrec")
    stats = plan_stats(task, Plan((0,) * 5), tables=tables_of(task, "fused_uvm"), capacity=Capacity(ddr_bytes=10**5))
    assert stats.ranks[0].ddr_bytes == task.tables.weight_bytes.sum() > 10**5
    assert any("of DDR" in problem for problem in stats.problems) and "kernel fused_uvm" in stats.notes[0]
    with pytest.raises(InvalidTask, match="kernel"):
        plan_stats(four_ranks(), Plan((0,) * 5), tables=tables_of(task, "quant"))


def test_broken_constraints_are_told():
    task = four_ranks(constraints=Constraints(pin=((0, 2),)))
    assert plan_stats(task, Plan((0,) * 5)).problems == ("table 0 is pinned to device 2",)
    assert plan_stats(task, Plan((2, 0, 0, 0, 0))).problems == ()
    moved = replace(ALL_KINDS, device=(2, 1, 0, 2, 0), devices=((2,), *ALL_KINDS.devices[1:]))
    assert plan_stats(task, moved).problems == ()
    kinds = replace(task, objective="iteration", kinds=("tw", "cw", "rw"))
    assert [p.partition(":")[0] for p in plan_stats(kinds, ALL_KINDS).problems] == [
        "table 3 ('table_3') is twrw",
        "table 4 ('table_4') is dp",
        "table 0 is pinned to device 2",
    ]


def test_tables_of_one_name_are_told_apart():
    task = four_ranks()
    task = replace(task, tables=task.tables.with_(name=("twin",) * 5))
    stats = plan_stats(task, Plan((0, 1, 2, 3, 0)))
    assert [table.ranks for table in stats.tables] == [(0,), (1,), (2,), (3,), (0,)]
    assert [table.shard_sizes[0][0] for table in stats.tables] == task.tables.rows.tolist()


def test_plans_for_other_tasks_are_refused():
    task = four_ranks()
    for plan in (Plan((0,) * 4), Plan((0, 0, 0, 0, 4)), Plan((0,) * 6, (0,))):
        with pytest.raises(InvalidPlan):
            plan_stats(task, plan)
    with pytest.raises(InvalidTask, match="tables"):
        plan_stats(task, Plan((0,) * 5), tables=tables_of(task)[1:])
    with pytest.raises(InvalidTask, match="4 CUDA devices, the setup has 8"):
        plan_stats(task, Plan((0,) * 5), setup=Setup(8))
    with pytest.raises(UnknownName, match="accounting"):
        plan_stats(task, Plan((0,) * 5), accounting="guess")


def test_budgets_without_room_are_refused():
    with pytest.raises(InvalidTask, match="hbm_bytes"):
        Capacity(reserve=Reserve(0.1))
    with pytest.raises(InvalidTask, match="11 bytes too few"):
        Capacity(100, reserve=Reserve(dense_bytes=110))
    with pytest.raises(InvalidTask, match="positive"):
        Capacity(-1)


def test_unknown_tables_are_told_near_names():
    task = four_ranks()
    task = replace(task, tables=task.tables.with_(name=("user_id", "user_city", "item", "shop", "shop")))
    assert [table_index(task, name) for name in ("item", "user_id", "4")] == [2, 0, 4]
    with pytest.raises(UnknownName, match="user_id"):
        table_index(task, "userid")
    with pytest.raises(UnknownName, match="user_city"):
        table_index(task, "5")
    with pytest.raises(InvalidTask, match="index"):
        table_index(task, "shop")


def test_json_has_a_stable_schema(roofline):
    told = plan_stats(replace(four_ranks(), objective="iteration"), Plan((0, 1, 2, 3, 3)), roofline).to_dict()
    assert json.loads(json.dumps(told, allow_nan=False))["schema"] == "shard-gym/stats/1"
    assert list(told) == [
        *("schema", "accounting", "objective", "simulator", "makespan_ms", "feasible", "problems", "notes", "setup"),
        *("budget", "ranks", "tables", "kernels", "imbalance", "peak", "critical_path"),
    ]
    assert list(told["ranks"][0]) == [
        *("rank", "hbm_bytes", "hbm_capacity", "ddr_bytes", "ddr_capacity", "input_bytes", "output_bytes"),
        *("shards", "perf", "torchrec", "torchrec_comm", "margin_bytes"),
    ]
    assert list(told["tables"][0]) == [
        *("name", "kind", "kernel", "rows", "dim", "pooling", "ranks", "shard_sizes", "hbm_bytes", "ddr_bytes"),
        *("input_bytes", "output_bytes", "pieces", "share", "bags", "weighted", "sharder", "batches", "torchrec"),
    ]
    phases = ["forward_compute", "forward_comm", "backward_comm", "backward_compute"]
    assert list(told["ranks"][0]["perf"]) == [*phases, "total"]
    assert list(told["critical_path"]["perf"]) == ["ms", *phases]


def test_lookups_are_told_as_torchrec_has_them():
    """Two features of 3 bags, one with 7 samples a rank, ids with weights; then a plain table and a sequence."""
    task = Task(make_pool([100] * 3, 4, 1, pooled=[True, True, False]), (GB,) * 2, batch=32)
    odd = replace(tables_of(task)[0], features=(Feature(2.0), Feature(5.0, 2.0, 7)), weighted=True)
    stats = plan_stats(task, Plan((0, 1, 1)), tables=(odd, *tables_of(task)[1:]))
    told = [(t.bags, t.weighted, t.batches, t.sharder) for t in stats.tables]
    pooled = "EmbeddingBagCollectionSharder"
    assert told == [(3, True, (16, 7), pooled), (1, False, (), pooled), (1, False, (), "EmbeddingCollectionSharder")]
    assert re.search(rf"_0 +3 +yes +16 7 +{pooled}\ntable_1 +1 +- +- +{pooled}\n", report(stats))


def test_why_there_is_no_plan():
    tables = make_pool(rows=[100, 100, 100], dim=4, pooling=1, dtype="fp32")  # 1,600 bytes each
    too_large, too_much = (limits(Task(tables, memory)) for memory in ((1_500,) * 4, (1_600, 1_700)))
    assert (too_large.feasible, too_large.missing()) == (False, {"largest table": 100, "all tables": 4_800 - 6_000})
    assert (too_much.feasible, too_much.missing()) == (False, {"largest table": -100, "all tables": 1_500})
    assert "100 too few" in too_large.reason and "1,500 bytes too few" in too_much.reason
    assert "NO PLAN" in too_large.text() and "none, 1,200 left" in too_large.text()
    roomy = limits(Task(tables, (1_600, 3_200)))
    assert roomy.feasible and roomy.text().startswith("there is a plan")
    pinned = limits(Task(tables, (4_000,) * 2, constraints=Constraints(pin=((0, 0), (1, 0), (2, 0)))))
    assert pinned.constraints == ("pin",) and "800 bytes too few there" in pinned.reason
    assert limits(Task(tables, (2_400,) * 2)).least_bytes == 2_400  # though three on two devices have no plan


def test_ranks_are_told_as_runs():
    assert [runs(ranks) for ranks in ([3], [0, 1, 2], [0, 2, 3], [2, 1])] == ["3", "0-2", "0,2-3", "2,1"]


def test_the_summary_comes_first():
    text = report(
        plan_stats(four_ranks(objective="iteration"), Plan((0, 1, 2, 3, 3)), OneMsATable()), assumed="assumes that"
    )
    summary = text.split("\n\n")[0].splitlines()
    # four ranks of 5 ms, 5, 5 and 8; rank 1 has 2,000 rows of 32 columns
    assert summary[0] == "makespan 8.000 ms (iteration), by one-ms; slowest rank 3, 1.39 times the mean"
    assert summary[1].startswith("memory: fullest rank 1, 0.000 of 1.000 GiB (0%); all ranks 0.000 of 4.000 GiB")
    assert summary[2].startswith("5 tables in 5 shards on 4 ranks, 2 a host; batch 4,000, 1,000 a rank; ")
    assert summary[-1] == "assumes that"


def test_the_costliest_are_shown():
    stats = plan_stats(four_ranks(objective="iteration"), Plan((0, 1, 2, 3, 3)), OneMsATable())
    text = report(stats, top=1)
    assert "... and 3 more ranks" in text and "... and 4 more tables" in text
    ranks, *_ = (part for part in text.split("\n\n") if part.startswith("rank"))
    assert ranks.splitlines()[1].startswith("3 ")  # the slowest
    tables = [part.splitlines()[1:] for part in text.split("\n\n") if part.startswith("table")]
    costs = [table.torchrec.total for table in stats.tables]
    slowest = stats.tables[costs.index(max(costs))].name
    assert all(lines[0].startswith(f"{slowest} ") for lines in tables)


def test_reports_are_a_hundred_columns_wide():
    names = tuple("a_feature_with_a_very_long_name_" * 3 + str(i) for i in range(5))
    task = four_ranks(objective="iteration", accounting="true", optimizer="adam")
    task = replace(task, memory=(100,) * 4, tables=task.tables.with_(name=names))
    capacity = Capacity(10**14, 10**14, Reserve(0.15, dense_bytes=10**13, kjt_bytes=10**13))
    for told in ({}, {"capacity": capacity}):
        text = report(plan_stats(task, Plan((0, 1, 2, 3, 3)), OneMsATable(), **told), assumed="assumes " + "much " * 50)
        assert max(map(len, text.splitlines())) == 100
        assert "name_0  " in text and "name_4  " in text and names[0] not in text


def test_a_simulator_by_id_reports(roofline):
    text = report(plan_stats(four_ranks(objective="iteration"), Plan((0, 1, 2, 3, 3)), roofline))
    assert f"by {roofline.id}" in text and "critical path by TorchRec" in text
