"""Ranking by hand-made figures."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from shard_gym_agents.leaderboard.ranking import Sample, best_of_run, standings

NAN = np.nan
RANDOM, BEST = np.array([10.0, 20.0]), np.array([5.0, 10.0])


def sample(agent, *makespan, track="search"):
    return Sample(agent, track, np.array(makespan, float))


def by_agent(samples, random=RANDOM, best=BEST):
    return {s.agent: s for s in standings(samples, random, best)}


def test_figures_that_can_be_told_by_hand():
    found = by_agent([sample("best", [5, 10]), sample("twice", [10, 20], [5, 10])])
    assert (found["best"].gap.mean, found["best"].speedup.mean, found["best"].makespan.mean) == (0, 2, 7.5)
    assert found["twice"].gap.mean == 0.5  # seeds are averaged within a task
    assert (found["best"].rank, found["twice"].rank) == (1, 2)


def test_a_failed_run_counts_as_a_random_plan():
    (failed,) = standings([sample("failed", [NAN, NAN])], RANDOM, BEST)
    assert (failed.feasible, failed.gap.mean, failed.speedup.mean) == (0, 1, 1)


def test_feasibility_comes_before_the_gap():
    found = by_agent([sample("sharp", [5, NAN]), sample("safe", [9.9, 19.9])])
    assert found["sharp"].gap.mean < found["safe"].gap.mean
    assert (found["safe"].rank, found["sharp"].rank) == (1, 2)


def test_tracks_are_ranked_apart_and_equals_share_a_rank():
    samples = [
        sample("b", [6, 11]),
        sample("a", [6, 11]),
        sample("c", [7, 12]),
        sample("d", [5, 10], track="blind"),
    ]
    assert [(s.agent, s.rank) for s in standings(samples, RANDOM, BEST)] == [
        ("a", 1),
        ("b", 1),
        ("c", 3),
        ("d", 1),
    ]


def test_agents_that_the_tasks_do_not_tell_apart_share_a_rank():
    base = np.linspace(6, 9, 40)
    wobble = np.tile([0.5, -0.49], 20)
    agents = [sample("first", base), sample("noisy", base + wobble), sample("last", base + 1)]
    found = standings(agents, np.full(40, 10.0), np.full(40, 5.0))
    assert [(s.agent, s.rank) for s in found] == [("first", 1), ("noisy", 1), ("last", 3)]
    assert found[0].p == 1 and found[1].p > 0.5
    assert found[2].p == pytest.approx(2 / 20_001)  # no random signs come near, and there were two comparisons
    found = standings(agents, np.full(40, 10.0), np.full(40, 5.0), resolution=0.3)
    assert [(s.agent, s.rank) for s in found] == [("first", 1), ("noisy", 1), ("last", 1)]


def test_a_plan_better_than_the_best_known_has_a_negative_gap():
    (found,) = standings([sample("new", [4, 10])], RANDOM, BEST)
    assert found.gap.mean == pytest.approx(-0.1)


def test_intervals_hold_the_mean_and_shrink_with_tasks():
    rng = np.random.default_rng(0)

    def width(tasks):
        random = np.full(tasks, 10.0)
        (found,) = standings([Sample("a", "search", rng.uniform(5, 10, (1, tasks)))], random, random / 2)
        assert found.gap.low < found.gap.mean < found.gap.high
        return found.gap.high - found.gap.low

    assert width(400) < width(25) / 2  # expected: a quarter


def test_the_best_of_the_run_stands_in_where_nothing_is_known():
    samples = [sample("a", [6, NAN, NAN]), sample("b", [7, 8, NAN])]
    known = best_of_run(samples, np.array([10.0, 20.0, 30.0]), np.array([5.0, NAN, NAN]))
    assert known.tolist() == [5, 8, 30]


def place(standing):
    return -standing.feasible, standing.gap.mean, standing.agent


makespans = arrays(float, (2, 6), elements=st.one_of(st.floats(1, 100), st.just(NAN)))
several = st.lists(makespans, min_size=1, max_size=5)
reference = arrays(float, 6, elements=st.floats(1, 100))


@settings(max_examples=20, deadline=None)
@given(several, reference, reference, st.randoms())
def test_the_order_of_agents_does_not_matter(made, random, best, shuffler):
    samples = [Sample(str(i), "search", m) for i, m in enumerate(made)]
    shuffled = shuffler.sample(samples, len(samples))
    assert standings(samples, random, best) == standings(shuffled, random, best)


@settings(max_examples=20, deadline=None)
@given(several, reference, st.floats(1, 3))
def test_a_worse_agent_changes_nobody_elses_figures_and_no_better_ones_rank(made, random, factor):
    samples = [Sample(str(i), "search", m) for i, m in enumerate(made)]
    for worse in (made[0] * factor, np.full((2, 6), NAN)):
        more = [*samples, Sample("worse", "search", worse)]
        unknown = np.full(6, NAN)
        before = by_agent(samples, random, best_of_run(samples, random, unknown))
        after = by_agent(more, random, best_of_run(more, random, unknown))
        assert all(replace(after[a], rank=0, p=0) == replace(before[a], rank=0, p=0) for a in before)
        better = [a for a in before if place(before[a]) <= place(before["0"])]
        assert [after[a].rank for a in better] == [before[a].rank for a in better]


@settings(max_examples=20, deadline=None)
@given(several, reference, reference)
def test_ranks_follow_feasibility_then_gap(made, random, best):
    found = standings([Sample(str(i), "search", m) for i, m in enumerate(made)], random, best)
    keys = [(-s.feasible, s.gap.mean) for s in found]
    assert keys == sorted(keys)
    assert found[0].rank == 1
