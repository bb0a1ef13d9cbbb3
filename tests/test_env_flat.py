"""The observation "flat": one row of numbers for networks of plain layers, and the ids that show it."""

import gymnasium as gym
import numpy as np
import pytest

from shard_gym import suites
from shard_gym.envs.env import ShardingEnv
from shard_gym.envs.observations import LIMIT, STATE
from shard_gym.envs.vector_env import ShardingVectorEnv
from tests.env_helpers import TABLE_BYTES, play, split_env, tiny_env, tiny_task
from tests.test_split_env import SPLIT, ColumnsMs, columns


def by_name(shown, devices):
    """Numbers of a row on the next table and on devices, by name."""
    blocks = np.split(shown[STATE:], [devices, 2 * devices, 3 * devices, 4 * devices])
    of_devices = dict(zip(("cost", "gap", "free", "speed", "mask"), blocks, strict=True))
    return {"alone": shown[22], "size": shown[23], **of_devices}


def test_by_hand():
    memory, speed = (TABLE_BYTES, 2 * TABLE_BYTES, 4 * TABLE_BYTES), (1.0, 0.5, 1.0)  # 4, then 2 and 1 ms; a share 7/3
    seen, _, _ = play(tiny_env(tiny_task(memory=memory, speed=speed), observation="flat"), [0, 2, 2])
    first, second, _, last = (by_name(shown, 3) for shown in seen)
    np.testing.assert_allclose(first["alone"], 12 / 7, rtol=1e-6)
    np.testing.assert_allclose(first["gap"], [0, 0.5, 0], rtol=1e-6)  # 8 ms where 4 is best: 4 / (4 + 4)
    np.testing.assert_allclose(second["cost"], [12 / 7, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(second["gap"], [1, 0.5, 0], rtol=1e-6)  # no room; 4 ms where 2 is best
    np.testing.assert_allclose(second["free"], [0, 0.5, 1])
    assert second["mask"].tolist() == [0, 1, 1] and second["size"] == 0.25
    assert first["speed"].tolist() == [1, 0.5, 1]
    np.testing.assert_allclose(last["cost"], [12 / 7, 0, 9 / 7], rtol=1e-6)
    assert last["gap"].tolist() == [1, 0, 1] and last["mask"].tolist() == [1, 1, 1]
    assert not seen[-1][:21].any() and seen[-1][21] == 1 and not seen[-1][22:STATE].any()


def test_halves_by_hand():
    seen, _, _ = play(split_env(columns(16), simulator=ColumnsMs(), observation="flat"), [SPLIT, 0, 1])
    rows = [by_name(shown, 2) for shown in seen]  # an even share is 8 columns
    assert [row["alone"] for row in rows] == [2, 1, 1, 0]
    assert [row["gap"].tolist() for row in rows] == [[0, 0], [0, 0], [0.5, 0], [0, 0]]
    assert [row["mask"][-1] for row in rows] == [1, 1, 1, 0]


@pytest.mark.parametrize("key", ["core-60x4", "tight-80x8", "hetero-80x8", "mixed-10to59x4-split"])
def test_numbers_stay_within_bounds_and_the_mask_comes_last(key):
    env, rng = ShardingVectorEnv(ShardingEnv(key, observation="flat"), 8), np.random.default_rng(0)
    shown, infos = env.reset(seed=0)
    for _ in range(env.env.most_nodes):
        assert env.observation_space.contains(shown)
        assert (shown[:, -env.num_actions :] == infos["action_mask"]).all()
        shown, _, _, _, infos = env.step(rng.choice(2, size=8))  # two devices take more than they hold
    assert np.abs(shown).max() <= LIMIT


def test_the_smallest_gap_is_nearly_cost_greedy():
    means = {}
    for observation in ("ahead", "flat"):
        env = ShardingVectorEnv(ShardingEnv("core-60x4", observation=observation), 50)
        shown, _ = env.reset(seed=0)
        for _ in range(60):
            score = shown["ahead"] if observation == "ahead" else shown[:, STATE + 4 : STATE + 8]
            shown, rewards, *_ = env.step(score.argmin(axis=1))
        means[observation] = rewards.mean()
    assert means["flat"] == pytest.approx(means["ahead"], rel=0.02) and means["flat"] > -0.8


def test_every_suite_has_a_flat_id():
    for suite in suites.SUITES.values():
        spec = gym.spec(f"{suite.env_id}-Flat")
        assert spec.kwargs == {"tasks": suite.key, "observation": "flat"}
        assert suites.get(spec.id) is suite
    shown = gym.make("ShardGym-DLRM-10x2-Flat").reset(seed=0)[0]
    again = gym.make_vec("ShardGym-DLRM-10x2-Flat", num_envs=2).reset(seed=0)[0]
    np.testing.assert_array_equal(shown, again[0])
