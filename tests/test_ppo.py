import subprocess
import sys
from dataclasses import asdict, replace

import numpy as np
import pytest

pytest.importorskip("sb3_contrib")
import torch

from shard_gym import Task, simulators, suites
from shard_gym.envs.env import ShardingEnv
from shard_gym.errors import CorruptFile, InfeasibleTask, InvalidTask, SimulatorError, UnknownName
from shard_gym.memory.usage import device_bytes, table_bytes
from shard_gym.results.evaluate import Unseen, score
from shard_gym.task.links import Links
from shard_gym_agents.learners import ppo
from shard_gym_agents.learners.learner import save_tensors
from shard_gym_agents.learners.ppo import Config, Learner
from shard_gym_agents.learners.ppo_policy import DeviceNet, DevicePolicy
from shard_gym_agents.learners.training import Schedule, train
from shard_gym_agents.solvers.greedy import CostGreedy
from tests.env_helpers import PoolingMs, Slow
from tests.learner_helpers import one_thread, refuses_broken, same, toy_planner, toy_suite  # noqa: F401
from tests.pool_helpers import fp16_pool as make_pool

pytestmark = pytest.mark.usefixtures("toy_planner", "one_thread")
SMALL = Config(num_envs=8, minibatches=2, epochs=2, hidden=16)
ROOFLINE = simulators.make("roofline:rtx2080ti-x4-v1")
BEYOND_GREEDY = (3, 3, 2, 2, 2)  # ms: dearest first it takes 7, at best 6


def net(seed=0, loads=7, **settings):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return DeviceNet(np.stack(suites.get("dlrm-50x4").feature_scaling()), loads, **settings)


def untrained(seed=0, order="cost", **settings):
    card = {"order": order, "suite": "toy", "planner": ROOFLINE.id, "seed": seed, "config": asdict(Config())}
    return DevicePolicy(net(seed, **settings), card)


def learns(learner, best, iterations):
    """True if its plans of all tasks get as good as that, in ms."""
    for _ in range(iterations):
        learner.iterate()
        solver = learner.solver()
        if all(score(t, solver(t, PoolingMs()), PoolingMs()).makespan == best for t in learner.suite.tasks()):
            return True
    return False


@pytest.mark.parametrize(("algorithm", "residual"), [("maskable", True), ("maskable", False), ("ppo", True)])
def test_it_learns_to_do_better_than_greedy(algorithm, residual):
    config = Config(algorithm, num_envs=32, minibatches=2, learning_rate=1e-2, residual=residual, sharpness=1.0)
    learner, greedy = Learner(toy_suite(BEYOND_GREEDY), config, seed=0), CostGreedy()
    task = learner.suite.tasks()[0]
    assert score(task, greedy(task, PoolingMs()), PoolingMs()).makespan == 7
    assert learns(learner, best=6, iterations=60)


@pytest.mark.parametrize("algorithm", ["recurrent", "memoryless"])
def test_without_a_look_at_devices_the_fast_one_is_found(algorithm):
    """The other one takes ten times as long; chance alone begins with the same device, whichever that is."""
    suite = toy_suite()
    for speed in ((0.1, 1.0), (1.0, 0.1)):
        uneven = replace(suite, toys=tuple(replace(toy, speed=speed) for toy in suite.toys))
        learner = Learner(uneven, replace(SMALL, algorithm=algorithm, num_envs=16, learning_rate=1e-2), seed=0)
        assert learns(learner, best=10, iterations=60)
        assert learner.solver().track == "blind"


def test_a_run_in_a_folder(tmp_path):
    progress = train(Learner(toy_suite(), SMALL, 0), tmp_path, Schedule(iterations=2, validate_every=1))
    solver = ppo.load(tmp_path / "best.safetensors")
    for task in toy_suite().tasks():
        assert score(task, solver(task, PoolingMs()), PoolingMs()).makespan == 5 * progress.best


@pytest.mark.parametrize("key", ["dlrm-50x4", "metasyn-80x8"])
def test_it_begins_as_cost_greedy(key):
    suite = suites.get(key)
    planner, solver = simulators.make(suite.planner), Learner(suite, replace(SMALL, num_envs=2), seed=0).solver()
    for task in suite.tasks("val")[:3]:
        ours, greedy = (score(task, solve(task, planner), planner).makespan for solve in (solver, CostGreedy()))
        assert ours == pytest.approx(greedy, rel=0.01)
    assert solver.track == "search"


def test_without_the_residual_it_begins_elsewhere():
    task = suites.get("dlrm-50x4").tasks("val")[0]
    makespans = [
        score(task, solve(task, ROOFLINE), ROOFLINE).makespan for solve in (untrained(residual=False), CostGreedy())
    ]
    assert makespans[0] > 1.1 * makespans[1]


@pytest.mark.parametrize(("key", "order"), [("dlrm-10x4", "cost"), ("metasyn-80x8", "cost"), ("hetero-80x8", "size")])
def test_the_solver_sees_what_the_environment_shows(key, order):
    suite = suites.get(key)
    env = ShardingEnv(suite, observation="ahead", order=order)
    network = net(loads=env.observation_space["devices"].shape[1] - 4, residual=False)
    network.scaling[:] = torch.tensor(np.stack(suite.feature_scaling()))
    solver = replace(untrained(order=order), net=network)
    for task in suite.tasks("train")[:2]:
        plan, size = solver(task, simulators.make(suite.planner)), table_bytes(task)
        shown, info = env.reset(options={"task": task})
        by = size if order == "size" else simulators.single_costs(env.simulator, task)
        for t in np.argsort(-by, kind="stable").tolist():
            with torch.no_grad():
                scores = network.scores({name: torch.tensor(column)[None] for name, column in shown.items()})[0]
            best = scores[torch.tensor(info["action_mask"]) > 0].max()
            assert scores[plan.device[t]] >= best - 2e-5
            shown, *_, info = env.step(plan.device[t])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("objective", ["kernel", "iteration"])
def test_it_does_not_matter_how_devices_are_numbered(seed, objective):
    """Memory tells them apart, but all have room enough, except one that has room for nothing."""
    links = Links(port=1e8, latency_ms=0.1)  # flat: devices of groups are not alike
    rng = np.random.default_rng(seed)
    tables = make_pool(rows=rng.integers(100, 10**6, 20), dim=16, pooling=rng.exponential(9, 20))
    room = int(tables.weight_bytes.sum())
    memory, order = np.array([room, room + 1, room + 2, room + 3, 1]), rng.permutation(5)
    solver = untrained(seed, sharpness=1.0)
    tasks = [Task(tables, tuple(m.tolist()), objective=objective, links=links) for m in (memory, memory[order])]
    placed = [np.array(solver(task, ROOFLINE).device) for task in tasks]
    shards = [sorted(tuple(np.flatnonzero(device == d)) for d in range(5)) for device in placed]
    assert shards[0] == shards[1] and np.bincount(placed[0]).max() < 20
    makespans = [float(ROOFLINE.latency(tasks[0], device).makespan(objective)) for device in placed]
    assert makespans[0] == makespans[1]


def random_shown(seed, k=6, n=5):
    g = torch.Generator().manual_seed(seed)
    shown = {"table": torch.randn(n, 22, generator=g), "devices": torch.rand(n, k, 11, generator=g)}
    shown |= {"remaining": torch.rand(n, 5, generator=g), "ahead": torch.rand(n, k, generator=g)}
    return shown | {"action_mask": (torch.rand(n, k, generator=g) > 0.3).to(torch.int8)}


@pytest.mark.parametrize("seed", range(3))
def test_the_network_scores_devices_in_any_order(seed):
    network, shown, order = net(seed), random_shown(seed), torch.randperm(6, generator=torch.manual_seed(seed))
    turned = {name: shown[name][:, order] for name in ("devices", "ahead", "action_mask")}
    (scores, values), (turned_scores, turned_values) = network(shown), network(shown | turned)
    torch.testing.assert_close(turned_scores, scores[:, order])
    torch.testing.assert_close(turned_values, values)
    assert torch.equal(network.scores(shown), scores) and torch.isfinite(scores).all()


def test_full_devices_and_first_tables_give_numbers():
    shown = random_shown(0)
    shown["devices"][:, 0, :2] = torch.tensor([1.0, 0.0])
    shown["remaining"][0] = 1
    shown["devices"][0, :, :2] = torch.tensor([0.0, 1.0])
    scores, values = net()(shown)
    assert torch.isfinite(scores).all() and torch.isfinite(values).all()


def returns(learner):
    """Numbers of an iteration, but for calls: each process asks about a task once when it first comes."""
    return {name: value for name, value in learner.iterate().items() if name != "simulator_calls"}


@pytest.mark.parametrize("algorithm", ["maskable", "recurrent"])
def test_a_restored_learner_goes_on_to_the_bit(algorithm):
    config = replace(SMALL, algorithm=algorithm)
    whole, first, other = (Learner(toy_suite(), config, seed) for seed in (3, 3, 4))
    told = [returns(whole) for _ in range(4)]
    assert [returns(first), returns(first)] == told[:2] and returns(other) != told[0]
    state = first.state()
    first.iterate()  # a state is a copy
    second = Learner(toy_suite(), config, 3)
    second.restore(state)
    assert [returns(second), returns(second)] == told[2:]
    assert same(second.state(), whole.state()) and not same(whole.state(), other.state())


def test_an_iteration_tells_what_it_took_and_leaves_global_generators_alone():
    learner, before = Learner(toy_suite(), SMALL, 0), (np.random.get_state()[1].copy(), torch.get_rng_state())  # noqa: NPY002
    calls = learner.planner.calls
    told = learner.iterate()
    assert told["steps"] == 8 * 4 and told["simulator_calls"] == learner.planner.calls - calls > 8 * 4
    assert {"policy_gradient_loss", "value_loss", "entropy_loss", "approx_kl", "clip_fraction"} <= told.keys()
    assert (np.random.get_state()[1] == before[0]).all() and torch.equal(torch.get_rng_state(), before[1])  # noqa: NPY002


def test_the_learning_rate_falls_to_a_tenth():
    learner = Learner(toy_suite(), replace(SMALL, horizon=2, learning_rate=0.01), 0)
    rates = []
    for _ in range(4):
        learner.iterate()
        rates.append(learner.model.policy.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.01, 0.0055, 0.001, 0.001])


def test_samples_are_drawn_side_by_side_and_fit():
    """Each device has room for two of four tables."""
    solver, task = untrained(loads=1, sharpness=0.01), toy_suite(room=2 * 100 * 16 * 2).tasks()[0]
    plans = solver.samples(task, PoolingMs(), 64, seed=1)
    assert plans.shape == (64, 4) and (device_bytes(task, plans) <= task.capacity).all()
    assert len(np.unique(plans, axis=0)) == 6
    assert (solver.samples(task, PoolingMs(), 64, seed=1) == plans).all()
    assert (solver.samples(task, PoolingMs(), 64, seed=2) != plans).any()
    with pytest.raises(InvalidTask, match="1 or more"):
        solver.samples(task, PoolingMs(), 0)


def test_a_dead_end_is_tried_again_by_size_and_then_named():
    """The two small tables spread by cost, and the large one has no room."""
    rows, solver = [100, 100, 200], untrained(loads=1)
    task = Task(make_pool(rows=rows, dim=16, pooling=[9, 8, 1]), (2 * 100 * 32,) * 2, objective="kernel")
    assert len(set(solver(task, PoolingMs()).device[:2])) == 1
    giant = make_pool(rows=[10, 10_000, 10], dim=16, name=("a", "giant", "c"))
    with pytest.raises(InfeasibleTask, match=r"giant.* too few"):
        solver(Task(giant, memory=(100_000, 90_000)), PoolingMs())
    assert solver.samples(Task(giant, memory=(100_000, 90_000)), PoolingMs(), 5).shape == (0, 3)


def test_any_number_of_tables_and_devices():
    tables = make_pool(rows=100, dim=16, pooling=np.linspace(1, 9, 37))
    for devices in (1, 2, 5, 40):
        plan = untrained()(Task(tables, (10**9,) * devices), ROOFLINE)
        assert len(plan.device) == 37 and max(plan.device) < devices


@pytest.mark.parametrize("algorithm", ["recurrent", "memoryless"])
def test_the_table_policy_scores_as_sb3_does(algorithm):
    suite = suites.get("dlrm-10x4")
    learner = Learner(suite, replace(SMALL, algorithm=algorithm), seed=0)
    learner.iterate()
    env, solver = ShardingEnv(suite, order="size"), learner.solver()
    task, policy = suite.tasks("val")[0], learner.model.policy
    plan, (shown, _) = solver(task, Unseen(ROOFLINE)), env.reset(options={"task": task})
    actions, memory, start = [], None, np.ones(1, bool)
    for _ in range(task.num_tables):
        action, memory = policy.predict(shown[None], memory, episode_start=start, deterministic=True)
        actions.append(int(action[0]))
        shown, *_ = env.step(actions[-1])
        start[:] = False
    order = np.argsort(-table_bytes(task), kind="stable")
    assert [plan.device[t] for t in order] == actions
    with pytest.raises(InvalidTask, match="4 devices and cannot serve 2"):
        solver(suites.get("dlrm-10x2").tasks("val")[0], ROOFLINE)


def test_the_table_policy_keeps_to_memory():
    learner = Learner(toy_suite(room=2 * 100 * 16 * 2), replace(SMALL, algorithm="memoryless"), seed=0)
    for task in learner.suite.tasks():
        assert np.bincount(learner.solver()(task, None).device).tolist() == [2, 2]
    with pytest.raises(InfeasibleTask):
        learner.solver()(replace(task, memory=(3200, 3200 * 2)), None)


@pytest.mark.parametrize("algorithm", ["maskable", "recurrent", "memoryless"])
def test_a_saved_policy_plans_the_same(tmp_path, algorithm):
    learner = Learner(suites.get("dlrm-10x2"), replace(SMALL, algorithm=algorithm), seed=3)
    learner.iterate()
    solver, task = learner.solver(), learner.suite.tasks("val")[0]
    before = solver(task, ROOFLINE)
    solver.save(tmp_path / "a.safetensors")
    learner.iterate()
    loaded = ppo.load(tmp_path / "a.safetensors")
    assert loaded(task, ROOFLINE) == solver(task, ROOFLINE) == before  # nor does it learn on
    assert loaded.card == solver.card and repr(loaded.net) == repr(solver.net)
    assert same(loaded.net.state_dict(), solver.net.state_dict())


def test_a_policy_plans_without_sb3(tmp_path):
    untrained().save(tmp_path / "a.safetensors")
    program = (
        "import sys; sys.modules['stable_baselines3'] = None\n"
        "from shard_gym import simulators, suites\n"
        "from shard_gym_agents.learners import ppo\n"
        f"task, solver = suites.get('dlrm-10x4').tasks()[0], ppo.load({str(tmp_path / 'a.safetensors')!r})\n"
        f"print(len(solver(task, simulators.make({ROOFLINE.id!r})).device))\n"
        "try: ppo.Learner(suites.get('dlrm-10x4'), ppo.Config(), 0)\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    devices, told = done.stdout.splitlines()[:2]
    assert devices == "10" and told.startswith('pip install -e "') and told.endswith('[sb3]"')


def test_files_that_hold_something_else_are_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    untrained().save(path)
    refuses_broken(path, ppo.load)
    for kind, what in (("ppo", "device network"), ("ppo-table", "table network")):
        save_tensors(path, {"weight": torch.ones(1)}, {"kind": kind})
        with pytest.raises(CorruptFile, match=what):
            ppo.load(path)
    save_tensors(path, net().state_dict(), {"kind": "dreamshard"})
    with pytest.raises(CorruptFile, match="dreamshard, expected a ppo"):
        ppo.load(path)


def test_what_it_cannot_do_is_refused(tiny_task):
    with pytest.raises(InvalidTask, match="does not split"):
        Learner(suites.get("tightmix-80x8-split"), SMALL, 0)
    with pytest.raises(InvalidTask, match=r"recurrent PPO places whole tables.* maskable-ppo on core-80x8-allkinds"):
        Learner(suites.get("core-80x8-allkinds"), replace(SMALL, algorithm="recurrent"), 0)
    with pytest.raises(UnknownName, match="algorithm"):
        replace(SMALL, algorithm="a2c")
    for wrong in ({"minibatches": 3}, {"num_envs": 0}, {"epochs": 0}):
        with pytest.raises(InvalidTask, match="num_envs is a multiple"):
            replace(SMALL, **wrong)
    with pytest.raises(InvalidTask, match="sharpness is above 0"):
        replace(SMALL, sharpness=0.0)
    with pytest.raises(SimulatorError, match="slow"):
        untrained()(tiny_task, Slow())
    with pytest.raises(InvalidTask, match=r"7 measures of load.*pooling-ms has 1"):
        untrained()(tiny_task, PoolingMs())
