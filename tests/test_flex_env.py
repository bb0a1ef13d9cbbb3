"""The environment of tiers: checkers, rewards by hand, and the known optimum beside it."""

import pickle

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import shard_gym  # noqa: F401  # registers the ids
from shard_gym.envs.drawing import DARK_BLUE
from shard_gym.envs.env import BadAction
from shard_gym.errors import InvalidTask, UnknownName
from shard_gym.flexshard import NAMES
from shard_gym.flexshard.bank import COUNTS, flex_tasks
from shard_gym.flexshard.curves import from_rows
from shard_gym.flexshard.env import FlexEnv
from shard_gym.flexshard.network import Network
from shard_gym.flexshard.stretches import STRETCHES
from shard_gym.flexshard.tiers import RowTask, SequenceTable, TieredPlan, worth
from shard_gym_agents.solvers.flexshard import Frontier

IDS = [f"ShardGym-Flex-{name}" for name in NAMES]


def small(extra_bytes=0.0, **settings):
    on = Network(2, 2, a2a_global=1e3, a2a_intra=4e3, ar_global=3e3, ar_cross=1e3, a2a_global_ms=0.5)
    p = np.minimum(1, np.arange(1, 65) ** -1.0)
    return RowTask((SequenceTable("t", from_rows(p), 1, **settings),), on, 100, extra_bytes)


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


@pytest.mark.parametrize("key", IDS)
def test_shown_and_rewards_have_their_types_and_follow_the_seed(key):
    one, twin = (gym.make(key, split="test").unwrapped for _ in range(2))
    for seed in (7, None):  # the seed's first episode, and its second
        (shown, info), (same, _), over = one.reset(seed=seed), twin.reset(seed=seed), False
        while not over:
            assert shown.dtype == np.float32 and shown.shape == (11,) and np.isfinite(shown).all()
            assert (shown == same).all() and info["action_mask"].dtype == np.int8
            action = int(np.flatnonzero(info["action_mask"])[-1])
            shown, reward, over, _, info = one.step(action)
            same, again, *_ = twin.step(action)
            assert type(reward) is float and reward == again


def test_all_rw_fits_by_the_mask_whatever_rounding_says():
    for task in flex_tasks("4x8", "val"):
        env = FlexEnv([task])
        _, info = play(env, lambda mask: int(np.flatnonzero(mask)[-1]), seed=0)
        assert info["feasible"] and set(env.tiers) == {2}


def test_uniform_tiers_cost_what_the_task_says():
    task = small(extra_bytes=1e9)
    for action, tier in enumerate(("dp", "flex", "rw")):
        reward, info = play(FlexEnv([task]), lambda mask, action=action: action, seed=0)
        found = worth(task, TieredPlan.uniform(task, tier))
        assert (info["comm_ms"], info["memory_bytes"]) == pytest.approx((found.comm_ms, found.memory_bytes))
        assert reward == pytest.approx(-found.comm_ms / worth(task, TieredPlan.uniform(task, "rw")).comm_ms)


@pytest.mark.parametrize("key", NAMES)
def test_whoever_keeps_to_the_mask_fits_and_cannot_beat_the_bound(key):
    rng, env = np.random.default_rng(0), FlexEnv(key, "test")
    for index in range(min(4, len(env.tasks))):
        _, info = play(env, lambda mask: int(rng.choice(np.flatnonzero(mask))), options={"task": index}, seed=0)
        assert info["feasible"]
        assert info["comm_ms"] >= Frontier(env.tasks[index]).bound() * (1 - 1e-9)


def test_every_infeasible_end_is_below_every_feasible_one():
    rng, task = np.random.default_rng(1), small()
    hopeless = small(extra_bytes=-1e6)  # less than nothing is left: no plan fits, and one over by more is still worse
    rewards = [play(FlexEnv([hopeless]), lambda mask, tier=tier: tier, seed=0)[0] for tier in (2, 1, 0)]
    assert max(rewards) < -1 and play(FlexEnv([task]), lambda mask: 2, seed=0)[0] == -1
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
        rows = np.cumsum(env.bank.stretches[index].parts[0])
        wanted = [0 if r <= plan.dp_rows[0] else 1 if r <= plan.dp_rows[0] + plan.flex_rows[0] else 2 for r in rows]
        step = iter(wanted)
        _, info = play(env, lambda mask, step=step: next(step), options={"task": index}, seed=0)
        bound = Frontier(task).bound()
        assert info["feasible"] and bound <= info["comm_ms"] <= 1.1 * bound


def test_banks_are_the_same_each_time_and_differ_by_split():
    tables = {split: [t.tables[0].curve.num_rows for t in flex_tasks("4x8", split)] for split in COUNTS}
    assert {split: len(rows) for split, rows in tables.items()} == COUNTS
    assert not set(tables["train"]) & set(tables["test"])
    env = FlexEnv("4x8")
    assert (env.reset(seed=3)[0] == FlexEnv("4x8").reset(seed=3)[0]).all()


def test_bad_input_is_refused():
    with pytest.raises(UnknownName):
        FlexEnv("5x9")
    with pytest.raises(InvalidTask):
        FlexEnv([])
    with pytest.raises(InvalidTask, match="pooled"):
        FlexEnv([small(pooled=True)])
    with pytest.raises(InvalidTask, match="no sample"):
        FlexEnv([RowTask((SequenceTable("t", from_rows(np.zeros(9)), 1),), small().network, 10)])
    env = FlexEnv("RM")
    with pytest.raises(UnknownName, match="unknown reset option 'tasks'; choose one of: task"):
        env.reset(options={"tasks": 1})
    with pytest.raises(InvalidTask, match="reset options are a dict"):
        env.reset(options=1)
    for index in (4, "first"):
        with pytest.raises(InvalidTask, match="4 tasks"):
            env.reset(options={"task": index})
    env = FlexEnv("RM")
    with pytest.raises(Exception, match="reset"):
        env.step(0)
    env.reset(seed=0)
    for action in (3, -1, 1.5, "DP", None):
        with pytest.raises(BadAction, match="choose 0 for DP"):
            env.step(action)
    env.step(np.array(2))
    for _ in range(STRETCHES - 1):
        env.step(2)
    with pytest.raises(Exception, match="over"):
        env.step(2)


def test_pickles_are_small_and_go_on_where_they_were():
    env = FlexEnv("4x8")
    env.reset(seed=3), env.step(2)
    packed = pickle.dumps(env)
    again = pickle.loads(packed)
    assert len(packed) < 2**20 and again.tiers == (2,)
    assert all(np.array_equal(a, b) for a, b in zip(env.step(1), again.step(1), strict=True) if not isinstance(a, dict))


@pytest.mark.parametrize("key", IDS)
def test_every_step_tells_the_same_numbers(key):
    env = gym.make(key)
    assert env.spec.max_episode_steps == STRETCHES + 1
    infos = [env.reset(seed=0)[1]]
    infos += [env.step(2)[4] for _ in range(STRETCHES)]
    assert all(info.keys() == infos[0].keys() for info in infos)
    assert not any(info["comm_ms"] for info in infos[:-1]) and infos[-1]["comm_ms"] > 0
    assert {type(value) for info in infos for value in info.values()} == {np.ndarray, float, bool, int}


def test_pictures_show_what_was_chosen():
    pytest.importorskip("pygame")
    env = gym.make(IDS[0], render_mode="rgb_array")
    env.reset(seed=0)
    before = env.render()
    env.step(0)
    after = env.render()
    assert before.shape == (144, 608, 3) and before.dtype == np.uint8 and (env.render() == after).all()
    assert (
        (before[60, 20] == 255).all() and (after[60, 20] == DARK_BLUE).all() and (after[60, 29] == before[60, 29]).all()
    )
