import multiprocessing
import os
from multiprocessing import forkserver

import numpy as np
import pytest
from hypothesis import settings

from shard_gym import Task, core, simulators
from shard_gym.tables.pool import GB
from tests.pool_helpers import fp16_pool as make_pool

# Speed is measured in benchmarks, not in tests. The examples are the same every time, so that a change passes or
# fails by itself; HYPOTHESIS_PROFILE=search looks for new ones.
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
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


@pytest.fixture(scope="module", params=["numpy", "c"])
def each_core(request):
    """The core in use: modules that use this fixture are run with both, where C was built."""
    if request.param == "c":
        if core.load("") is None:
            pytest.skip("no compiled core here")
        yield "c"
    else:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(core, "compiled", lambda: None)
            yield "numpy"


@pytest.fixture(scope="session")
def server():
    """A process with torch and TorchRec imported, from which others are forked."""
    found = forkserver.ForkServer()
    found.set_forkserver_preload(["torch", "torchrec", "torchrec.distributed.planner", "shard_gym_agents.models"])
    return found


def forked(patch, server, *places):
    """Have modules that spawn processes fork them from the server."""
    context = multiprocessing.get_context("forkserver")
    patch.setattr(forkserver, "connect_to_new_process", server.connect_to_new_process)
    for place in places:
        patch.setattr(f"{place}.get_context", lambda method: context)


@pytest.fixture(scope="module")
def warm_ranks(server):
    """Ranks of a module's trainings begin at once: alone each takes five seconds to import TorchRec."""
    with pytest.MonkeyPatch.context() as patch:
        forked(patch, server, "shard_gym.torchrec.launch")
        yield


@pytest.fixture
def warm_workers(server, monkeypatch):
    """Workers that measure begin at once."""
    forked(monkeypatch, server, "multiprocessing", *(f"shard_gym.measuring.{name}" for name in ("operator", "survey")))


@pytest.fixture(scope="session")
def patient():
    """An exact solver whose programs have half a minute to end by themselves, after a search of a tenth of a second."""
    from shard_gym_agents.search import exact

    class Patient(exact.Milp):
        def solve(self, task, planner):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(exact, "START", 0.1 / self.budget)
                return super().solve(task, planner)

    return Patient(budget=30)
