"""Environments that draw their tasks from a user's own tables."""

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym import Constraints, suites
from shard_gym.envs.own import make_own_env, own_bank
from shard_gym.errors import InfeasibleTask, InvalidTask, UnknownName
from shard_gym.memory.usage import table_bytes
from shard_gym.plan.feasibility import first_fit_decreasing
from shard_gym.tables.files import save_pool
from shard_gym.tables.pool import GB
from tests.env_helpers import play_where_it_fits
from tests.pool_helpers import fp16_pool as make_pool


@pytest.fixture
def pool():
    rng = np.random.default_rng(0)
    return make_pool(rng.integers(100, 5_000, 50), rng.choice([4, 8, 16], 50), rng.uniform(0.5, 20, 50).round(2))


def names(bank):
    return {name for task in bank.tasks for name in task.tables.name}


OWN = {"devices": 2, "memory_gb": 1, "tables_per_task": 5, "num_tasks": 20}


def test_banks_follow_the_seed(pool):
    for wrong in ({"split_action": "x"}, {"unseen": "no"}):
        with pytest.raises(InvalidTask, match="is True or False"):
            own_bank(pool, **OWN, **wrong)
    first, again, other = (own_bank(pool, **OWN, seed=seed) for seed in (3, 3, 4))
    assert first.tasks == again.tasks != other.tasks
    assert np.array_equal(first.scaling, again.scaling)
    assert not np.array_equal(first.scaling, other.scaling)  # another seed trains on other tables
    assert own_bank(pool, **{**OWN, "num_tasks": 7}, seed=3).tasks == first.tasks[:7]


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**40), unseen=st.booleans(), size=st.integers(3, 8))
def test_splits_have_no_task_in_common_and_unseen_ones_no_table(seed, unseen, size):
    pool = make_pool(np.arange(100, 150), 8)
    told = {**OWN, "tables_per_task": size, "seed": seed, "unseen": unseen}
    banks = [own_bank(pool, split=split, **told) for split in suites.SPLITS]
    sets = [frozenset(task.tables.name) for bank in banks for task in bank.tasks]
    assert len(sets) == len(set(sets)) == 60
    assert all(len(one) == size for one in sets)
    shared = set.union(*(names(a) & names(b) for a in banks for b in banks if a is not b))
    assert not (shared and unseen)
    assert all(np.array_equal(bank.scaling, banks[0].scaling) for bank in banks)


def test_scaling_is_of_the_training_tables(pool):
    train = own_bank(pool, **{**OWN, "tables_per_task": 30, "num_tasks": 1})  # three fifths of 50: all there are
    mean, deviation = train.scaling
    features = train.tasks[0].tables.features().astype(np.float64)
    assert mean == pytest.approx(features.mean(axis=0))
    assert deviation[:3] == pytest.approx(features[:, :3].std(axis=0))
    assert (deviation[features.std(axis=0) == 0] == 1).all()
    few = own_bank(pool, **OWN)
    assert np.array_equal(few.scaling, train.scaling)  # whatever is drawn
    core = own_bank(pool, **OWN, scaling="core-80x8")
    assert np.array_equal(core.scaling, suites.get("core-80x8").feature_scaling())


def test_tasks_of_a_bank_have_room_and_what_was_told():
    pool = make_pool(np.full(40, 1000), [4] * 30 + [64] * 10)
    memory_gb = 3 * 64 * 1000 * 2 / GB  # a device has room for three of the large ones
    bank = own_bank(pool, 2, memory_gb, 8, unseen=False, optimizer="rowwise_adagrad", speed=[1, 0.5])
    for task in bank.tasks:
        first_fit_decreasing(task)
        assert (task.optimizer, task.accounting, task.speed) == ("rowwise_adagrad", "training", (1, 0.5))
    large = [(table_bytes(task) > 10**5).sum() for task in bank.tasks]
    assert 0 < max(large) <= 4  # with the optimizer's state a device takes two


def test_with_split_actions_tables_may_be_larger_than_devices():
    pool, memory_gb = make_pool([1000] * 30, 64), 100_000 / GB  # a table has 128,000 bytes
    with pytest.raises(InfeasibleTask, match=r"1,000 draws: .* fits on no device.* more memory_gb or more devices"):
        own_bank(pool, 4, memory_gb, 3)
    env = make_own_env(tables=pool, devices=4, memory_gb=memory_gb, tables_per_task=3, split_action=True)
    assert env.action_space.n == 5
    _, info = play_where_it_fits(env, seed=0)
    assert info["feasible"] and env.plan.splits


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"tables_per_task": 31}, "train draws from 30 tables, too few for tables_per_task=31.*unseen=False"),
        ({"tables_per_task": 29, "num_tasks": 31}, "29 of them make 30 different tasks, fewer than the 31"),
        ({"tables_per_task": 49, "num_tasks": 17, "unseen": False}, "make 50 different tasks, fewer than the 51"),
        ({"tables_per_task": 0}, "tables_per_task is a whole number from 1, got 0"),
        ({"num_tasks": 1.5}, "num_tasks is a whole number from 1, got 1.5"),
        ({"seed": -1}, "seed is a whole number from 0"),
        ({"split": "dev"}, "unknown split 'dev'; choose one of: test, train, val"),
        ({"scaling": "mine"}, "unknown suite 'mine'"),
        ({"scaling": [1, 2]}, "scaling is"),
        ({"constraints": Constraints()}, "unknown setting 'constraints'; choose one of: accounting"),
        ({"observation": "pixels"}, "unknown observation 'pixels'"),
    ],
)
def test_banks_that_are_refused(pool, told, message):
    with pytest.raises((InvalidTask, UnknownName), match=message):
        make_own_env(tables=pool, **{**OWN, **told})


@pytest.mark.parametrize("missing", ["tables", "devices", "memory_gb", "tables_per_task"])
def test_what_the_id_needs(pool, missing):
    told = {name: value for name, value in {"tables": pool, **OWN}.items() if name != missing}
    with pytest.raises(gym.error.MissingArgument, match=f"and {missing} is missing: gym.make"):
        gym.make("ShardGym-Own", **told)


@pytest.mark.parametrize("observation", ["table", "full", "ahead", "flat", "set"])
def test_the_id_makes_environments_alone_and_together(pool, tmp_path, observation):
    save_pool(pool, tmp_path / "tables.csv")
    told = {**OWN, "tables": tmp_path / "tables.csv", "observation": observation, "split": "val", "seed": 1}
    env = gym.make("ShardGym-Own", **told)
    many = gym.make_vec("ShardGym-Own", num_envs=3, **told)
    assert env.unwrapped.bank.tasks == many.bank.tasks == own_bank(pool, **OWN, split="val", seed=1).tasks
    seen, _ = env.reset(seed=5)
    together, _ = many.reset(seed=5)
    assert env.observation_space.contains(seen)
    for key in [None] if isinstance(seen, np.ndarray) else seen:
        one, first = (seen, together[0]) if key is None else (seen[key], together[key][0])
        assert np.array_equal(one, first)
