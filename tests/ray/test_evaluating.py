"""Agents on two Ray nodes: the rows of one machine, whoever dies; what a node lacks is told with its name."""

import os
import re
import signal
import threading
import time

import pytest

from benchmarks import headroom
from shard_gym.results import read_results
from shard_gym_agents.cli.main import main
from shard_gym_agents.leaderboard.kept import kept_run
from tests.ray.test_cluster import hands
from tests.test_runs_in_parts import ranked, tried, without_times

SUITE = "dlrm-10x2"
WORDS = f"--suite {SUITE} --agents lookup-greedy,random,local-search --calls 40 --isolation limits"


def lead(out, *more, tasks=4):
    words = ["leaderboard", *WORDS.split(), "--tasks", str(tasks), "--out", str(out), "--best-known", str(out / "best")]
    return main([*words, *map(str, more)])


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    out = tmp_path_factory.mktemp("local")
    assert lead(out, "--workers", 1) == 0
    return out


def test_rows_are_those_of_one_machine(two_nodes, local, tmp_path):
    assert lead(tmp_path, "--ray", two_nodes.address) == 0
    assert without_times(tmp_path / f"{SUITE}.jsonl") == without_times(local / f"{SUITE}.jsonl")
    told = (tmp_path / f"{SUITE}.md").read_text()
    assert ranked(tmp_path / f"{SUITE}.md") == ranked(local / f"{SUITE}.md")
    assert "Made on 2 nodes by Ray (2 of 1 cores)" in told and "any machines give the same rows" in told
    assert not any(result.alone for result in read_results(tmp_path / f"{SUITE}.jsonl"))


def test_a_part_runs_on_nodes_too(two_nodes, tmp_path):
    assert lead(tmp_path, "--ray", two_nodes.address, "--part", "1/2") == 0
    assert (tmp_path / "parts" / "1-of-2.jsonl").exists()


def kept(out):
    return [kept_run(line) for path in out.glob("partial/*.jsonl") for line in path.read_bytes().splitlines()]


def test_a_killed_worker_costs_nothing(two_nodes, tmp_path):
    assert lead(tmp_path / "whole", "--workers", 1, tasks=40) == 0
    killed = []

    def kill():
        until = time.monotonic() + 60
        while not kept(tmp_path / "ray") and time.monotonic() < until:
            time.sleep(0.005)
        for number in hands()[:1]:
            os.kill(number, signal.SIGKILL)
            killed.append(number)

    killer = threading.Thread(target=kill)
    killer.start()
    code = lead(tmp_path / "ray", "--ray", two_nodes.address, tasks=40)
    killer.join()
    assert killed and code == 0
    assert without_times(tmp_path / "ray" / f"{SUITE}.jsonl") == without_times(tmp_path / "whole" / f"{SUITE}.jsonl")


def test_an_agent_that_a_node_cannot_import_is_named_with_the_node(two_nodes, tmp_path, monkeypatch, capsys):
    (tmp_path / "only_here.py").write_text(
        "from shard_gym import Plan\n\n\nclass Mine:\n    def __call__(self, task, planner):\n"
        "        return Plan((0,) * task.num_tables)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert lead(tmp_path / "out", "--ray", two_nodes.address, "--agent", "only_here:Mine") == 2
    told = r"node \S+/[0-9a-f]{6}: cannot import agent only_here:Mine: its module must be on the node's Python path"
    assert re.search(told, capsys.readouterr().err)


def test_headroom_finds_the_same_on_nodes(two_nodes, tmp_path):
    words = f"--suite {SUITE} --methods local-search --calls 30 --seeds 2 --tasks 3 --results {tmp_path}/results"
    words = words.split()
    here, there = tmp_path / "here", tmp_path / "there"
    assert headroom.main([*words, "--runs", str(here)]) == 0
    assert headroom.main([*words, "--runs", str(there), "--ray", two_nodes.address]) == 0
    assert tried(there / f"{SUITE}.jsonl") == tried(here / f"{SUITE}.jsonl")


def test_a_sealed_round_is_opened_by_nodes(two_nodes, tmp_path, capsys):
    (folder := tmp_path / "round").mkdir()
    assert main(["round", "new", str(folder), "--suite", SUITE, "--tasks", "2", "--reference-budget", "10ms"]) == 0
    opened = ["round", "open", str(folder), "--agents", "lookup-greedy,random", "--isolation", "limits"]
    assert main([*opened, "--ray", two_nodes.address]) == 0
    assert "what searches found in their seconds is of these machines" in capsys.readouterr().out
    assert main(["round", "close", str(folder)]) == 0
    assert {result.agent for result in read_results(folder / "results.jsonl")} == {"lookup-greedy", "random"}
