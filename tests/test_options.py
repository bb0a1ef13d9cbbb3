"""Policies over options of tables of all kinds of sharding."""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym import simulators, suites
from shard_gym.errors import CorruptFile, InfeasibleTask
from shard_gym.plan.violations import violations
from shard_gym.results.evaluate import score
from shard_gym.task.constraints import Constraints
from shard_gym_agents import make
from shard_gym_agents.search.kinds import Search
from shard_gym_agents.search.state import Budget
from tests.test_search_kinds import drawn

torch = pytest.importorskip("torch")
from shard_gym_agents.learners.dreamshard_planner import Config, DreamShardPlanner, Learner, load  # noqa: E402
from shard_gym_agents.learners.dreamshard_planner import new_net as device_net  # noqa: E402
from shard_gym_agents.learners.menus import ATTEMPTS, Menu  # noqa: E402
from shard_gym_agents.learners.offers import FEATURES, Offers, cheapest  # noqa: E402
from shard_gym_agents.learners.options import (  # noqa: E402
    OptionPlanner,
    begin,
    log_policy,
    new_net,
    play,
)
from tests.learner_helpers import assert_reproducible, fresh_net  # noqa: E402

ROOFLINE = simulators.make("roofline:h100-v2")
SCALING = np.stack([np.zeros(21), np.ones(21)])
SCALING[:, 1:3] = [[1e4, 10], [1e5, 10]]
fresh = partial(fresh_net, new_net, SCALING)
SMALL = Config(updates=3, tasks=2, episodes=8, learning_rate=4e-3, weights_rate=0.1, horizon=8)


def cached(seed, tables=6, fill=0.6, **changes):
    """A task whose rows may be in a cache: 0.6 of its memory holds all tables."""
    return drawn(seed, tables, fill, residences=("hbm", "cached"), host_memory=10**9, **changes)


def menu_of(*tasks, attempt=0):
    searches = [Search(task, ROOFLINE, Budget(np.inf, 0)) for task in tasks]
    return Menu.of(searches, ROOFLINE, SCALING, np.full(len(tasks), attempt))


@dataclass(frozen=True)
class Small:
    """A suite of a few tasks of all kinds."""

    planner: str = ROOFLINE.id
    key: str = "small"
    split_action: bool = False
    few: tuple = ()

    def tasks(self, split):
        return self.few or tuple(cached(seed) for seed in range(3))

    def feature_scaling(self):
        return SCALING[0], SCALING[1]


def test_pieces_go_to_the_cheapest_targets():
    """Two targets: pieces cost 1, 4, 9 ms together on the first, 3, 3.5, 4 on the second."""
    cost = np.array([[[1, 4, 9], [3, 3.5, 4.0]]])
    assert [cheapest(cost, count).tolist() for count in (1, 2, 3)] == [[[1, 0]], [[1, 1]], [[1, 2]]]


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6), attempt=st.integers(0, 3), fill=st.floats(0.3, 1.2))
def test_what_is_said_of_an_option_is_true_of_its_plan(seed, attempt, fill):
    task, rng = cached(seed, fill=fill), np.random.default_rng(seed)
    menu = menu_of(task, attempt=attempt)
    offers, chosen, times = Offers(menu, ROOFLINE), [], []
    for step in range(task.num_tables):
        _, legal = offers.look(step)
        some = legal[0] if legal.any() else menu.choice[0, step] >= 0
        last = np.flatnonzero(some)
        chosen.append(int(rng.choice(last)))
        times.append(offers.times[0])
        offers.take(np.array(chosen[-1:]))
    for option in last.tolist():
        pieces = np.stack([*(kept[c] for kept, c in zip(times[:-1], chosen, strict=False)), times[-1][option]])
        plan = menu.plan(np.array([*chosen[:-1], option]), pieces)
        latency = ROOFLINE.decode(task, offers.plans[0, option])
        assert score(task, plan, ROOFLINE).makespan == latency.makespan(task.objective)
        if option == chosen[-1]:
            assert offers.makespan()[0] == latency.makespan(task.objective)
            assert (offers.free >= 0).all() == (violations(task, plan) == [])


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10**6), random=st.booleans())
def test_plans_keep_to_their_task_and_its_constraints(seed, random):
    constraints = Constraints(pin=[(0, 1)], together=[(1, 2)], apart=[(3, 4)])
    task = cached(seed, fill=0.4, constraints=constraints)
    plan = OptionPlanner(fresh(seed, random=random))(task, ROOFLINE)
    assert violations(task, plan) == []
    assert score(task, plan, ROOFLINE).feasible


def test_tasks_side_by_side_are_planned_as_alone():
    tasks, net = [cached(1), cached(2, 9), cached(3, 4, fill=1.1)], fresh(random=True)
    menu = menu_of(*tasks)
    played = play(net, menu, ROOFLINE, None)
    for i, task in enumerate(tasks):
        alone = play(net, menu_of(task), ROOFLINE, None)
        assert played.offers.makespan()[i] == alone.offers.makespan()[0]
        assert played.alive[i] == alone.alive[0]


def test_the_loss_sees_the_policy_that_drew_and_its_masks():
    net, menu = fresh(random=True), menu_of(cached(1, fill=1.2), cached(2, 9))
    played = play(net, menu, ROOFLINE, None)
    log, real = log_policy(net, played), torch.from_numpy(menu.item >= 0)
    assert torch.equal(log.argmax(-1)[real], played.actions[real])
    assert not played.legal[real].all() and (log[~played.legal] < -1e8).all()


def test_untrained_the_only_weights_are_those_of_the_aim_and_of_more_shards():
    net = fresh()
    scores = net(torch.zeros(1, 1, 64), torch.eye(len(FEATURES))[None])[0] / 20
    told = dict(zip(FEATURES, scores.tolist(), strict=True))
    assert {name for name, weight in told.items() if weight} == {"aim", "halved", "by_host", "by_rows"}
    assert told["aim"] == pytest.approx(-1)
    assert not fresh(greedy=False).weights.any()


def test_it_learns_from_nothing():
    suite, planner = Small(planner="torchrec:cuda-v1"), simulators.make("torchrec:cuda-v1")
    learner = Learner(suite, replace(SMALL, greedy=False, updates=4, episodes=12), seed=0)
    told = [learner.iterate()["makespan"] for _ in range(3)]
    assert told[-1] < 0.5 * told[0]
    menu = begin(suite.tasks("train"), planner, SCALING)
    untrained, trained = (play(net, menu, planner, None).offers.makespan() for net in (fresh(), learner.net))
    assert (trained / untrained).mean() < 0.95


def test_memory_is_dearer_where_a_first_attempt_finds_no_room():
    task = drawn(5, 6, 0.6)
    dear, cheap = menu_of(task, attempt=ATTEMPTS - 1), menu_of(task)
    assert dear.price[0, 0] > cheap.price[0, 0] >= 0 == dear.price[0, 1]
    assert dear.bytes.sum() <= cheap.bytes.sum()


def test_what_fits_nowhere_is_refused():
    with pytest.raises(InfeasibleTask, match="fits on no device"):
        OptionPlanner(fresh())(drawn(1, 6, 4.0), ROOFLINE)


def test_seeds_reproduce_and_a_restored_learner_goes_on_as_if_nothing_had_happened():
    assert_reproducible(lambda seed: Learner(Small(), SMALL, seed))


def test_a_saved_policy_plans_as_before_and_other_games_are_told_apart(tmp_path):
    path, task = tmp_path / "policy.safetensors", cached(7)
    solver = Learner(Small(), SMALL, 0).solver()
    solver.save(path)
    again = load(path)
    assert isinstance(again, OptionPlanner)
    assert again(task, ROOFLINE) == solver(task, ROOFLINE)
    DreamShardPlanner(device_net(SCALING)).save(path)
    assert isinstance(load(path), DreamShardPlanner)
    path.write_bytes(b"no policy")
    with pytest.raises(CorruptFile):
        load(path)


def test_shipped_weights_plan_their_suites_and_tasks_of_none():
    suite = suites.get("core-80x8-allkinds")
    task, planner = suite.tasks("val")[0], simulators.make(suite.planner)
    plan = make("dreamshard-planner", suite=suite.key)(task, planner)
    greedy = make("cost-greedy")(task, planner)
    assert score(task, plan, planner).makespan < score(task, greedy, planner).makespan
    of_tight, of_mix = (
        make("dreamshard-planner", suite=key).weights for key in ("tight-80x8-allkinds", "tightmix-80x8-allkinds")
    )
    assert of_tight == of_mix != make("dreamshard-planner", suite=suite.key).weights
    small = cached(4, fill=0.4)
    plan = make("dreamshard-planner")(small, ROOFLINE)
    assert plan.kind and violations(small, plan) == []


def test_tables_are_halved_where_actions_halve():
    """Plans for a suite whose environment halves columns: sooner than of whole tables, before it has learned."""
    suite = suites.get("fitsplit-24x8")
    tasks, planner = suite.tasks("val")[:4], simulators.make(suite.planner)
    few = Small(planner=suite.planner, split_action=True, few=tasks)
    solver = Learner(few, replace(SMALL, updates=1, episodes=2), seed=0).solver()
    plans = [solver(task, planner) for task in tasks]
    whole = [make("cost-greedy")(task, planner) for task in tasks]
    assert any(plan.splits for plan in plans)
    ms, of_whole = (sum(score(*one, planner).makespan for one in zip(tasks, p, strict=True)) for p in (plans, whole))
    assert ms < of_whole
