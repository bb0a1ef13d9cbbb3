"""Devices that differ in memory and speed, and links of two levels: observations, masks and costs follow them."""

import numpy as np
import pytest

from shard_gym import simulators, suites
from shard_gym.envs.env import ShardingEnv
from shard_gym.task.links import Links
from shard_gym.task.task import Task
from tests.env_helpers import TABLE_BYTES, play, split_env, tiny_env, tiny_task
from tests.pool_helpers import fp16_pool as make_pool


@pytest.mark.parametrize("observation", ["full", "set"])
def test_the_devices_of_hetero_are_shown(observation):
    env = ShardingEnv("hetero-80x8", observation=observation)
    shown, _ = env.reset(seed=0)
    if observation == "full":
        memory, speed = shown["devices"][:, 1], shown["devices"][:, 3]  # all of it is free
    else:
        memory, speed = shown["capacity"], shown["speed"]
    np.testing.assert_array_equal(memory, [0.5] * 4 + [1] * 4)
    np.testing.assert_array_equal(speed, np.float32([1] * 4 + [0.6] * 4))


def test_used_memory_is_a_share_of_the_devices_own():
    env = ShardingEnv("hetero-80x8", observation="full", order="given")
    task = env.bank.tasks[0]
    env.reset(options={"task": task})
    small, *_ = env.step(0)
    env.reset(options={"task": task})
    large, *_ = env.step(7)
    assert small["devices"][0, 0] == pytest.approx(2 * large["devices"][7, 0])
    assert 0.5 - small["devices"][0, 1] == pytest.approx(1 - large["devices"][7, 1])


def test_a_slow_device_takes_longer_for_the_same_tables():
    env = ShardingEnv("hetero-80x8", observation="full", reward="dense", info="full")
    first = [play(env, [device] * 80, seed=1)[1][0] for device in (0, 7)]
    assert first[1] < first[0] < 0
    ends = [play(env, [device] * 80, seed=1)[2]["latency"].compute for device in (0, 7)]
    assert ends[1][7] == pytest.approx(ends[0][0] / 0.6)
    assert np.count_nonzero(ends) == 2


def test_masks_follow_each_devices_memory():
    task = tiny_task(memory=(TABLE_BYTES, 2 * TABLE_BYTES))
    env = tiny_env(task)
    masks = [env.reset(seed=0)[1]["action_mask"], *(env.step(a)[4]["action_mask"] for a in (0, 1))]
    assert [mask.tolist() for mask in masks] == [[1, 1], [0, 1], [0, 1]]
    # halves of 32 columns fit on the second device only, quarters on both
    wide = Task(make_pool(rows=[100], dim=64), memory=(TABLE_BYTES, 2 * TABLE_BYTES), splits_allowed=True)
    env = split_env(wide)
    masks = [env.reset(seed=0)[1]["action_mask"], *(env.step(a)[4]["action_mask"] for a in (2, 2))]
    assert [mask.tolist() for mask in masks] == [[0, 0, 1], [0, 1, 1], [0, 1, 1]]
    assert env.step(2)[4]["action_mask"].tolist() == [1, 1, 1]


def test_overshoot_is_of_the_device_that_is_over():
    task = tiny_task(memory=(TABLE_BYTES, 10 * TABLE_BYTES))
    assert play(tiny_env(task), [0, 0, 1])[1][-1] == -1.0
    assert play(tiny_env(task), [0, 0, 0])[1][-1] == -2.0


def end(links, actions):
    task = Task(
        make_pool(rows=[100] * 2, dim=[16, 8]),
        memory=(10**6,) * 4,
        objective="iteration",
        batch=4 * 2**10,
        links=links,
        splits_allowed=True,
    )
    settings = {"reward": "dense", "order": "given", "observation": "full"}
    return play(split_env(task, simulator=simulators.make("roofline:h100-v1"), **settings), actions)


def test_links_of_two_levels_by_hand():
    port, uplink = 2.0**20, 2.0**18  # bytes a millisecond
    column_ms = 4 * 2**10  # bytes of one column for the samples of one device; over a rate: ms
    flat, nodes = Links(port), Links(port, group=2, uplink=uplink)
    # device 0 has all 24 columns and sends them to three; in nodes: to one neighbour, and to two over the uplink
    assert (
        end(flat, [0, 0])[2]["latency"].forward_comm.tolist()
        == [3 * 24 * column_ms / port] + [24 * column_ms / port] * 3
    )
    near, far = 24 * column_ms / port, 2 * 24 * column_ms / uplink
    assert end(nodes, [0, 0])[2]["latency"].forward_comm.tolist() == [near + far] * 2 + [far] * 2
    # with 8 of the columns on the other node each uplink sends 2 * 16 or 2 * 8 columns and gets the other's
    uplink_ms = 2 * 16 * column_ms / uplink
    comm = end(nodes, [0, 2])[2]["latency"].forward_comm
    assert comm.tolist() == [16 * column_ms / port + uplink_ms] * 2 + [8 * column_ms / port + uplink_ms] * 2


def test_rewards_and_observations_follow_the_links():
    slow, fast = (Links(2.0**20, group=2, uplink=uplink) for uplink in (2.0**15, 2.0**18))
    together, apart = [0, 1], [0, 2]
    for links in (slow, fast):
        assert end(links, together)[2]["makespan"] > end(links, apart)[2]["makespan"]  # the uplink is shared
    assert end(slow, apart)[2]["makespan"] > end(fast, apart)[2]["makespan"]
    shown = [end(links, apart)[0][1]["devices"][:, 2] for links in (slow, fast)]
    assert not np.array_equal(*shown)


def test_halves_on_two_nodes_relieve_the_uplink():
    nodes = Links(2.0**20, group=2, uplink=2.0**15)
    split = end(nodes, [4, 0, 2, 1])[2]  # 8 columns on each of three devices
    whole = end(nodes, [0, 1])[2]
    assert split["plan"].splits == (0,)
    assert split["makespan"] < whole["makespan"]


def test_prod_has_nodes_of_eight():
    suite = suites.get("prod-1000x128")
    links = simulators.make(suite.planner).hardware.links
    assert (links.group, links.uplink < links.port) == (8, True)
    env = ShardingEnv(suite, observation="full", order="given")
    env.reset(seed=0)
    shown, *_ = env.step(9)
    cost = shown["devices"][:, 2]
    assert set(np.flatnonzero(cost > np.median(cost))) == set(range(8, 16))  # its node waits for the uplink
