"""The vector environment of tiers does what scalar ones do, to the bit; and how it is used."""

import pickle

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from hypothesis import given, settings
from hypothesis import strategies as st

import shard_gym  # noqa: F401  # registers the ids
from shard_gym.envs.env import BadAction, NoEpisode
from shard_gym.envs.vector.turns import BadBatch
from shard_gym.errors import InvalidTask, UnknownName
from shard_gym.flexshard import NAMES
from shard_gym.flexshard.bank import FlexBank
from shard_gym.flexshard.curves import from_rows
from shard_gym.flexshard.env import FlexEnv
from shard_gym.flexshard.network import Network
from shard_gym.flexshard.states import States, Sums
from shard_gym.flexshard.stretches import STRETCHES
from shard_gym.flexshard.tiers import RowTask, SequenceTable
from shard_gym.flexshard.vector_env import FlexVectorEnv
from tests.vector_helpers import MODES, assert_same, play_alike, reset_alike

ON = Network(2, 2, a2a_global=1e3, a2a_intra=4e3, ar_global=3e3, ar_cross=1e3, a2a_global_ms=0.5)


def pair(tasks, num_envs, mode, split="train"):
    """Scalar environments one after the other, and ours."""
    scalar = SyncVectorEnv([lambda: FlexEnv(tasks, split)] * num_envs, autoreset_mode=AutoresetMode(mode))
    return scalar, FlexVectorEnv(FlexEnv(tasks, split), num_envs, mode)


@st.composite
def tasks(draw):
    """Up to four tasks of a few hundred rows, from roomy to hopeless."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    made = []
    for _ in range(draw(st.integers(1, 4))):
        rows = np.sort(rng.uniform(0, 1, rng.integers(64, 300)) ** rng.uniform(1, 4))[::-1]
        table = SequenceTable("t", from_rows(rows), int(rng.integers(1, 9)))
        made.append(RowTask((table,), ON, 100, float(rng.choice([-1e6, -500, 0, 500, 1e6]))))
    return made


@settings(max_examples=25, deadline=None)
@given(numbers=st.lists(st.floats(0, 1e12), min_size=1, max_size=STRETCHES), other=st.floats(0, 1e12))
def test_sums_one_by_one_are_numpys_to_the_bit(numbers, other):
    sums = Sums(2, 2)
    for i, number in enumerate(numbers):
        sums.add(np.full(2, i), np.array([[number, other], [1.0, number]]))
        expected = [[np.sum(numbers[: i + 1]), np.sum([other] * (i + 1))], [i + 1, np.sum(numbers[: i + 1])]]
        assert sums.value.tolist() == expected
    sums.begin(np.array([1]))
    sums.add(np.array([len(numbers), 0]), np.ones((2, 2)))
    assert sums.value[1].tolist() == [1, 1]


@settings(max_examples=20, deadline=None)
@given(tasks=tasks(), mode=st.sampled_from(MODES), seed=st.integers(0, 2**65))
def test_any_tasks_to_the_bit(tasks, mode, seed):
    scalar, ours = pair(tasks, 3, mode)
    rng = np.random.default_rng(seed)
    reset_alike(scalar, ours, seed=seed)
    play_alike(scalar, ours, 11, rng)
    reset_alike(scalar, ours, seed=[7, None, 2**64 + 1], mask=np.array([True, True, False]))
    play_alike(scalar, ours, 5, rng)  # from here on they are at different stretches
    reset_alike(scalar, ours, mask=np.array([False, True, False]), task=len(tasks) - 1)
    assert play_alike(scalar, ours, STRETCHES + 5, rng) >= 3


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_every_id_to_the_bit(name, mode):
    scalar, ours = pair(name, 4, mode, "val")
    reset_alike(scalar, ours, seed=2)
    assert play_alike(scalar, ours, 2 * STRETCHES + 3) == 8
    assert scalar.get_attr("tiers") == ours.get_attr("tiers")


def test_what_an_episode_shows_is_what_its_task_says():
    """Memory and communication of any tiers, summed by numpy over the stretches' own numbers."""
    bank, rng = FlexEnv("4x8", "val").bank, np.random.default_rng(0)
    states, drawn = States(bank, len(bank)), rng.integers(3, size=(STRETCHES, len(bank)))
    states.begin(np.arange(len(bank)), np.arange(len(bank)))
    for done in range(STRETCHES):
        states.put(drawn[done])
        for i in (0, 3):
            of, at, tiers = bank.stretches[i], range(done + 1), drawn[: done + 1, i]
            memory, used = of.memory[tiers, at].sum(), sorted(set(tiers.tolist()))
            assert states.memory[i] == memory
            assert states.ms[i] == of.ms[tiers, at].sum() + of.latency[used].sum()
            assert states.shown()[i, 7] == np.float32((of.budget - memory - of.rest[done + 1]) / of.rw_memory)


def test_make_vec_takes_every_id_and_the_arguments():
    for name in NAMES:
        spec = gym.spec(f"ShardGym-Flex-{name}")
        assert spec.vector_entry_point == "shard_gym.flexshard.vector_env:make_flex_vector_env"
        assert -1 < spec.reward_threshold < 0
    env = gym.make_vec("ShardGym-Flex-4x8", num_envs=6, split="test", autoreset_mode="SameStep")
    assert isinstance(env, FlexVectorEnv) and env.spec.id == "ShardGym-Flex-4x8"
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert env.action_space == gym.spaces.MultiDiscrete([3] * 6)
    shown, info = env.reset(seed=1)
    assert shown in env.observation_space and info["action_mask"].shape == (6, 3)
    assert info["task"].tolist() == [FlexEnv("4x8", "test").reset(seed=1 + i)[1]["task"] for i in range(6)]
    with pytest.raises(BadBatch, match="episodes take up to 64 steps"):
        gym.make_vec("ShardGym-Flex-RM", num_envs=2, max_episode_steps=63)


@pytest.mark.parametrize("mode", MODES)
def test_gymnasiums_wrappers_take_it(mode):
    env = RecordEpisodeStatistics(FlexVectorEnv(FlexEnv("RM"), 3, mode))
    env.reset(seed=0)
    for _ in range(STRETCHES):
        _, rewards, over, _, info = env.step([2, 2, 2])
    assert over.all() and rewards.tolist() == [-1] * 3  # all rows in RW
    assert info["episode"]["r"].tolist() == [-1] * 3 and info["episode"]["l"].tolist() == [STRETCHES] * 3
    told = info["final_info"] if mode == "SameStep" else info
    assert told["feasible"].all() and (told["comm_ms"] > 0).all()


def test_what_is_told_stays_what_it_was():
    env = FlexVectorEnv(FlexEnv("RM"), 2)
    results = (env.reset(seed=0), env.step([0, 1]))
    kept = pickle.loads(pickle.dumps(results))
    for _ in range(STRETCHES + 3):
        env.step([1, 2])
    assert_same(kept, results)


def test_pictures_attributes_and_pickles():
    env = FlexVectorEnv(FlexEnv("4x8", render_mode="ansi"), 2)
    env.reset(seed=0), env.step([0, 1]), env.step([2, 1])
    assert env.render() == env.call("render") == ("DR", "FF")
    assert env.get_attr("tiers") == ((0, 2), (1, 1))
    env.set_attr("weight", [1, 2])
    assert env.get_attr("weight") == (1, 2)
    assert FlexVectorEnv(FlexEnv("RM"), 2).call("render") == (None, None)
    packed = pickle.dumps(env)
    assert len(packed) < 2**20
    assert_same(env.step([1, 2]), pickle.loads(packed).step([1, 2]))
    custom = FlexBank(FlexEnv("RM").tasks[:1])
    assert (pickle.loads(pickle.dumps(custom)).costs == custom.costs).all()


def test_bad_input_is_refused_and_changes_nothing():
    env, other = (FlexVectorEnv(FlexEnv("RM"), 2, "Disabled") for _ in range(2))
    with pytest.raises(NoEpisode, match=r"call reset\(\) first"):
        env.step([0, 0])
    for e in (env, other):
        e.reset(seed=0)
    for actions in ([0, 3], [0, -1], [0], [0.0, 1.0], "DP"):
        with pytest.raises(BadAction, match=r"0\.\.2"):
            env.step(actions)
    with pytest.raises(InvalidTask, match="4 tasks"):
        env.reset(options={"task": 4})
    with pytest.raises(UnknownName, match="choose one of: reset_mask, task"):
        env.reset(options={"tasks": 1})
    with pytest.raises(BadBatch, match="reset_mask"):
        env.reset(options={"reset_mask": [True, False]})
    assert_same(other.step([0, 1]), env.step([0, 1]))
    for _ in range(STRETCHES - 1):
        env.step([2, 2])
    with pytest.raises(NoEpisode, match=r"environments \[0, 1\] are over"):
        env.step([2, 2])
