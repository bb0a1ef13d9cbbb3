"""Costs of shards of all kinds by the roofline and by fits: a shard is a smaller table, its bytes travel."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym import Plan, Task, make_pool, simulators
from shard_gym.errors import InvalidPlan, SimulatorError
from shard_gym.memory.shards import Shards, Tables
from shard_gym.memory.usage import shard_bytes, shard_storage
from shard_gym.plan.shards import shards
from shard_gym.results.evaluate import score
from shard_gym.simulators.base import GRAIN, counted, plan_latency
from shard_gym.simulators.collectives import COPIES, FETCHED, HOST_ROWS, IDS, MIB, ROWS, UPDATED
from shard_gym.simulators.lookups import Lookups, smaller_tables
from shard_gym.simulators.roofline import (
    BACKWARD_DRAM,
    BACKWARD_ISSUE,
    COUNT,
    DIM,
    FORWARD_DRAM,
    FORWARD_ISSUE,
    SORT,
    Hardware,
    Roofline,
)
from shard_gym.tables.pool import GB
from shard_gym.task.constraints import KINDS
from shard_gym.task.links import Links
from shard_gym.task.optimizers import OPTIMIZERS
from shard_gym.task.suites import get

RESIDENCES = ("hbm", "uvm", "cached")
HOSTS = Links(port=100.0, latency_ms=1.0, group=2, uplink=50.0)  # bytes a ms
TOY = Hardware("toy", dram=1, l2_bytes=0, l2=1e9, lookup_ns=1e3, bag_ns=2e3, launch_us=0, links=HOSTS, host_link=10.0)
FAST = ["roofline:h100-v1", "learned:cpu-v1", "torchrec:cuda-v1"]


def one_table(kind, residence="hbm", share=None, **changes):
    """The shards of one table of 8 rows x 16 fp16 on 4 devices of 2 hosts, and their columns by the toy roofline.

    In a batch of 8 samples, 4 rows are looked up, two of them once and two four times: 10 ids.
    """
    uses, accesses = np.zeros((2, 1, 17))
    uses[0, 0], uses[0, 2] = 0.5, 0.5
    accesses[0, 0], accesses[0, 2] = 0.2, 0.8
    histogram = {"reference_batch": 8, "distinct": [4], "uses": uses, "accesses": accesses}
    tables = make_pool(rows=8, dim=16, pooling=10 / 8, dtype="fp16", **histogram)
    task = Task(tables, (GB,) * 4, "iteration", 8, kinds=KINDS, residences=RESIDENCES, host_memory=GB, links=HOSTS)
    task = replace(task, **changes)
    devices = {"tw": (1,), "cw": (1, 2), "twrw": (2, 3), "grid": (2, 3, 0, 1)}.get(kind, (0, 1, 2, 3))
    shares = () if share is None else (share,)
    plan = Plan((devices[0],), (), (kind,), (devices,), (residence,), shares)
    return task, plan, Roofline(TOY).embed_shards(task, shards(task, plan))


def moved(columns):
    return columns[:, COUNT + 1 :]


def test_a_whole_table_among_kinds_has_its_own_columns_and_ids():
    task, _, (column,) = one_table("tw")
    alone = Roofline(TOY).embed(replace(task, kinds=(), residences=("hbm",), host_memory=0))
    assert (column[: COUNT + 1] == alone[0]).all()
    assert moved(column[None])[0].tolist() == pytest.approx([0, 0, 0, (10 * 8 + 8 * 4) / MIB, 0, 0], abs=1 / GRAIN)
    assert (Roofline(TOY).embed(task) == column).all()


def test_blocks_of_rows_by_hand():
    """4 blocks of 2 rows: a row touched and 2.5 ids in each, yet a partial sum for each of 8 samples."""
    _, _, columns = one_table("rw")
    assert (columns == columns[0]).all() and len(columns) == 4
    column = columns[0]
    assert column[FORWARD_DRAM] == 2.5 * (8 + 32) + 8 * 8 + 8 * 4 * 16
    assert column[FORWARD_ISSUE] == 2.5 * 1 + 8 * 2
    assert column[BACKWARD_DRAM] == 2.5 * 20 + 8 * 4 * 16 + 1 * 2 * 32
    assert column[BACKWARD_ISSUE] == 3 * column[FORWARD_ISSUE]
    assert column[SORT] == 2.5 * 32  # 2 rows: one pass
    assert (column[DIM], column[COUNT]) == (0, 1)
    assert moved(columns)[0, [ROWS, HOST_ROWS, COPIES]].tolist() == [16, 0, 0]
    assert moved(columns)[0, IDS] == pytest.approx((2.5 * 8 + 8 * 4) / MIB, abs=1 / GRAIN)


def test_rows_of_a_host_and_columns_of_it():
    _, _, of_host = one_table("twrw")
    _, _, grid = one_table("grid")
    assert moved(of_host)[:, [ROWS, HOST_ROWS]].tolist() == [[0, 16]] * 2
    assert moved(grid)[:, [ROWS, HOST_ROWS]].tolist() == [[0, 8]] * 4
    assert (of_host[:, FORWARD_ISSUE] == 5 + 8 * 2).all()  # half of the ids, all bags
    assert (grid[:, FORWARD_ISSUE] == 5 + 8 * 2).all()


def test_copies_by_hand():
    """Each device looks up what its 2 samples ask: 2.5 ids; its gradient and all 8 rows of 16 fp16 are gone over."""
    task, plan, columns = one_table("dp")
    counts = Lookups.of(task, shards(task, plan), 8)
    touched = 2 * (1 - 0.75) + 2 * (1 - 0.75**4)  # rows looked up once or four times, by a quarter of the samples
    assert counts.touched.sum(axis=1) == pytest.approx([touched] * 4)
    assert counts.looked_up.sum(axis=1) == pytest.approx([2.5] * 4)
    column = columns[0]
    assert column[FORWARD_DRAM] == 2.5 * (8 + 32) + 2 * 8 + 2 * 4 * 16
    update = 8 * (2 * 16 * 2 + 2 * 16 * 2)  # clear and read the gradient, read and write the weights
    expected = 2.5 * 20 + 2 * 4 * 16 + touched * 2 * 32 + update
    assert column[BACKWARD_DRAM] == pytest.approx(expected, abs=1 / GRAIN)
    assert moved(columns)[0].tolist() == pytest.approx([0, 0, 8 * 16 * 2 / MIB, 0, 0, 0], abs=1 / GRAIN)
    _, _, (adam, *_) = one_table("dp", optimizer="adam")
    assert adam[BACKWARD_DRAM] - column[BACKWARD_DRAM] == 8 * 2 * 8 * 16  # two numbers a weight, read and written


def missed(task, plan):
    """Rows from the host's memory, of 32 bytes each."""
    placed = shards(task, plan)
    return Lookups.of(task, placed, task.batch).missed(placed, np.full(len(placed.rows), 32.0))


def test_rows_in_the_hosts_memory_by_hand():
    """Every row that is touched comes, and goes back updated; with a cache those that it misses."""
    (_, _, (hbm,)), (_, _, (uvm,)) = one_table("tw"), one_table("tw", "uvm")
    assert hbm[FORWARD_DRAM] - uvm[FORWARD_DRAM] == 10 * 32
    assert hbm[BACKWARD_DRAM] - uvm[BACKWARD_DRAM] == 4 * 2 * 32
    assert missed(*one_table("tw", "uvm")[:2]) == [4]
    for share, expected in ((0.25, 2), (0.5, 2 * (1 - 2 / 6)), (1.0, 0), (0.125, 2 + 1)):
        # two rows of 8 are hot; the others are looked up once, two of six in a batch
        task, plan, (cached,) = one_table("tw", "cached", share)
        assert missed(task, plan) == pytest.approx([expected])
        assert cached[FORWARD_DRAM] - hbm[FORWARD_DRAM] == pytest.approx(expected * 32, abs=1 / GRAIN)
        assert cached[BACKWARD_DRAM] - hbm[BACKWARD_DRAM] == pytest.approx(expected * 32, abs=1 / GRAIN)


def test_bytes_of_the_hosts_memory_take_its_link():
    tables = make_pool(rows=2**20, dim=64, pooling=1, dtype="fp32", reference_batch=2**16)  # 2**16 rows touched once
    task = Task(tables, (GB,), "iteration", 2**16, residences=("hbm", "uvm"), host_memory=GB, host_link=2.0**20)
    found = moved(Roofline(TOY).embed_shards(task, shards(task, Plan((0,), residence=("uvm",)))))[0]
    assert found[[FETCHED, UPDATED]].tolist() == [16, 32]  # MiB: 256 bytes a row, read once, then read and written
    away, here = (
        plan_latency(simulators.make(FAST[0]), task, Plan((0,), residence=(where,))) for where in ("uvm", "hbm")
    )
    assert away.forward_compute - 16 == pytest.approx(here.forward_compute, rel=0.1)
    assert away.backward_compute - 32 == pytest.approx(here.backward_compute, rel=0.1)
    adam = replace(task, optimizer="adam")
    found = moved(Roofline(TOY).embed_shards(adam, shards(adam, Plan((0,), residence=("uvm",)))))[0]
    assert found[UPDATED] == 32 + 2 * 2 * 16  # two numbers a weight, read and written


def test_collectives_by_hand():
    """4 devices, 2 hosts: 100 bytes a ms at each port, 50 from each host, 1 ms to begin."""
    held = np.full(4, 800.0)
    assert HOSTS.ring_ms(held).tolist() == [600 / 100 + 600 / 50 + 1] * 4
    assert HOSTS.rings_in_groups_ms(held).tolist() == [400 / 100 + 1] * 4
    assert HOSTS.between_groups_ms(held).tolist() == [400 / 50 + 1] * 4
    # the first host's rows leave it for the other's half of the samples
    assert HOSTS.between_groups_ms(np.array([800.0, 800, 0, 0])).tolist() == [400 / 50 + 1] * 4
    for collective in (HOSTS.ring_ms, HOSTS.rings_in_groups_ms, HOSTS.between_groups_ms):
        assert collective(np.zeros((3, 4))).tolist() == [[0.0] * 4] * 3
    one_host = Links(port=100.0)
    assert one_host.ring_ms(held).tolist() == [6.0] * 4
    assert one_host.between_groups_ms(held).tolist() == [0.0] * 4
    # everything passes the switch of the pair, and the host's memory, where devices cannot reach each other
    shared = replace(HOSTS, fabric=2_400.0, peer_to_peer=False)
    assert shared.ring_ms(held).tolist() == [600 / 100 + 2 * 600 / 50 + 1 + 1] * 4
    assert shared.rings_in_groups_ms(held).tolist() == pytest.approx([400 / 100 + 2 * 400 / 50 + 1_600 / 2_400 + 1] * 4)


@pytest.mark.parametrize(
    ("kind", "forward", "backward"),
    [  # of 512 bytes pooled by 8 samples; ids apart
        ("rw", HOSTS.ring_ms(np.full(4, 512.0)), HOSTS.ring_ms(np.full(4, 512.0))),
        ("dp", np.zeros(4), 2 * HOSTS.ring_ms(np.full(4, 256.0))),
        ("tw", HOSTS.all_to_all_ms(np.array([0.0, 16, 0, 0]), 8), HOSTS.all_to_all_ms(np.array([0.0, 16, 0, 0]), 8)),
        (
            "twrw",
            HOSTS.rings_in_groups_ms(np.array([0, 0, 512.0, 512]))
            + HOSTS.between_groups_ms(np.array([0, 0, 512.0, 512])),
            HOSTS.rings_in_groups_ms(np.array([0, 0, 512.0, 512]))
            + HOSTS.between_groups_ms(np.array([0, 0, 512.0, 512])),
        ),
    ],
)
def test_each_kind_has_its_collectives(kind, forward, backward):
    task, plan, columns = one_table(kind)
    latency = plan_latency(Roofline(TOY), task, plan)
    assert latency.backward_comm == pytest.approx(backward)
    ids = np.zeros(4)
    np.add.at(ids, shards(task, plan).device, moved(columns)[:, IDS] * MIB / 32)
    if ids.any():
        forward = forward + HOSTS.all_to_all_ms(ids, 8)
    assert latency.forward_comm == pytest.approx(forward)


def drawn(data):
    """A task of all kinds on 2 hosts of 2, and a plan of it."""
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    n = int(rng.integers(1, 7))
    tables = make_pool(
        rows=rng.integers(1, 10**5, n), dim=rng.choice([16, 64], n), pooling=rng.integers(0, 40, n) / 4, dtype="fp32"
    )
    hosts = Links(port=1e8, latency_ms=0.1, group=2, uplink=1e7)
    told = {"kinds": KINDS, "residences": RESIDENCES, "host_memory": GB, "accounting": "torchrec"}
    task = Task(tables, (GB,) * 4, "iteration", 4_000, links=hosts, **told)
    kinds = rng.choice(KINDS, n).tolist()
    pairs = [(0, 1), (2, 3)]
    of_kind = {"tw": (3,), "cw": (0, 2), "twrw": pairs[rng.integers(2)], "grid": (2, 3, 0, 1)}
    devices = [of_kind.get(kind, (0, 1, 2, 3)) for kind in kinds]
    residence = [str(rng.choice(RESIDENCES)) if kind != "dp" else "hbm" for kind in kinds]
    return task, Plan([d[0] for d in devices], (), kinds, devices, residence)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_shards_add_up_to_their_tables(data):
    """Ids and rows touched are those of the table, once for each column part; of copies together all ids."""
    task, plan = drawn(data)
    found = shards(task, plan)
    counts = Lookups.of(task, found, task.batch)
    whole = Lookups.of(task, Shards.whole(Tables.of_task(task)), task.batch)
    share = found.dim / task.tables.dim[found.table]  # of the columns
    share[found.kind == "dp"] = 1
    ids, touched = (np.bincount(found.table, c.sum(axis=1) * share) for c in (counts.looked_up, counts.touched))
    assert ids == pytest.approx(whole.looked_up.sum(axis=1))
    copied = np.array(plan.kind) == "dp"
    assert touched[~copied] == pytest.approx(whole.touched.sum(axis=1)[~copied])
    tables = smaller_tables(task, found)
    assert (abs(tables.rows - np.maximum(found.rows, 1)) <= 17).all() and (tables.dim == found.dim).all()


@settings(max_examples=40, deadline=None)
@given(data=st.data(), accounting=st.sampled_from(("weights", "training")), optimizer=st.sampled_from(OPTIMIZERS))
def test_bytes_are_those_of_the_formulas(data, accounting, optimizer):
    """The short way to bytes of weights and states gives what their terms, written out, do."""
    task, plan = drawn(data)
    task = replace(task, accounting=accounting, optimizer=optimizer)
    found = shards(task, plan)
    (here, in_host), told = shard_bytes(task, found), shard_storage(task, found)
    assert here.tolist() == told.hbm.bytes.tolist() and in_host.tolist() == told.ddr.bytes.tolist()


@pytest.mark.parametrize("name", FAST)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_plans_of_all_kinds_have_a_finite_cost(name, data):
    task, plan = drawn(data)
    simulator = simulators.make(name)
    rows = simulator.embed_shards(task, shards(task, plan))
    assert (rows * GRAIN == np.rint(rows * GRAIN)).all() and (rows >= 0).all()
    assert rows.shape[1] == simulator.embed(task).shape[1]
    asked = counted(simulator)
    latency = plan_latency(asked, task, plan)
    phases = (latency.forward_compute, latency.forward_comm, latency.backward_comm, latency.backward_compute)
    assert all(np.isfinite(phase).all() and (phase >= 0).all() for phase in phases)
    assert asked.calls == 1 and score(task, plan, simulator).makespan == latency.makespan("iteration")
    whole = simulator.embed_shards(task, Shards.whole(Tables.of_task(task)))
    assert (whole == simulator.embed(task)).all()


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("suite", ["mixed-10to59x4-split", "core-60x4"])
def test_table_wise_plans_cost_what_they_did(name, suite):
    task, rng, simulator = get(suite).tasks("test")[0], np.random.default_rng(0), simulators.make(name)
    splits = tuple(np.flatnonzero(task.tables.dim % 8 == 0)[:5].tolist()) if task.splits_allowed else ()
    placed = rng.integers(task.num_devices, size=task.num_tables + len(splits))
    ours, theirs = plan_latency(simulator, task, Plan(placed, splits)), simulator.latency(task.split(splits), placed)
    for phase in ("forward_compute", "forward_comm", "backward_comm", "backward_compute"):
        assert (getattr(ours, phase) == getattr(theirs, phase)).all()


@pytest.mark.parametrize("suite", ["core-80x8", "metasyn-80x8", "dlrm-50x4"])
def test_blocks_of_real_tables_are_tables(suite):
    """Histograms of blocks are of whole numbers again, each within a row and half an id a bin of its share."""
    for task in get(suite).tasks("test")[:4]:
        task = replace(task, objective="iteration", kinds=("tw", "rw"))
        k, n = task.num_devices, task.num_tables
        found = shards(task, Plan((0,) * n, (), ("rw",) * n, (tuple(range(k)),) * n))
        tables, share = smaller_tables(task, found), found.rows / task.tables.rows[found.table]
        assert abs(tables.distinct - share * task.tables.distinct[found.table]).max() <= 17
        assert abs(tables.lookups - share * task.tables.lookups[found.table]).max() <= 17


def test_a_fit_says_what_was_not_measured():
    learned = simulators.make("learned:cpu-v1")
    tables = make_pool(rows=10_000, dim=32, pooling=4, dtype="fp16")
    task = Task(
        tables,
        (GB,) * 4,
        "iteration",
        kinds=("tw", "rw", "dp"),
        residences=("hbm", "uvm"),
        host_memory=GB,
        host_link=1e3,
    )
    assert (learned.distance(task) == 0).all()
    everywhere = ((0, 1, 2, 3),)
    whole, away = (plan_latency(learned, task, Plan((0,), residence=(where,))) for where in ("hbm", "uvm"))
    copies = plan_latency(learned, task, Plan((0,), (), ("dp",), everywhere))
    assert whole.distance.tolist() == [0] * 4
    assert away.distance.tolist() == [3, 0, 0, 0] and copies.distance.tolist() == [3] * 4
    assert away.spread[0] > whole.spread[0] and away.forward_compute[0] > whole.forward_compute[0] + 100
    rows = plan_latency(learned, task, Plan((0,), (), ("rw",), everywhere))
    assert (rows.compute < whole.compute[0]).all() and (rows.compute > 0).all()


def test_what_is_not_known_is_refused():
    roofline = simulators.make(FAST[0])
    tables, links = make_pool(rows=[100, 100], dim=16, dtype="fp16"), Links(port=1e8)
    mixed = Task(tables, (GB,) * 2, "iteration", links=links, kinds=("tw", "rw"))
    by_rows = Plan((0, 1), (), ("rw", "tw"), ((0, 1), (1,)))
    narrow = replace(mixed, kinds=())
    with pytest.raises(InvalidPlan, match="table 0 is rw"):
        roofline.embed_shards(narrow, shards(mixed, by_rows))
    with pytest.raises(InvalidPlan, match="rw"):
        score(narrow, by_rows, roofline)

    class Measured:
        id = "measured"

        def latency(self, task, placements):
            return roofline.latency(task, placements)

    with pytest.raises(InvalidPlan, match="measured costs whole tables and columns"):
        score(mixed, by_rows, Measured())
    assert score(narrow, Plan((0, 1)), Measured()).makespan == score(narrow, Plan((0, 1)), roofline).makespan
    path = replace(narrow, objective="torchrec-critical-path")
    with pytest.raises(SimulatorError, match="torchrec:cuda-v1"):
        score(path, Plan((0, 1)), roofline)


def test_the_critical_path_waits_after_each_kind():
    """Two tables of one kind on two devices share a wait; of two kinds, each adds its own."""
    judge = simulators.make("torchrec:cuda-v1")
    tables = make_pool(rows=100, dim=[64, 64], pooling=2, dtype="fp32")
    task = Task(tables, (GB,) * 2, "torchrec-critical-path", 2_000, kinds=("tw", "cw"))
    apart, cut = Plan((0, 1)), Plan((0, 0), (), ("tw", "cw"), ((0,), (0, 1)))
    sent = 2_000 * 64 * 4 / (600 * 2**30 / 1e3)  # ms of an all-to-all of one table
    alike, mixed = plan_latency(judge, task, apart), plan_latency(judge, task, cut)
    assert alike.forward_comm == pytest.approx([sent] * 2, rel=1e-4)
    assert mixed.forward_comm == pytest.approx([sent + sent / 2] * 2, rel=1e-4)
    assert (alike.backward_comm == alike.forward_comm).all()
    assert alike.backward_compute == pytest.approx(2 * alike.forward_compute)
    path = alike.forward_compute.max() + alike.backward_compute.max() + 2 * sent
    assert alike.makespan(task.objective) == pytest.approx(path, rel=1e-4)
    rated = plan_latency(judge, replace(task, objective="iteration"), apart).makespan("iteration")
    assert rated == pytest.approx(path, rel=1e-4)  # alike and apart: nobody waits
