"""The resolution of suites: its formula by hand, and its terms found again in drawn measurements."""

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import judge_errors
from benchmarks.measured import Hardware
from shard_gym import suites
from shard_gym.errors import InvalidTask
from shard_gym_agents.leaderboard import layout
from shard_gym_agents.leaderboard.resolution import SURE, JudgeError, judge_error, known_errors, resolution
from tests.page_helpers import random_board


def drawn(rng, error: JudgeError, tasks: int, noise: float = 0.03, runs: int = 3):
    """Makespans judged and devices measured, of two methods; what the judge has against the second is its own."""
    common = rng.normal(0, error.plan * error.shared**0.5, (tasks, 1))
    own = rng.normal(0, error.plan * (1 - error.shared) ** 0.5, (tasks, 2))
    judged = rng.uniform(20, 60, (tasks, 1)) * np.ones(2)
    slowest = judged * np.exp(common + own + [0, error.method])
    devices = slowest[..., None] * np.array([1.0, 0.8, 0.5])
    return judged, devices * np.exp(rng.normal(0, noise, (runs, tasks, 2, 3)))


def test_the_formula_by_hand():
    """Half of 4 % is shared: two plans differ by 4 %, on 16 tasks by 1 %; the method's 0 % stays."""
    assert JudgeError(0.04, 0.5, 0.0).resolution(16) == pytest.approx(SURE * 0.01)
    assert JudgeError(0.04, 0.5, 0.02).resolution(10**9) == pytest.approx(SURE * 0.02, rel=1e-3)
    assert JudgeError(0.04, 1.0, 0.0).resolution(16) == 0


def test_errors_are_found_again_whatever_the_noise():
    """1,000 tasks; the noise of a single run is larger than any error."""
    true = JudgeError(0.02, 0.6, 0.01)
    found = judge_error(*drawn(np.random.default_rng(1), true, 1_000))
    assert found.plan == pytest.approx(true.plan, rel=0.1)
    assert found.shared == pytest.approx(true.shared, abs=0.08)
    assert found.method == pytest.approx(true.method, rel=0.15)


def test_an_exact_judge_has_no_error():
    judged, devices = drawn(np.random.default_rng(2), JudgeError(0.0, 0.0, 0.0), 50, noise=0.0)
    assert judge_error(judged, devices) == JudgeError(0.0, 0.0, 0.0)
    with pytest.raises(InvalidTask, match="3 runs"):
        judge_error(judged, devices[:2])


def test_equal_methods_are_told_apart_in_one_of_twenty_comparisons():
    """Two methods that take equally long, by a judge that is wrong about both: it says so, mostly."""
    rng, error, tasks = np.random.default_rng(3), JudgeError(0.02, 0.5, 0.0), 40
    told = 0
    for _ in range(1_000):
        judged, devices = drawn(rng, error, tasks, noise=0.0)
        worth = judged / devices[0].max(axis=-1)  # what the judge says over what is true
        told += abs(np.log(worth[:, 0] / worth[:, 1]).mean()) > error.resolution(tasks)
    assert 30 <= told <= 72  # 50, three deviations of a count


def test_a_suite_has_the_resolution_of_its_judge_and_its_tasks():
    fitted = suites.get("metasyn-80x8")
    assert resolution(suites.get("core-80x8")) == 0
    assert resolution(fitted) == known_errors()[fitted.judge].resolution(fitted.num_tasks("test")) > 0.005
    assert resolution(fitted, "train") < resolution(fitted)
    unknown = replace(fitted, judge="learned:cpu-v1")  # no judge: what its card says of it
    assert resolution(unknown) > resolution(fitted)


def test_pages_say_what_ranks_cannot_tell():
    fitted, scaling, exact = (
        random_board(key, {"a": "search", "b": "search"}, tasks=2) for key in ("metasyn-80x8", "dlrm-30x2", "core-60x4")
    )
    within = resolution(fitted.suite, tasks=2)
    assert fitted.ranking.resolution == within > 0
    assert f"{within:.1%} are within the error of the judge" in layout.text(fitted.ranking)
    assert "This suite is saturated: true room about 2 %." in layout.text(fitted.ranking)
    assert "Not ranked" in layout.text(scaling.ranking) and "Not ranked" not in layout.text(exact.ranking)
    assert layout.text(scaling.ranking).count("\n-     ") == 3 and exact.ranking.resolution == 0


def test_errors_of_judges_are_those_of_committed_measurements():
    told = json.loads(judge_errors.PATH.read_text())
    assert judge_errors.measure(Hardware()) == told, "run python -m benchmarks.judge_errors"
