import os

import numpy as np
import pytest
from hypothesis import settings

from shard_gym import Task, make_pool, simulators
from shard_gym.tables.pool import GB

settings.register_profile("no deadline", deadline=None)  # speed is measured in benchmarks, not in tests
settings.load_profile("no deadline")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # windows that tests open stay off the screen


@pytest.fixture
def tiny_task():
    """Six tables on three devices; table 5 is the largest, table 0 the most looked up."""
    tables = make_pool(
        rows=[1_000, 2_000, 3_000, 4_000, 5_000, 60_000], dim=[8, 16, 32, 8, 16, 32], pooling=[9, 3, 1, 2, 0.5, 4]
    )
    return Task(tables, memory=(GB,) * 3)


@pytest.fixture
def roofline():
    return simulators.make("roofline:rtx2080ti-x4-v1")


@pytest.fixture
def rng():
    return np.random.default_rng(0)
