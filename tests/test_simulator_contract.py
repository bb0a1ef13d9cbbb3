"""Promises of every simulator to its callers, on one whose numbers can be told by hand."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym.errors import InvalidPlan, UnknownName
from shard_gym.memory.usage import device_sums
from shard_gym.simulators import FastSimulator, Latency, make, single_costs
from shard_gym.simulators.base import Counted, CountedCalls, counted, embedded
from tests.cost_model_helpers import draw_task


class Unit(FastSimulator):
    """A table takes a millisecond."""

    id = "unit"

    def embed(self, task):
        return np.ones((task.num_tables, 1))

    def decode(self, task, sums):
        zero = np.zeros(sums.shape[:-1])
        return Latency(sums[..., 0], zero, zero, zero)


class Measured:
    """The same, without running sums."""

    id = "measured"

    def latency(self, task, placements):
        return Unit().latency(task, placements)


@pytest.mark.parametrize("placements", [[[0, 1, 2, 0, 1, 2], [-1, -1, 0, 0, 0, 0]], np.zeros((0, 6), int), [-1] * 6])
def test_partial_placements_and_none_are_legal(tiny_task, placements):
    assert Unit().latency(tiny_task, placements).compute.shape == (*np.shape(placements)[:-1], 3)


@pytest.mark.parametrize(
    ("placements", "told"),
    [
        ([0, 1, 2, 0, 1, 3], "devices are 0..2.*got 0..3"),
        ([0, 1, -2, 0, 1, 2], "got -2..2"),
        ([[0] * 6, [9] * 6], "got 0..9"),
        ([0, 1, 2], "each of 6 tables"),
        ([[0, 1]] * 6, "each of 6 tables"),
        (0, "each of 6 tables"),
        ([0.0] * 6, "whole numbers"),
        ([True] * 6, "whole numbers"),
    ],
)
def test_devices_that_are_not_there_are_refused(tiny_task, placements, told):
    with pytest.raises(InvalidPlan, match=told):
        Unit().latency(tiny_task, np.array(placements))


def test_an_objective_is_one_of_two(tiny_task):
    latency = Unit().latency(tiny_task, np.zeros(6, int))
    for ask in (latency.cost, latency.makespan):
        with pytest.raises(UnknownName, match="iteration, kernel"):
            ask("kernal")


@pytest.mark.parametrize(("simulator", "kind"), [(Unit(), Counted), (Measured(), CountedCalls)])
def test_questions_are_counted_in_plans(tiny_task, simulator, kind):
    asked = counted(simulator)
    asked.latency(tiny_task, np.zeros((7, 6), int))
    asked.latency(tiny_task, np.zeros(6, int))
    assert type(asked) is kind and (asked.calls, asked.id) == (8, simulator.id)


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.sampled_from(("kernel", "iteration")), st.sampled_from((1, 3, 300)))
def test_costs_are_those_that_latencies_tell(seed, objective, count):
    rng = np.random.default_rng(seed)
    task = draw_task(seed, objective, speed=tuple(rng.choice([0.5, 1.0, 2.0], 8)))
    for simulator_id in ("learned:cpu-v1", "learned:cpu-judge-v1", "roofline:h100-v2", "torchrec:cuda-v1"):
        simulator = make(simulator_id)
        placements = rng.integers(-1, task.num_devices, (count, task.num_tables))
        sums = device_sums(simulator.embed(task), placements, task.num_devices)
        asked = counted(simulator)
        assert np.array_equal(asked.cost(task, sums), simulator.decode(task, sums).cost(objective))
        assert asked.calls == count


def test_what_a_task_embeds_as_is_kept_read_only(tiny_task):
    class Slow(Unit):
        asked = 0

        def embed(self, task):
            self.asked += 1
            return super().embed(task)

    simulator, alike = Slow(), dataclasses.replace(tiny_task)
    for task in (tiny_task, tiny_task, alike, tiny_task):
        simulator.latency(task, np.zeros(6, int))
        single_costs(counted(simulator), task)
    assert simulator.asked == 2  # equal tasks are two
    with pytest.raises(ValueError, match="read-only"):
        embedded(simulator, tiny_task)[0] = 5
    assert Slow().embed(tiny_task).flags.writeable
