"""The environment of tiers: checkers, rewards by hand, and the known optimum beside it."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import shard_gym  # noqa: F401  # registers the ids
from shard_gym.errors import InvalidTask, UnknownName
from shard_gym.rowwise import bank
from shard_gym.rowwise.curves import from_rows
from shard_gym.rowwise.env import STRETCHES, FlexEnv
from shard_gym.rowwise.network import Network
from shard_gym.rowwise.tiers import RowTask, SequenceTable, TieredPlan, worth
from shard_gym_agents.flexshard import Frontier

IDS = [f"ShardGym-Flex-{name}" for name in bank.NAMES]


def small(extra_bytes=0.0):
    on = Network(2, 2, a2a_global=1e3, a2a_intra=4e3, ar_global=3e3, ar_cross=1e3, a2a_global_ms=0.5)
    p = np.minimum(1, np.arange(1, 65) ** -1.0)
    return RowTask((SequenceTable("t", from_rows(p), 1),), on, 100, extra_bytes)


def play(env, choose, **reset):
    (_, info), over = env.reset(**reset), False
    while not over:
        _, reward, over, _, info = env.step(choose(info["action_mask"]))
    return reward, info


@pytest.mark.filterwarnings("ignore:.*Box observation space")
@pytest.mark.parametrize("key", IDS)
def test_every_id_passes_the_checkers(key):
    sb3 = pytest.importorskip("stable_baselines3.common.env_checker")
    env = gym.make(key, render_mode="ansi")
    check_env(env.unwrapped)
    sb3.check_env(env.unwrapped)
    vector = gym.make_vec(key, num_envs=2, vectorization_mode="sync")
    assert vector.reset(seed=0)[0].shape == (2, 11)


def test_uniform_tiers_cost_what_the_task_says():
    task = small(extra_bytes=1e9)
    for action, tier in enumerate(("dp", "flex", "rw")):
        reward, info = play(FlexEnv([task]), lambda mask, action=action: action, seed=0)
        found = worth(task, TieredPlan.uniform(task, tier))
        assert (info["comm_ms"], info["memory_bytes"]) == pytest.approx((found.comm_ms, found.memory_bytes))
        assert reward == pytest.approx(-found.comm_ms / worth(task, TieredPlan.uniform(task, "rw")).comm_ms)


@pytest.mark.parametrize("key", bank.NAMES)
def test_whoever_keeps_to_the_mask_fits_and_cannot_beat_the_bound(key):
    rng, env = np.random.default_rng(0), FlexEnv(key, "test")
    for index in range(min(4, len(env.tasks))):
        _, info = play(env, lambda mask: int(rng.choice(np.flatnonzero(mask))), options={"task": index}, seed=0)
        assert info["feasible"]
        assert info["comm_ms"] >= Frontier(env.tasks[index]).bound() * (1 - 1e-9)


def test_every_infeasible_end_is_below_every_feasible_one():
    rng, task = np.random.default_rng(1), small()
    ends = [play(FlexEnv([task]), lambda mask: int(rng.integers(3)), seed=0) for _ in range(40)]
    ends += [play(FlexEnv([task]), lambda mask: int(rng.choice(np.flatnonzero(mask))), seed=0) for _ in range(40)]
    feasible = [reward for reward, info in ends if info["feasible"]]
    infeasible = [reward for reward, info in ends if not info["feasible"]]
    assert feasible and infeasible
    assert min(feasible) > max(infeasible)


def test_the_optimum_in_stretches_is_near_that_of_rows():
    """The tiers of the optimal plan's cuts, stretch by stretch, kept to the mask."""
    env = FlexEnv("RM", "test")
    for index, task in enumerate(env.tasks):
        plan = Frontier(task).best()
        rows = np.cumsum(env_stretches(env, index))
        wanted = [0 if r <= plan.dp_rows[0] else 1 if r <= plan.dp_rows[0] + plan.flex_rows[0] else 2 for r in rows]
        step = iter(wanted)
        _, info = play(env, lambda mask, step=step: next(step), options={"task": index}, seed=0)
        bound = Frontier(task).bound()
        assert info["feasible"] and bound <= info["comm_ms"] <= 1.1 * bound


def env_stretches(env, index):
    env.reset(options={"task": index}, seed=0)
    return env._of._parts[0]


def test_banks_are_the_same_each_time_and_differ_by_split():
    tables = {split: [t.tables[0].curve.num_rows for t in bank.tasks("4x8", split)] for split in bank.SPLITS}
    assert {split: len(rows) for split, rows in tables.items()} == bank.COUNTS
    assert not set(tables["train"]) & set(tables["test"])
    env = FlexEnv("4x8")
    assert (env.reset(seed=3)[0] == FlexEnv("4x8").reset(seed=3)[0]).all()


def test_bad_input_is_refused():
    with pytest.raises(UnknownName):
        FlexEnv("5x9")
    with pytest.raises(InvalidTask):
        FlexEnv([])
    env = FlexEnv("RM")
    with pytest.raises(Exception, match="reset"):
        env.step(0)
    env.reset(seed=0)
    with pytest.raises(Exception, match="no action 3"):
        env.step(3)
    for _ in range(STRETCHES):
        env.step(2)
    with pytest.raises(Exception, match="over"):
        env.step(2)
