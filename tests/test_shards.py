"""Shards of plans: every kind by hand, every cell once, and what is no plan."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym import Constraints, Plan, Task, make_pool
from shard_gym.errors import CorruptFile, InvalidPlan, InvalidTask, UnknownName
from shard_gym.memory.usage import bytes_used
from shard_gym.plan.nodes import Nodes
from shard_gym.plan.shards import shards
from shard_gym.plan.violations import violations
from shard_gym.results.evaluate import score
from shard_gym.task.constraints import KINDS
from shard_gym.task.links import Links
from shard_gym.task.optimizers import OPTIMIZERS
from shard_gym.task.task import ACCOUNTINGS, RESIDENCES
from tests.test_bridge_storage_plans import plan_of

ROOT = Path(__file__).parents[1]
ALL, HOST = (0, 1, 2, 3), (2, 3)


def two_hosts(**settings):
    """Seven tables on two hosts of two devices."""
    tables = make_pool([10, 100, 7, 50, 60, 9, 5], [8, 16, 32, 8, 16, 32, 8], dtype="fp32")
    usual = {"objective": "iteration", "links": Links(1e8, group=2, uplink=1e7), "kinds": KINDS}
    host = {"residences": RESIDENCES, "host_memory": 10**6}
    return Task(tables, (10**6,) * 4, **{**usual, **host, **settings})


EVERY = Plan(  # of every kind and residence; table 2 is split
    device=(0, 0, 2, 0, 1, 0, 2, 0),
    splits=(2,),
    kind=("rw", "dp", "grid", "tw", "cw", "tw", "twrw", "grid"),
    devices=(ALL, ALL, HOST, (0,), (1, 3), (0,), HOST, (0, 1)),
    residence=("uvm", "hbm", "cached", "cached", "hbm", "hbm", "hbm", "cached"),
    share=(0, 1, 0.4, 0.2, 1, 1, 1, 0.4),
)


def test_every_kind_by_hand():
    found = shards(two_hosts(), EVERY)
    columns = (found.table, found.kind, found.device, found.row, found.rows, found.column, found.dim)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == [
        *[(0, "rw", d, row, rows, 0, 8) for d, row, rows in ((0, 0, 3), (1, 3, 3), (2, 6, 3), (3, 9, 1))],
        *[(1, "dp", d, 0, 100, 0, 16) for d in ALL],
        *[(2, "grid", 2, 0, 4, 0, 16), (2, "grid", 3, 4, 3, 0, 16)],
        *[(2, "grid", 0, 0, 4, 16, 16), (2, "grid", 1, 4, 3, 16, 16)],
        (3, "tw", 0, 0, 50, 0, 8),
        *[(4, "cw", 1, 0, 60, 0, 8), (4, "cw", 3, 0, 60, 8, 8)],
        (5, "tw", 0, 0, 9, 0, 32),
        *[(6, "twrw", 2, 0, 3, 0, 8), (6, "twrw", 3, 3, 2, 0, 8)],
    ]
    kernels = ["fused_uvm"] * 4 + ["dense"] * 4 + ["fused_uvm_caching"] * 5 + ["fused"] * 5
    assert found.of.kernel.tolist() == kernels
    assert found.of.cache_load_factor[found.of.kernel == "fused_uvm_caching"].tolist() == [0.4] * 4 + [0.2]


def test_bytes_of_devices_by_hand():
    task = two_hosts()
    used, of_host = bytes_used(task, shards(task, EVERY))
    weights = 4  # bytes of one
    cached = [round(weights * rows * 16 * 0.4) for rows in (4, 3)]
    first = 100 * 16 * weights + cached[0] + round(50 * 8 * weights * 0.2) + 9 * 32 * weights
    assert used.tolist()[:2] == [first, 100 * 16 * weights + 60 * 8 * weights + cached[1]]
    assert of_host.tolist() == [
        weights * n for n in (3 * 8 + 4 * 16 + 50 * 8, 3 * 8 + 3 * 16, 3 * 8 + 4 * 16, 8 + 3 * 16)
    ]
    assert violations(task, EVERY) == []
    tight = dataclasses.replace(task, memory=(10**6, 8_000, 10**6, 10**6), host_memory=1_000)
    told = violations(tight, EVERY)
    assert told[0].startswith(f"device 1 needs {used[1]:,} bytes of 8,000")
    assert told[1].startswith(f"device 0 needs {of_host[0]:,} bytes of its host's memory of 1,000")


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.sampled_from([(4, 2), (4, 4), (6, 3), (1, 1)]))
def test_every_cell_of_every_table_is_somewhere_once(seed, machine):
    rng, (devices, host) = np.random.default_rng(seed), machine
    tables = make_pool(rng.integers(1, 30, 6), rng.choice([4, 8, 16, 24, 32], 6))
    links = Links(1e8, group=host)
    task = Task(tables, (2**30,) * devices, objective="iteration", links=links, kinds=KINDS)
    plan = plan_of(rng, task, host)
    found = shards(task, plan)
    for t in range(6):
        own, count = np.flatnonzero(found.table == t), np.zeros((tables.rows[t], tables.dim[t]), int)
        for row, rows, column, dim in zip(
            *(c[own] for c in (found.row, found.rows, found.column, found.dim)), strict=True
        ):
            count[row : row + rows, column : column + dim] += 1
        assert (count == (devices if plan.kind[t] == "dp" else 1)).all()
    assert Plan.from_dict(plan.to_dict()) == plan


def test_plans_are_written_as_ever_where_that_suffices():
    assert Plan((0, 1), kind=("rw", "dp"), devices=((0, 1), (1, 0))).to_dict()["schema"] == "shard-gym/plan/1"
    written = EVERY.to_dict()
    assert written["schema"] == "shard-gym/plan/2" and Plan.from_dict(written) == EVERY
    with pytest.raises(CorruptFile, match="residence"):
        Plan.from_dict({"schema": "shard-gym/plan/1", "device": [0], "residence": ["hbm"]})
    assert EVERY.place(0, 3).devices[0] == (3,) and EVERY.place(0, 3).kind[1:] == EVERY.kind[1:]


def test_tasks_are_written_as_ever_where_that_suffices():
    plain = two_hosts(kinds=(), residences=("hbm",), host_memory=0)
    same = two_hosts(kinds=("tw", "cw"), residences=("hbm",), host_memory=0)
    assert same == dataclasses.replace(plain, splits_allowed=True) != plain
    assert '"shard-gym/task/1"' in plain.to_json() and "residences" not in plain.to_json()
    for task in (two_hosts(), two_hosts(constraints=Constraints(kinds=((3, ("rw", "dp")),)))):
        assert '"shard-gym/task/2"' in task.to_json() and Task.from_json(task.to_json()) == task
    exact = make_pool([10], pooling=0.1)
    task = Task(exact, (10**6,))
    assert exact.pooling[0] == 0.1 and Task.from_json(task.to_json()) == task
    assert task != Task(exact.with_(pooling=exact.pooling.astype(np.float32)), (10**6,))


def test_kinds_of_a_table():
    rules = Constraints(kinds=((3, ("dp", "tw", "rw")),), no_split=(1,))
    task = two_hosts(kinds=("tw", "cw", "rw", "twrw", "grid"), constraints=rules)
    assert task.kinds_of(0) == ("tw", "cw", "rw", "twrw", "grid") and task.splits_allowed
    assert task.kinds_of(1) == ("tw", "rw", "twrw") and task.kinds_of(3) == ("tw", "rw")
    with pytest.raises(InvalidPlan, match=r"table 3 \('table_3'\) is dp: the task allows tw, rw"):
        violations(
            task, Plan((0,) * 7, kind=("tw",) * 3 + ("dp",) + ("tw",) * 3, devices=((0,),) * 3 + (ALL,) + ((0,),) * 3)
        )


BAD_TASKS = {
    "kind rw needs objective 'iteration'": dict(objective="kernel", kinds=("tw", "rw")),
    "kind grid shares rows out .* divides 4; it is 3": dict(kinds=("tw", "grid"), links=Links(1e8, group=3)),
    "kind twrw shares rows out .* it is 0 ": dict(kinds=("tw", "twrw"), links=None),
    "residence uvm keeps rows in the host's memory": dict(host_memory=0),
    "rows live somewhere": dict(residences=()),
    "a residence is a name, or several: .* got 5": dict(residences=5),
    "a kind of sharding is a name, or several: .* got 5": dict(kinds=5),
    "host_memory is bytes": dict(host_memory=-1),
    "host_memory is whole bytes": dict(host_memory=1.5),
    "host_link must be": dict(host_link=0),
    r"leave table 2 \('table_2'\) none": dict(kinds=("tw", "rw"), constraints=Constraints(kinds=((2, ("dp",)),))),
    "'table_2'. must be on one device": dict(constraints=Constraints(kinds=((2, ("dp",)),), pin=((2, 0),))),
    "kinds of table 2 are told twice": dict(constraints=Constraints(kinds=((2, ("dp",)), (2, ("rw",))))),
    r"name tables \[7\]": dict(constraints=Constraints(kinds=((7, ("dp",)),))),
}


@pytest.mark.parametrize("message", BAD_TASKS)
def test_tasks_that_contradict_themselves(message):
    with pytest.raises(InvalidTask, match=message):
        two_hosts(**BAD_TASKS[message])


def test_names_that_nobody_knows():
    for wrong in (dict(kinds=("tw", "hybrid")), dict(residences=("ssd",))):
        with pytest.raises(UnknownName):
            two_hosts(**wrong)
    for wrong in (dict(kinds=((0,),)), dict(kinds=5)):
        with pytest.raises(InvalidTask, match="kinds as"):
            Constraints(**wrong)


def changed(table, **columns):
    """The plan of every kind with other values for one piece."""
    columns |= {"device": columns["devices"][0]} if "devices" in columns else {}
    told = {}
    for name, value in columns.items():
        column = list(getattr(EVERY, name))
        column[table] = value
        told[name] = column
    return dataclasses.replace(EVERY, **told)


BAD_PLANS = {
    "table 0 .* is rw on devices .* to all, 0 to 3": lambda: changed(0, devices=(0, 1, 2)),
    "table 0 .* is rw on devices .* in order": lambda: changed(0, devices=(1, 0, 2, 3)),
    "table 1 .* is dp on devices": lambda: changed(1, devices=(0, 1)),
    "table 2 .* is grid on devices .* all 2 of a host": lambda: changed(2, devices=(1, 2)),
    "table 2 .* is split, and its pieces are not": lambda: changed(2, kind="cw"),
    "table 2 .* is split, and a piece of it is twrw": lambda: changed(2, kind="twrw"),
    "table 2 .* not of one kind, residence": lambda: changed(2, share=0.1),
    "table 3 .* is tw on devices": lambda: changed(3, devices=(0, 1)),
    "table 4 .*: 16 columns do not make 3 equal": lambda: changed(4, devices=(0, 1, 2)),
    "table 4 .*: 16 columns do not make 8 equal": lambda: changed(4, devices=ALL * 2),
    "table 6 .* is twrw on devices": lambda: changed(6, devices=(0, 1, 2, 3)),
    "table 1 .* is dp and uvm": lambda: changed(1, residence="uvm", share=0.0),
    "table 3 is cached: its share .* more than 0 and at most 1, got 0": lambda: changed(3, share=0),
    "table 3 is cached: its share .* got 1.5": lambda: changed(3, share=1.5),
    "table 5 is hbm: its share .* is 1, got 0.5": lambda: changed(5, share=0.5),
    "unknown residence 'ssd'": lambda: changed(3, residence="ssd"),
    "7 pieces need 7 residences": lambda: Plan((0,) * 7, residence=("hbm",)),
    "share must be a flat sequence": lambda: Plan((0,) * 7, share=("1",) * 7),
}


@pytest.mark.parametrize("message", BAD_PLANS)
def test_plans_that_overlap_or_leave_something_out(message):
    with pytest.raises(InvalidPlan, match=message):
        shards(two_hosts(), BAD_PLANS[message]())


def test_a_plan_of_kinds_that_a_task_does_not_allow_has_no_score(roofline):
    rows = Plan((0,) * 7, kind=("rw",) + ("tw",) * 6, devices=(ALL, *((0,),) * 6))
    for task, rule in (
        (two_hosts(kinds=(), objective="kernel"), "allows tw"),
        (two_hosts(kinds=("tw", "dp")), "tw, dp"),
    ):
        with pytest.raises(InvalidPlan, match=rf"table 0 \('table_0'\) is rw: .*{rule}"):
            score(task, rows, roofline)
    uvm = Plan((0,) * 7, residence=("uvm", *("hbm",) * 6))
    with pytest.raises(InvalidPlan, match=r"table 0 \('table_0'\) is in uvm: the task allows hbm"):
        score(two_hosts(residences=("hbm",), host_memory=0), uvm, roofline)
    assert score(two_hosts(), rows, roofline).feasible and score(two_hosts(), uvm, roofline).feasible


def test_the_page_about_kinds_is_true():
    first, last = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "kinds.md").read_text(), flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(first, names)
    assert names["placed"].rows.tolist() == [10_000_000] * 4 + [500_000] * 2 + [5_000] * 4
    exec(last, names)
    found = score(names["task"], names["plan"], names["planner"])
    assert found.feasible and found.makespan >= names["bound"].makespan and names["why"] is None


@pytest.mark.parametrize("accounting", ACCOUNTINGS)
def test_what_environments_and_solvers_count_is_what_is_judged(accounting, rng):
    for optimizer in OPTIMIZERS:
        dims, dtype = rng.choice([8, 16, 64, 128], 5), tuple(rng.choice(["fp32", "fp16"], 5))
        tables = make_pool(rng.integers(1, 10**5, 5), dims, rng.uniform(0, 9, 5), dtype=dtype)
        told = {"optimizer": optimizer, "batch": int(rng.integers(1, 9_999)), "splits_allowed": True}
        task = Task(tables, (10**9,) * 3, accounting=accounting, **told)
        nodes = Nodes.of(task, split_action=True)
        levels = rng.integers(np.bincount(nodes.table))
        node = np.repeat(nodes.whole + levels, 2**levels)
        device = rng.integers(3, size=len(node))
        used, of_host = bytes_used(task, shards(task, nodes.plan(node, device)))
        assert used.tolist() == np.bincount(device, nodes.size[node], 3).tolist() and not of_host.any()
