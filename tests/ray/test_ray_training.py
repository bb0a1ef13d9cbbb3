"""AutoShard's actors on a Ray cluster of two nodes: killed, lost with a node, without their driver, and measuring."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from shard_gym import simulators, suites
from shard_gym.measuring import fbgemm
from shard_gym.work.cluster import Cluster
from shard_gym_agents.learners.autoshard import Config, Learner
from shard_gym_agents.learners.crew_ray import Begin
from shard_gym_agents.learners.learner import load_tensors
from tests.learner_helpers import one_thread, same, toy_planner, toy_suite  # noqa: F401

pytestmark = pytest.mark.usefixtures("one_thread")
ROOT = Path(__file__).parents[2]
SMALL = Config(num_envs=8, batch=4, portion=2)
ITERATIONS = 6
MAIN = "import sys; from shard_gym_agents.cli.main import main; sys.exit(main(sys.argv[1:]))"


def undisturbed(config=SMALL, iterations=ITERATIONS):
    learner = Learner(suites.get("dlrm-10x2"), config, seed=0)
    for _ in range(iterations):
        learner.iterate()
    return learner.state()


def nodes_of(learner):
    return {seat.node.id for seat in learner.crew.place.seats.values()}


def test_actors_and_nodes_die_and_come_and_the_weights_are_those_of_one_process(two_nodes, more_nodes):
    """Three nodes: an actor is killed, then one node goes, then another joins."""
    third = more_nodes()
    with Cluster.joined(two_nodes.address) as cluster:
        learner = Learner(suites.get("dlrm-10x2"), SMALL, seed=0, cluster=cluster)
        learner.iterate()
        cluster.fire(next(iter(learner.crew.place.seats.values())).worker)
        learner.iterate()
        two_nodes.remove_node(third, allow_graceful=False)
        learner.iterate()
        fourth = more_nodes()
        for _ in range(ITERATIONS - 3):
            learner.iterate()
        until = time.monotonic() + 300
        wanted = {fourth.node_id}
        while nodes_of(learner) & {third.node_id, fourth.node_id} != wanted and time.monotonic() < until:
            learner.crew.tend()
        assert nodes_of(learner) & {third.node_id, fourth.node_id} == wanted
        assert same(learner.state(), undisturbed())
        learner.end()


def test_the_lag_changes_weights_but_not_who_plays(two_nodes):
    config = replace(SMALL, lag=0, portion=4)
    with Cluster.joined(two_nodes.address) as cluster:
        learner = Learner(suites.get("dlrm-10x2"), config, seed=0, cluster=cluster)
        for _ in range(3):
            learner.iterate()
        assert same(learner.state(), undisturbed(config, 3))
        learner.end()


def command(address, out, iterations, *more):
    words = "train autoshard --suite dlrm-10x2 --num-envs 8 --batch 4 --portion 2 --validate-every 3"
    words = [*words.split(), "--checkpoint-seconds", "0", "--iterations", str(iterations), "--out", str(out), *more]
    return [sys.executable, "-c", MAIN, *words, "--ray", address]


def test_a_killed_driver_goes_on_on_another_number_of_actors(two_nodes, tmp_path):
    """The first is killed after an iteration; the next has one actor where that had two."""
    out, environment = tmp_path / "killed", {**os.environ, "OMP_NUM_THREADS": "1"}
    first = subprocess.Popen(command(two_nodes.address, out, 1_000), env=environment, cwd=ROOT)
    until = time.monotonic() + 300
    while not (out / "checkpoint.safetensors").exists():
        assert first.poll() is None and time.monotonic() < until
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    done = load_tensors(out / "checkpoint.safetensors", "checkpoint")[1]["progress"]["iteration"]
    total = done + 2
    given = command(two_nodes.address, out, total, "--actors", "1")
    told = subprocess.run(given, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    state, card = load_tensors(out / "checkpoint.safetensors", "checkpoint")
    assert card["progress"]["iteration"] == total
    lines = [json.loads(line)["iteration"] for line in (out / "scalars.jsonl").read_text().splitlines()]
    assert lines == list(range(1, total + 1))
    assert same(state, undisturbed(iterations=total))


@dataclass(frozen=True)
class BeginSmall(Begin):
    """Makes actors whose FBGEMM is small enough for a test."""

    def __call__(self, slot):
        few = fbgemm.Settings(batch=64, warmups=1, runs=3, drop=0, arena_gb=0.01)
        simulators.SIMULATORS["fbgemm:cpu"] = lambda: fbgemm.Fbgemm(few)
        return super().__call__(slot)


def test_plans_are_measured_where_the_actors_are(two_nodes):
    pytest.importorskip("fbgemm_gpu")
    config = Config(num_envs=4, batch=4, portion=1, planner="fbgemm:cpu", cost_updates=2, cost_batch=8)
    with Cluster.joined(two_nodes.address, modules=("fbgemm_gpu",)) as cluster:
        learner = Learner(toy_suite(), config, seed=0, cluster=cluster)
        place = learner.crew.place
        place.make = BeginSmall(place.store, place.make.stage, place.make.each)
        told = learner.iterate()
        assert told["simulator_calls"] == 4 and 0 <= told["return"] <= 1 and np.isfinite(told["cost_loss"])
        assert len(learner.costs.shards) >= 4 and learner.costs.net.unit > 0
        assert torch.isfinite(learner.state()["costs/unit"])
        learner.end()
