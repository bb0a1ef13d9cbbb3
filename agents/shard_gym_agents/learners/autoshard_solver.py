"""AutoShard's trained policy as a solver. Needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from shard_gym.errors import CorruptFile
from shard_gym.memory import table_bytes
from shard_gym.plan import Plan
from shard_gym.room import Room, dead_end
from shard_gym.simulators import FastSimulator, Simulator, single_costs
from shard_gym.tasks import Constraints, Task
from shard_gym_agents.learners.autoshard_actors import Actor, Order, Stage
from shard_gym_agents.learners.autoshard_costs import CostNet, OwnCosts, standardised
from shard_gym_agents.learners.autoshard_network import STATE, TABLE, Net
from shard_gym_agents.learners.checkpoints import load_tensors, packed, save_tensors, under
from shard_gym_agents.solver import require_fast, require_number

KIND = "autoshard"
KEPT = ("order", "suite", "planner", "seed", "updates", "config")


@dataclass(frozen=True, eq=False)
class AutoShard:
    """The trained policy: each table to the device of the highest score where it may go, ties to the lowest index.

    `card` says what it was trained on, and the order in which it wants tables. Where it learned costs too, `costs`
    are the weights of that network, and it asks the planner nothing.
    """

    deterministic: ClassVar[bool] = True
    net: Net
    card: dict[str, Any]
    costs: Mapping[str, Tensor] | None = field(default=None, repr=False)

    @property
    def track(self) -> str:
        """Without a cost model, or with one of its own, it asks the planner nothing."""
        return "search" if self.card["config"]["cost_model"] and self.costs is None else "blind"

    @torch.inference_mode()
    def __call__(self, task: Task, planner: Simulator) -> Plan:
        """Plan a task."""
        predicted = self._predicted(planner)
        asked = None if predicted is None else _Costs(task, predicted)
        room = Room(task)
        by = asked.alone if asked and self.card["order"] == "cost" else table_bytes(task)
        order = np.argsort(-by, kind="stable")
        shares = torch.arange(task.num_tables)[:, None] / task.num_tables
        shown = torch.cat([standardised(task, self.net.scaling.numpy())[order], shares], 1)
        tables, states, _ = self.net.states(shown[:, None])
        scores, added = _Scores(self.net, states[:, 0]), tables[:, 0].numpy()
        placement = np.full(task.num_tables, -1)
        sums, costs = np.zeros((task.num_devices, TABLE), np.float32), np.zeros(task.num_devices, np.float32)
        for step, t in enumerate(order.tolist()):
            legal = room.legal(t)[0]
            if not legal.any():
                raise dead_end(room, t)
            d = int(np.where(legal, scores(step, sums, costs), -np.inf).argmax())
            placement[t] = d
            sums[d] += added[step]
            room.place(t, d)
            if asked:
                asked.place(t, d, costs)
        return Plan(tuple(placement.tolist()))

    def samples(self, task: Task, planner: Simulator, count: int, seed: int = 0) -> np.ndarray:
        """Plans drawn from the policy, (count, N); a device that is full is taken only where all are."""
        stage = Stage(
            tasks=(task,),
            suite=None,
            scaling=self.net.scaling.numpy(),
            shows_costs=self.card["config"]["cost_model"],
            order=self.card["order"],
            reward="balance",
        )
        simulator = self._predicted(planner) or require_fast(planner)
        actor = Actor(stage, count, simulator=simulator)
        return np.stack([device for _, device in actor.play(Order(seed, 0, packed(net=self.net))).plans])

    def _predicted(self, planner: Simulator) -> FastSimulator | None:
        """Who predicts costs, if anybody does."""
        if self.costs is not None:
            return OwnCosts(self.costs, self.net.scaling.numpy())
        return require_fast(planner) if self.track == "search" else None

    def save(self, path: str | Path, **card: Any) -> None:
        """Write weights and card."""
        tensors = self.net.state_dict() | {f"costs/{name}": value for name, value in (self.costs or {}).items()}
        save_tensors(path, tensors, {**self.card, **card, "kind": KIND})


def load(path: str | Path) -> AutoShard:
    """Read what `save` wrote."""
    tensors, card = load_tensors(path, KIND)
    net, costs = Net(), under(tensors, "costs")
    try:
        net.load_state_dict({name: value for name, value in tensors.items() if not name.startswith("costs/")})
        if costs:
            CostNet().load_state_dict(costs)
        return AutoShard(net, {name: card[name] for name in KEPT}, costs or None)
    except (KeyError, RuntimeError) as error:
        raise CorruptFile(f"{path} does not hold AutoShard's network: {error}") from error


class _Scores:
    """`Net.scores` of one step, in numpy: on so few devices most of torch's time is in its calls.

    The first layer acts on [state, action, state * action]; what it does with a state is done for all steps at once,
    and a state times an action is as well the weights times the state.
    """

    def __init__(self, net: Net, states: Tensor) -> None:
        first, self.cost = _arrays(net.first), _arrays(net.cost)
        weight, bias = first
        self.here = states.numpy() @ weight[:STATE] + bias  # (N, 128)
        self.alone, self.times = weight[STATE : 2 * STATE], weight[2 * STATE :]  # (64, 128)
        self.states = states.numpy()[..., None]  # (N, 64, 1)
        self.layers = [_arrays(layer) for layer in net.policy if isinstance(layer, nn.Linear)]

    def __call__(self, step: int, sums: np.ndarray, costs: np.ndarray) -> np.ndarray:
        """Of each device, (K,), from its tables (K, 32) and its cost (K,)."""
        weight, bias = self.cost
        actions = np.concatenate([sums, costs[:, None] * weight + bias], axis=1)
        hidden = actions @ (self.alone + self.states[step] * self.times)
        hidden += self.here[step]
        for weight, bias in self.layers:
            hidden = np.maximum(hidden, 0, out=hidden) @ weight
            hidden += bias
        return hidden[:, 0]


def _arrays(layer: nn.Linear) -> tuple[np.ndarray, np.ndarray]:
    """Weights (in, out) and bias."""
    return np.ascontiguousarray(layer.weight.detach().numpy().T), layer.bias.detach().numpy()


class _Costs:
    """What is predicted while tables are placed, as the environment shows it."""

    def __init__(self, task: Task, planner: FastSimulator) -> None:
        self.task, self.planner, self.tables = task, planner, planner.embed(task)
        self.alone = single_costs(_Embedded(planner, self.tables), task)
        require_number(float(self.alone.sum()), planner)
        self.sums = np.zeros((task.num_devices, self.tables.shape[1]))
        self.scale = task.num_devices / max(float(self.alone.sum()), 1e-12)
        self.one = None  # a device for itself, where devices are alike and do not touch
        if task.objective == "kernel" and len(set(task.speed)) == 1:
            self.one = replace(
                task, memory=task.memory[:1], speed=task.speed[:1], links=None, constraints=Constraints()
            )

    def place(self, table: int, device: int, costs: np.ndarray) -> None:
        """One more table; `costs` (K,), over an even share, are brought up to date."""
        self.sums[device] += self.tables[table]
        if self.one is None:
            costs[:] = self.planner.decode(self.task, self.sums).cost(self.task.objective) * self.scale
        else:
            costs[device] = self.planner.decode(self.one, self.sums[device, None]).compute[0] * self.scale
        require_number(float(costs[device]), self.planner)


class _Embedded(FastSimulator):
    """A planner whose answer about a task's tables is known: with many tables it takes as long as the policy."""

    def __init__(self, planner: FastSimulator, tables: np.ndarray) -> None:
        self.id, self.decode, self.tables = planner.id, planner.decode, tables  # type: ignore[method-assign]

    def embed(self, task: Task) -> np.ndarray:
        return self.tables
