from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym import Task, simulators, suites
from shard_gym.errors import CorruptFile, InfeasibleTask, InvalidTask, UnknownName
from shard_gym.memory.usage import device_bytes
from shard_gym.results.evaluate import run, score
from tests.env_helpers import PoolingMs
from tests.pool_helpers import fp16_pool as make_pool

torch = pytest.importorskip("torch")
from shard_gym_agents.learners import rollouts  # noqa: E402
from shard_gym_agents.learners.dreamshard import (  # noqa: E402
    Config,
    CostNet,
    DreamShard,
    Learner,
    Nets,
    composed,
    cost_loss,
    load,
    log_policy,
    play,
    worth,
)
from shard_gym_agents.learners.learner import save_tensors  # noqa: E402
from shard_gym_agents.learners.rollouts import GROUPS, TaskTensors, without  # noqa: E402
from tests.learner_helpers import assert_reproducible  # noqa: E402

SCALING = np.stack([np.zeros(21), np.ones(21)])
SCALING[:, 1:3] = [[100, 3], [50, 2]]  # rows and pooling of the tables below
SMALL = Config(cost_updates=20, policy_updates=10, episodes=8, tasks=3, learning_rate=4e-3, horizon=8)


def toy(pooling, devices=2, room=99.0, **settings):
    """Tables that cost as many milliseconds as their pooling; `room` in tables a device."""
    pool = make_pool(rows=[100] * len(pooling), dim=16, pooling=pooling)
    return Task(pool, (int(room * 3200),) * devices, **settings)


@dataclass(frozen=True)
class ToySuite:
    """Tasks whose best makespans are known."""

    name: str = "Toy"
    planner: str = "pooling-ms"
    loads: tuple = ((1, 2, 3, 4, 5, 5), (5, 4, 3, 3, 3, 2), (4, 3, 3, 2, 2, 2))
    best: tuple = (10, 10, 8)
    objective: str = "kernel"
    order: str = "cost"
    split_action: bool = False

    def tasks(self, split):
        return tuple(toy(load) for load in self.loads)

    def feature_scaling(self):
        return SCALING[0], SCALING[1]


@pytest.fixture
def suite(monkeypatch):
    monkeypatch.setitem(simulators.SIMULATORS, "pooling-ms", PoolingMs)
    return ToySuite()


def fresh(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Nets(SCALING)


def relative(solver, suite):
    """Mean makespan over the best one."""
    made = [score(task, solver(task, None), PoolingMs()).makespan for task in suite.tasks("train")]
    return np.mean(np.array(made) / suite.best)


@pytest.mark.parametrize("head", [True, False])
def test_it_learns_the_best_plans_of_a_toy(suite, head):
    learner = Learner(suite, replace(SMALL, head=head), seed=2)
    assert relative(learner.solver(), suite) > 1.5
    for _ in range(SMALL.horizon):
        told = learner.iterate()
    assert relative(learner.solver(), suite) < 1.02
    assert told["cost_loss"] < 0.05 and abs(told["estimate"] * learner.unit / told["makespan"] - 1) < 0.1
    assert told["reward"] > -1.0  # better than the first plans


def test_with_the_sign_of_rewards_flipped_it_learns_the_worst(suite, monkeypatch):
    monkeypatch.setattr(
        rollouts, "advantages", lambda rewards, divide, right=rollouts.advantages: -right(rewards, divide)
    )
    learner = Learner(suite, SMALL, seed=0)
    assert relative(learner.solver(), suite) < 1.3
    for _ in range(SMALL.horizon // 2):
        learner.iterate()
    assert relative(learner.solver(), suite) > 1.3


def test_the_cost_loss_by_hand():
    cost = CostNet()
    with torch.no_grad():
        for parameter in cost.parameters():
            parameter.zero_()
        cost.bias += torch.tensor([1.0, 2.0, 3.0])
        cost.makespan_head[-1].bias += 7.0
    plans = {
        "placement": torch.tensor([[0, 1]]),
        "phases": torch.tensor([[[1.0, 2.0, 5.0], [0.0, 2.0, 3.0]]]),
        "makespan": torch.tensor([10.0]),
    }
    loss = cost_loss(cost, TaskTensors.of([toy([1, 2])], SCALING), plans)
    assert loss.item() == 2**2 + 1**2 + 3**2
    slow = toy([1, 2], speed=(1.0, 0.5))  # a device of half the speed: forward 2, comm 2, backward 6
    plans["phases"] = torch.tensor([[[1.0, 2.0, 3.0], [2.0, 2.0, 6.0]]])
    assert cost_loss(cost, TaskTensors.of([slow], SCALING), plans).item() == 3**2


def test_sums_of_tables_are_what_the_heads_see():
    nets, board = fresh(), TaskTensors.of([toy([1, 2, 3])], SCALING)
    tables = nets.cost.table(board.features)[0]
    sums = torch.stack([tables[0] + tables[2], tables[1]])
    phases, makespan = nets.cost.phases(sums, board.slowness[0]), nets.cost.makespan(sums, board.slowness[0])
    by_hand = nets.cost.makespan_head(torch.maximum(sums[0], sums[1]))
    assert makespan.item() == pytest.approx(by_hand.item())
    target = {"placement": torch.tensor([[0, 1, 0]]), "phases": phases[None], "makespan": makespan[None]}
    assert cost_loss(nets.cost, board, target).item() == pytest.approx(0, abs=1e-10)


def test_the_baseline_by_hand():
    rewards = torch.tensor([[-1.0, -3.0], [-10.0, -10.0]])
    assert rollouts.advantages(rewards, divide=False).tolist() == [[1, -1], [0, 0]]
    half = 2**-0.5  # the deviation of -1 and -3 is sqrt(2)
    assert rollouts.advantages(rewards, divide=True).flatten().tolist() == pytest.approx([half, -half, 0, 0])


def test_the_policy_loss_by_hand():
    log = torch.log(torch.tensor([[[0.25, 0.75], [0.5, 0.5]], [[0.5, 0.5], [0.1, 0.9]]]))
    actions, real = torch.tensor([[0, 1], [1, 0]]), torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    loss = rollouts.reinforce_loss(log, actions, torch.tensor([2.0, -1.0]), real, entropy=0.1)
    taken = [-2 * (np.log(0.25) + np.log(0.5)), np.log(0.5)]  # the last step is padding
    entropies = [-0.25 * np.log(0.25) - 0.75 * np.log(0.75) + np.log(2), np.log(2)]
    assert loss.item() == pytest.approx(np.mean(taken) - 0.1 * np.mean(entropies))


def test_the_loss_sees_the_policy_that_drew_and_its_masks():
    board = TaskTensors.of([toy([5, 4, 3, 2, 1], devices=3, room=2), toy([1, 2], devices=3, room=2)], SCALING)
    nets = fresh()
    played = play(nets, board, 0, None)
    log = log_policy(nets.policy, played)
    assert torch.equal(log.argmax(-1)[0], played.rollout.actions[0])
    assert not played.rollout.legal[0].all() and (log[~played.rollout.legal] < -1e8).all()
    assert torch.allclose(log.exp().sum(-1), torch.ones(2, 5))


def test_phases_add_up_to_the_makespan_of_the_objective():
    phases = torch.tensor([[4.0, 1.0, 2.0], [3.0, 2.0, 2.5]])  # forward, comm, backward of two devices
    assert composed(phases, "kernel").item() == 6
    assert composed(phases, "iteration").item() == 4 + 2 * 2 + 2.5


def test_no_device_is_drawn_that_has_no_room():
    board = TaskTensors.of([toy([1] * 6, devices=3, room=2)], SCALING).take(torch.zeros(50, dtype=torch.int64))
    played = play(fresh(), board, 0, torch.Generator().manual_seed(0))
    assert (played.rollout.placing.free >= 0).all()
    assert len(played.rollout.actions.unique(dim=0)) > 10  # of the 90 there are


def test_where_nothing_fits_all_devices_count_and_the_reward_is_below_every_feasible_one():
    tasks = [toy([1] * 5, room=2), toy([1] * 5, room=9)]
    nets = fresh()
    played = play(nets, TaskTensors.of(tasks, SCALING), 0, None)
    assert played.rollout.legal[0, 4].tolist() == [True, True]
    rollout = play(nets, TaskTensors.of([tasks[1]] * 2, SCALING), 0, None).rollout
    everywhere = replace(played, tasks=played.tasks.take(torch.tensor([1, 1])), rollout=rollout)
    for objective in ("", "kernel", "iteration"):  # the head for whole plans, or phases
        assert worth(nets.cost, played, objective)[0] < worth(nets.cost, everywhere, objective).min()


def test_the_table_that_is_placed_counts():
    """Added before a linear head it would move all scores alike."""
    policy, generator = fresh().policy, torch.Generator().manual_seed(1)
    sums, phases = torch.randn(2, 32, generator=generator), torch.zeros(2, 3)
    table = torch.randn(32, generator=generator)
    moved = policy(sums + table, phases) - policy(sums, phases)
    assert abs(moved[0] - moved[1]).item() > 1e-3


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.permutations(range(4)))
def test_numbers_of_devices_do_not_matter(seed, shuffle):
    rng = np.random.default_rng(seed)
    tables = make_pool(rows=rng.integers(10, 200, 9), dim=16, pooling=rng.exponential(3, 9))
    memory = (tables.weight_bytes.sum() * rng.choice([0.4, 0.6, 1.0], 4)).astype(int)
    speed = rng.choice([0.5, 1.0], 4)
    solver = DreamShard(fresh(seed))
    task = Task(tables, tuple(memory), speed=tuple(speed))
    other = Task(tables, tuple(memory[shuffle]), speed=tuple(speed[shuffle]))
    plan, moved = np.array(solver(task, None).device), np.array(solver(other, None).device)
    assert (device_bytes(task, plan) <= task.capacity).all()
    kinds = np.stack([memory, speed])
    assert np.array_equal(kinds[:, plan], kinds[:, shuffle][:, moved])
    assert score(task, solver(task, None), PoolingMs()) == score(other, solver(other, None), PoolingMs())


def test_tasks_side_by_side_are_planned_as_alone():
    tasks, nets = [toy([3, 1, 2]), toy([5, 4, 3, 2, 1, 1]), toy([2, 2])], fresh()
    played = play(nets, TaskTensors.of(tasks, SCALING), 0, None)
    for task, together in zip(tasks, played.rollout.devices().tolist(), strict=True):
        assert tuple(together[: task.num_tables]) == DreamShard(nets)(task, None).device


def test_the_planner_is_asked_about_the_collected_plans_only(suite):
    learner = Learner(suite, replace(SMALL, collect=7, cost_updates=1, policy_updates=2), seed=0)
    told = learner.iterate()
    assert told["simulator_calls"] == learner.planner.calls == 7 == len(learner.plans["row"])
    steps = [len(suite.loads[row]) for row in learner.plans["row"].tolist()]
    assert told["steps"] == sum(steps)
    for row, placement, makespan in zip(*(learner.plans[c] for c in ("row", "placement", "makespan")), strict=True):
        load = np.bincount(placement[: len(suite.loads[row])], suite.loads[row], minlength=2)
        assert makespan.item() == load.max()
    learner.iterate()
    assert len(learner.plans["row"]) == 14


def test_the_buffer_forgets_the_oldest(suite):
    learner = Learner(suite, replace(SMALL, collect=4, buffer=6, cost_updates=0, policy_updates=0), seed=0)
    learner.iterate()
    first = learner.plans["placement"].clone()
    learner.iterate()
    assert len(learner.plans["row"]) == 6 and torch.equal(learner.plans["placement"][:2], first[2:])


def test_the_learning_rate_falls_to_nothing(suite):
    learner = Learner(suite, replace(SMALL, horizon=4, cost_updates=1, policy_updates=1), seed=0)
    rates = []
    for _ in range(4):
        learner.iterate()
        rates.append([o.param_groups[0]["lr"] for o in (learner.cost_optimizer, learner.policy_optimizer)])
    assert np.allclose(rates, 4e-3 * np.array([[1, 1], [0.75, 0.75], [0.5, 0.5], [0.25, 0.25]]))


def test_seeds_reproduce_and_a_restored_learner_goes_on_as_if_nothing_had_happened(suite):
    config = replace(SMALL, cost_updates=5, policy_updates=3)
    assert_reproducible(lambda seed: Learner(suite, config, seed))


def test_a_solver_does_not_change_when_its_learner_goes_on(suite):
    learner = Learner(suite, SMALL, seed=0)
    solver = learner.solver()
    before = solver.nets.policy.head.weight.clone()
    learner.iterate()
    assert torch.equal(solver.nets.policy.head.weight, before)
    assert not torch.equal(learner.nets.policy.head.weight, before)


def test_a_saved_policy_plans_as_before(tmp_path):
    solver, task = DreamShard(fresh(5)), toy([5, 4, 3, 2, 1, 1, 6], devices=3)
    solver.save(tmp_path / "policy.safetensors")
    loaded = load(tmp_path / "policy.safetensors")
    assert loaded(task, None) == solver(task, None)
    assert np.array_equal(loaded.nets.scaling, SCALING)


def test_samples_are_other_plans_and_come_again():
    solver, task = DreamShard(fresh()), toy([5, 4, 3, 2, 1, 1], devices=3)
    drawn = solver.samples(task, None, 50, seed=1)
    assert drawn.shape == (50, 6) and len(np.unique(drawn, axis=0)) > 10
    assert np.array_equal(drawn, solver.samples(task, None, 50, seed=1))
    assert not np.array_equal(drawn, solver.samples(task, None, 50, seed=2))


def test_damaged_and_other_files_are_refused(tmp_path):
    path = tmp_path / "policy.safetensors"
    DreamShard(fresh()).save(path)
    content = bytearray(path.read_bytes())
    path.write_bytes(content[:-100])
    with pytest.raises(CorruptFile, match="whole file"):
        load(path)
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptFile, match="damaged"):
        load(path)
    save_tensors(path, {"x": torch.zeros(3)}, {"kind": "dreamshard"})
    with pytest.raises(CorruptFile, match="another network"):
        load(path)


def with_rows(rows):
    return make_pool(rows=rows, dim=16, pooling=[5, 4, 3, 2])


def test_networks_go_without_the_features_that_are_dropped(suite, tmp_path):
    """Rows count for sizes too, but there is room for all here."""
    config = replace(SMALL, drop="rows", horizon=1)
    learner, unlike = (Learner(suite, replace(config, drop=drop), seed=0) for drop in ("rows", "pooling"))
    told = learner.iterate()
    assert all(map(np.isfinite, told.values()))
    learner.solver().save(tmp_path / "policy.safetensors")
    for solver, blind in ((load(tmp_path / "policy.safetensors"), True), (unlike.solver(), False)):
        shown = [
            TaskTensors.of([Task(with_rows(rows), (10**9,) * 2)], solver.nets.scaling.numpy())
            for rows in ([100] * 4, [10, 400, 20, 90])
        ]
        seen, other = (tasks.features[..., :3] for tasks in shown)  # sizes and uses tell of rows, too
        assert torch.allclose(seen, other, atol=1e-20) == blind and seen.isfinite().all()


def test_beyond_the_training_tables_features_count_as_at_the_edge(suite):
    solver = Learner(suite, SMALL, seed=0).solver()  # trained on poolings of 1 to 5
    far, edge = (solver.tensors(toy([3, pooling, 0.5])) for pooling in (50, 5))
    assert far.features[0, :, 2].tolist() == edge.features[0, :, 2].tolist() == [0, 1, -1]


def test_every_group_of_features_can_be_dropped_and_others_are_refused():
    hidden = [without(SCALING, group)[1] > 1e20 for group in GROUPS]
    assert np.array_equal(np.sum(hidden, axis=0), np.ones(21))  # each feature is in one group
    assert [h.sum() for h in hidden] == [1, 1, 1, 1, 17]
    assert np.array_equal(without(SCALING, ""), SCALING)
    with pytest.raises(UnknownName, match="distribution"):
        Config(drop="uses")


def test_a_policy_without_costs_sees_none_also_when_it_is_loaded(tmp_path):
    with torch.random.fork_rng():
        nets = Nets(SCALING, costs_shown=False)
    DreamShard(nets).save(tmp_path / "policy.safetensors")
    generator = torch.Generator().manual_seed(0)
    sums, phases = torch.randn(2, 32, generator=generator), torch.randn(2, 3, generator=generator)
    for policy, sees in ((load(tmp_path / "policy.safetensors").nets.policy, False), (fresh().policy, True)):
        assert torch.equal(policy(sums, phases), policy(sums, 2 * phases)) != sees


def test_orders_by_hand():
    costs, size = torch.tensor([1.0, 2.0, 3.0, 0.0]), torch.tensor([4, 0, 2, 0])  # means 1.5 of both
    assert rollouts.leaning(costs, size, 0).tolist() == pytest.approx([2 / 3, 4 / 3, 2, 0])
    assert rollouts.leaning(costs, size, 0.5).tolist() == pytest.approx([4 / 3, 4 / 3, 2, 0])
    assert rollouts.leaning(costs, size, np.inf).tolist() == pytest.approx([8 / 3, 0, 4 / 3, 0])


def test_a_dead_end_of_cost_order_is_tried_again_in_others():
    """A policy that puts the small ones apart leaves no room for the large one, if that comes last."""
    pool = make_pool(rows=[100, 100, 300], dim=16, pooling=[1, 1, 1])
    task = Task(pool, memory=(9600, 6400))
    dead_ends = 0
    for seed in range(10):
        plan = DreamShard(fresh(seed))(task, None)
        assert (device_bytes(task, np.array(plan.device)) <= task.capacity).all()
        dead_ends += bool((play(fresh(seed), TaskTensors.of([task], SCALING), 0, None).rollout.placing.free < 0).any())
    assert dead_ends


def test_what_fits_nowhere_is_named():
    with pytest.raises(InfeasibleTask, match="too few"):
        DreamShard(fresh())(toy([1] * 5, room=2), None)


def test_it_is_blind_and_serves_any_number_of_devices():
    task = suites.get("metasyn-80x8").tasks("val")[0]
    done = run(DreamShard(fresh()), PoolingMs(), task)
    assert done.error is None and done.simulator_calls == 0
    assert len(DreamShard(fresh())(toy(range(1, 30), devices=7), None).device) == 29


@pytest.mark.parametrize("key", ["metasyn-80x8", "hetero-80x8", "tightmix-80x8", "mixed-10to59x4"])
def test_an_iteration_on_a_suite(key):
    config = Config(collect=3, cost_updates=2, policy_updates=1, tasks=1, episodes=2)
    learner = Learner(suites.get(key), config, seed=0)
    told = learner.iterate()
    assert all(map(np.isfinite, told.values()))
    assert learner.lean == (0.25 if key.startswith("tight") else 0)
    assert (learner.plans["phases"][..., 1].abs().sum() == 0) == (key == "metasyn-80x8")  # kernels do not communicate


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(InvalidTask, match="baseline"):
        Config(episodes=1)
