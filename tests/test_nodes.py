"""Agents on nodes, without Ray: a stand-in cluster has one node, and passes on what Ray would."""

import pickle
from contextlib import contextmanager

import pytest

from benchmarks import headroom
from shard_gym.errors import ClusterError
from shard_gym.work.cluster import Cluster, Node, Slot
from shard_gym_agents.cli.main import main
from shard_gym_agents.leaderboard.arena.job import Job
from shard_gym_agents.leaderboard.arena.rules import Rules
from shard_gym_agents.leaderboard.nodes import Question, Setting, Table
from tests.test_runs_in_parts import ranked, tried, without_times

SUITE, ROOFLINE = "dlrm-10x2", "roofline:rtx2080ti-x4-v1"
AGENTS = "--agents lookup-greedy,local-search --agent tests.odd_agents:Exits --calls 20 --isolation limits"
AWAY = 3  # pieces that are out before the first row comes back


def copied(value):
    return pickle.loads(pickle.dumps(value))


def ended(table):
    table.seat.close()
    table.arena.nursery.close()


class StandIn:
    """A cluster of one node, whose rows come back late."""

    def nodes(self):
        return [Node("1a2b", "host/1a2b", "host", {"CPU": 4.0}), Node("3c4d", "host/3c4d", "host", {})]

    def work_off(self, pieces, make_worker, keep, terms):
        worker, away = copied(make_worker)(Slot("host/1a2b", "host", 0)), []

        def back():
            piece = away.pop(0)
            keep(piece.key, copied(worker.do(copied(piece.payload))))

        for piece in pieces:
            if piece is not None:
                away.append(piece)
            if piece is None or len(away) == AWAY:
                back()
        while away:
            back()
        if isinstance(worker, Table):
            ended(worker)


@pytest.fixture
def stand_in(monkeypatch):
    """The cluster that commands join."""

    @contextmanager
    def joined(address, modules=()):
        assert address == "auto"
        yield StandIn()

    monkeypatch.setattr(Cluster, "joined", joined)


def test_rows_of_nodes_are_those_of_this_machine(stand_in, tmp_path):
    for out, more in (("here", []), ("there", ["--ray", "auto"])):
        words = ["leaderboard", "--suite", SUITE, *AGENTS.split(), "--tasks", "6", "--seeds", "1", "--workers", "1"]
        assert main([*words, "--out", str(tmp_path / out), "--best-known", str(tmp_path / "best"), *more]) == 0
    here, there = (tmp_path / out / f"{SUITE}.jsonl" for out in ("here", "there"))
    honest = [[line for line in without_times(path) if "Exits" not in line] for path in (here, there)]
    assert honest[0] == honest[1] and len(honest[0]) == 12
    assert ranked(here.with_suffix(".md")) == ranked(there.with_suffix(".md"))
    assert "Made on 1 nodes by Ray (1 of 4 cores)" in there.with_suffix(".md").read_text()
    assert [line.count("given up after 3 runs") for line in without_times(there) if "Exits" in line][-1] == 1


def test_steps_of_headroom_are_those_of_this_machine(stand_in, tmp_path):
    words = f"--suite {SUITE} --methods local-search,beam --calls 20 --seeds 1 --tasks 4 --results {tmp_path}/results"
    here, there = tmp_path / "here", tmp_path / "there"
    assert headroom.main([*words.split(), "--runs", str(here)]) == 0
    assert headroom.main([*words.split(), "--runs", str(there), "--ray", "auto"]) == 0
    found = tried(there / f"{SUITE}.jsonl")
    assert found == tried(here / f"{SUITE}.jsonl") and len(found) == 4


def setting(job, **given):
    return Setting(Rules(isolation="limits"), (job,), **{"users": (), "tasks": {}} | given)


def test_what_a_node_lacks_is_told():
    job = Job(SUITE, "lookup-greedy", 0, ROOFLINE, ROOFLINE)
    with pytest.raises(ClusterError, match="cannot import agent nowhere_at_all:Mine"):
        Table(setting(job, users=("nowhere_at_all:Mine",)))
    with pytest.raises(ClusterError, match="has no /nowhere/weights"):
        Table(setting(Job(SUITE, "rnn", 0, ROOFLINE, ROOFLINE, checkpoint="/nowhere/weights")))


def test_another_agent_on_a_node_is_refused():
    job = Job(SUITE, "lookup-greedy", 0, ROOFLINE, ROOFLINE)
    table = Table(setting(job))
    try:
        with pytest.raises(ClusterError, match="has another agent lookup-greedy, by its source"):
            table.do(Question(job, {"source": "other", "track": "blind"}, 0))
        lacking = Job(SUITE, "tests.odd_agents:Nobody", 0, ROOFLINE, ROOFLINE)
        with pytest.raises(ClusterError, match=r"cannot run agent tests\.odd_agents:Nobody: "):
            table.do(Question(lacking, {}, 0))
    finally:
        ended(table)
