"""Split actions in general: what holds for every task and every way to act, knowing the mask or not."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_gym import simulators, suites
from shard_gym.envs.bank import Bank
from shard_gym.envs.begun import replayed
from shard_gym.envs.env import ShardingEnv
from shard_gym.envs.observations import OBSERVATIONS
from shard_gym.envs.rewards import REWARDS
from shard_gym.memory.usage import device_bytes, table_bytes
from shard_gym.plan.nodes import MOST_HALVINGS
from shard_gym.plan.plan import Plan
from shard_gym.plan.violations import violations
from shard_gym.results.evaluate import score
from shard_gym.task.task import Constraints
from tests.test_env_properties import lenient, seeds, tasks

SPLIT_SUITES = [suite for suite in suites.SUITES.values() if suite.split_action]
ROOFLINE = simulators.make(simulators.DEFAULT)


@st.composite
def splittable(draw):
    """Tasks some of whose tables may be split, some with a table that is pinned, and so is not."""
    task = draw(tasks())
    whole = draw(st.sets(st.integers(0, task.num_tables - 1)))
    pin = ((0, 0),) if draw(st.booleans()) else ()
    return replace(task, splits_allowed=True, constraints=Constraints(no_split=tuple(whole), pin=pin))


def bank_of(task):
    return Bank((task,), split_action=True)


def played(env, choose, **reset):
    """Play to the end as `choose(mask)` says; observations, rewards, actions, the last info."""
    shown, info = env.reset(**reset)
    seen, rewards, actions, over = [shown], [], [], False
    while not over:
        actions.append(int(choose(info["action_mask"])))
        shown, reward, over, truncated, info = env.step(actions[-1])
        seen.append(shown)
        rewards.append(reward)
        assert not truncated
    return seen, rewards, actions, info


def unaware(rng):
    """A policy that splits every second time, whatever the mask."""
    return lambda mask: len(mask) - 1 if rng.random() < 0.5 else rng.integers(len(mask))


def masked(rng):
    return lambda mask: rng.choice(np.flatnonzero(mask))


def check_end(task, info, simulator):
    """The end of an episode tells what the plan is worth."""
    plan = info["plan"]
    judged = score(task, plan, simulator)
    assert (judged.makespan, judged.balance) == (info["makespan"], info["balance"])
    assert info["feasible"] == judged.feasible == (not violations(task, plan))
    assert Plan.from_dict(plan.to_dict()) == plan
    pieces = task.split(plan.splits)
    assert pieces.num_tables == len(plan.device)
    for table in range(task.num_tables):
        dims = [d for name, d in zip(pieces.tables.name, pieces.tables.dim, strict=True) if is_of(name, task, table)]
        assert sum(dims) == task.tables.dim[table]
        assert min(dims) >= task.tables.dim[table] >> MOST_HALVINGS
        assert len(dims) == 1 or table not in task.constraints.no_split
    return pieces


def is_of(name, task, table):
    return name.split("/")[0] == task.tables.name[table]


@pytest.mark.parametrize("observation", OBSERVATIONS)
@lenient
@given(task=splittable(), seed=seeds, order=st.sampled_from(["cost", "size", "given", "random"]))
def test_a_split_plan_is_worth_what_the_environment_says(observation, task, seed, order):
    rng = np.random.default_rng(seed)
    env = ShardingEnv(bank_of(task), observation=observation, order=order, info="full")
    for choose in (unaware(rng), masked(rng)):
        seen, _, actions, info = played(env, choose, seed=seed)
        pieces = check_end(task, info, ROOFLINE)
        state = env._state
        assert (task.capacity - state.free == device_bytes(pieces, np.array(info["plan"].device))).all()
        assert replayed(state.episode, actions).plan() == info["plan"]
        for shown in seen:
            assert shown in env.observation_space
            assert all(np.isfinite(v).all() for v in (shown.values() if isinstance(shown, dict) else [shown]))


@lenient
@given(task=splittable(), seed=seeds)
def test_infeasible_ends_score_below_feasible_ones_and_dense_sums_to_latency(task, seed):
    ends = {}
    for reward in REWARDS:
        rng = np.random.default_rng(seed)
        env = ShardingEnv(bank_of(task), reward=reward)
        ends[reward] = [played(env, choose(rng)) for choose in (unaware, masked) for _ in range(4)]
        feasible = [sum(rewards) for _, rewards, _, info in ends[reward] if info["feasible"]]
        infeasible = [sum(rewards) for _, rewards, _, info in ends[reward] if not info["feasible"]]
        assert max(infeasible, default=-np.inf) < min(feasible, default=np.inf)
    for (_, dense, actions, _), (_, latency, same, _) in zip(ends["dense"], ends["latency"], strict=True):
        assert actions == same
        assert sum(dense) == pytest.approx(latency[-1], abs=1e-12)
        assert not any(latency[:-1])


class BruteForce:
    """The queue by bytes as the manual tells it: pieces in a list, the next one found by looking at all of them."""

    def __init__(self, task):
        self.task, self.device, self.splits = task, [-1] * task.num_tables, []
        self.free = task.capacity.tolist()
        self.waiting = [(table, 0, table) for table in range(task.num_tables)]  # table, level, number
        self.pinned = bool(task.constraints.pin)  # table 0 to device 0

    def size(self, table, level):
        one = self.task.tables.take([table])
        return int(
            table_bytes(replace(self.task, tables=one.with_(dim=one.dim >> level), constraints=Constraints()))[0]
        )

    def next(self):
        return min(self.waiting, key=lambda p: (-self.size(p[0], p[1]), p[0], p[1]))  # the first in of those alike

    def may_split(self, table, level):
        columns = int(self.task.tables.dim[table]) >> level
        kept = table in self.task.constraints.no_split or (self.pinned and table == 0)
        return level < MOST_HALVINGS and columns % 8 == 0 and not kept

    def mask(self):
        table, level, _ = self.next()
        room = self.free.copy()
        if self.pinned and table == 0:
            room[1:] = [-1] * len(room[1:])
        elif self.pinned and (0, 0, 0) in self.waiting:
            room[0] -= self.size(0, 0)  # kept for it
        fits = [free >= self.size(table, level) for free in room]
        may = self.may_split(table, level)
        return [*(fits if any(fits) else [not may] * len(fits)), may]

    def act(self, action):
        piece = table, level, number = self.next()
        self.waiting.remove(piece)
        if action == len(self.free) and self.may_split(table, level):
            self.waiting += [(table, level + 1, number), (table, level + 1, len(self.device))]
            self.device.append(-1)
            self.splits.append(number)
            return
        if action == len(self.free):
            action = int(np.argmax(self.free))
        self.device[number] = action
        self.free[action] -= self.size(table, level)


@lenient
@given(task=splittable(), seed=seeds)
def test_masks_features_and_plan_are_what_brute_force_finds(task, seed):
    rng = np.random.default_rng(seed)
    env, expected = ShardingEnv(bank_of(task), order="size", info="full"), BruteForce(task)
    (shown, info), over = env.reset(), False
    while not over:
        table, level, _ = expected.next()
        assert shown[:2].tolist() == [task.tables.dim[table] >> level, np.float32(task.tables.rows[table])]
        placed = sum(device >= 0 for device in expected.device)
        assert shown[21] == np.float32(placed / len(expected.device))
        assert info["action_mask"].tolist() == env.action_masks().tolist() == expected.mask()
        action = rng.integers(task.num_devices + 1)
        expected.act(action)
        shown, _, over, _, info = env.step(action)
    assert not expected.waiting
    assert info["plan"] == Plan(tuple(expected.device), tuple(expected.splits))


@lenient
@given(task=splittable(), seed=seeds, order=st.sampled_from(["cost", "size", "given", "random"]))
def test_without_a_split_the_episode_is_the_one_without_split_actions(task, seed, order):
    with_, without = (
        ShardingEnv(bank, observation="full", reward="dense", order=order, info="full")
        for bank in (bank_of(task), Bank((task,)))
    )
    shown, info = with_.reset(seed=seed)
    shown2, info2 = without.reset(seed=seed)
    actions = np.random.default_rng(seed).integers(task.num_devices, size=task.num_tables)
    for k, action in enumerate(actions):
        fits = info2["action_mask"]
        assert np.array_equal(info["action_mask"][:-1], fits) or not info["action_mask"][:-1].any()
        for key in ("table", "devices"):
            np.testing.assert_array_equal(shown[key], shown2[key])
        np.testing.assert_allclose(shown["remaining"], shown2["remaining"], atol=1e-5)
        shown, reward, over, _, info = with_.step(action)
        shown2, reward2, over2, _, info2 = without.step(action)
        assert (reward, over) == (reward2, over2) == (reward, k == len(actions) - 1)
    assert info["plan"] == info2["plan"]


@lenient
@given(task=splittable(), seed=seeds)
def test_what_remains_is_what_waits(task, seed):
    rng = np.random.default_rng(seed)
    env = ShardingEnv(bank_of(task), observation="full")
    env.reset()
    state, over = env._state, False
    p = state.episode.prepared
    while not over:
        shown, _, over, *_ = env.step(rng.integers(task.num_devices + 1))
        waiting = np.repeat(state.episode.order, state.waiting[:-1])
        whole = p.nodes.whole
        for column, values in enumerate([np.ones(len(p.nodes)), p.alone, p.sizes, p.nodes.pieces.tables.dim]):
            share = values[waiting].sum() / (values[whole].sum() or 1)
            assert shown["remaining"][column] == pytest.approx(share, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("reward", REWARDS)
@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize("suite", [s for s in SPLIT_SUITES if s.num_tables < 1000], ids=lambda suite: suite.key)
def test_split_suites_are_worth_what_they_say(suite, observation, reward):
    check_suite(suite, observation, reward)


def test_the_largest_split_suite_is_worth_what_it_says():
    check_suite(suites.get("prod-1000x128-split"), "full", "latency")


def check_suite(suite, observation, reward):
    rng = np.random.default_rng(3)
    env = gym.make(suite.env_id, observation=observation, reward=reward, info="full").unwrapped
    assert env.action_space.n == suite.num_devices + 1
    task = min(env.bank.tasks[:20], key=lambda task: task.num_tables)
    choose = masked(rng) if observation == "set" else lambda mask: rng.integers(len(mask))
    _, rewards, _, info = played(env, choose, options={"task": task})
    plan = info["plan"]
    judged = score(task, plan, env.simulator)
    assert (judged.makespan, judged.feasible) == (info["makespan"], info["feasible"])
    if reward != "balance" and info["feasible"]:
        worst = env._state.episode.prepared.worst
        reference = suite.random_makespans("train", suite.planner)[env.bank.tasks.index(task)]
        assert sum(rewards) == pytest.approx(-min(info["makespan"], worst) / reference)
