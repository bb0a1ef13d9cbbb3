"""One addition of each kind in docs/extending.md, from a module in a scratch folder."""

import importlib
import json
import sys

import gymnasium
import numpy as np
import pytest

from shard_gym import Constraints, Task, make_pool, simulators, suites
from shard_gym.bounds import lower_bound
from shard_gym.envs.env import ShardingEnv
from shard_gym.errors import InvalidTask, UnknownName
from shard_gym.plan.violations import violations
from shard_gym.results.evaluate import evaluate, score
from shard_gym_agents import make
from shard_gym_agents.leaderboard import command
from shard_gym_agents.solvers import greedy

PLUGIN = '''
from dataclasses import replace

import gymnasium
import numpy as np

from shard_gym.simulators import FastSimulator, Latency
from shard_gym.simulators.base import GRAIN, Maxima
from shard_gym.task.suites import Suite


class LookupsMs(FastSimulator):
    """A millisecond for each id that a sample looks up, in the forward pass."""

    id = "lookups:v1"

    def embed(self, task):
        return np.rint(task.tables.pooling[:, None] * 1e3 * GRAIN) / GRAIN  # us

    def decode(self, task, sums):
        ms = sums[..., 0] * task.ms_per_us
        none = np.zeros_like(ms)
        return Latency(ms, none, none, none)

    def maxima(self, phase):
        return Maxima(((0,),), 0.0) if phase != "backward" else Maxima(((),), 0.0)


def suite(folder):
    settings = {"memory_gb": (1,), "order": "size", "family": "core-60x4", "folder": str(folder)}
    return Suite("Scratch-6x2", 6, 2, "kernel", LookupsMs.id, LookupsMs.id, **settings)


def rows_cost(tables):
    return tables.rows


class HalvesOnly(gymnasium.Wrapper):
    """1 for a plan whose slowest device has at most 60 % of all the work, else 0."""

    def step(self, action):
        shown, _, over, cut, info = self.env.step(action)
        reward = float(over and info["feasible"] and info["makespan"] <= 0.6 * info["latency"].compute.sum())
        return shown, reward, over, cut, info


def by_prefix(task):
    """A constraint: tables whose names begin alike are on one device."""
    groups = {}
    for table, name in enumerate(task.tables.name):
        groups.setdefault(name.split("/")[0], []).append(table)
    together = tuple(tuple(group) for group in groups.values() if len(group) > 1)
    return replace(task, constraints=replace(task.constraints, together=together))
'''


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """The module, known to Python and to nothing else."""
    (tmp_path / "scratch_plugin.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("scratch_plugin")
    sys.modules.pop("scratch_plugin")


@pytest.fixture
def simulator(plugin, monkeypatch):
    monkeypatch.setitem(simulators.SIMULATORS, plugin.LookupsMs.id, plugin.LookupsMs)
    return simulators.make("lookups:v1")


@pytest.fixture
def suite(plugin, simulator, tmp_path):
    """A suite of two tasks a split, with its environment; gone after the test."""
    tables = np.arange(12, dtype=np.uint16).reshape(2, 6)
    arrays = {f"scratch-6x2/{split}/tables": tables for split in suites.SPLITS}
    arrays |= {f"scratch-6x2/{split}/dims": np.full((2, 6), 16) for split in suites.SPLITS}
    np.savez(tmp_path / "banks.npz", **arrays, **{"scratch-6x2/scaling": np.ones((2, 21))})
    np.savez(tmp_path / "references.npz", **{f"scratch-6x2/{s}/lookups:v1": np.full(2, 9.0) for s in suites.SPLITS})
    suites.register(made := plugin.suite(tmp_path))
    yield made
    suites.SUITES.pop(made.key)
    for env_id in (made.env_id, f"{made.env_id}-Flat"):
        gymnasium.registry.pop(env_id)


def four_tables(**settings) -> Task:
    tables = make_pool(rows=[9, 5, 3, 1], dim=4, pooling=[1, 2, 3, 4], name=("a/x", "b", "a/y", "c"))
    return Task(tables, (10**6,) * 2, **settings)


def test_a_simulator_is_made_by_its_id_and_searched_and_bounded(simulator):
    task = four_tables()
    for agent in ("cost-greedy", "auto"):
        assert score(task, make(agent)(task, simulator), simulator).makespan == pytest.approx(5)
    assert 0.99 * 5 < lower_bound(task, simulator) <= 5


def test_what_a_simulator_does_not_say_it_cannot_do():
    with pytest.raises(UnknownName, match="lookups"):
        simulators.make("lookups:v1")


def test_a_suite_has_tasks_an_environment_and_a_row_of_a_leaderboard(suite):
    assert suites.get("scratch-6x2") is suite
    assert [task.name for task in suite.tasks("test")] == ["scratch-6x2/test/0", "scratch-6x2/test/1"]
    env = gymnasium.make("ShardGym-Scratch-6x2", split="test")
    env.reset(seed=0)
    assert env.step(0)[1] == 0
    assert gymnasium.make_vec("ShardGym-Scratch-6x2", 2).reset(seed=0)[0].shape == (2, 22)
    tasks, judge = suite.tasks("test"), simulators.make(suite.judge)
    results = evaluate(make("cost-greedy"), tasks, judge, judge, suite=suite.key)
    assert [result.error for result in results] == [None, None]
    assert suite.random_makespans().tolist() == [9.0, 9.0]


REGISTERS = """
from pathlib import Path

from scratch_plugin import LookupsMs, suite
from shard_gym import simulators
from shard_gym.task import suites

simulators.SIMULATORS[LookupsMs.id] = LookupsMs
suites.register(suite(Path(__file__).parent))
"""


def test_agents_know_a_suite_by_the_module_that_registers_it(suite, tmp_path, capsys):
    (tmp_path / "scratch_registers.py").write_text(REGISTERS)
    words = ["--suite", suite.key, "--agents", "cost-greedy", "--out", str(tmp_path / "out"), "--json"]
    words += ["--best-known", str(tmp_path / "best")]
    assert command.main(words) == 2
    told = "simulator lookups:v1, suite scratch-6x2: known to this process, and not to those of agents; name the module"
    assert told in capsys.readouterr().err
    assert command.main([*words, "--import", "scratch_registers"]) == 0
    assert json.loads(capsys.readouterr().out)["feasible"] == 1
    assert command.main([*words, "--import", "scratch_nothing"]) == 2
    assert "--import scratch_nothing: No module named" in capsys.readouterr().err


def test_a_suite_is_never_edited(suite):
    suites.register(suite)
    with pytest.raises(InvalidTask, match="name of its own"):
        suites.register(type(suite)("Scratch-6x2", 7, 2, "kernel", "x", "x", memory_gb=(1,)))


def test_a_greedy_cost_is_a_function_of_tables(plugin, simulator, monkeypatch):
    monkeypatch.setitem(greedy.COSTS, "rows", plugin.rows_cost)
    plan = make("shard_gym_agents.solvers.greedy:Greedy", cost="rows")(four_tables(), simulator)
    assert plan.device == (0, 1, 1, 1)


@pytest.mark.parametrize(("devices", "worth"), [((1, 0, 0, 1), 1.0), ((0, 0, 0, 1), 1.0), ((0, 0, 0, 0), 0.0)])
def test_a_reward_is_a_wrapper(plugin, simulator, devices, worth):
    env = plugin.HalvesOnly(ShardingEnv([four_tables()], simulator=simulator, order="given", info="full"))
    env.reset(seed=0)
    assert [env.step(device)[1] for device in devices] == [0, 0, 0, worth]


def test_a_constraint_said_with_those_there_are_is_kept_by_all(plugin, simulator):
    task = plugin.by_prefix(four_tables())
    assert task.constraints == Constraints(together=((0, 2),))
    for agent in ("size-greedy", "cost-greedy", "auto", "random"):
        plan = make(agent)(task, simulator)
        assert plan.device[0] == plan.device[2] and not violations(task, plan)
