"""Pictures and text of environments of all kinds of sharding."""

import numpy as np
import pytest

from shard_gym.envs.drawing import CHOICES, picture
from shard_gym.envs.env import ShardingEnv
from shard_gym.envs.vector_env import ShardingVectorEnv
from tests.test_env_kinds import CACHE, COPY, HALVE, HOST, ROWS, env_of, one_table

pytest.importorskip("pygame")


def shown(actions, **changes):
    """The state after these actions."""
    env = env_of(one_table(**changes))
    env.reset()
    for action in actions:
        env.step(action)
    return env._state


def test_memory_is_coloured_by_kind():
    for action, choice, held in ((0, 0, [640, 0, 0, 0]), (HOST, 1, [320] * 2 + [0] * 2), (COPY, 3, [640] * 4)):
        state = shown([action])
        assert state.bytes_by_choice()[choice].tolist() == held
        assert state.bytes_by_choice().sum() == sum(held)
        memory = picture(state, "test").pixels()[340:416]  # the panel of memory
        for at, (_, colour) in enumerate(CHOICES):
            assert (memory == colour).all(axis=2).any() == (at == choice)
    assert shown([ROWS]).bytes_by_choice()[2].tolist() == [192, 192, 192, 64]  # 3, 3, 3 and 1 of ten rows


def test_pieces_are_told_by_size_and_residence():
    state = shown([HALVE, CACHE])
    told = state.coming()
    assert (told.name, told.dim, told.count, told.size) == ("1/2 of table_0, 10% cached", 8, 2, 10 * 8 * 4 // 10)
    assert told.alone == 80  # numbers of half a table
    assert shown([HALVE, 0]).coming().count == 1
    assert shown([ROWS]).coming() is None


def test_text_tells_shards_and_hosts():
    env = env_of(one_table(host_memory=1000), render_mode="ansi")
    env.reset()
    env.step(CACHE)
    assert "next: 'table_0, 10% cached' (10 rows of 16, pooling 2.0" in env.render()
    env.step(HOST + 1)
    lines = env.render().split("\n")
    assert [line.split()[1] for line in lines[1:5]] == ["0", "0", "1", "1"]
    assert lines[5:] == ["host 0: 0% of its memory used", "host 1: 32% of its memory used", "all tables are placed"]
    env = env_of(one_table(host_memory=100), render_mode="ansi")
    env.reset()
    env.step(CACHE)
    env.step(0)
    assert "host 0: 640% of its memory used  OVER" in env.render()


def test_the_same_pictures_in_a_vector_environment():
    scalar = env_of(one_table(), render_mode="rgb_array")
    envs = ShardingVectorEnv(ShardingEnv([one_table()], simulator=scalar.simulator, render_mode="rgb_array"), 2)
    scalar.reset(seed=0), envs.reset(seed=0)
    for action in (HALVE, HOST):
        scalar.step(action), envs.step(np.array([action, action]))
    for image in envs.render():
        np.testing.assert_array_equal(image, scalar.render())
