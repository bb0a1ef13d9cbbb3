from dataclasses import replace

import numpy as np
import pytest

from shard_gym import Task, simulators, suites
from shard_gym.errors import CorruptFile, InfeasibleTask, InvalidTask
from shard_gym.memory.usage import device_bytes
from shard_gym.results.evaluate import run, score
from tests.env_helpers import PoolingMs
from tests.pool_helpers import fp16_pool as make_pool

torch = pytest.importorskip("torch")
from shard_gym_agents.learners import rollouts  # noqa: E402
from shard_gym_agents.learners.rnn import Config, Learner, Net, Rnn, load, play  # noqa: E402
from shard_gym_agents.learners.rollouts import TaskTensors  # noqa: E402
from tests.learner_helpers import assert_reproducible  # noqa: E402
from tests.test_dreamshard import SCALING, ToySuite, relative, toy  # noqa: E402

SMALL = Config(tasks=3, episodes=8, learning_rate=1e-2, horizon=25)


@pytest.fixture
def suite(monkeypatch):
    monkeypatch.setitem(simulators.SIMULATORS, "pooling-ms", PoolingMs)
    return ToySuite()


def fresh(devices=2, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Net(SCALING, devices)


def test_it_learns_the_best_plans_of_a_toy(suite):
    learner = Learner(suite, SMALL, seed=0)
    assert relative(learner.solver(), suite) > 1.2
    for _ in range(SMALL.horizon):
        learner.iterate()
    assert relative(learner.solver(), suite) < 1.05


def test_with_the_sign_of_rewards_flipped_it_learns_the_worst(suite, monkeypatch):
    monkeypatch.setattr(
        rollouts, "advantages", lambda rewards, divide, right=rollouts.advantages: -right(rewards, divide)
    )
    learner = Learner(suite, SMALL, seed=0)
    for _ in range(SMALL.horizon // 2):
        learner.iterate()
    assert relative(learner.solver(), suite) > 1.7


def test_rewards_by_hand():
    makespans, over = torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([[0.0, 0.0, 0.25]])
    assert rollouts.rewards(makespans, over).tolist() == [[-0.5, -1.5, -1.75]]


def test_no_device_is_taken_that_has_no_room():
    tasks = TaskTensors.of([toy([1] * 6, devices=3, room=2)], SCALING).take(torch.zeros(50, dtype=torch.int64))
    played = play(fresh(devices=3), tasks, torch.Generator().manual_seed(0))
    assert (played.placing.free == 0).all() and not played.legal[:, 5].all(dim=1).any()
    assert len(played.actions.unique(dim=0)) > 5


def test_the_loss_sees_the_scores_that_were_played():
    tasks, net = TaskTensors.of([toy([3, 1, 2]), toy([5, 4, 3, 2, 1, 1])], SCALING), fresh()
    played = play(net, tasks, None)
    scores = net(tasks, played.actions)
    assert torch.equal(scores.argmax(-1), played.actions)
    alone = net(TaskTensors.of([toy([3, 1, 2])], SCALING), played.actions[:1, :3])
    assert torch.allclose(scores[:1, :3], alone, atol=1e-6)  # padding does not matter


def test_scores_depend_on_tables_and_devices_so_far_only():
    net, actions = fresh(), torch.tensor([[0, 0, 0]])
    first = net(TaskTensors.of([toy([3, 1, 2])], SCALING), actions)[0]
    changed = net(TaskTensors.of([toy([3, 1, 9])], SCALING), actions)[0]
    moved = net(TaskTensors.of([toy([3, 1, 2])], SCALING), torch.tensor([[0, 1, 0]]))[0]
    assert torch.allclose(first[:2], changed[:2]) and not torch.allclose(first[2], changed[2], atol=1e-5)
    assert torch.allclose(first[:2], moved[:2]) and not torch.allclose(first[2], moved[2], atol=1e-5)


def test_the_planner_is_asked_about_every_episode(suite):
    learner = Learner(suite, replace(SMALL, updates=2, tasks=2, episodes=3), seed=0)
    told = learner.iterate()
    assert told["simulator_calls"] == learner.planner.calls == 2 * 2 * 3
    assert told["steps"] == 2 * 2 * 3 * 6
    assert learner.iterate()["simulator_calls"] == 12


def test_seeds_reproduce_and_a_restored_learner_goes_on_as_if_nothing_had_happened(suite):
    config = replace(SMALL, updates=3)
    assert_reproducible(lambda seed: Learner(suite, config, seed))


def test_a_saved_policy_plans_as_before(tmp_path):
    solver, task = Rnn(fresh(devices=3, seed=5)), toy([5, 4, 3, 2, 1, 1, 6], devices=3)
    solver.save(tmp_path / "policy.safetensors")
    loaded = load(tmp_path / "policy.safetensors")
    assert loaded(task, None) == solver(task, None)
    content = (tmp_path / "policy.safetensors").read_bytes()
    (tmp_path / "policy.safetensors").write_bytes(content[:-100])
    with pytest.raises(CorruptFile, match="whole file"):
        load(tmp_path / "policy.safetensors")


def test_another_number_of_devices_is_refused():
    with pytest.raises(InvalidTask, match="trained for 2 devices and cannot serve 3"):
        Rnn(fresh())(toy([1, 2], devices=3), None)


def test_memory_is_kept_or_what_fits_nowhere_is_named():
    pool = make_pool(rows=[100, 100, 300], dim=16, pooling=[1, 1, 1])
    task = Task(pool, memory=(9600, 6400))
    plan = Rnn(fresh())(task, None)
    assert (device_bytes(task, np.array(plan.device)) <= task.capacity).all()
    with pytest.raises(InfeasibleTask, match="too few"):
        Rnn(fresh())(toy([1] * 5, room=2), None)


@pytest.mark.parametrize("key", ["metasyn-80x8", "mixed-10to59x4"])
def test_an_iteration_on_a_suite(key):
    learner = Learner(suites.get(key), Config(updates=1, episodes=2), seed=0)
    told = learner.iterate()
    assert all(map(np.isfinite, told.values()))
    task = learner.suite.tasks("val")[0]
    done = run(learner.solver(), PoolingMs(), task)
    assert done.error is None and done.simulator_calls == 0
    assert score(task, done.plan, PoolingMs()).feasible
