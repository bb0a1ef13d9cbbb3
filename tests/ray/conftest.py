"""Tests on a real Ray, of two nodes on this host: `make test-ray`. Where Ray is not installed they are left out."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from shard_gym.work.cluster import QUIET

ROOT = Path(__file__).parents[2]
PATHS = os.pathsep.join(map(str, (ROOT, ROOT / "agents")))  # for processes on nodes
MARK = "SHARD_GYM_TESTS"  # in the environment of our processes
STORE = 100 * 2**20  # bytes of a node's object store

if not find_spec("ray"):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def two_nodes():
    """A cluster of two nodes with one CPU each; `address` is what a command is given."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", PATHS)
        patch.setenv(MARK, str(os.getpid()))
        for name in QUIET:
            patch.setenv(name, "0")
        from ray.cluster_utils import Cluster

        cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 1, "include_dashboard": False, "object_store_memory": STORE},
        )
        cluster.add_node(num_cpus=1, object_store_memory=STORE)
        cluster.wait_for_nodes()
        yield cluster
        cluster.shutdown()


@pytest.fixture
def more_nodes(two_nodes):
    """A function that adds a node for the time of a test."""
    added = []

    def add(**given):
        node = two_nodes.add_node(**{"num_cpus": 1, "object_store_memory": STORE} | given)
        added.append(node)
        return node

    yield add
    for node in added:
        if node in two_nodes.worker_nodes:
            two_nodes.remove_node(node, allow_graceful=False)
