"""The observation "ahead": what each device would cost with the next table on it."""

import numpy as np
import pytest
from hypothesis import given

from shard_gym import simulators, suites
from shard_gym.envs.env import ShardingEnv
from shard_gym.envs.episodes import single_costs
from shard_gym.envs.vector_env import ShardingVectorEnv
from shard_gym.memory.usage import device_sums
from shard_gym.simulators import single
from shard_gym_agents.solvers.greedy import CostGreedy
from tests.env_helpers import TABLE_BYTES, PoolingMs, play, split_env, tiny_env, tiny_task
from tests.test_env_properties import lenient, seeds, tasks
from tests.test_split_env import SPLIT, ColumnsMs, columns
from tests.test_split_properties import bank_of, masked, played, splittable

ROOFLINE = simulators.make(simulators.DEFAULT)


def cheapest(shown):
    """The device that costs least with the next table on it; the first such device that has room."""
    return np.where(shown["action_mask"], shown["ahead"], np.inf).argmin(axis=-1)


@pytest.mark.parametrize("key", ["metasyn-80x8", "core-60x4", "hetero-80x8", "mixed-10to59x4"])
def test_the_cheapest_device_is_cost_greedys(key):
    env = ShardingEnv(key, split="test", observation="ahead", order="cost", info="full")
    for task in env.bank.tasks[:2]:
        (shown, _), over = env.reset(options={"task": task}), False
        while not over:
            shown, _, over, _, info = env.step(cheapest(shown))
        assert info["plan"] == CostGreedy()(task, env.simulator)


def test_many_environments_at_once_play_cost_greedy():
    env = ShardingVectorEnv(ShardingEnv("core-80x8", split="test", observation="ahead", order="cost", info="full"), 5)
    shown, _ = env.reset(seed=0)
    for _ in range(80):
        shown, _, over, _, infos = env.step(cheapest(shown))
    assert over.all()
    by_hash = {task.hash: task for task in env.bank.tasks}
    assert list(infos["plan"]) == [CostGreedy()(by_hash[key], env.simulator) for key in infos["task"]]


def test_by_hand():
    task = tiny_task(memory=(2 * TABLE_BYTES,) * 3, speed=(1.0, 0.5, 1.0))  # 4, then 2 and 1 ms
    seen, _, _ = play(tiny_env(task, observation="ahead"), [0, 2, 2])
    share = 7 / 3  # ms
    expected = [[4, 8, 4], [6, 4, 2], [5, 2, 3], [4, 0, 3]]
    np.testing.assert_allclose([shown["ahead"] * share for shown in seen], expected, rtol=1e-6)
    task = tiny_task(memory=(2 * TABLE_BYTES,) * 3, speed=(1.0, 0.5, 1.0), objective="iteration")
    seen, _, _ = play(tiny_env(task, observation="ahead"), [0, 2, 2])
    expected = [[4, 8, 4], [6, 4, 4], [5, 4, 4], [4, 4, 4]]  # all wait for the slowest forward computation
    np.testing.assert_allclose([shown["ahead"] * share for shown in seen], expected, rtol=1e-6)


def test_halves_by_hand():
    env = split_env(columns(16), simulator=ColumnsMs(), observation="ahead")
    seen, _, _ = play(env, [SPLIT, 0, 1])  # an even share is 8 columns
    assert [shown["ahead"].tolist() for shown in seen] == [[2, 2], [1, 1], [2, 1], [1, 1]]


@lenient
@given(task=tasks(), seed=seeds)
def test_it_is_what_the_simulator_says_of_the_plans_with_the_next_table(task, seed):
    env, plain = (ShardingEnv([task], observation=name, order="given") for name in ("ahead", "full"))
    (shown, _), (full, _) = env.reset(seed=0), plain.reset(seed=0)
    placed, k = np.full(task.num_tables, -1), task.num_devices
    share = max(single_costs(ROOFLINE, task).sum(), 1e-12) / k
    for table, action in enumerate(np.random.default_rng(seed).integers(k, size=task.num_tables)):
        tried = np.repeat(placed[None], k, axis=0)
        tried[:, table] = np.arange(k)
        costs = ROOFLINE.latency(task, tried).cost(task.objective).diagonal()
        np.testing.assert_allclose(shown["ahead"], costs / share, rtol=1e-6)
        placed[table] = action
        shown, full = env.step(action)[0], plain.step(action)[0]
        assert all(np.array_equal(shown[name], full[name]) for name in full)
    np.testing.assert_array_equal(shown["ahead"], shown["devices"][:, 2])


@lenient
@given(task=splittable(), seed=seeds)
def test_with_splits_it_comes_true_for_the_device_that_is_chosen(task, seed):
    seen, _, actions, _ = played(ShardingEnv(bank_of(task), observation="ahead"), masked(np.random.default_rng(seed)))
    for before, action, after in zip(seen, actions, seen[1:], strict=False):
        if action < task.num_devices:
            assert before["ahead"][action] == after["devices"][action, 2]
        else:
            np.testing.assert_array_equal(before["devices"], after["devices"])


@pytest.mark.parametrize("many", [1, 9])
@pytest.mark.parametrize("at_once", [1, 7, 24, 2**14])
@pytest.mark.parametrize(
    ("key", "planner_id"),
    [
        ("dlrm-10x2", "roofline:rtx2080ti-x4-v1"),
        ("hetero-80x8", "roofline:h100-v1"),
        ("hetero-80x8", "roofline:a100-x32-roce-v1"),
        ("hetero-80x8", "torchrec:cuda-v1"),
        ("hetero-80x8", "learned:cpu-v1"),
        ("metasyn-80x8", "learned:cpu-v1"),
    ],
)
def test_one_table_more_costs_what_whole_plans_do_to_the_bit(key, planner_id, at_once, many, monkeypatch):
    """Parts may have any size, and with many devices only what changes is asked about."""
    task, planner = suites.get(key).tasks("test")[0], simulators.make(planner_id)
    tables, rng = planner.embed(task), np.random.default_rng(0)
    k, n = task.num_devices, 5
    sums = device_sums(tables, rng.integers(-1, k, size=(n, task.num_tables)), k)
    more = tables[rng.integers(task.num_tables, size=n)]
    expected = np.empty((n, k))
    for i in range(n):
        for device in range(k):
            tried = sums[i].copy()
            tried[device] += more[i]
            expected[i, device] = planner.decode(task, tried).cost(task.objective)[device]
    monkeypatch.setattr(single, "SHARDS_AT_ONCE", at_once)
    monkeypatch.setattr(single, "MANY", many)
    np.testing.assert_array_equal(single.costs_with(task, planner, sums, more), expected)
    np.testing.assert_array_equal(single.costs_with(task, planner, sums[0], more[0]), expected[0])
    alone = np.zeros((n, k, tables.shape[1]))
    alone[:, 0] = more
    counting = simulators.Counted(planner)
    cost = single.costs_alone(counting, task, more)
    np.testing.assert_array_equal(cost, planner.decode(task, alone).makespan(task.objective))
    assert counting.calls == (1 if task.objective == "kernel" else n)


def test_a_cheaper_slowest_device_is_not_waited_for():
    class Sharing(PoolingMs):
        """Two tables together cost a millisecond, whatever they cost alone."""

        def embed(self, task):
            return np.stack([task.tables.pooling, np.ones(task.num_tables)], axis=1).astype(np.float64)

        def decode(self, task, sums):
            return super().decode(task, np.where(sums[..., 1:] > 1, 1.0, sums))

    task = tiny_task(objective="iteration")
    shown = play(tiny_env(task, simulator=Sharing(), observation="ahead"), [0, 1, 1])[0][1]
    np.testing.assert_allclose(shown["ahead"] * 7 / 2, [1, 4], rtol=1e-6)
