"""The environment in general: what holds for every task and every way to act."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shard_gym import make_pool, simulators
from shard_gym.envs.env import ShardingEnv
from shard_gym.envs.episodes import hashed, shuffled, task_index
from shard_gym.envs.observations import OBSERVATIONS
from shard_gym.memory.usage import device_bytes, table_bytes
from shard_gym.simulators import FastSimulator, Latency
from shard_gym.task.links import Links
from shard_gym.task.task import Task

pytestmark = pytest.mark.usefixtures("each_core")

FLAT = Links(port=1e7, latency_ms=0.1)
ROOFLINE = simulators.make(simulators.DEFAULT)
lenient = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
seeds = st.integers(0, 2**32 - 1)


class Sinking(FastSimulator):
    """Costs fall as tables share a device: everything on one device is the best plan, not the worst."""

    id = "sinking"

    def embed(self, task):
        return np.ones((task.num_tables, 1))

    def decode(self, task, sums):
        ms = np.where(sums[..., 0] > 0, 1 / np.maximum(sums[..., 0], 1), 0.0)
        return Latency(ms, np.zeros_like(ms), np.zeros_like(ms), np.zeros_like(ms))


@st.composite
def tasks(draw, links=None):
    """Tasks of 1..10 tables on 1..6 devices, roomy to hopeless."""
    n, k = draw(st.integers(1, 10)), draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(seeds))
    pool = make_pool(
        rows=rng.integers(1, 10_000_000, n),
        dim=4 * rng.integers(1, 33, n),
        pooling=rng.exponential(20, n) * rng.integers(0, 2, n),
    )
    room = draw(st.sampled_from([0.3, 1.0, 1.2, 2.0, 20.0]))
    memory = np.maximum(1, rng.uniform(0.5, 1.5, k) * room * pool.weight_bytes.sum() / k)
    group = draw(st.sampled_from([g for g in range(1, k + 1) if k % g == 0]))
    two_level = Links(1e7, 0.1, group, 2e6, 5e6, peer_to_peer=draw(st.booleans()))
    return Task(
        pool,
        memory=tuple(memory.astype(int).tolist()),
        objective=draw(st.sampled_from(["kernel", "iteration"])),
        speed=draw(st.sampled_from([(), tuple(rng.uniform(0.5, 2, k))])),
        links=links or draw(st.sampled_from([FLAT, two_level])),
        accounting=draw(st.sampled_from(["weights", "training"])),
        optimizer="adam",
    )


def play(env, actions, **reset):
    env.reset(**reset)
    rewards = []
    for action in actions:
        _, reward, over, _, info = env.step(action)
        rewards.append(reward)
    assert over
    return rewards, info


def plans(task, seed, count=12):
    """Random ways to act, and everything on each device."""
    drawn = np.random.default_rng(seed).integers(task.num_devices, size=(count, task.num_tables))
    alone = np.repeat(np.arange(task.num_devices)[:, None], task.num_tables, axis=1)
    return np.concatenate([drawn, alone]).tolist()


@pytest.mark.parametrize("simulator", [ROOFLINE, Sinking()], ids=lambda s: s.id)
@pytest.mark.parametrize("reward", ["balance", "latency", "dense"])
@lenient
@given(task=tasks(), seed=seeds)
def test_every_infeasible_end_scores_below_every_feasible_one(simulator, reward, task, seed):
    env = ShardingEnv(tasks=[task], reward=reward, simulator=simulator, info="full")
    ends = [play(env, actions) for actions in plans(task, seed)]
    feasible = [sum(rewards) for rewards, info in ends if info["feasible"]]
    infeasible = [sum(rewards) for rewards, info in ends if not info["feasible"]]
    assert max(infeasible, default=-np.inf) < min(feasible, default=np.inf)
    for _, info in ends:
        used = device_bytes(task, np.array(info["plan"].device))
        assert info["feasible"] == (used <= task.capacity).all()


@lenient
@given(task=tasks(), seed=seeds)
def test_no_plan_of_the_roofline_is_worse_than_all_on_the_worst_device(task, seed):
    everything = np.repeat(np.arange(task.num_devices)[:, None], task.num_tables, axis=1)
    worst = ROOFLINE.latency(task, everything).makespan(task.objective).max()
    any_plan = np.random.default_rng(seed).integers(-1, task.num_devices, size=(50, task.num_tables))
    assert (ROOFLINE.latency(task, any_plan).makespan(task.objective) <= worst * (1 + 1e-12)).all()


@lenient
@given(task=tasks(), seed=seeds)
def test_dense_rewards_sum_to_latency(task, seed):
    dense, latency = (ShardingEnv(tasks=[task], reward=r) for r in ("dense", "latency"))
    for actions in plans(task, seed, count=4):
        paid, (*before, end) = play(dense, actions)[0], play(latency, actions)[0]
        assert not any(before)
        assert sum(paid) == pytest.approx(end, abs=1e-12)


@lenient
@given(task=tasks(), seed=seeds)
def test_the_end_is_what_the_simulator_says_of_the_plan(task, seed):
    env = ShardingEnv(tasks=[task], info="full")
    for actions in plans(task, seed, count=4):
        _, info = play(env, actions)
        told = ROOFLINE.latency(task, np.array(info["plan"].device))
        np.testing.assert_array_equal(info["latency"].cost(task.objective), told.cost(task.objective))
        assert info["makespan"] == told.makespan(task.objective)
        assert info["balance"] == told.balance


@lenient
@given(task=tasks(), seed=seeds)
def test_masks_are_what_brute_force_finds(task, seed):
    env = ShardingEnv(tasks=[task], order="size")
    order = np.argsort(-table_bytes(task), kind="stable")
    for actions in plans(task, seed, count=3):
        placed = np.full(task.num_tables, -1)
        _, info = env.reset()
        for table, action in zip(order, actions, strict=True):
            tried = np.repeat(placed[None], task.num_devices, axis=0)
            tried[:, table] = np.arange(task.num_devices)
            fits = [(device_bytes(task, t) <= task.capacity)[k] for k, t in enumerate(tried)]
            expected = fits if any(fits) else [True] * task.num_devices
            assert info["action_mask"].tolist() == env.action_masks().tolist() == expected
            placed[table] = action
            info = env.step(action)[4]


@lenient
@given(task=tasks(links=FLAT), seed=seeds)
def test_relabelling_devices_permutes_everything(task, seed):
    rng = np.random.default_rng(seed)
    order, actions = rng.permutation(task.num_devices), rng.integers(task.num_devices, size=task.num_tables)
    label = np.argsort(order)  # old device -> new one
    relabelled = Task(
        task.tables,
        memory=tuple(task.capacity[order].tolist()),
        objective=task.objective,
        speed=tuple(np.array(task.speed)[order].tolist()),
        links=FLAT,
        accounting=task.accounting,
        optimizer=task.optimizer,
    )
    before = ShardingEnv(tasks=[task], order="given", observation="full", reward="dense", info="full")
    after = ShardingEnv(tasks=[relabelled], order="given", observation="full", reward="dense", info="full")
    before.reset()
    after.reset()
    for action in actions:
        shown, reward, over, _, info = before.step(action)
        shown2, reward2, _, _, info2 = after.step(label[action])
        # single costs are those on the first device, so costs have another unit when speeds differ
        columns = [0, 1, *range(3, shown["devices"].shape[1])]
        np.testing.assert_array_equal(shown2["devices"][:, columns], shown["devices"][order][:, columns])
        np.testing.assert_array_equal(shown2["action_mask"], shown["action_mask"][order])
        assert reward2 == pytest.approx(reward, abs=1e-12)
    assert over
    np.testing.assert_array_equal(info2["plan"].device, label[np.array(info["plan"].device)])
    np.testing.assert_array_equal(info2["latency"].compute, info["latency"].compute[order])
    assert (info2["makespan"], info2["feasible"]) == (info["makespan"], info["feasible"])


@pytest.mark.parametrize("observation", OBSERVATIONS)
@lenient
@given(task=tasks(), seed=seeds)
def test_observations_are_finite_and_in_their_space(observation, task, seed):
    env = ShardingEnv(tasks=[task], observation=observation)
    shown, _ = env.reset(seed=seed)
    over = False
    while not over:
        assert shown in env.observation_space
        assert all(np.isfinite(v).all() for v in (shown.values() if isinstance(shown, dict) else [shown]))
        shown, _, over, _, _ = env.step(int(env.action_space.sample()))
    assert shown in env.observation_space


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**63)), min_size=1), st.integers(1, 10_000))
def test_the_hash_is_the_same_for_ints_and_arrays(pairs, num_tasks):
    seed, episode = (np.array(column, np.uint64) for column in zip(*pairs, strict=True))
    assert hashed(seed, episode).tolist() == [hashed(s, e) for s, e in pairs]
    assert task_index(seed, episode, num_tasks).tolist() == [task_index(s, e, num_tasks) for s, e in pairs]


def test_the_hash_is_splitmix64_and_frozen():
    # from seed 0 the mixed state is 0, whose stream is the published one of splitmix64
    assert [hashed(0, k) for k in range(3)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert task_index(2**64 + 5, 3, 90) == task_index(5, 3, 90)


def test_the_hash_draws_all_tasks_alike():
    seeds_, episodes = np.divmod(np.arange(90_000, dtype=np.uint64), np.uint64(300))
    drawn = np.bincount(task_index(seeds_, episodes, 90).astype(int), minlength=90)
    assert abs(drawn - 1000).max() < 150  # 4.7 standard deviations


@given(st.integers(1, 200), st.integers(0, 2**64 - 1))
def test_a_shuffled_order_is_a_permutation(num_tables, key):
    assert sorted(shuffled(num_tables, key)) == list(range(num_tables))
