"""Work on two Ray nodes: workers, nodes and the driver die, and nothing is lost or doubled; errors name the node."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from shard_gym.errors import ClusterError
from shard_gym.records import ledger
from shard_gym.work.cluster import QUIET, Cluster, Terms
from shard_gym.work.pieces import Piece, left
from tests.ray.conftest import MARK, PATHS, ROOT
from tests.ray.workers import Told

DRIVER = """
import sys
from shard_gym.records import commands
from shard_gym.work.cluster import Cluster, Terms
from tests.ray.test_cluster import work
sys.exit(commands.ended("driver", lambda: work(*sys.argv[1:])))
"""

# A cluster whose nodes hold 100 MB and may not use their disks; its end would end that of the other tests.
FULL = """
import numpy as np
from ray.cluster_utils import Cluster as Nodes
from shard_gym.errors import ClusterError
from shard_gym.work.pieces import Piece
from tests.ray.conftest import STORE
from tests.ray.test_cluster import worked
head = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": STORE}
nodes = Nodes(True, head_node_args=head | {"_system_config": {"local_fs_capacity_threshold": 0.0}})
for name, payload in {"row": ("big", 2 * STORE), "payload": ("square", np.ones(2 * STORE, np.uint8))}.items():
    try:
        worked(nodes.address, [Piece(name, payload)])
    except ClusterError as error:
        print(f"{name}: {error}")
nodes.shutdown()
"""


def squares(count, seconds=0.0):
    return [Piece(str(i), ("square", i, seconds)) for i in range(count)]


def worked(address, pieces, **terms):
    kept = []
    with Cluster.joined(address) as cluster:
        cluster.work_off(pieces, Told, lambda *row: kept.append(row), Terms(**terms))
    assert len(dict(kept)) == len(kept) == len(pieces)
    return dict(kept)


def work(address, out, count, seconds):
    """A command: squares, kept in a ledger; what is there is not done again."""
    with ledger.opened(out) as rows, Cluster.joined(address) as cluster:
        done = {line["key"] for line in rows.read()}
        todo = left(squares(int(count), float(seconds)), done)
        terms = Terms(settle=rows.force, batch_seconds=0.02)
        cluster.work_off(todo, Told, lambda key, row: rows.append({"key": key, **row}, force=False), terms)


def driver(two_nodes, out, count=200, seconds=0.01):
    command = [sys.executable, "-c", DRIVER, two_nodes.address, str(out), str(count), str(seconds)]
    return subprocess.Popen(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": PATHS}, stderr=subprocess.PIPE, text=True
    )


def lines(out):
    whole = out.read_bytes() if out.exists() else b""
    return [json.loads(line) for line in whole[: whole.rfind(b"\n") + 1].splitlines()]


def until(true, seconds=60.0):
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    assert true()


def hands():
    """Processes of workers of the tests' cluster."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            ours = f"{MARK}={os.environ[MARK]}".encode() in (path / "environ").read_bytes()
            if ours and (path / "cmdline").read_bytes().startswith(b"ray::_Hand"):
                found.append(int(path.name))
    return found


# --- nothing is lost or doubled ---


def test_two_nodes_share_the_work(two_nodes):
    kept = worked(two_nodes.address, squares(300, 0.005), batch_seconds=0.02)
    assert {key: row["answer"] for key, row in kept.items()} == {str(i): i**2 for i in range(300)}
    assert len({row["node"] for row in kept.values()}) == 2
    until(lambda: not hands())


def test_a_killed_worker_is_replaced(two_nodes, tmp_path):
    pieces = [*squares(50, 0.002), Piece("once", ("die", str(tmp_path / "once"), 1))]
    pieces += [
        Piece("always", ("die", str(tmp_path / "always"), 99)),
        *[Piece(f"x{i}", ("square", i)) for i in range(9)],
    ]
    kept = worked(two_nodes.address, pieces, batch_seconds=0.02)
    assert kept["once"]["answer"] == 1 and "died, twice" in kept["always"]["error"]
    assert all(kept[str(i)]["answer"] == i**2 for i in range(50))


def test_a_killed_node_costs_nothing_but_time(two_nodes, more_nodes):
    node, kept = more_nodes(), {}
    nodes = set()

    def keep(key, row):
        assert key not in kept
        kept[key] = row["answer"]
        nodes.add(row["node"])
        if len(nodes) == 3 and node in two_nodes.worker_nodes:
            two_nodes.remove_node(node, allow_graceful=False)

    with Cluster.joined(two_nodes.address) as cluster:
        cluster.work_off(squares(600, 0.02), Told, keep, Terms(batch_seconds=0.1))
    assert kept == {str(i): i**2 for i in range(600)} and len(nodes) == 3


def test_a_node_that_comes_later_takes_part(two_nodes, more_nodes):
    nodes = set()

    def keep(key, row):
        nodes.add(row["node"])
        if int(key) == 10:
            more_nodes()

    def until_it_works():
        for piece in squares(100_000, 0.01):
            if len(nodes) == 3:
                return
            yield piece

    with Cluster.joined(two_nodes.address) as cluster:
        cluster.work_off(until_it_works(), Told, keep, Terms(batch_seconds=0.05))
    assert len(nodes) == 3


def test_a_killed_driver_goes_on_where_it_was(two_nodes, tmp_path):
    out = tmp_path / "rows.jsonl"
    run = driver(two_nodes, out)
    until(lambda: len(lines(out)) > 20)
    run.send_signal(signal.SIGKILL)
    run.wait()
    until(lambda: not hands())
    before = lines(out)
    assert 20 < len(before) < 200
    assert driver(two_nodes, out).wait() == 0
    after = lines(out)
    assert after[: len(before)] == before
    assert sorted((int(row["key"]), row["answer"]) for row in after) == [(i, i**2) for i in range(200)]


def test_ctrl_c_ends_it_and_its_workers(two_nodes, tmp_path):
    out = tmp_path / "rows.jsonl"
    run = driver(two_nodes, out)
    until(lambda: len(lines(out)) > 20)
    run.send_signal(signal.SIGINT)
    assert run.wait(20) == 130
    until(lambda: not hands())
    assert len(lines(out)) < 200


# --- what cannot work is told ---


def test_what_goes_wrong_on_a_node_names_it(two_nodes):
    with pytest.raises(ClusterError, match=r"node .+/\w{6}: ZeroDivisionError: odd"):
        worked(two_nodes.address, [Piece("x", ("odd",))])


def test_a_node_without_a_module_is_told(two_nodes):
    with pytest.raises(ClusterError, match=r"node .+/\w{6} lacks no_such_module"):  # noqa: SIM117
        with Cluster.joined(two_nodes.address, modules=("no_such_module",)):
            pass


def test_a_node_with_other_files_is_told(two_nodes, more_nodes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # Ray has nodes import from the driver's folder first
    package = tmp_path / "other" / "shard_gym"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    more_nodes(env_vars={"PYTHONPATH": os.pathsep.join([str(package.parent), str(ROOT / "agents")])})
    with pytest.raises(ClusterError, match=r"node .+/\w{6} has shard_gym \w{12} \(here \w{12}\): install the same"):  # noqa: SIM117
        with Cluster.joined(two_nodes.address):
            pass


def test_an_address_where_nobody_is_is_told_in_time():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        for listening in (False, True):
            if listening:
                taken.listen()
            start, address = time.monotonic(), f"127.0.0.1:{taken.getsockname()[1]}"
            with pytest.raises(ClusterError, match=f"{address}.*within 2 s"):  # noqa: SIM117
                with Cluster.joined(address, seconds=2.0):
                    pass
            assert time.monotonic() - start < 20


def test_a_full_object_store_is_told():
    env = os.environ | dict.fromkeys(QUIET, "0") | {"PYTHONPATH": PATHS}
    told = subprocess.run([sys.executable, "-c", FULL], cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE).stdout
    assert re.search(r"row: node .+/\w{6}: the object store is full .*--object-store-memory", told)
    assert re.search(r"payload: node .+, this one: the object store is full", told)


def test_a_client_s_address_is_refused():
    with pytest.raises(ClusterError, match="run this on a node"), Cluster.joined("ray://127.0.0.1:10001"):
        pass
