from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from shard_gym import make_pool, simulators, suites
from shard_gym.envs.vector_env import ShardingVectorEnv
from shard_gym.errors import CorruptFile, InfeasibleTask, InvalidTask, SimulatorError, UnknownName
from shard_gym.memory.usage import device_bytes, table_bytes
from shard_gym.results.evaluate import Unseen, score
from shard_gym.task.task import Task
from shard_gym_agents.learners.autoshard import AutoShard, Config, Learner, load
from shard_gym_agents.learners.autoshard_actors import TABLE, Actor, Net, Request
from shard_gym_agents.learners.learner import packed, save_tensors
from shard_gym_agents.learners.training import Schedule, train
from tests.env_helpers import PoolingMs
from tests.learner_helpers import one_thread, refuses_broken, same, toy_planner, toy_suite  # noqa: F401

pytestmark = pytest.mark.usefixtures("toy_planner", "one_thread")
SMALL = Config(num_envs=8, batch=4)
ROOFLINE = simulators.make("roofline:rtx2080ti-x4-v1")


def net(seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Net()


def untrained(seed=0, order="cost", **config):
    card = {"order": order, "suite": "toy", "planner": "pooling-ms", "seed": seed, "updates": 0}
    return AutoShard(net(seed), {**card, "config": asdict(Config(**config))})


def episodes(learner, seed=0):
    """Episodes of one actor with the weights of now."""
    actor = Actor(learner.stage, learner.config.num_envs)
    return actor.play(Request(seed, 0, packed(net=learner.net))).episodes


@pytest.mark.parametrize(("objective", "cost_model"), [("kernel", True), ("iteration", True), ("kernel", False)])
def test_it_learns_the_optimum_of_a_toy(tmp_path, objective, cost_model):
    """Tables of 1, 2, 3 and 4 ms on two devices: 5 | 5 is the one best split."""
    suite = toy_suite(objective=objective)
    if not cost_model:  # tables of one size, so their order is the task's
        suite = replace(suite, toys=suite.toys[:1])
    learner = Learner(suite, Config(num_envs=32, batch=8, learning_rate=1e-3, cost_model=cost_model), seed=0)
    progress = train(learner, tmp_path, Schedule(iterations=40, validate_every=5, patience=6, checkpoint_seconds=1e9))
    assert progress.best == 1.0
    solver = load(tmp_path / "best.safetensors")
    for task in learner.suite.tasks():
        assert score(task, solver(task, PoolingMs()), PoolingMs()).makespan == 5


def test_actors_lag_and_the_lag_is_told():
    """Two updates an iteration: weights of the iteration before, one more update behind at each batch."""
    learner = Learner(toy_suite(), replace(SMALL, lag=1), seed=0)
    assert [learner.iterate()["lag"] for _ in range(3)] == [0.5, 2.5, 2.5]
    assert [learner.iterate()["updates"] for _ in range(2)] == [8, 10]
    exact = Learner(toy_suite(), replace(SMALL, lag=0), seed=0)
    assert [exact.iterate()["lag"] for _ in range(2)] == [0.5, 0.5]


def test_actors_play_with_the_weights_of_then():
    learner = Learner(toy_suite(), replace(SMALL, batch=8, lag=2), seed=0)
    weights = []
    for _ in range(5):
        weights.append({name: value.clone() for name, value in learner.net.state_dict().items()})
        learner.iterate()
        assert same(learner.crew.place.actor.net.state_dict(), weights[max(0, len(weights) - 3)])


def test_importance_weights_are_one_without_lag():
    learner = Learner(toy_suite(), replace(SMALL, batch=8, lag=0), seed=0)
    told = [learner.iterate() for _ in range(3)]
    assert [one["rho"] for one in told] == pytest.approx([1, 1, 1], abs=1e-4)
    assert told[0]["steps"] == 8 * 4 and told[0]["simulator_calls"] > 0
    late = Learner(toy_suite(), replace(SMALL, batch=8, lag=2, learning_rate=0.01), seed=0)
    assert abs([late.iterate()["rho"] for _ in range(4)][-1] - 1) > 1e-4


def test_seeds_decide_and_reproduce():
    one, same_seed, other = (Learner(toy_suite(), SMALL, seed) for seed in (0, 0, 1))
    told = [[learner.iterate() for _ in range(2)] for learner in (one, same_seed, other)]
    assert told[0] == told[1] != told[2]
    assert same(one.state(), same_seed.state()) and not same(one.state(), other.state())


@pytest.mark.parametrize("lag", [0, 3])
def test_a_restored_learner_goes_on_to_the_bit(lag):
    whole, first = (Learner(toy_suite(), replace(SMALL, lag=lag), 0) for _ in range(2))
    for _ in range(4):
        whole.iterate()
    first.iterate()
    first.iterate()
    state = first.state()
    first.iterate()  # a state is a copy
    second = Learner(toy_suite(), replace(SMALL, lag=lag), 0)
    second.restore(state)
    second.iterate()
    second.iterate()
    assert same(second.state(), whole.state())


def test_tasks_of_different_lengths_are_played_to_their_ends():
    short, long = toy_suite((1, 2)), toy_suite((1, 2, 3, 4, 5, 6))  # the short ones begin again and end once more
    learner = Learner(replace(short, toys=short.toys + long.toys), SMALL, seed=0)
    played = episodes(learner)
    lengths = played.alive.sum(0).tolist()
    assert set(lengths) == {2, 6} and len(played.alive) == 6
    assert ((played.rewards != 0).sum(0) <= 1).all() and (played.rewards[played.alive == 0] == 0).all()
    for b, length in enumerate(lengths):  # the share placed, which only grows within an episode
        shares = played.shown[: int(length), b, -1]
        np.testing.assert_allclose(shares, np.arange(length) / length, rtol=1e-6)
    assert np.isfinite(learner.iterate()["loss"])


def test_the_actors_keep_to_the_mask():
    """Each device has room for two of four tables."""
    learner = Learner(toy_suite(room=2 * 100 * 16 * 2), replace(SMALL, num_envs=64), seed=0)
    played = episodes(learner)
    assert (played.mask.gather(-1, played.actions[..., None]) == 1).all()
    assert (played.rewards.sum(0) > 0).all()  # balance of a plan that fits


@pytest.mark.parametrize(("key", "cost_model"), [("dlrm-10x4", True), ("dlrm-10x4", False), ("metasyn-80x8", True)])
def test_the_solver_sees_what_the_actors_see(key, cost_model):
    """Each action of its plan has the highest of the scores that actors compute in the environment."""
    learner = Learner(suites.get(key), replace(SMALL, cost_model=cost_model), seed=0)
    learner.iterate()
    planner = simulators.make(learner.suite.planner)
    envs = ShardingVectorEnv(learner.stage.env(planner), 1)
    for task in learner.suite.tasks("train")[:2]:
        plan, memory, sums = learner.solver()(task, planner), None, torch.zeros(1, task.num_devices, TABLE)
        shown, _ = envs.reset(options={"task": task})
        for t in dealt(learner.order, task, planner):
            row = torch.tensor(shown["table"] if cost_model else shown)
            costs = torch.tensor(
                shown["devices"][..., 2] if cost_model else np.zeros((1, task.num_devices), np.float32)
            )
            with torch.no_grad():
                tables, states, memory = learner.net.states(row[None], memory)
                scores = learner.net.scores(states[0], sums, costs)[0].masked_fill(
                    ~torch.tensor(envs.action_masks()[0]), -torch.inf
                )
            action = plan.device[t]
            assert scores[action] >= scores.max() - 1e-5
            sums[0, action] += tables[0, 0]
            shown, *_ = envs.step(np.array([action]))


def dealt(order, task, planner):
    """Tables as an environment of that order deals them."""
    by = simulators.single_costs(planner, task) if order == "cost" else table_bytes(task)
    return np.argsort(-by, kind="stable").tolist()


def test_the_ablation_asks_the_planner_nothing():
    task = suites.get("metasyn-80x8").tasks("val")[0]
    solver = untrained(cost_model=False, order="size")
    assert solver.track == "blind" and untrained().track == "search"
    assert solver(task, Unseen(ROOFLINE)) == solver(task, ROOFLINE)
    learner = Learner(toy_suite(), replace(SMALL, cost_model=False), seed=0)
    assert learner.order == "size" and (episodes(learner).costs == 0).all()
    with_costs = Learner(toy_suite(), SMALL, seed=0)
    assert with_costs.order == "cost" and (episodes(with_costs).costs[1:].sum(-1) > 0).all()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("objective", ["kernel", "iteration"])
def test_it_does_not_matter_how_devices_are_numbered(seed, objective):
    """Memory tells them apart, but all have room enough, except one that has room for nothing."""
    flat = simulators.make("roofline:h100-v1")  # no two devices share a link
    rng = np.random.default_rng(seed)
    tables = make_pool(rows=rng.integers(100, 10**6, 20), dim=16, pooling=rng.exponential(9, 20))
    room = int(tables.weight_bytes.sum())
    memory, order = np.array([room, room + 1, room + 2, room + 3, 1]), rng.permutation(5)
    most = []
    for sign in (1, -1):  # some policies only ever stay on one device; then their opposite does not
        solver = untrained(seed)
        solver.net.policy[-1].weight.data *= sign
        tasks = [Task(tables, tuple(m.tolist()), objective=objective) for m in (memory, memory[order])]
        placed = [np.array(solver(task, flat).device) for task in tasks]
        makespans = [float(flat.latency(tasks[0], device).makespan(objective)) for device in placed]
        shards = [sorted(tuple(np.flatnonzero(device == d)) for d in range(5)) for device in placed]
        assert makespans[0] == makespans[1] and shards[0] == shards[1]
        most.append(np.bincount(placed[0]).max())
    assert min(most) < 20


def test_the_network_scores_devices_in_any_order():
    network, g = net(), torch.Generator().manual_seed(0)
    states, sums, costs = (torch.randn(*shape, generator=g) for shape in ((5, 64), (5, 6, TABLE), (5, 6)))
    order = torch.randperm(6, generator=g)
    scores = network.scores(states, sums, costs)
    torch.testing.assert_close(network.scores(states, sums[:, order], costs[:, order]), scores[:, order])


@pytest.mark.parametrize("cost_model", [True, False])
def test_plans_fit_or_the_table_is_named(cost_model):
    order = "cost" if cost_model else "size"
    task = suites.get("tight-80x8").tasks("val")[0]
    solved = 0
    for seed in range(6):
        try:
            plan = untrained(seed, cost_model=cost_model, order=order)(task, ROOFLINE)
        except InfeasibleTask as error:
            assert "bytes" in str(error)
        else:
            solved += 1
            assert (device_bytes(task, np.array(plan.device)) <= task.capacity).all()
    assert solved or cost_model
    with pytest.raises(InfeasibleTask, match=r"giant.* too few"):
        giant = make_pool(rows=[10, 10_000, 10], dim=16, name=("a", "giant", "c"))
        untrained(cost_model=cost_model)(Task(giant, memory=(100_000, 90_000)), ROOFLINE)


def test_any_number_of_tables_and_devices():
    tables = make_pool(rows=100, dim=16, pooling=np.linspace(1, 9, 37))
    for devices in (1, 2, 5, 40):
        plan = untrained()(Task(tables, (10**9,) * devices), ROOFLINE)
        assert len(plan.device) == 37 and max(plan.device) < devices


def test_a_saved_policy_plans_the_same(tmp_path):
    learner = Learner(suites.get("dlrm-10x2"), SMALL, seed=3)
    learner.iterate()
    solver, task = learner.solver(), learner.suite.tasks("val")[0]
    before = solver(task, ROOFLINE)
    solver.save(tmp_path / "a.safetensors")
    learner.iterate()
    loaded = load(tmp_path / "a.safetensors")
    assert loaded(task, ROOFLINE) == solver(task, ROOFLINE) == before  # nor does it learn on
    assert loaded.card == solver.card and repr(loaded.net) == repr(solver.net) != repr(learner.net)
    assert same(loaded.net.state_dict(), solver.net.state_dict())


def test_files_that_hold_something_else_are_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    untrained().save(path)
    refuses_broken(path, load)
    save_tensors(path, {"weight": torch.ones(1)}, {"kind": "autoshard"})
    with pytest.raises(CorruptFile, match="AutoShard's network"):
        load(path)
    save_tensors(path, net().state_dict(), {"kind": "dreamshard"})
    with pytest.raises(CorruptFile, match="dreamshard, expected a autoshard"):
        load(path)


def test_what_it_cannot_do_is_refused(tiny_task):
    with pytest.raises(InvalidTask, match="does not split"):
        Learner(suites.get("tightmix-80x8-split"), SMALL, 0)
    for wrong in ({"batch": 3}, {"batch": 0}, {"lag": -1}):
        with pytest.raises(InvalidTask, match="multiple of batch"):
            replace(SMALL, **wrong)
    with pytest.raises(InvalidTask, match="multiple of portion"):
        replace(SMALL, portion=3)
    with pytest.raises(InvalidTask, match="0 or more"):
        replace(SMALL, actors=-1)
    with pytest.raises(UnknownName, match="pooling"):
        Learner(toy_suite(), replace(SMALL, drop="colour"), 0)

    class OnlyLatency:
        id = "only-latency"

        def latency(self, task, placements):
            return ROOFLINE.latency(task, placements)

    with pytest.raises(SimulatorError, match="only-latency"):
        untrained()(tiny_task, OnlyLatency())


def test_the_head_is_the_papers_on_state_action_and_their_product():
    network, g = net(), torch.Generator().manual_seed(0)
    states, sums, costs = (torch.randn(*shape, generator=g) for shape in ((5, 64), (5, 6, TABLE), (5, 6)))
    actions = torch.cat([sums, network.cost(costs[..., None])], -1)
    repeated = states[:, None].expand(5, 6, 64)
    by_hand = network.policy(network.first(torch.cat([repeated, actions, repeated * actions], -1)))[..., 0]
    torch.testing.assert_close(network.scores(states, sums, costs), by_hand)
    widths = [tuple(m.weight.shape) for m in (network.first, *network.policy[1::2])]
    assert widths == [(128, 192), (128, 128), (64, 128), (1, 64)]
