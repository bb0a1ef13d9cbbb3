import numpy as np

from benchmarks.searched import searched, shards_of
from shard_gym import simulators, suites
from shard_gym.measurements import KINDS, Measurements

SUITE, PLANNER = suites.get("metasyn-80x8"), simulators.make("roofline:rtx2080ti-x4-v1")


def test_each_solver_places_every_table_once():
    task = SUITE.tasks("train")[0]
    found = list(shards_of(task, PLANNER, budget=0.01))
    tables = [table for tables, _ in found for table in tables]
    names = [f"metasyn0_{table:03d}" for table in tables]
    assert sorted(names) == sorted(2 * task.tables.name)


def test_searched_shards_are_there_to_be_measured(tmp_path):
    found = searched(SUITE, PLANNER, tasks=2, budget=0.01, number=3)
    found.save(tmp_path / "round3.npz")
    found = Measurements.load(tmp_path / "round3.npz")
    assert set(found.round.tolist()) == {3} and {KINDS[k] for k in found.kind.tolist()} == {"searched"}
    assert np.isnan(found.total_ms).all()
    task = SUITE.tasks("train")[0]
    shard = found.shard_tables(0)
    assert set(shard.name) <= set(task.tables.name)
    dims = dict(zip(task.tables.name, task.tables.dim.tolist(), strict=True))
    assert [dims[name] for name in shard.name] == shard.dim.tolist()
