"""Promises of every simulator to its callers, on one whose numbers can be told by hand."""

import numpy as np
import pytest

from shard_gym.errors import InvalidPlan, UnknownName
from shard_gym.simulators import FastSimulator, Latency
from shard_gym.simulators.base import Counted, CountedCalls, counted


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
