"""Kinds of sharding on the command line: how they are told, what reports say of them, what is refused."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym import Plan, Task, make_pool, simulators
from shard_gym.plan.shards import shards
from shard_gym.plan.violations import plan_bytes
from shard_gym.task.links import Links
from shard_gym.torchrec.report import report
from shard_gym.torchrec.stats import plan_stats
from shard_gym_agents.cli import plans
from shard_gym_agents.cli.main import main
from tests.test_bridge_storage_plans import plan_of

KINDS, ALL = ("tw", "cw", "rw", "twrw", "grid", "dp"), (0, 1, 2, 3)
TABLES = make_pool(rows=[2**26, 2**24, 10], dim=[16, 8, 32], pooling=[3, 20, 1], name=("a", "b", "c"), dtype="fp32")
TASK = Task(
    TABLES,
    (2**30,) * 4,
    "iteration",
    4_096,
    links=Links(port=1e8, group=2, uplink=1e7),
    kinds=KINDS,
    residences=("hbm", "cached"),
    host_memory=2**31,
    host_link=2.5e7,
)
PLAN = Plan((0, 2, 0), (), ("rw", "twrw", "dp"), (ALL, (2, 3), ALL), ("cached", "hbm", "hbm"), (0.5, 1, 1))


@pytest.fixture
def stored(tmp_path):
    """A task of three tables on two hosts of two devices, and a plan of three kinds, as files."""
    (tmp_path / "task.json").write_text(TASK.to_json())
    PLAN.save(tmp_path / "plan.json")
    return ["--task", str(tmp_path / "task.json")], str(tmp_path / "plan.json")


@pytest.fixture
def tables(tmp_path):
    """The same tables on a machine of two hosts of two devices, as files."""
    (tmp_path / "tables.csv").write_text("name,rows,dim,pooling\na,67108864,16,3\nb,16777216,8,20\nc,10,32,1\n")
    host = "hosts = 2\nlink_gb_s = 100\nhost_gb_s = 10\nhost_memory_gb = 2\nhost_link_gb_s = 25\n"
    (tmp_path / "m.toml").write_text(f"devices = 4\nmemory_gb = 1\nreserve = 0\n{host}")
    return ["--tables", str(tmp_path / "tables.csv"), "--hardware", str(tmp_path / "m.toml")]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([(4, 2), (4, 4), (6, 3), (1, 1)]))
def test_reports_on_drawn_plans_add_up(seed, machine):
    """Counts of the reports are those of the shards, and lines of statistics are 100 wide."""
    rng, (devices, host) = np.random.default_rng(seed), machine
    tables = make_pool(rng.integers(10, 10**5, 6), rng.choice([8, 16, 24, 32], 6))
    links, memory = Links(1e8, group=host, uplink=1e7), (2**40,) * devices
    rooms = {"residences": ("hbm", "uvm", "cached"), "host_memory": 2**40}
    task = Task(tables, memory, "iteration", 256, links=links, kinds=KINDS, **rooms)
    plan = plan_of(rng, task, host)
    placed, judge = shards(task, plan), simulators.make("roofline:h100-v2")
    lines = [line.split() for line in plans.report(task, plan, judge).splitlines()]
    assert [int(line[1]) for line in lines[2 : 2 + devices]] == np.bincount(placed.device, minlength=devices).tolist()
    if not plan.table_wise:
        counts = [(int(count), int(number)) for count, _, _, number, *_ in lines[4 + devices :]]
        assert sum(count for count, _ in counts) == 6
        assert sum(count * number for count, number in counts) == len(placed.table)
    stats = plan_stats(task, plan, judge)
    assert max(map(len, report(stats).splitlines())) <= 100
    assert sum(len(table.ranks) for table in stats.tables) == len(placed.table)
    held = np.array([(rank.hbm_bytes, rank.ddr_bytes) for rank in stats.ranks])
    assert (held == np.stack(plan_bytes(task, plan), axis=1)).all()


def told(capsys, *command):
    assert main(list(command)) == 0
    return capsys.readouterr().out.splitlines()


def test_bytes_of_a_plan_by_hand():
    """A quarter of `a` is 1 GiB, half of it cached; half of `b` is a quarter GiB; `c` takes 1,280 bytes everywhere."""
    used, in_host = plan_bytes(TASK, PLAN)
    assert used.tolist() == [2**29 + 1_280] * 2 + [2**29 + 2**28 + 1_280] * 2
    assert in_host.tolist() == [2**30] * 4
    used, in_host = plan_bytes(Task(TABLES, (2**32,) * 2), Plan((0, 1, 1)))
    assert used.tolist() == [2**32, 2**29 + 1_280] and in_host.tolist() == [0, 0]


def test_the_report_tells_shards_hosts_and_kinds(stored, capsys):
    task, plan = stored
    assumed, _, head, first, _, third, _, empty, *kinds = told(capsys, "score", *task, "--plan", plan)
    assert assumed == (
        "assumes fp32; sgd; batch 4,096; 'weights' bytes; 2 hosts of 2; 100 GB/s, 10 GB/s a group of 2, 0 us; kinds "
        "tw, cw, rw, twrw, grid, dp; rows in hbm, cached; host memory 2 GiB a device, 25 GB/s; roofline:h100-v2"
    )
    assert " ".join(head.split()) == "device shards used GiB of GiB host GiB of GiB cost ms"
    assert first.split()[:6] == ["0", "2", "0.50", "1.00", "1.00", "2.00"]
    assert third.split()[:6] == ["2", "3", "0.75", "1.00", "1.00", "2.00"]
    assert empty == "" and [line.split() for line in kinds] == [
        ["tables", "kind", "pieces", "shards", "rows", "in"],
        ["1", "rw", "1", "4", "cached", "0.5"],
        ["1", "twrw", "1", "2", "hbm"],
        ["1", "dp", "1", "4", "hbm"],
    ]


def test_statistics_tell_kinds_residences_and_hosts(stored, capsys):
    task, plan = stored
    lines = told(capsys, "stats", plan, *task)
    assert any(line.split()[:4] == ["a", "rw", "fused_uvm_caching", "0.5"] for line in lines)
    rank = next(line.split() for line in lines if line.startswith("2  "))
    assert rank[1:7] == ["0.750", "1.000", "75%", "0.250", "1.000", "2.000"] and rank[-3:] == ["dp:1", "rw:1", "twrw:1"]
    found = json.loads(told(capsys, "stats", plan, *task, "--json")[0])
    assert [(t["kind"], t["pieces"], t["share"]) for t in found["tables"]] == [
        ("rw", 1, 0.5),
        ("twrw", 1, 1.0),
        ("dp", 1, 1.0),
    ]
    assert found["feasible"] and found["ranks"][2]["ddr_bytes"] == 2**30
    path = found["critical_path"]["torchrec"]
    assert list(path["forward_comm"]["kinds"]) == ["rw", "twrw"]  # copies are not sent
    assert list(path["backward_comm"]["kinds"]) == ["rw", "dp", "twrw"]
    assert path["backward_comm"]["ms"] == sum(kind["ms"] for kind in path["backward_comm"]["kinds"].values())
    assert main(["stats", plan, *task, "--table", "b"]) == 0
    assert capsys.readouterr().out.startswith("b: twrw, 2 shards, the first of 8,388,608 rows x 8 columns")


def test_kinds_and_hosts_are_told(tables, capsys):
    asked = ["--kinds", "tw,rw,twrw,dp", "--residences", "hbm,cached"]
    solve = ["solve", *tables, "--agent", "cost-greedy", *asked]
    assert (
        "; kinds tw, rw, twrw, dp; rows in hbm, cached; host memory 2 GiB a device, 25 GB/s; "
        in (told(capsys, *solve)[0])
    )
    hosts = ["--host-memory-gb", "3", "--host-link-gb-s", "50"]
    assert "; host memory 3 GiB a device, 50 GB/s; " in told(capsys, *solve, *hosts)[0]
    assert "kinds" not in told(capsys, *solve, "--kinds", "tw", "--residences", "hbm", "--memory-gb", "5")[0]
    assert "; kinds tw, cw, rw; " in told(capsys, *solve, "--kinds", "tw,rw", "--allow-splits", "--memory-gb", "5")[0]
    suite = ["solve", "--suite", "core-80x8", "--agent", "cost-greedy", "--kinds", "tw,dp"]
    assert "; kinds tw, dp; " in told(capsys, *suite)[0]


def test_kinds_of_single_tables_are_told(stored, tmp_path, capsys):
    task, plan = stored
    score = ["score", *task, "--plan", plan]
    (tmp_path / "c.json").write_text(json.dumps({"kinds": {"b": ["tw", "twrw"]}}))
    rules = ["--constraints", str(tmp_path / "c.json")]
    assert len(told(capsys, *score, *rules, "--kinds-of", "a=rw,dp")) == 12
    assert main([*score, *rules, "--kinds-of", "a=tw,cw"]) == 2
    assert "table 0 ('a') is rw: the task allows tw, cw" in capsys.readouterr().err
    (tmp_path / "c.json").write_text(json.dumps({"kinds": [[2, "tw"]]}))
    assert main([*score, *rules]) == 2
    assert "table 2 ('c') is dp: the task allows tw" in capsys.readouterr().err


def test_a_sweep_tells_of_host_memory(tables, capsys):
    asked = ["--kinds", "tw,rw", "--residences", "hbm,cached", "--agent", "cost-greedy"]
    head, row = told(capsys, "sweep", *tables, *asked)[1:]
    assert " ".join(head.split()[4:]) == "each fullest GiB host GiB each fullest GiB makespan ms"
    assert row.split()[3] == "1.00" and row.split()[5] == "2.00" and 0 < float(row.split()[6]) <= 2
    assert (
        "host" not in told(capsys, "sweep", *tables, *asked, "--residences", "hbm", "--memory-gb", "5")[1].split()[5:]
    )


WRONG = {
    "kind rw needs objective 'iteration'": ["--kinds", "tw,rw", "--objective", "kernel"],
    "a number that divides 2; it is 0 (--hosts": ["--kinds", "twrw", "--hosts", "1"],
    "4 devices do not come in 3 hosts": ["--hosts", "3", "--devices", "4"],
    "unknown kind of sharding 'hybrid'": ["--kinds", "tw,hybrid"],
    "unknown residence 'ssd'": ["--residences", "ssd"],
    "residence uvm keeps rows in the host's memory: tell host_memory": [
        *["--residences", "uvm", "--host-memory-gb", "0"]
    ],
    "gigabytes are a number from 0, got nan": ["--residences", "uvm", "--host-memory-gb", "nan"],
    "host_link must be a positive number": ["--residences", "uvm", "--host-link-gb-s", "0"],
    "--kinds-of takes TABLE=KIND": ["--kinds-of", "a"],
    "no table is called 'z'": ["--kinds-of", "z=rw"],
    "the kinds of table 0 are told twice": ["--kinds-of", "a=tw", "--kinds-of", "0=tw"],
    "leave table 0 ('a') none of the task's kinds tw": ["--kinds-of", "a=rw"],
    "table 0 ('a') must be on one device, but it may only be rw": [
        *["--kinds", "tw,rw", "--kinds-of", "a=rw", "--pin", "a=0"]
    ],
}


@pytest.mark.parametrize("message", WRONG)
def test_what_is_wrong_is_told_in_one_line(tables, capsys, message):
    assert main(["solve", *tables, "--agent", "cost-greedy", *WRONG[message]]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_plans_that_the_task_does_not_allow_are_refused(tables, stored, capsys):
    _, plan = stored
    wrong = {
        "table 0 ('a') is rw: the task allows tw": [],
        "table 0 ('a') is in cached: the task allows hbm": ["--kinds", "rw,twrw,dp"],
    }
    for message, kinds in wrong.items():
        assert main(["score", *tables, "--plan", plan, *kinds]) == 2
        assert message in capsys.readouterr().err


BROKEN = {
    "table 0 is cached: its share of rows in device memory is more than 0 and at most 1, got 1.5": {
        "share": [1.5, 1, 1]
    },
    "table 0 ('a') is rw on devices (0, 1, 2): it goes to all, 0 to 3": {"devices": [[0, 1, 2], [2, 3], [0, 1, 2, 3]]},
    "table 1 ('b') is twrw on devices (2, 2): it goes to all 2 of a host": {"devices": [[*ALL], [2, 2], [*ALL]]},
    "table 2 has the unknown kind 'hybrid'": {"kind": ["rw", "twrw", "hybrid"]},
    "table 1 has the unknown residence 'ssd'": {"residence": ["cached", "ssd", "hbm"]},
    "a plan has device, splits, kind, devices, got": {"schema": "shard-gym/plan/1"},
}


@pytest.mark.parametrize("message", BROKEN)
def test_plans_that_are_none_are_refused_in_one_line(stored, tmp_path, capsys, message):
    task, _ = stored
    (tmp_path / "broken.json").write_text(json.dumps(PLAN.to_dict() | BROKEN[message]))
    for command in (["score", "--plan"], ["stats"]):
        assert main([*command, str(tmp_path / "broken.json"), *task]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
