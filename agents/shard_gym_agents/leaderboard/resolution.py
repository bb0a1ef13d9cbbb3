"""The resolution of a suite: how far apart the mean makespans of two agents must be before its judge can tell.

A judge that was fitted to measurements is wrong about every plan by a few percent. Some of that is the same for all
plans of a task and falls out of a comparison; the rest is averaged over the tasks, but for what the judge holds against
one method on all of them. docs/comparing.md has the formula, `python -m benchmarks.judge_errors` measures its terms.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import combinations
from math import sqrt
from typing import Any

import numpy as np

from shard_gym import simulators
from shard_gym.errors import InvalidTask
from shard_gym.task.suites import Suite

SURE = 1.96  # standard deviations: 95 %
CLOSE = 0.05  # methods this near to each other are those whose order is in question
FILE = "judge_errors.json"


@dataclass(frozen=True)
class JudgeError:
    """Error of a judge against measured plans, without the noise of the measurements."""

    plan: float  # standard deviation of a method's plans over tasks, as a share of the makespan
    shared: float  # correlation of that between two plans of a task
    method: float  # root mean square of how much more it is wrong about one of two close methods, on average

    def resolution(self, tasks: int) -> float:
        """The least relative difference of two mean makespans that is no error of the judge, in 95 of 100 cases."""
        return SURE * sqrt(self.method**2 + 2 * self.plan**2 * (1 - self.shared) / tasks)


def resolution(suite: Suite, split: str = "test", tasks: int | None = None, judge: str | None = None) -> float:
    """The resolution of a suite, or of its first tasks by another judge, relative; 0 where costs are known exactly."""
    by = suite.judge if judge is None else judge
    if (error := known_errors().get(by)) is None:
        sigma = getattr(simulators.make(by), "sigma", 0.0)  # of a fit whose plans nobody measured
        error = JudgeError(plan=float(sigma), shared=0.0, method=0.0)
    return error.resolution(suite.num_tasks(split) if tasks is None else tasks)


@cache
def known_errors() -> Mapping[str, JudgeError]:
    """Errors of judges whose plans were measured, by id."""
    told: dict[str, dict[str, Any]] = json.loads((files(__package__) / FILE).read_text())
    return {judge: JudgeError(one["plan"], one["shared"], one["method"]) for judge, one in told.items()}


def judge_error(judged: np.ndarray, devices: np.ndarray) -> JudgeError:
    """The error of a judge: makespans that it gives T tasks by S methods, (T, S), and devices measured, (R, T, S, K).

    One of three runs or more picks the slowest device of a plan, and two others say how long that takes: only what they
    agree on is the judge's error, the rest is noise.
    """
    runs, tasks, methods, _ = devices.shape
    if runs < 3 or tasks < 2 or methods < 2:
        raise InvalidTask(f"errors need 3 runs, 2 tasks and 2 methods, got {runs}, {tasks} and {methods}")
    found = [_agreed(*_readings(judged, np.roll(devices, -first, axis=0))) for first in range(runs)]
    covariance, mean = (np.mean(part, axis=0) for part in zip(*found, strict=True))  # (S, S) and (S, S)
    variance = float(np.diag(covariance).mean())
    if variance <= 0:
        return JudgeError(0.0, 0.0, 0.0)
    pairs = list(combinations(range(methods), 2))
    shared = float(np.mean([covariance[pair] for pair in pairs])) / variance
    close = [pair for pair in pairs if _close(*judged[:, pair].mean(axis=0))]
    apart = [mean[a, a] + mean[b, b] - 2 * mean[a, b] for a, b in close or pairs]
    method = float(np.mean(apart)) - 2 * variance * (1 - shared) / tasks  # less what so few tasks leave of the errors
    return JudgeError(sqrt(variance), min(max(shared, 0.0), 1.0), sqrt(max(method, 0.0)))


def _readings(judged: np.ndarray, devices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Errors of the judge by the second and by the third run, (T, S) each, of the device that the first one picks."""
    picked = devices[0].argmax(axis=-1)[..., None]
    one, other = (np.log(np.take_along_axis(run, picked, -1)[..., 0] / judged) for run in devices[1:3])
    return one, other


def _agreed(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Covariances of methods over tasks, and products of their means, each of one reading with the other, (S, S)."""
    means = np.outer(one.mean(axis=0), other.mean(axis=0))
    covariance = (one - one.mean(axis=0)).T @ (other - other.mean(axis=0)) / (len(one) - 1)
    return (covariance + covariance.T) / 2, (means + means.T) / 2


def _close(one: float, other: float) -> bool:
    return abs(np.log(one / other)) < CLOSE
