import numpy as np
from benchmarks.searched import searched

from shard_gym import simulators, suites
from shard_gym.measuring.chosen import shards_of
from shard_gym.measuring.measurements import KINDS, Measurements
from shard_gym_agents import make

SUITE, PLANNER = suites.get("metasyn-80x8"), simulators.make("roofline:rtx2080ti-x4-v1")


def test_a_plan_places_every_table_once():
    task = SUITE.tasks("train")[0]
    found = list(shards_of(task, make("cost-greedy")(task, PLANNER)))
    names = [f"metasyn0_{table:03d}" for tables, _ in found for table in tables]
    assert sorted(names) == sorted(task.tables.name)


def test_searched_shards_are_there_to_be_measured(tmp_path):
    tasks = SUITE.tasks("train")[:2]
    found = searched(tasks, "metasyn_0_856", PLANNER, budget=0.01, number=3)
    found.save(tmp_path / "round3.npz")
    found = Measurements.load(tmp_path / "round3.npz")
    assert set(found.round.tolist()) == {3} and {KINDS[k] for k in found.kind.tolist()} == {"searched"}
    assert np.isnan(found.total_ms).all() and found.tables_per_shard.max() > 10
    shard = found.shard_tables(0)
    assert set(shard.name) <= set(tasks[0].tables.name)
    dims = dict(zip(tasks[0].tables.name, tasks[0].tables.dim.tolist(), strict=True))
    assert [dims[name] for name in shard.name] == shard.dim.tolist()
