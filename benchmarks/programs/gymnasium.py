"""Gymnasium's own tests, on our ids in place of its own."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from benchmarks.programs import Options, Row, run

CART_POLE, STANDIN = "CartPole-v1", "ShardGym-DLRM-10x2-Flat"  # what most of tests/vector asks for, and what it gets
NOT_OURS = "not test_sync_vector_env_seed"  # it wants Box2D


class Count:
    """Outcomes of a session of pytest."""

    def __init__(self) -> None:
        self.row: Row = {"passed": 0, "failed": 0, "skipped": 0, "failures": []}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test by its call, or by what kept it from one."""
        if report.when == "call" or report.outcome != "passed":
            self.row[report.outcome] += 1
        if report.failed:
            told = getattr(report.longrepr, "reprcrash", None)
            message = str(told.message if told else report.longrepr).splitlines()[0]
            self.row["failures"].append(f"{report.nodeid.rpartition('/')[2]}: {message[:200]}")


def ours() -> list[Any]:
    """Environments of all our ids that need no argument, without wrappers."""
    made = []
    for spec in list(gym.registry.values()):
        if spec.id.startswith("ShardGym-"):
            try:
                made.append(spec.make(disable_env_checker=True).unwrapped)
            except gym.error.MissingArgument:
                print(f"{spec.id} needs arguments, as Gymnasium's tests let it", flush=True)
    return made


def prepare(source: Path) -> None:
    """Copy the tests to this folder, and hand them our environments where they look for Gymnasium's."""
    if not Path("tests").exists():
        shutil.copytree(source / "tests", "tests")
        sys.path.insert(0, str(Path.cwd()))
        lists = import_module("tests.envs.utils")
        lists.all_testing_initialised_envs[:] = ours()
        gym.registry[CART_POLE] = dataclasses.replace(gym.spec(STANDIN), id=CART_POLE)
        lists.all_testing_env_specs[:] = [env.spec for env in lists.all_testing_initialised_envs]


def tests(which: str, options: Options) -> Row:
    """The tests of a file or folder."""
    assert options.source
    prepare(options.source)
    count = Count()
    pytest.main(["-q", "-p", "no:cacheprovider", "--tb=line", "-k", NOT_OURS, which], plugins=[count])
    return count.row


if __name__ == "__main__":
    trials = {"tests/envs/test_envs.py": "all ids", "tests/vector": f"all ids, and {STANDIN} for {CART_POLE}"}
    run(("pytest",), {f"{which}, {of}": partial(tests, which) for which, of in trials.items()})
