"""Tiered plans in use: the command, the report, TorchRec, and pooled tables on the same devices."""

import json

import numpy as np
import pytest

from shard_gym import Task, make_pool, simulators
from shard_gym.errors import InfeasibleTask, InvalidPlan, InvalidTask, UnknownName
from shard_gym.plan import violations
from shard_gym.rowwise.curves import power_law
from shard_gym.rowwise.network import Network, network
from shard_gym.rowwise.report import divided, report, text, uniform_plan
from shard_gym.rowwise.tiers import RowTask, SequenceTable, TieredPlan, worth
from shard_gym_agents.flex_cli import main
from shard_gym_agents.flexshard import METHODS, solve
from shard_gym_agents.together import plan_together

TABLE = "name=h,rows=100000,length=50,exponent=1.0,dim=64"
ON = Network(1, 4, a2a_global=1e6, a2a_intra=2e6, ar_global=3e6, ar_cross=1e6)


def row_task(**settings):
    return RowTask((SequenceTable("h", power_law(100_000, 50.0, 1.0), 64),), network("a100-4x8"), 4096, **settings)


@pytest.mark.parametrize("method", METHODS)
def test_the_command_plans_reports_and_keeps(method, tmp_path, capsys):
    out = tmp_path / "plan.json"
    assert main(["--table", TABLE, "--method", method, "--json", "--out", str(out)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["memory_bytes"] <= told["budget_bytes"] * (1 + 1e-9)
    assert told["comm_ms"] <= told["rw_comm_ms"]
    assert TieredPlan.load(out, row_task()) == solve(row_task(), method)
    assert main(["--table", TABLE, "--plan", str(out)]) == 0
    assert "all RW takes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--table", "rows=5"], "length"),
        (["--table", "rows=x,length=1"], "for example"),
        (["--table", f"{TABLE},colour=red"], "colour"),
        (["--table", TABLE, "--extra-gb", "-100"], "at the least"),
        (["--network", "token-ring"], "token-ring"),
        (["--plan", "nowhere.json"], "nowhere.json"),
    ],
)
def test_the_command_says_what_is_wrong(arguments, word, capsys):
    assert main(arguments) == 2
    assert word in capsys.readouterr().err


def test_the_report_adds_up():
    task = row_task()
    plan = solve(task)
    told, found = report(task, plan), worth(task, plan)
    assert sum(p["rows"] for p in told["parts"]) == 100_000
    assert sum(p["memory_bytes"] for p in told["parts"]) == pytest.approx(found.memory_bytes)
    assert sum(p["comm_ms"] for p in told["parts"]) + sum(told["latency_ms"].values()) == pytest.approx(found.comm_ms)
    assert sum(told["covered"].values()) == pytest.approx(1)
    assert "h " in text(task, plan)


def test_tiers_of_one_kind_are_torchrecs_and_others_are_divided():
    task = row_task()
    for tier in ("dp", "rw"):
        plan = uniform_plan(task, TieredPlan.uniform(task, tier))
        assert plan.kind == (tier,) and plan.devices == (tuple(range(32)),)
    plan = TieredPlan((10,), (90,))
    with pytest.raises(InvalidPlan, match="divide"):
        uniform_plan(task, plan)
    parts = divided(task, plan)
    assert parts == [("h/dp", "dp", 0, 10), ("h/flex", "flex", 10, 90), ("h/rw", "rw", 100, 99_900)]


def test_unknown_methods_are_refused():
    with pytest.raises(UnknownName):
        solve(row_task(), "flex4")


def test_both_kinds_of_tables_share_the_memory():
    rng = np.random.default_rng(0)
    pool = make_pool(rows=rng.integers(1_000, 100_000, 12), dim=[16] * 12, pooling=rng.exponential(20, 12))
    rows = RowTask((SequenceTable("h", power_law(100_000, 50.0, 1.0), 16),), ON, 1024)
    tiers = worth(rows, TieredPlan.uniform(rows, "rw")).memory_bytes
    each = int(tiers + pool.weight_bytes.sum() / 4 * 1.2)
    task = Task(pool, (each,) * 4, objective="iteration")
    planner = simulators.make("roofline:rtx2080ti-x4-v1")
    found = plan_together(task, rows, planner, budget=0.3)
    assert not violations(task, found.plan)
    used = max(np.bincount(found.plan.device, pool.weight_bytes, minlength=4)) + found.tiers_bytes
    assert used <= each
    assert worth(rows, found.tiers).memory_bytes == found.tiers_bytes
    roomy = plan_together(Task(pool, (2 * each,) * 4, objective="iteration"), rows, planner, budget=0.3)
    assert roomy.comm_ms < found.comm_ms
    with pytest.raises(InfeasibleTask):
        plan_together(Task(pool, (each // 3,) * 4, objective="iteration"), rows, planner, budget=0.3)
    with pytest.raises(InvalidTask, match="4 GPUs"):
        plan_together(Task(pool, (each,) * 8), rows, planner)
