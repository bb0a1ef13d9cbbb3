"""Frozen reference plans: the better one by the planner, kept once, and what gaps are to."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import reference_plans
from shard_gym import simulators, suites
from shard_gym.errors import InvalidTask, UnknownName
from shard_gym.results.evaluate import score
from shard_gym.task.suite import FROZEN_PLAN
from shard_gym_agents import make
from shard_gym_agents.leaderboard.references import load_best, references

BANK = Path(suites.__file__).parents[1] / "data" / "banks.npz"
TASKS, EFFORT = 3, {"calls": 300}


@pytest.fixture
def few(tmp_path):
    """A suite of three tasks of DLRM-20x4 in a folder of its own, judged by other hardware than planned for."""
    base, bank = suites.get("dlrm-20x4"), np.load(BANK)
    arrays = {f"few/test/{name}": bank[f"dlrm-20x4/test/{name}"][:TASKS] for name in ("tables", "dims")}
    np.savez(tmp_path / "banks.npz", **arrays)
    np.savez(tmp_path / "references.npz", **{f"few/test/{base.planner}": np.full(TASKS, 1.0)})
    return replace(base, name="Few", judge="roofline:h100-v1", folder=str(tmp_path), gap_to=FROZEN_PLAN)


def test_the_better_plan_by_the_planner_is_kept_and_what_the_judge_says_frozen(few, tmp_path):
    path = reference_plans.search(few, EFFORT, 1, tmp_path)
    planner, judge, tasks = simulators.make(few.planner), simulators.make(few.judge), few.tasks("test")
    known = load_best(path, few.planner, tasks)
    for task in tasks:
        assert known[task.hash]["makespan"] <= score(task, make("ladder")(task, planner), planner).makespan
    worth = reference_plans.freeze(few, path, tmp_path)
    assert worth == pytest.approx([score(t, reference_plans.plan_of(known[t.hash]), judge).makespan for t in tasks])
    before = path.read_bytes()
    assert reference_plans.search(few, EFFORT, 1, tmp_path).read_bytes() == before  # nothing is missing
    found = references(few, "test", TASKS, few.judge, tmp_path)
    assert found.gap_to == FROZEN_PLAN and found.best.tolist() == worth.tolist()
    assert references(few, "test", TASKS, few.planner, tmp_path).gap_to != FROZEN_PLAN  # by another judge


def test_a_suite_without_frozen_plans_says_so(few):
    assert not few.has_reference_plans()
    with pytest.raises(UnknownName, match="frozen reference plans 'few test"):
        few.reference_makespans()
    with pytest.raises(InvalidTask, match="are to the best known plan"):
        reference_plans.run(Options(["core-80x8"]))


class Options:
    """Words of the command."""

    budget, calls, workers = 0.01, 0, 1

    def __init__(self, suite):
        self.suite = suite


@pytest.mark.parametrize("key", [s.key for s in suites.SUITES.values() if s.gap_to == FROZEN_PLAN])
def test_frozen_makespans_are_those_of_the_plans_that_are_kept(key):
    suite = suites.get(key)
    tasks, judge = suite.tasks("test")[:4], simulators.make(suite.judge)
    known = load_best(reference_plans.FOLDER / f"{key}.json", suite.planner, tasks)  # scores them by the planner
    assert len(known) == suite.num_tasks("test")
    worth = [score(task, reference_plans.plan_of(known[task.hash]), judge).makespan for task in tasks]
    assert suite.reference_makespans()[:4] == pytest.approx(worth, rel=1e-9)
