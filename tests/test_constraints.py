"""Constraints are kept by every solver, and by whoever follows the masks of the environments."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym import Constraints, Plan, Task, make_pool, simulators, suites
from shard_gym.envs.bank import Bank
from shard_gym.errors import InfeasibleTask
from shard_gym.plan.feasibility import first_fit_decreasing
from shard_gym.plan.random_plans import random_placements
from shard_gym.plan.rules import Rules
from shard_gym.plan.violations import violations
from shard_gym_agents import make, names, options
from shard_gym_agents.learners import LEARNERS
from shard_gym_agents.learners.trained import shipped
from tests.env_helpers import split_env, tiny_env
from tests.test_placing import constrained, task_of
from tests.vector_helpers import MODES, pair, play_alike, reset_alike

KINDS = {
    "pin": Constraints(pin=((0, 3), (7, 0), (9, 3))),
    "together": Constraints(together=((0, 1, 2), (2, 11))),
    "apart": Constraints(apart=((0, 1, 2, 3),)),
    "no-split": Constraints(no_split=tuple(range(12))),
    "moves": Constraints(base=(0, 1, 2, 3) * 3, max_moves=2),
    "still": Constraints(base=(3, 1, 2, 0) * 3, max_moves=0),
    "mix": Constraints(
        pin=((5, 2),), together=((0, 6),), apart=((6, 7, 8),), no_split=(4,), base=(0, 1, 2) * 4, max_moves=5
    ),
}
ROOFLINE = simulators.make(simulators.DEFAULT)
SUITES = ("core-60x4", "dlrm-50x4", "metasyn-80x8")  # the first whose weights there are serves a learner
SERVING = {learner: next(key for key in SUITES if key in shipped(learner)) for learner in LEARNERS}
OTHERS = {"torchrec-planner", "torchrec-planner-perf"}  # another library's, which refuses such constraints


def roomy(objective, constraints, splits):
    """Twelve tables on four devices, each of which could hold them all; one computes slowly."""
    rng = np.random.default_rng(5)
    pool = make_pool(rows=rng.integers(10**4, 10**6, 12), dim=rng.choice([16, 64], 12), pooling=rng.uniform(1, 40, 12))
    memory = (int(pool.weight_bytes.sum()),) * 4
    in_use = replace(constraints, base=constraints.base or (0, 1, 2, 3) * 3)
    return Task(pool, memory, objective, speed=(1, 1, 1, 0.5), splits_allowed=splits, constraints=in_use)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [name for name in names() if name not in OTHERS])
def test_every_solver_keeps_constraints(name, kind):
    if name not in LEARNERS:
        settings = {"budget": 0.02} if "budget" in options(name) else {}
        task, planner = roomy("iteration", KINDS[kind], splits=True), ROOFLINE
    else:
        pytest.importorskip("torch")
        suite = suites.get(SERVING[name])
        settings, planner = {"suite": suite.key}, simulators.make(suite.planner)
        task = roomy(suite.objective, KINDS[kind], splits=False)
    assert not violations(task, make(name, **settings)(task, planner))


@settings(max_examples=60, deadline=None)
@given(constrained(), st.integers(0, 10**6))
def test_rules_are_kept_or_what_is_missing_is_told(task, seed):
    for solve in SIMPLE:
        try:
            placement = solve(task, seed)
        except InfeasibleTask as error:
            assert task.constraints.max_moves is None, "the plan in use is one"
            assert "in the order tried table" in str(error) or "fits on no device" in str(error)
        else:
            assert not violations(task, Plan(tuple(placement.tolist())))


SIMPLE = (
    lambda task, seed: first_fit_decreasing(task),
    lambda task, seed: random_placements(task, 3, np.random.default_rng(seed))[2],
    *(
        lambda task, seed, name=name: np.array(make(name)(task, ROOFLINE).device)
        for name in ("random", "round-robin", "size-greedy", "cost-greedy")
    ),
)


def test_tables_that_must_be_together_count_as_one():
    task = task_of([3, 2, 2, 1], [9, 9], together=[(1, 2)])
    assert make("size-greedy")(task, ROOFLINE) == Plan((1, 0, 0, 1))  # 4, then 3, then 1 KB


@pytest.mark.parametrize(
    "task, told",
    [
        (
            task_of([1, 1, 2], [2, 2], pin=[(0, 0), (1, 1)]),
            "device 0 has the most room not kept for others, 1,000 bytes, 1,000 too few; which does not prove",
        ),
        (
            task_of([1, 1, 1], [9, 9], apart=[(0, 2), (1, 2)], pin=[(0, 0), (1, 1)]),
            "device 0 has the most room not kept for others, 8,000 bytes, but constraints keep it from there; which",
        ),
        (
            task_of([2, 2, 3], [4, 4], together=[(1, 2)]),
            "5,000 bytes, with those that must be with it) may go to no device: device 0 has the most room not kept "
            "for others, 4,000 bytes, 1,000 too few; and there is no plan: tables (1, 2) must be together",
        ),
    ],
)
def test_a_dead_end_is_told_with_what_is_missing(task, told):
    with pytest.raises(InfeasibleTask, match=re.escape(told)):
        make("lookup-greedy")(task, ROOFLINE)


def test_random_plans_move_any_table():
    task = roomy("kernel", KINDS["moves"], splits=False)
    moved = random_placements(task, 300, np.random.default_rng(0)) != np.array(task.constraints.base)
    assert moved.sum(axis=1).max() == 2
    assert (moved.mean(axis=0) > 0.05).all()


def followed(env, rng, **reset):
    """Actions that the masks allow, at random; whether one was ever all there is, the last reward and info."""
    (_, info), dead_end, over = env.reset(**reset), False, False
    while not over:
        legal = np.flatnonzero(info["action_mask"])
        dead_end |= not env._state.placing.legal(env._state.episode.nodes[env._state.position]).any()
        _, reward, over, _, info = env.step(rng.choice(legal))
    return dead_end, reward, info


@settings(max_examples=100, deadline=None)
@given(constrained(), st.integers(0, 10**6), st.sampled_from(["cost", "size", "given", "random"]))
def test_whoever_follows_the_masks_ends_feasible(task, seed, order):
    if not Rules.of(task).binding:
        return
    dead_end, _, info = followed(tiny_env(task, order=order), np.random.default_rng(seed), seed=seed)
    assert info["feasible"] == (not dead_end)
    assert not dead_end or task.constraints.max_moves is None


def test_masks_by_hand():
    env = tiny_env(task_of([3, 2, 1], [4, 4], pin=[(1, 0)], apart=[(0, 2)]), order="given", observation="full")
    shown, info = env.reset()
    assert info["action_mask"].tolist() == shown["action_mask"].tolist() == [0, 1]  # room for table 1 is kept
    env.step(1)
    assert env.action_masks().tolist() == [True, False]
    shown, *_, info = env.step(0)
    assert info["action_mask"].tolist() == shown["action_mask"].tolist() == [1, 0]  # apart from table 0
    *_, info = env.step(1)
    assert (info["feasible"], info["action_mask"].tolist()) == (False, [1, 1])


def test_pieces_leave_the_room_that_is_kept():
    pool = make_pool(rows=[100, 100], dim=[8, 32], pooling=[1, 1], dtype="int8")  # 800 and 3,200 bytes
    env = split_env(Task(pool, (1600, 2400), splits_allowed=True, constraints=Constraints(pin=((0, 0),))), order="size")
    masks = [env.reset()[1]["action_mask"].tolist()]
    for action in (2, 1, 2, 0, 0, 1):
        *_, info = env.step(action)
        masks.append(info["action_mask"].tolist())
    assert masks == [[0, 0, 1], [0, 1, 1], [0, 0, 1], [1, 0, 0], [1, 1, 1], [0, 1, 1], [1, 1, 0]]
    assert info["feasible"]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(KINDS)), st.sampled_from(["cost", "size", "random"]), st.integers(0, 10**6))
def test_masks_with_splits_end_feasible_where_there_is_room(kind, order, seed):
    env = split_env(roomy("kernel", KINDS[kind], splits=True), order=order)
    rng, over = np.random.default_rng(seed), False
    _, info = env.reset(seed=seed)
    while not over:
        mask = info["action_mask"] * np.append(np.ones(4), rng.random() < 0.3)
        *_, over, _, info = env.step(rng.choice(np.flatnonzero(mask)))
    assert info["feasible"]


@pytest.mark.parametrize("split_action", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_many_environments_follow_the_same_masks(mode, split_action):
    tasks = [roomy("kernel", constraints, split_action) for constraints in KINDS.values()]
    bank = Bank((replace(tasks[0], constraints=Constraints()), *tasks), split_action=split_action)
    scalar, ours = pair(bank, 4, mode, observation="full", order="random" if split_action else "size")
    reset_alike(scalar, ours, seed=3)
    assert play_alike(scalar, ours, 70) >= 8
    reset_alike(scalar, ours, task=tasks[-1])
    play_alike(scalar, ours, 10)
    reset_alike(scalar, ours, task=bank.tasks[0])
    play_alike(scalar, ours, 10)


@pytest.mark.parametrize("name", ["autoshard", "dreamshard", "dreamshard-planner", "ppo", "cloning"])
def test_samples_of_policies_keep_constraints(name):
    pytest.importorskip("torch")
    from shard_gym_agents.learners import trained

    suite, files = suites.get(SERVING[name]), shipped(name)
    policy = trained._policy(name, files[suite.key], make(name, suite=suite.key).weights)
    task = roomy(suite.objective, KINDS["mix"], splits=False)
    plans = policy.samples(task, simulators.make(suite.planner), 8)
    assert len(plans) == 8
    assert not any(violations(task, Plan(tuple(plan))) for plan in plans.tolist())
