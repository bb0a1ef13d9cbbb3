"""AutoShard's policy where tables are placed whole: it scores devices in numpy, table after table. Needs torch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from shard_gym.memory.usage import table_bytes
from shard_gym.plan.feasibility import dead_end
from shard_gym.plan.nodes import Options
from shard_gym.plan.placing import one
from shard_gym.plan.plan import Plan
from shard_gym.simulators import FastSimulator, single_costs
from shard_gym.simulators.base import embedded
from shard_gym.task.task import Constraints, Task
from shard_gym_agents.learners.autoshard_actors import STATE, TABLE, Net, standardised
from shard_gym_agents.solvers.solver import require_number


def placed(net: Net, order: str, task: Task, predicted: FastSimulator | None) -> Plan:
    """Put tables, the dearest or the largest first, on the device of the highest score of those where they may go.

    Where nothing is `predicted` the network sees no costs, and tables come by size.
    """
    asked = None if predicted is None else _Costs(task, predicted)
    by = asked.alone if asked and order == "cost" else table_bytes(task)
    sequence = np.argsort(-by, kind="stable")
    shares = torch.arange(task.num_tables)[:, None] / task.num_tables
    shown = torch.cat([standardised(task, net.scaling.numpy())[sequence], shares], 1)
    tables, states, _ = net.states(shown[:, None])
    scores, added = _Scores(net, states[:, 0], task.num_devices), tables[:, 0].numpy()
    placing, costs = asked.placing if asked else one(Options.of(task)), np.zeros(task.num_devices, np.float32)
    placement = [-1] * task.num_tables
    for step, table in enumerate(sequence.tolist()):
        legal = placing.legal(table)[0]
        if not legal.any():
            raise dead_end(placing, table)
        placement[table] = device = int(np.where(legal, scores(step), -np.inf).argmax())
        placing.put(table, device)
        changed = asked.tell(device, costs) if asked else device
        scores.put(added[step], device, changed, costs)
    return Plan(tuple(placement))


class _Scores:
    """`Net.scores` of one step, in numpy: on so few devices most of torch's time is in its calls.

    The first layer acts on [state, action, state * action]; what it does with a state is done for all steps at once,
    and a state times an action is as well the weights times the state.
    """

    def __init__(self, net: Net, states: Tensor, devices: int) -> None:
        first, self.cost = _arrays(net.first), _arrays(net.cost)
        weight, bias = first
        self.here = states.numpy() @ weight[:STATE] + bias  # (N, 128)
        self.alone, self.times = weight[STATE : 2 * STATE], weight[2 * STATE :]  # (64, 128)
        self.states = states.numpy()[..., None]  # (N, 64, 1)
        layers = [_arrays(layer) for layer in net.policy if isinstance(layer, nn.Linear)]
        # whole arrays of zeros and of biases: numpy takes three times as long where it has to repeat them
        self.layers = [(np.zeros((devices, len(w)), w.dtype), w, np.repeat(b[None], devices, 0)) for w, b in layers]
        self.actions = np.zeros((devices, STATE), np.float32)  # sums of tables, then what costs are shown as
        self.actions[:, TABLE:] = self.cost[1]

    def put(self, table: np.ndarray, device: int, changed: int | slice, costs: np.ndarray) -> None:
        """Add a table's representation, (32,), to a device; costs (K,) of what changed are shown anew."""
        weight, bias = self.cost
        self.actions[device, :TABLE] += table
        self.actions[changed, TABLE:] = costs[changed, None] * weight + bias

    def __call__(self, step: int) -> np.ndarray:
        """Scores of devices (K,)."""
        mixed = self.states[step] * self.times
        mixed += self.alone
        hidden = self.actions @ mixed
        hidden += self.here[step]
        for zeros, weight, bias in self.layers:
            hidden = np.maximum(hidden, zeros, out=hidden) @ weight
            hidden += bias
        return hidden[:, 0]


def _arrays(layer: nn.Linear) -> tuple[np.ndarray, np.ndarray]:
    """Weights (in, out) and bias."""
    return np.ascontiguousarray(layer.weight.detach().numpy().T), layer.bias.detach().numpy()


class _Costs:
    """Predicted costs while tables are placed, as the environment shows them."""

    def __init__(self, task: Task, planner: FastSimulator) -> None:
        self.task, self.planner, self.tables = task, planner, embedded(planner, task)
        self.placing = one(Options.of(task, self.tables), track=True)
        self.alone = single_costs(planner, task)
        require_number(float(self.alone.sum()), planner)
        self.scale = task.num_devices / max(float(self.alone.sum()), 1e-12)
        self.one = None  # a device for itself, where devices are alike and do not touch
        if task.objective == "kernel" and len(set(task.speed)) == 1:
            self.one = replace(
                task, memory=task.memory[:1], speed=task.speed[:1], links=None, constraints=Constraints()
            )

    def tell(self, device: int, costs: np.ndarray) -> int | slice:
        """Bring `costs` (K,), over an even share, up to date after a device took a table; those that changed."""
        sums, changed = self.placing.sums[0], slice(None) if self.one is None else device
        if self.one is None:
            costs[:] = self.planner.cost(self.task, sums) * self.scale
        else:
            costs[device] = self.planner.cost(self.one, sums[device, None])[0] * self.scale
        require_number(float(costs[device]), self.planner)
        return changed
