"""PPO and AutoShard over all kinds of sharding: what they see, what they learn, and what they refuse."""

from dataclasses import asdict, replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sb3_contrib")

from shard_gym import Task, make_pool, simulators  # noqa: E402
from shard_gym.envs.env import ShardingEnv  # noqa: E402
from shard_gym.errors import CorruptFile, InfeasibleTask, InvalidTask  # noqa: E402
from shard_gym.plan.violations import violations  # noqa: E402
from shard_gym.results.evaluate import score  # noqa: E402
from shard_gym.task.links import Links  # noqa: E402
from shard_gym_agents.learners import autoshard, ppo  # noqa: E402
from shard_gym_agents.learners.action_policy import ActionNet, ActionPolicy  # noqa: E402
from shard_gym_agents.learners.actions import DOES, FEATURES, FIRST, TOLD, aimed, reach_of, told  # noqa: E402
from shard_gym_agents.learners.autoshard import AutoShard  # noqa: E402
from shard_gym_agents.learners.autoshard_actors import Net  # noqa: E402
from shard_gym_agents.learners.training import Schedule, train  # noqa: E402
from tests.learner_helpers import ToySuite, one_thread, same  # noqa: E402, F401
from tests.test_env_kinds import NumbersMs, env_of, one_table  # noqa: E402
from tests.test_search_kinds import drawn  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread", "numbers")
ROOFLINE = simulators.make("roofline:h100-v1")
SCALING = np.stack([np.zeros(21), np.ones(21)])
CARD = {"order": "size", "suite": "toy", "planner": "numbers-ms", "seed": 0}
CONFIGS = {
    ppo: ppo.Config(num_envs=16, minibatches=2, epochs=2, hidden=16, residual=False, learning_rate=1e-2),
    autoshard: autoshard.Config(num_envs=16, batch=4, residual=False, learning_rate=3e-3, reward="dense"),
}
learners = pytest.mark.parametrize("module", CONFIGS, ids=["ppo", "autoshard"])


@pytest.fixture
def numbers(monkeypatch):
    monkeypatch.setitem(simulators.SIMULATORS, NumbersMs.id, NumbersMs)


def toy_suite():
    """A table of 320 numbers and two of 80, on two devices: halved it is 240 | 240, whole at best 320 | 160."""
    pools = [make_pool(rows=rows, dim=16, pooling=2, dtype="fp32") for rows in ([20, 5, 5], [5, 20, 5])]
    toys = tuple(Task(pool, (10**5,) * 2, "iteration", 8, kinds=("tw", "cw"), splits_allowed=True) for pool in pools)
    toys = tuple(replace(toy, residences=("hbm", "cached"), host_memory=10**6) for toy in toys)
    told = {"kinds": ("tw", "cw"), "residences": ("hbm", "cached"), "host_memory_gb": 1.0, "order": "size"}
    return ToySuite("Toy", 3, 2, "iteration", NumbersMs.id, NumbersMs.id, (1,), toys=toys, **told)


def seen(env):
    """Observation of a first step, as a batch of one."""
    shown, _ = env.reset()
    return {name: torch.from_numpy(column)[None] for name, column in shown.items()}


def untrained(seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy = ActionPolicy(ActionNet(SCALING), {**CARD, "config": asdict(ppo.Config())})
        return policy, AutoShard(Net(kinds=True), {**CARD, "updates": 0, "config": asdict(autoshard.Config())})


def test_what_is_told_of_actions_by_hand():
    """160 numbers, an even share of 40. By halves' rows on hosts a device has 40, by rows over all 48, whole 160."""
    task = replace(one_table(), memory=(10**6,) * 4)
    rows = told(seen(env_of(task, observation="ahead")))[0]
    column = dict(zip(TOLD, rows.T.tolist(), strict=True))
    assert column["dearest"][7] == column["makespan"][0] == 20  # cut off
    assert column["makespan"][6] == column["makespan"][9] == pytest.approx(100 * 8 / 40)
    assert column["makespan"][8] == 0 and column["mean"][6] == 20  # all wait for the slowest
    assert column["bytes"][0] == pytest.approx(100 * 640 / 4e6) and column["bytes"][7] == pytest.approx(4 * 0.016)
    assert column["by_host"] == [0] * 4 + [1] * 2 + [0] * 4 and column["halves"][8] == column["caches"][9] == 1
    used, placed, does = reach_of(10, 4)
    assert used[4].tolist() == [1, 1, 0, 0] and used[8].tolist() == [1] * 4
    assert placed[4].tolist() == [0.5, 0.5, 0, 0] and placed[8].tolist() == [0] * 4
    assert does.shape == (10, len(DOES)) and does.sum() == 6


@pytest.mark.parametrize("seed", range(3))
def test_the_networks_score_devices_and_hosts_in_any_order(seed):
    """Two hosts of two devices change places, and the devices of one."""
    shown = seen(ShardingEnv([drawn(seed, 5)], observation="ahead", simulator=ROOFLINE))
    g = torch.Generator().manual_seed(seed)
    shown["ahead"] = torch.rand(shown["ahead"].shape, generator=g)
    shown["devices"] = torch.rand(shown["devices"].shape, generator=g)
    sums = torch.randn(1, 4, 32, generator=g)
    device, action = torch.tensor([2, 3, 1, 0]), torch.tensor([2, 3, 1, 0, 5, 4, 6, 7, 8, 9])
    turned = shown | {"devices": shown["devices"][:, device], "ahead": shown["ahead"][:, action][:, :, device]}
    turned |= {name: shown[name][:, action] for name in ("bytes", "action_mask")}
    policy, other = untrained(seed)
    (scores, value), (turned_scores, turned_value) = policy.net(shown), policy.net(turned)
    torch.testing.assert_close(turned_scores, scores[:, action])
    torch.testing.assert_close(turned_value, value)
    states = torch.randn(1, 64, generator=g)
    scores, turned_scores = (
        other.net.scores(states, on, aimed(of)) for on, of in ((sums, shown), (sums[:, device], turned))
    )
    torch.testing.assert_close(turned_scores, scores[:, action])


@pytest.mark.parametrize("memory", [(10**6,), (10**6,) * 4, (10**6,) * 6])
def test_weights_serve_any_number_of_devices_and_hosts(memory):
    links = Links(port=1e8, uplink=1e7, group=2) if len(memory) > 1 else None
    kinds = ("tw", "cw", "rw", "twrw", "grid", "dp") if links else ("tw", "cw", "rw", "dp")
    tables = make_pool(rows=[1_000] * 7, dim=16, pooling=range(1, 8), dtype="fp32")
    for task in (Task(tables, memory, "iteration", 64, links=links, kinds=kinds), drawn(1, 6)):
        for solver in untrained():
            assert violations(task, solver(task, ROOFLINE)) == []


def test_memory_that_is_dear_is_left():
    """The higher the price of memory, the fewer bytes a policy that sees nothing else takes."""
    net = untrained()[0].net
    shown = seen(env_of(replace(one_table(), memory=(10**4,) * 4), observation="ahead"))
    with torch.no_grad():
        cheap, dear = (net.scores(shown, torch.tensor([price]))[0] for price in (1.0, 50.0))
    assert dear.argmax() == 9 and (dear - cheap)[7] < (dear - cheap)[0] < 0


def scored(net, actions):
    with torch.no_grad():
        return net.scores(torch.zeros(1, 64), torch.zeros(1, 4, 32), actions)[0]


def test_autoshard_begins_with_what_is_cheap():
    """Device 2 costs least after the table, then 0; devices' memory is alike, and a piece on all is worse than any."""
    shown = seen(env_of(replace(one_table(), memory=(10**6,) * 4), observation="ahead"))
    shown["ahead"] = torch.full_like(shown["ahead"], 0.2)
    shown["ahead"][0, [0, 1, 2, 3], [0, 1, 2, 3], 0] = torch.tensor([0.22, 0.26, 0.21, 0.24])
    actions, (_, net) = aimed(shown), untrained()
    scores = scored(net.net, actions)
    assert scores[:4].argsort(descending=True).tolist() == [2, 0, 3, 1] and scores[4:8].max() < scores[1]
    weights = 6.0 * torch.tensor([FIRST.get(name, 0.0) for name in FEATURES])
    torch.testing.assert_close(scores, actions[0] @ weights, atol=0.5, rtol=0)  # the layers say next to nothing
    assert (scored(Net(kinds=True, sharpness=60.0), actions) - 60 / 6 * scores).abs().max() < 5


def test_without_the_start_autoshards_scores_are_those_of_its_layers():
    shown = seen(env_of(replace(one_table(), memory=(10**6,) * 4), observation="ahead"))
    net, actions = Net(kinds=True, residual=False), aimed(shown)
    layers = net.cost(actions[0, :, 1:])
    by_hand = net.first(torch.cat([torch.zeros(10, 96), layers, torch.zeros(10, 64)], 1))
    torch.testing.assert_close(scored(net, actions), net.policy(by_hand)[:, 0])
    assert "weights" not in net.state_dict() and Net().weights is None


def test_autoshards_start_is_learned_too():
    learner = autoshard.Learner(toy_suite(), replace(CONFIGS[autoshard], residual=True), 0)
    before = learner.net.weights.detach().clone()
    learner.iterate()
    assert (learner.net.weights != before).any() and learner.order == "cost"
    assert same(learner.solver().net.state_dict(), learner.net.state_dict())
    for wrong in ({"sharpness": 0.0}, {"floor": -1.0}):
        with pytest.raises(InvalidTask, match="sharpness is above 0"):
            autoshard.Config(**wrong)


def test_rewards_below_the_floor_are_cut_off_for_the_loss_alone(monkeypatch):
    learned, loss_of = [], autoshard.loss_of
    monkeypatch.setattr(autoshard, "loss_of", lambda *given: learned.append(given[1].rewards) or loss_of(*given))
    learners = [autoshard.Learner(toy_suite(), replace(CONFIGS[autoshard], floor=floor), 0) for floor in (0.0, 0.1)]
    plain, cut = (learner.iterate()["return"] for learner in learners)
    assert plain == cut < -0.5
    plain, cut = torch.cat(learned[:4], 1), torch.cat(learned[4:], 1)
    assert plain.min() < -0.1 and torch.equal(cut, plain.clamp(min=-0.1))


def test_files_of_autoshard_from_before_it_had_a_start_are_read(tmp_path):
    """Files without weights of what is seen, and cards that do not tell of it."""
    net, config = Net(kinds=True, residual=False), asdict(autoshard.Config())
    card = {**CARD, "updates": 0, "config": {k: v for k, v in config.items() if k not in ("residual", "sharpness")}}
    AutoShard(net, card).save(tmp_path / "a.safetensors")
    loaded = autoshard.load(tmp_path / "a.safetensors")
    assert loaded.net.weights is None and same(loaded.net.state_dict(), net.state_dict())
    assert violations(drawn(5, 6), loaded(drawn(5, 6), ROOFLINE)) == []


@learners
def test_they_learn_to_halve_what_is_large(module, tmp_path):
    suite = toy_suite()
    learner = module.Learner(suite, CONFIGS[module], seed=0)
    train(learner, tmp_path, Schedule(iterations=20, validate_every=5, checkpoint_seconds=1e9))
    solver = module.load(tmp_path / "best.safetensors")
    for task in suite.tasks():
        plan = solver(task, NumbersMs())
        assert score(task, plan, NumbersMs()).makespan == 240 and plan.splits


def numbers_of(learner):
    return {name: value for name, value in learner.iterate().items() if name != "simulator_calls"}


@learners
def test_a_restored_learner_goes_on_to_the_bit(module):
    config = replace(CONFIGS[module], num_envs=8, **({"batch": 4} if module is autoshard else {}))
    whole, first, other = (module.Learner(toy_suite(), config, seed) for seed in (3, 3, 4))
    numbers = [numbers_of(whole) for _ in range(3)]
    assert numbers_of(first) == numbers[0] != numbers_of(other)
    second = module.Learner(toy_suite(), config, 3)
    second.restore(first.state())
    assert [numbers_of(second) for _ in range(2)] == numbers[1:]
    assert same(second.state(), whole.state()) and not same(whole.state(), other.state())


@pytest.mark.parametrize("which", [0, 1], ids=["ppo", "autoshard"])
def test_a_saved_policy_plans_the_same_and_files_are_told_apart(which, tmp_path):
    solver, task, module = untrained(seed=2)[which], drawn(5, 6), (ppo, autoshard)[which]
    solver.save(tmp_path / "a.safetensors")
    loaded = module.load(tmp_path / "a.safetensors")
    assert loaded(task, ROOFLINE) == solver(task, ROOFLINE)
    assert loaded.card == solver.card and same(loaded.net.state_dict(), solver.net.state_dict())
    with pytest.raises(CorruptFile, match="expected a"):
        (autoshard, ppo)[which].load(tmp_path / "a.safetensors")


def test_tasks_of_whole_tables_are_planned_too(tiny_task):
    for task in (tiny_task, replace(tiny_task, splits_allowed=True)):
        for solver in untrained():
            plan = solver(task, ROOFLINE)
            assert violations(task, plan) == [] and set(plan.kind) <= {"tw", "cw"}


def test_what_they_cannot_do_is_refused():
    for solver in untrained():
        with pytest.raises(InfeasibleTask, match="does not prove"):
            solver(replace(one_table(host_memory=10), memory=(10,) * 4), NumbersMs())
    with pytest.raises(InvalidTask, match="without a cost model"):
        autoshard.Learner(toy_suite(), replace(CONFIGS[autoshard], cost_model=False), 0)
