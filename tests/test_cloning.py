from dataclasses import replace

import numpy as np
import pytest
import torch

from shard_gym import Plan, simulators, suites
from shard_gym.errors import CorruptFile, InvalidTask
from shard_gym.memory.usage import device_bytes
from shard_gym.results.evaluate import score
from shard_gym_agents.learners import cloning, ppo
from shard_gym_agents.learners.cloning import Config, Learner
from shard_gym_agents.learners.training import Schedule, train
from shard_gym_agents.solvers.greedy import CostGreedy
from tests.env_helpers import PoolingMs
from tests.learner_helpers import one_thread, same, toy_planner, toy_suite  # noqa: F401

pytestmark = pytest.mark.usefixtures("toy_planner", "one_thread")
SMALL = Config(plans=2, calls=2000, updates=8, batch=32, learning_rate=1e-2, hidden=16, sharpness=1.0)
BEYOND_GREEDY = (3, 3, 2, 2, 2)  # ms: dearest first it takes 7, at best 6


def makespans(solver, suite):
    planner = PoolingMs()
    return [score(task, solver(task, planner), planner).makespan for task in suite.tasks()]


def best_plan(task, planner):
    """3 | 3 and 2 | 2 | 2."""
    return Plan(tuple(int(pooling == 2) for pooling in task.tables.pooling))


def test_it_learns_what_was_demonstrated(tmp_path, monkeypatch):
    monkeypatch.setattr(cloning, "LocalSearch", lambda seed, **settings: best_plan)
    suite = toy_suite(BEYOND_GREEDY)
    learner = Learner(suite, SMALL, seed=0)
    assert makespans(CostGreedy(), suite) == makespans(learner.solver(), suite) == [7, 7, 7]
    progress = train(learner, tmp_path, Schedule(iterations=15, validate_every=5))
    assert progress.best == pytest.approx(6 / 7)
    assert makespans(cloning.load(tmp_path / "best.safetensors"), suite) == [6, 6, 6]


def test_demonstrations_are_plans_that_fit():
    suite = toy_suite(room=2 * 100 * 16 * 2)
    learner = Learner(suite, SMALL, seed=0)
    rows = learner.demonstrate().numpy()
    assert rows[:, 0].tolist() == [0, 0, 1, 1, 2, 2]
    for task, plans in zip(suite.tasks(), rows[:, 1:].reshape(3, 2, 4), strict=True):
        assert (device_bytes(task, plans) <= task.capacity).all()
        assert (PoolingMs().latency(task, plans).makespan("kernel") == 5).all()


def test_replays_show_what_was_chosen_and_why():
    learner = Learner(toy_suite(), SMALL, seed=0)
    learner.demonstrations = torch.tensor([[0, 0, 1, 1, 0]], dtype=torch.int32)
    task, shown = learner.suite.tasks()[0], learner.replayed()
    order = np.argsort(-task.tables.pooling, kind="stable")
    assert shown["target"].tolist() == [[0, 1, 1, 0][t] for t in order]
    costs, ahead = shown["devices"][..., 2] * 5, shown["ahead"] * 5  # ms: an even share of 10 ms is 5
    assert costs[0].tolist() == [0, 0] and ahead[0].tolist() == pytest.approx([4, 4])
    for step, t in enumerate(order[:-1]):
        device = shown["target"][step]
        assert costs[step + 1, device] == pytest.approx(float(costs[step, device] + task.tables.pooling[t]), rel=1e-5)


def test_it_does_not_matter_how_plans_number_their_devices():
    learner = Learner(toy_suite(devices=3), SMALL, seed=0)
    plans, told = learner.demonstrate(), []
    for names in ([0, 1, 2], [2, 0, 1]):
        one = Learner(learner.suite, SMALL, seed=0)
        one.demonstrations = torch.cat([plans[:, :1], torch.tensor(names, dtype=torch.int32)[plans[:, 1:].long()]], 1)
        one.shown = one.replayed()
        loss, _ = one.update(one.shown)
        told.append((loss, [p.grad for p in one.net.parameters() if p.grad is not None]))
    assert told[0][0] == pytest.approx(told[1][0], rel=1e-5)
    torch.testing.assert_close(told[0][1], told[1][1], atol=1e-6, rtol=1e-4)


def test_tasks_of_different_lengths():
    short, long = toy_suite((1, 2)), toy_suite(BEYOND_GREEDY)
    learner = Learner(replace(short, toys=short.toys[:1] + long.toys[:1]), SMALL, seed=0)
    assert np.isfinite(learner.iterate()["loss"])
    assert len(learner.shown["target"]) == 2 * (2 + 5) and (learner.demonstrations[:2, 3:] == -1).all()


def test_a_restored_learner_goes_on_to_the_bit():
    whole = Learner(toy_suite(BEYOND_GREEDY), SMALL, 3)
    for _ in range(2):
        whole.iterate()
    state = whole.state()
    second = Learner(toy_suite(BEYOND_GREEDY), SMALL, 3)
    second.restore(state)
    told = [[learner.iterate()["loss"] for _ in range(2)] for learner in (whole, second)]
    assert told[0] == told[1] and same(whole.state(), second.state()) and not same(state, second.state())


def test_seeds_decide_and_reproduce():
    suite = suites.get("dlrm-10x4")
    one, again, other = (Learner(suite, replace(SMALL, plans=1, calls=20), seed) for seed in (0, 0, 1))
    told = [[learner.iterate() for _ in range(2)] for learner in (one, again, other)]
    assert told[0] == told[1] != told[2]
    assert same(one.state(), again.state())


def test_plans_are_made_once_and_counted():
    learner = Learner(toy_suite(), SMALL, seed=0)
    first, second = learner.iterate(), learner.iterate()
    assert first["simulator_calls"] > 100 and second["simulator_calls"] == 0
    assert first["steps"] == second["steps"] == 8 * 32 and second["agreement"] > 0.5


def test_a_saved_policy_plans_the_same(tmp_path):
    learner = Learner(suites.get("dlrm-10x2"), replace(SMALL, plans=1, calls=10), seed=3)
    learner.iterate()
    solver, task, planner = learner.solver(), learner.suite.tasks("val")[0], simulators.make(learner.suite.planner)
    solver.save(tmp_path / "a.safetensors")
    loaded = cloning.load(tmp_path / "a.safetensors")
    assert loaded(task, planner) == solver(task, planner) and loaded.card == solver.card
    with pytest.raises(CorruptFile, match="cloning, expected a ppo"):
        ppo.load(tmp_path / "a.safetensors")


def test_what_it_cannot_do_is_refused():
    with pytest.raises(InvalidTask, match="does not split"):
        Learner(suites.get("tightmix-80x8-split"), SMALL, 0)
    with pytest.raises(InvalidTask, match="whole tables: train dreamshard-planner, maskable-ppo or autoshard"):
        Learner(suites.get("core-80x8-allkinds"), SMALL, 0)
    for wrong in ({"plans": 0}, {"calls": 0}, {"sharpness": -1.0}):
        with pytest.raises(InvalidTask, match="1 or more"):
            replace(SMALL, **wrong)
