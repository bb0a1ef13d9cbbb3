"""The vector environment of all kinds of sharding does what scalar ones do, to the bit."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shard_gym.envs.env import ShardingEnv
from shard_gym.envs.episodes import ORDERS
from shard_gym.envs.observations import OBSERVATIONS
from shard_gym.envs.rewards import REWARDS
from shard_gym.envs.vector_env import ShardingVectorEnv
from shard_gym.task.constraints import KINDS
from tests.test_env_kinds import HOSTS, SIMULATORS, one_table, tasks
from tests.test_search_kinds import drawn
from tests.vector_helpers import MODES, pair, play_alike, reset_alike

lenient = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
EVERYWHERE = {"residences": ("hbm", "uvm", "cached"), "host_memory": 10**7}


@st.composite
def banks(draw):
    """Tasks of the same hosts, some with constraints, that differ in tables, memory, kinds and residences."""
    first = draw(tasks())
    others = [draw(tasks()) for _ in range(draw(st.integers(0, 2)))]
    memory = [tuple(int(sum(task.memory) / first.num_devices) for _ in first.memory) for task in others]
    same = []
    for task, told in zip(others, memory, strict=True):
        kinds = task.kinds if first.links else tuple(k for k in task.kinds_allowed if k not in ("twrw", "grid"))
        pin = tuple((table, device % first.num_devices) for table, device in task.constraints.pin)
        apart = task.constraints.apart if first.num_devices > 1 else ()
        rules = replace(task.constraints, pin=pin, apart=apart)
        same.append(replace(task, memory=told, speed=(), links=first.links, kinds=kinds, constraints=rules))
    return [first, *same]


@st.composite
def settled(draw):
    """Settings of environments."""
    seed = draw(st.integers(0, 2**32 - 1))
    told = {"reward": st.sampled_from(list(REWARDS)), "order": st.sampled_from(ORDERS), "mode": st.sampled_from(MODES)}
    return seed, {"simulator": list(SIMULATORS.values())[seed % 2]} | {k: draw(v) for k, v in told.items()}


def check_to_the_bit(observation, bank, seed, told, steps):
    scalar, ours = pair(bank, 3, observation=observation, **told)
    reset_alike(scalar, ours, seed=seed % 1000)
    play_alike(scalar, ours, steps, np.random.default_rng(seed))


@settings(max_examples=12, **lenient)
@given(bank=banks(), told=settled(), observation=st.sampled_from(list(OBSERVATIONS)))
def test_banks_to_the_bit(observation, bank, told):
    check_to_the_bit(observation, bank, *told, 15)


@pytest.mark.slow
@pytest.mark.parametrize("observation", OBSERVATIONS)
@settings(max_examples=30, **lenient)
@given(bank=banks(), told=settled())
def test_many_banks_to_the_bit(observation, bank, told):
    check_to_the_bit(observation, bank, *told, 40)


@pytest.mark.parametrize("mode", MODES)
def test_a_task_given_at_reset(mode):
    bank, other = [drawn(seed, 3, **EVERYWHERE) for seed in (1, 2)], drawn(3, 4, **EVERYWHERE)
    scalar, ours = pair(bank, 3, mode, observation="full", reward="dense", simulator="torchrec:cuda-v1")
    reset_alike(scalar, ours, seed=3)
    play_alike(scalar, ours, 12)
    for task in (other, replace(other, host_memory=10**5), bank[1]):
        reset_alike(scalar, ours, seed=5, task=task)
        assert play_alike(scalar, ours, 20) >= 2


def test_attributes_and_plans_of_each():
    envs = ShardingVectorEnv(ShardingEnv([drawn(1, 5, **EVERYWHERE)], simulator="torchrec:cuda-v1"), 4)
    envs.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(9):
        envs.step(np.array([rng.choice(np.flatnonzero(mask)) for mask in envs.action_masks()]))
    alone = ShardingEnv([drawn(1, 5, **EVERYWHERE)], simulator="torchrec:cuda-v1")
    alone.reset(seed=0)
    assert envs.single_action_space == gym.spaces.Discrete(10) == alone.action_space
    for plan in envs.get_attr("plan"):
        assert set(plan.kind) <= set(KINDS)
    assert all(latency.compute.shape == (4,) for latency in envs.get_attr("latency"))


def test_many_devices_and_few_bytes_of_a_shelf():
    """A task's forms are held by their distinct shards: with many devices no more than with few."""
    task = drawn(1, 30)
    sizes = []
    for hosts in (2, 32):
        many = replace(task, memory=(task.memory[0],) * 2 * hosts, speed=(), links=HOSTS)
        envs = ShardingVectorEnv(ShardingEnv([many], simulator="torchrec:cuda-v1"), 2)
        envs.reset(seed=0)
        sizes.append(envs._shelf.options.vector.nbytes)
        assert envs.step(envs.action_masks().argmax(axis=1))[4]["action_mask"].shape == (2, 3 * hosts + 4)
    assert sizes[1] <= 1.1 * sizes[0]


def test_one_table_in_a_vector_environment():
    envs = ShardingVectorEnv(ShardingEnv([one_table()], simulator=SIMULATORS["roofline:h100-v1"], info="full"), 2)
    envs.reset(seed=0)
    _, _, over, _, _ = envs.step(np.array([6, 8]))
    assert over.tolist() == [True, False]
    _, _, over, _, _ = envs.step(np.array([0, 0]))
    assert over.tolist() == [False, False]
    _, _, over, _, info = envs.step(np.array([0, 3]))
    assert over.tolist() == [True, True]
    assert info["plan"][1].device == (0, 3)
