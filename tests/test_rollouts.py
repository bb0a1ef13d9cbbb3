"""Rollouts of several tasks side by side: each is placed as it is alone, with its own constraints and padding."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from shard_gym import Constraints, Task  # noqa: E402
from shard_gym_agents.learners.rollouts import TaskTensors, roll_out  # noqa: E402
from tests.pool_helpers import fp16_pool as make_pool  # noqa: E402

SCALING = np.stack([np.zeros(21), np.ones(21)])
RULES = [{"pin": ((0, 1),)}, {}, {"together": ((0, 2),)}, {"apart": ((0, 1),)}]


def task_of(tables, room=3, **constraints):
    pool = make_pool(rows=[100] * tables, dim=16, pooling=range(1, tables + 1))
    return Task(pool, (room * 3200,) * 3, constraints=Constraints(**constraints))


def placed(tasks):
    """Devices, and those that were legal, of a policy that wants the last legal device."""
    last = lambda step, legal: legal.shape[1] - 1 - legal[:, ::-1].argmax(axis=1)  # noqa: E731
    rollout = roll_out(*TaskTensors.of(tasks, SCALING).begin(), last)
    return rollout.devices(), rollout.legal.numpy(), rollout.alive


@pytest.mark.parametrize("rules", [RULES, [{}] * 4])
def test_tasks_side_by_side_are_placed_as_alone(rules):
    tasks = [task_of(4 + i, **told) for i, told in enumerate(rules)]
    devices, legal, alive = placed(tasks)
    for i, task in enumerate(tasks):
        n, ((alone,), (allowed,), fine) = task.num_tables, placed([task])
        assert devices[i, :n].tolist() == alone.tolist() and np.array_equal(legal[i, :n], allowed)
        assert alive[i] and fine[0]


def test_sums_are_of_what_devices_hold():
    tasks = [task_of(2), task_of(4)]
    tensors = TaskTensors.of(tasks, SCALING, vectors=[np.eye(2, 3), np.ones((4, 3))])
    placing, rows = tensors.begin(track=True)
    roll_out(placing, rows, lambda step, legal: np.array([step % 2, 0]))
    assert placing.sums[0].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert placing.sums[1].tolist() == [[4, 4, 4], [0, 0, 0], [0, 0, 0]]
    assert placing.free.tolist() == [[6400, 6400, 9600], [-3200, 9600, 9600]]
