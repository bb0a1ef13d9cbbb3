"""Lists of shards of every sort, for one campaign."""

import numpy as np
import pytest
from benchmarks.mixture import LEAST_POOLING, POOLS, ROOM, Mixture, again

from shard_gym import simulators
from shard_gym.measuring.measurements import KINDS

SORTS = {"random": 0.3, "single": 0.2, "few": 0.2, "pieces": 0.3, "plans": 0.0}


@pytest.fixture(scope="module")
def planner():
    return simulators.make("learned:cpu-v2")


def test_every_sort_is_drawn_from_the_roles_tables(planner):
    found = Mixture("judge", planner, 5, SORTS, 0.0).drawn(80)
    assert {name.removesuffix("_rows") for name in found.pools} == set(POOLS["judge"])
    sizes = found.tables_per_shard
    assert (sizes[found.kind == KINDS.index("single")] == 1).all() and sizes.max() <= 16
    for i in np.flatnonzero(sizes > 1):
        tables = found.shard_tables(i)
        assert tables.pooling.sum() >= LEAST_POOLING and tables.weight_bytes.max() <= ROOM
        assert len({name.partition("/")[0] for name in tables.name}) == len(tables)  # one piece of a table
    assert found == Mixture("judge", planner, 5, SORTS, 0.0).drawn(80)


def test_plans_that_were_written_are_listed_again(tmp_path):
    plans = tmp_path / "plans.json"
    plans.write_text(
        '{"plans": [{"pool": "metasyn_3_856", "shards": [[[1, 2], [4, 8]], [[3], [16]], [[1, 2], [4, 8]]]}]}'
    )
    found = again(plans)
    assert [found.key(i)[1:] for i in range(len(found))] == [((1, 2), (4, 8)), ((3,), (16,))]
