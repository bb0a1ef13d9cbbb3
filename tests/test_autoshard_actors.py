"""Actors in this process and in others, and costs that are learned along with the policy."""

import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

from shard_gym import simulators, suites
from shard_gym.errors import InvalidTask
from shard_gym.measuring import fbgemm
from shard_gym.memory.usage import device_bytes
from shard_gym.results.evaluate import Unseen, score
from shard_gym_agents.learners.autoshard import Config, Learner, load
from shard_gym_agents.learners.autoshard_actors import CostLearner, OwnCosts, Request
from shard_gym_agents.learners.crews import ActorLost, Crew, Here, Processes
from shard_gym_agents.learners.learner import packed, under
from shard_gym_agents.learners.training import Schedule, train
from tests.env_helpers import PoolingMs
from tests.learner_helpers import one_thread, same, toy_planner, toy_suite  # noqa: F401

pytestmark = pytest.mark.usefixtures("toy_planner", "one_thread")
SMALL = Config(num_envs=8, batch=4)


class Measured:
    """Costs as `PoolingMs`, but it can only be asked for latencies, as an operator that is timed."""

    id = "measured-ms"

    def __init__(self):
        self.exact = PoolingMs()

    def latency(self, task, placements):
        return self.exact.latency(task, placements)


@pytest.fixture
def measuring(monkeypatch):
    monkeypatch.setitem(simulators.SIMULATORS, Measured.id, Measured)


def test_who_plays_and_when_changes_nothing():
    """Four portions of two episodes: here, in one process, in two, and by one that is killed at once."""
    learner = Learner(suites.get("dlrm-10x4"), SMALL, seed=0)
    places = [Here(learner.stage, 2), Processes(learner.stage, 2, 1), Processes(learner.stage, 2, 2)]
    played = []
    for place in places:
        crew = Crew(place, 4)
        crew.send(Request(5, 3, packed(net=learner.net)))
        if place is places[2]:
            crew.tend(waits=True)  # somebody has begun
            os.kill(place.processes[0].pid, signal.SIGKILL)
        played.append(crew.receive())
    here = played[0]
    assert here.version == 3 and len(here.plans) == 8 and here.episodes.alive.shape[1] == 8
    for other in played[1:]:
        assert other.version == 3 and other.calls > 0
        assert same(vars(here.episodes), vars(other.episodes))
        assert all(i == j and (one == two).all() for (i, one), (j, two) in zip(here.plans, other.plans, strict=True))
    assert places[2].begun == 3 and len(places[2].processes) == 2
    for place in places:
        place.end()
    assert not places[2].processes


def test_a_run_with_processes_is_that_without_and_resumed_to_the_bit():
    """Requests under way are lost with their learner, and made again by the one that goes on."""
    here, first, second = (Learner(suites.get("dlrm-10x4"), replace(SMALL, actors=actors), 0) for actors in (0, 1, 1))
    for _ in range(3):
        here.iterate()
    first.iterate()
    first.end()
    second.restore(first.state())
    second.iterate()
    os.kill(second.crew.place.processes[0].pid, signal.SIGKILL)
    second.iterate()
    assert same(second.state(), here.state())
    second.end()


def test_samples_are_plans_of_the_policy():
    suite = suites.get("tight-80x8")
    solver, task = Learner(suite, SMALL, seed=0).solver(), suite.tasks("val")[0]
    planner = simulators.make(suite.planner)
    plans = solver.samples(task, planner, 6, seed=1)
    assert plans.shape == (6, 80) and len(np.unique(plans, axis=0)) == 6
    assert (plans == solver.samples(task, planner, 6, seed=1)).all()
    assert (plans != solver.samples(task, planner, 6, seed=2)).any()
    used = np.stack([device_bytes(task, plan) for plan in plans])
    assert (used <= task.capacity).all(axis=1).any()


@pytest.mark.parametrize("group", ["dim", "distribution"])
def test_what_is_dropped_changes_nothing(group):
    """Tables that differ in a feature the policy is not shown look alike to it."""
    learner = Learner(suites.get("metasyn-80x8"), replace(SMALL, drop=group, cost_model=False), seed=0)
    solver, task = learner.solver(), suites.get("metasyn-80x8").tasks("val")[0]
    other = (
        task.tables.with_(dim=task.tables.dim * 2)
        if group == "dim"
        else task.tables.with_(uses=task.tables.uses[:, ::-1].copy())
    )
    if group == "distribution":  # nothing else depends on it
        changed = replace(task, tables=other)
        assert solver(changed, None) == solver(task, None)
    seen = learner.crew.place.actor.envs.env.bank.standardised(replace(task, tables=other))
    hidden = np.isclose(seen, 0, atol=1e-12).all(axis=0)
    assert hidden[0] == (group == "dim") and hidden[4:].all() == (group == "distribution")


@pytest.mark.usefixtures("measuring")
def test_costs_are_learned_along_with_the_policy(tmp_path):
    """Tables cost 1, 2, 3 and 4 ms: the network learns it from plans alone, the policy the one best split."""
    config = Config(num_envs=32, batch=8, learning_rate=1e-3, planner=Measured.id, cost_rate=3e-3)
    learner = Learner(toy_suite(), config, seed=0)
    first = learner.iterate()
    assert first["simulator_calls"] == 32  # measured plans, and no others
    progress = train(learner, tmp_path, Schedule(iterations=40, validate_every=5, patience=6, checkpoint_seconds=1e9))
    assert progress.best == 1.0
    solver = load(tmp_path / "best.safetensors")
    assert solver.track == "blind" and solver.card["planner"] == Measured.id
    for task in learner.suite.tasks():
        plan = solver(task, Unseen(PoolingMs()))
        assert score(task, plan, PoolingMs()).makespan == 5
        own = OwnCosts(solver.costs, solver.net.scaling.numpy())
        alone = simulators.single_costs(own, task)
        assert np.corrcoef(alone, task.tables.pooling)[0, 1] > 0.95
    assert same(solver.net.table.state_dict(), under(solver.costs, "table") or solver.net.table.state_dict())


@pytest.mark.usefixtures("measuring")
def test_a_run_that_measures_is_resumed_to_the_bit():
    config = replace(SMALL, planner=Measured.id, cost_batch=16, cost_buffer=30)
    whole, first = (Learner(toy_suite(), config, 0) for _ in range(2))
    for _ in range(3):
        whole.iterate()
    first.iterate()
    second = Learner(toy_suite(), config, 0)
    second.restore(first.state())
    second.iterate()
    second.iterate()
    assert same(second.state(), whole.state()) and len(whole.costs.shards) == 30


def test_the_operator_itself_can_be_learned_from(monkeypatch):
    """FBGEMM on this machine, two episodes."""
    pytest.importorskip("fbgemm_gpu")
    few = fbgemm.Settings(batch=64, warmups=1, runs=3, drop=0, arena_gb=0.01)
    monkeypatch.setitem(simulators.SIMULATORS, "fbgemm:cpu", lambda: fbgemm.Fbgemm(few))
    learner = Learner(toy_suite(), Config(num_envs=2, batch=2, planner="fbgemm:cpu"), seed=0)
    told = learner.iterate()
    assert told["simulator_calls"] == 2 and 0 <= told["return"] <= 1 and np.isfinite(told["cost_loss"])
    assert learner.costs.net.unit > 0


def test_the_cost_network_fits_what_it_is_told():
    suite = toy_suite((1, 2, 3, 4, 5, 6, 7, 8))
    tasks, rng = suite.tasks(), np.random.default_rng(0)
    torch.manual_seed(0)
    learner = CostLearner(tasks, np.stack(suite.feature_scaling()), 3e-3, updates=100, batch=64)
    plans = [(i % 3, rng.integers(2, size=8)) for i in range(60)]
    exact = PoolingMs()
    learner.remember(plans, [exact.latency(tasks[i], device).compute for i, device in plans])
    generator = torch.Generator().manual_seed(0)
    losses = [learner.fit(generator) for _ in range(8)]
    assert losses[-1] < 0.05 * losses[0]
    own = OwnCosts(learner.net.state_dict(), np.stack(suite.feature_scaling()))
    device = rng.integers(2, size=(20, 8))
    predicted, true = own.latency(tasks[0], device).compute, exact.latency(tasks[0], device).compute
    assert np.abs(predicted - true).mean() < 0.1 * true.mean()
    assert own.latency(tasks[0], np.full(8, 0)).compute[1] == 0  # an empty device


def test_why_an_actors_process_ended_is_told():
    learner = Learner(suites.get("dlrm-10x2"), SMALL, seed=0)
    crew = Crew(Processes(replace(learner.stage, order="sideways"), 2, 1), 1)
    crew.send(Request(0, 0, packed(net=learner.net)))
    with pytest.raises(ActorLost, match="unknown order 'sideways'"):
        crew.receive()


@pytest.mark.usefixtures("measuring")
def test_what_cannot_be_learned_by_measuring_is_refused():
    for suite, config in (
        (toy_suite(objective="iteration"), {}),
        (toy_suite(), {"reward": "latency"}),
        (toy_suite(), {"cost_model": False}),
    ):
        with pytest.raises(InvalidTask, match="kernel costs"):
            Learner(suite, replace(SMALL, planner=Measured.id, **config), 0)
