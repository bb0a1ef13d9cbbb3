"""Cost-greedy on halved tables: what is halved, and that it is never predicted to be slower than cost-greedy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym import Constraints, Task, simulators
from shard_gym.errors import InfeasibleTask, InvalidTask
from shard_gym.plan.violations import violations
from shard_gym.results.evaluate import score
from shard_gym_agents import make
from shard_gym_agents.solvers.halving import Halving
from tests.pool_helpers import fp16_pool as make_pool
from tests.search_helpers import SIMULATOR, draw_task


class Columns(simulators.FastSimulator):
    """A millisecond a column, forward."""

    id = "columns"

    def embed(self, task):
        return task.tables.dim[:, None].astype(np.float64)

    def decode(self, task, sums):
        zero = np.zeros(sums.shape[:-1])
        return simulators.Latency(sums[..., 0], zero, zero, zero)


def task_of(dims, **settings):
    return Task(make_pool(rows=10, dim=dims, pooling=1), memory=(10**6,) * 2, splits_allowed=True, **settings)


def test_the_costliest_piece_is_halved_in_turn():
    found = list(Halving(task_of([64, 24, 8]), Columns()).steps(3))
    assert [pieces.splits for pieces in found] == [(), (0,), (0, 0), (0, 0, 3)]  # piece 3 is the other half of table 0
    assert [pieces.uneven for pieces in found] == [True, False, False, False]  # an even share is 48
    *_, last = Halving(task_of([8, 4]), Columns()).steps()
    assert last.splits == (0,)  # halves of 4 columns stay whole


@pytest.mark.parametrize(("rungs", "splits", "makespan"), [(0, (), 64), (1, (0,), 48), (8, (0,), 48)])
def test_a_ladder_takes_the_first_of_its_best_rungs(rungs, splits, makespan):
    """64 and 16 + 16; then 32 + 16 on both, which more halvings cannot beat."""
    task = task_of([64, 16, 16])
    plan = make("ladder", rungs=rungs)(task, Columns())
    assert (plan.splits, score(task, plan, Columns()).makespan) == (splits, makespan)


def test_halving_ends_at_an_even_share():
    """Devices have 40: table 0 of 64 is too much and its half is not."""
    assert make("halve-then-greedy")(task_of([64, 8, 8]), Columns()).splits == (0,)
    assert make("halve-then-greedy")(task_of([8, 8, 8]), Columns()).splits == ()


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10**6), st.sampled_from(["kernel", "iteration"]), st.sampled_from([1.05, 1.5, 9.0]), st.booleans()
)
def test_a_ladder_is_never_predicted_to_be_slower_than_cost_greedy(seed, objective, room, splits):
    task = draw_task(seed, objective, room, splits)
    try:
        greedy = score(task, make("cost-greedy")(task, SIMULATOR), SIMULATOR)
    except InfeasibleTask:
        return
    plan = make("ladder")(task, SIMULATOR)
    assert violations(task, plan) == [] and (splits or not plan.splits)
    assert score(task, plan, SIMULATOR).makespan <= greedy.makespan * (1 + 1e-12)


@pytest.mark.parametrize("name", ["ladder", "halve-then-greedy"])
def test_tables_of_rules_stay_whole_and_where_they_must_be(name):
    rules = Constraints(pin=((0, 1),), apart=((1, 2),), no_split=(3,), base=(0, 0, 1, 0, 1))
    task = task_of([128, 64, 64, 64, 32], constraints=rules)
    plan = make(name)(task, Columns())
    assert violations(task, plan) == [] and set(plan.splits) <= {4}


def test_a_ladder_goes_up():
    with pytest.raises(InvalidTask, match="rungs"):
        make("ladder", rungs=-1)
