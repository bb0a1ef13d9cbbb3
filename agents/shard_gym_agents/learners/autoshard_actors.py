"""AutoShard's two networks, the fit of costs, and actors. Needs torch.

Numbers go to an actor and numbers come back (`Request`, `Answer`); `crews` says where it sits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shard_gym import simulators
from shard_gym.envs.bank import Bank
from shard_gym.envs.env import ShardingEnv
from shard_gym.envs.kinds import EXTRA
from shard_gym.envs.vector_env import ShardingVectorEnv
from shard_gym.errors import InvalidTask
from shard_gym.plan.forms import beyond_columns
from shard_gym.simulators import FastSimulator, Latency
from shard_gym.simulators.base import Counted
from shard_gym.simulators.networks import on_grid
from shard_gym.tables.pool import FEATURES
from shard_gym.task.suites import Suite
from shard_gym.task.task import Task
from shard_gym_agents.learners import rollouts
from shard_gym_agents.learners.actions import TOLD, aimed, first_weights, leaning, reach_of
from shard_gym_agents.learners.learner import descend, episode_seeds, mlp, under
from shard_gym_agents.learners.rollouts import ILLEGAL
from shard_gym_agents.solvers.solver import require_fast

COST = 2  # the column of predicted costs in what "full" shows of devices
TABLE, STATE = 32, 64


class Net(nn.Module):
    """The policy-value network, of any number of tables and devices; T steps of B episodes on K devices.

    Where tasks allow all kinds of sharding (`kinds`) it scores actions in the place of devices: it is told how the next
    table is sharded by now, and of each action what `actions.told` says in the place of a device's cost. With
    `residual` a score is what the layers say, next to nothing at first, plus a weighted sum of `actions.aimed`, which
    begins near a greedy.
    """

    scaling: Tensor  # mean and deviation of the features it was trained on, (2, 21); kept with the weights

    def __init__(self, kinds: bool = False, residual: bool = True, sharpness: float = 6.0) -> None:
        super().__init__()
        self.kinds, self.table = kinds, mlp(len(FEATURES), 128, TABLE)
        self.share = nn.Linear(1 + EXTRA if kinds else 1, STATE - TABLE)
        self.cost = nn.Linear(len(TOLD) if kinds else 1, STATE - TABLE)
        self.lstm = nn.LSTM(STATE, STATE, num_layers=2)
        self.first, hidden = nn.Linear(3 * STATE, 128), mlp(128, 128, 64, 1)
        self.policy, self.worth = nn.Sequential(nn.ReLU(), *hidden), mlp(STATE, 64, 1)
        self.register_buffer("scaling", torch.stack([torch.zeros(len(FEATURES)), torch.ones(len(FEATURES))]).double())
        self.weights = None
        if kinds and residual:
            self.weights, last = nn.Parameter(first_weights(sharpness)), hidden[-1]
            assert isinstance(last, nn.Linear)
            nn.init.orthogonal_(last.weight, 0.01)
            nn.init.zeros_(last.bias)

    @classmethod
    def of(cls, weights: Mapping[str, Tensor]) -> Net:
        """The network that has these weights."""
        net = cls(kinds=weights["share.weight"].shape[1] > 1, residual="weights" in weights)
        net.load_state_dict(dict(weights))
        return net

    def __repr__(self) -> str:
        """Tells weights apart; results hold it."""
        content = b"".join(value.cpu().numpy().tobytes() for value in self.state_dict().values())
        return f"Net({sha256(content).hexdigest()[:12]})"

    def states(self, shown: Tensor, memory: Any = None) -> tuple[Tensor, Tensor, Any]:
        """Tables (T, B, 32), states (T, B, 64) and what the LSTM keeps, from features and share placed (T, B, 22)."""
        tables = self.table(shown[..., : len(FEATURES)])
        states, memory = self.lstm(torch.cat([tables, self.share(shown[..., len(FEATURES) :])], -1), memory)
        return tables, states, memory

    def scores(self, states: Tensor, sums: Tensor, costs: Tensor) -> Tensor:
        """Scores of devices (..., K), from states (..., 64), sums of tables (..., K, 32) and costs (..., K).

        With kinds of actions (..., A), from sums on devices, too, and what is seen of actions (..., A, 13).
        """
        if self.kinds:
            used = reach_of(costs.shape[-2], sums.shape[-2], str(sums.device)).used
            sums = (used / used.sum(1, keepdim=True)) @ sums  # the mean of devices that actions use
        actions = torch.cat([sums, self.cost(costs[..., 1:] if self.kinds else costs[..., None])], -1)
        # the first layer on [state, action, state * action]; a state's part is the same for all devices
        weight = self.first.weight
        here = F.linear(states, weight[:, :STATE], self.first.bias)
        both = torch.cat([actions, states[..., None, :] * actions], -1)
        scores: Tensor = self.policy(F.linear(both, weight[:, STATE:]) + here[..., None, :])[..., 0]
        return scores if self.weights is None else scores + leaning(costs, self.weights)

    def placed(self, actions: Tensor, count: int, devices: int) -> Tensor:
        """Shares of each step's table that go to devices, (..., K), by actions (...), one of so many."""
        if self.kinds:
            return reach_of(count, devices, str(actions.device)).placed[actions]
        return F.one_hot(actions, devices)

    def values(self, states: Tensor) -> Tensor:
        """The reward still to come, (...)."""
        return self.worth(states)[..., 0]

    def begin_values_at(self, level: float) -> None:
        """Make every state's value about this."""
        last = self.worth[-1]
        assert isinstance(last, nn.Linear)
        nn.init.constant_(last.bias, level)


class CostNet(nn.Module):
    """21-128-32 a table, summed over a shard, 32-64-1; in units of the mean shard of the first batch."""

    unit: Tensor  # ms

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = mlp(len(FEATURES), 128, TABLE), mlp(TABLE, 64, 1)
        self.register_buffer("unit", torch.ones(()))


class OwnCosts(FastSimulator):
    """The cost network as a planner."""

    id = "autoshard:own-costs"

    def __init__(self, weights: Mapping[str, Tensor], scaling: np.ndarray) -> None:
        self.net, self.scaling = CostNet(), scaling
        self.net.load_state_dict(dict(weights))
        first, last = self.net.head[0], self.net.head[2]
        assert isinstance(first, nn.Linear) and isinstance(last, nn.Linear)
        self.layers = [
            part.detach().double().numpy() for part in (first.weight.T, first.bias, last.weight.T, last.bias)
        ]

    @torch.no_grad()
    def embed(self, task: Task) -> np.ndarray:
        """The count and the representation of each table."""
        tables = self.net.table(standardised(task, self.scaling)).double().numpy()
        return np.concatenate([np.ones((len(tables), 1)), on_grid(tables)], axis=1)

    def decode(self, task: Task, sums: np.ndarray) -> Latency:
        """Computation alone, all of it told as forward."""
        weight, bias, last, last_bias = self.layers
        hidden = np.maximum(sums[..., 1:] @ weight + bias, 0)
        cost = np.maximum((hidden @ last + last_bias)[..., 0], 0) * (sums[..., 0] > 0) * float(self.net.unit)
        nothing = np.zeros_like(cost)
        return Latency(on_grid(cost) / np.array(task.speed), nothing, nothing, nothing)


class CostLearner:
    """The network, its own Adam, and the shards measured last."""

    def __init__(
        self,
        tasks: tuple[Task, ...],
        scaling: np.ndarray,
        rate: float,
        updates: int = 20,  # an iteration
        batch: int = 512,  # shards
        buffer: int = 5_000,  # shards
    ) -> None:
        self.tasks, self.updates, self.batch, self.net = tasks, updates, batch, CostNet()
        self.optimizer = torch.optim.Adam(self.net.parameters(), rate)
        self.features = [standardised(task, scaling) for task in tasks]
        self.shards: deque[tuple[int, np.ndarray, float]] = deque(maxlen=buffer)

    def remember(self, plans: list[tuple[int, np.ndarray]], costs: list[np.ndarray]) -> None:
        """Plans, as the index of their task and the device of each table, and what each device took, ms."""
        if not self.shards:
            self.net.unit.fill_(float(np.mean([cost[cost > 0].mean() for cost in costs])))
        for (index, device), cost in zip(plans, costs, strict=True):
            for d in np.unique(device).tolist():
                speed = self.tasks[index].speed[d]
                self.shards.append((index, np.flatnonzero(device == d), float(cost[d]) * speed))

    def fit(self, generator: torch.Generator) -> float:
        """A few updates; the mean squared error over the unit's square."""
        losses = []
        for _ in range(self.updates):
            picked = torch.randint(len(self.shards), (self.batch,), generator=generator).tolist()
            shards = [self.shards[i] for i in picked]
            tables = torch.cat([self.features[index][rows] for index, rows, _ in shards])
            owner = torch.repeat_interleave(torch.tensor([len(rows) for _, rows, _ in shards]))
            sums = torch.zeros(len(shards), TABLE).index_add(0, owner, self.net.table(tables))
            times = torch.tensor([cost for *_, cost in shards]) / self.net.unit
            losses.append(descend(self.optimizer, (self.net.head(sums)[:, 0] - times).square().mean()))
        return float(np.mean(losses))

    def state(self) -> dict[str, Tensor]:
        """The buffer as tensors."""
        index, rows, costs = zip(*self.shards, strict=True) if self.shards else ((), (), ())
        counts = [len(of) for of in rows]
        flat = np.concatenate([np.zeros(0, np.int64), *rows])
        return {
            "index": torch.tensor(index, dtype=torch.int64),
            "counts": torch.tensor(counts, dtype=torch.int64),
            "rows": torch.from_numpy(flat),
            "costs": torch.tensor(costs, dtype=torch.float64),
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on with the buffer that `state` returned."""
        rows = np.split(state["rows"].numpy(), np.cumsum(state["counts"].numpy())[:-1])
        found = zip(state["index"].tolist(), rows, state["costs"].tolist(), strict=True)
        self.shards = deque(found if len(state["index"]) else (), maxlen=self.shards.maxlen)


def standardised(task: Task, scaling: np.ndarray) -> Tensor:
    """Features by the scaling, (N, 21)."""
    return torch.from_numpy(rollouts.standardised(task, scaling).astype(np.float32))


@dataclass(frozen=True)
class Episodes:
    """Whole episodes as they were played; steps past the end of shorter ones have `alive` 0."""

    shown: Tensor  # (T, B, 22); 27 with kinds
    costs: Tensor  # (T, B, K); what is seen of actions, (T, B, A, 13), with kinds
    mask: Tensor  # (T, B, K) 1 where the table fits; (T, B, A) with kinds
    actions: Tensor  # (T, B)
    log_probs: Tensor  # (T, B) by the actors
    rewards: Tensor  # (T, B)
    alive: Tensor  # (T, B)

    def __reduce__(self) -> tuple[Any, ...]:
        """Arrays in the place of tensors: pipes and Ray take those as they are."""
        return _episodes, tuple(getattr(self, f.name).cpu().numpy() for f in fields(self))

    def some(self, picked: Tensor) -> Episodes:
        """Episodes that are picked."""
        return Episodes(*(getattr(self, f.name)[:, picked] for f in fields(self)))

    def to(self, device: str) -> Episodes:
        """The same on another device."""
        return Episodes(*(getattr(self, f.name).to(device) for f in fields(self)))

    @classmethod
    def side_by_side(cls, parts: Sequence[Episodes]) -> Episodes:
        """Several parts as one; shorter ones are filled up with zeros."""
        longest = max(len(part.alive) for part in parts)

        def filled(column: Tensor) -> Tensor:
            return torch.cat([column, column.new_zeros((longest - len(column), *column.shape[1:]))])

        return cls(*(torch.cat([filled(getattr(part, f.name)) for part in parts], 1) for f in fields(cls)))


def _episodes(*columns: np.ndarray) -> Episodes:
    return Episodes(*(torch.from_numpy(column.copy()) for column in columns))  # Ray's arrays cannot be written to


@dataclass(frozen=True, eq=False)
class Stage:
    """Tasks that actors play, and how they are shown; enough to build environments in another process."""

    tasks: tuple[Task, ...]
    suite: Suite | None  # names the planner, and holds what rewards refer to
    scaling: np.ndarray  # (2, 21)
    shows_costs: bool
    order: str | None
    reward: str | None
    measured_by: str = (
        ""  # a simulator that measures plans; costs come from AutoShard's own network, sent with the policy
    )

    @property
    def kinds(self) -> bool:
        """True if tasks allow all kinds of sharding."""
        return beyond_columns(self.tasks[0])

    def env(self, simulator: Any) -> ShardingEnv:
        """The environment that actors play."""
        bank = Bank(self.tasks, (self.scaling[0], self.scaling[1]), self.suite)
        shows = ("ahead" if self.kinds else "full") if self.shows_costs else "table"
        told = {"reward": self.reward, "order": self.order, "simulator": simulator, "info": "full"}
        return ShardingEnv(bank, observation=shows, **told)


@dataclass(frozen=True, eq=False)
class Request:
    """A request to an actor: play one episode in each environment."""

    seed: int
    version: int  # of the weights: updates they have seen
    weights: Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Answer:
    """An actor's answer."""

    episodes: Episodes
    version: int
    calls: int  # plans that the simulator was asked about
    plans: list[tuple[int, np.ndarray]]  # of each episode: index of its task, device of each table
    measured: list[np.ndarray]  # ms of computation of each device by each plan, where a simulator measures

    @classmethod
    def together(cls, parts: list[Answer]) -> Answer:
        """Several answers as one."""
        if len(parts) == 1:
            return parts[0]
        episodes = Episodes.side_by_side([part.episodes for part in parts])
        plans = [plan for part in parts for plan in part.plans]
        measured = [costs for part in parts for costs in part.measured]
        return cls(episodes, min(part.version for part in parts), sum(part.calls for part in parts), plans, measured)


class Actor:
    """Some environments, and a network to play them with."""

    def __init__(
        self, stage: Stage, num_envs: int, device: str | torch.device = "cpu", simulator: FastSimulator | None = None
    ) -> None:
        self.stage, self.num_envs, self.device = stage, num_envs, torch.device(device)
        self.index = {task.hash: i for i, task in enumerate(stage.tasks)}
        self.operator = simulators.make(stage.measured_by) if stage.measured_by else None
        if isinstance(self.operator, FastSimulator):
            raise InvalidTask(f"{stage.measured_by} predicts: leave out planner, or give one that measures")
        if simulator is None and stage.suite and not self.operator:
            simulator = require_fast(simulators.make(stage.suite.planner))
        if simulator is not None:
            self._build(simulator)

    def _build(self, costs: FastSimulator) -> None:
        self.simulator = Counted(costs)
        self.envs = ShardingVectorEnv(self.stage.env(self.simulator), self.num_envs)

    def play(self, request: Request) -> Answer:
        """One episode of each environment."""
        self.net = Net.of(under(request.weights, "net")).to(self.device)
        if self.operator:
            self._build(OwnCosts(under(request.weights, "costs"), self.stage.scaling))
        calls = self.simulator.calls
        generator = torch.Generator(self.device).manual_seed(request.seed)
        episodes, plans = self._play(request.seed, generator)
        measured = self._measured(episodes, plans) if self.operator else []
        calls = len(measured) if self.operator else self.simulator.calls - calls
        return Answer(episodes, request.version, calls, plans, measured)

    def _measured(self, episodes: Episodes, plans: list[tuple[int, np.ndarray]]) -> list[np.ndarray]:
        """Put measured balances in the place of predicted ones; what devices took, ms."""
        assert self.operator is not None
        costs = []
        for b, (index, device) in enumerate(plans):
            latency = self.operator.latency(self.stage.tasks[index], device)
            costs.append(latency.compute)
            last = int(episodes.alive[:, b].sum()) - 1
            if episodes.rewards[last, b] >= 0:  # below 0 it is over memory
                episodes.rewards[last, b] = float(latency.balance)
        return costs

    @torch.no_grad()
    def _play(self, seed: int, generator: torch.Generator) -> tuple[Episodes, list[tuple[int, np.ndarray]]]:
        envs, net = self.envs, self.net
        shown, _ = envs.reset(seed=episode_seeds(seed, 0, self.num_envs))
        alive, memory, steps = np.ones(self.num_envs, bool), None, []
        plans: list[Any] = [None] * self.num_envs
        sums = torch.zeros(self.num_envs, envs.env.num_devices, TABLE, device=self.device)
        on_device = partial(torch.as_tensor, dtype=torch.float32, device=self.device)
        while alive.any():
            mask = on_device(envs.action_masks())
            seen, cost = self._told(shown, mask, on_device)
            tables, states, memory = net.states(seen[None], memory)
            log_policy = F.log_softmax(net.scores(states[0], sums, cost).masked_fill(mask == 0, ILLEGAL), -1)
            action = torch.multinomial(log_policy.exp(), 1, generator=generator)
            if net.kinds:
                sums += net.placed(action[:, 0], mask.shape[1], sums.shape[1])[..., None] * tables[0][:, None]
            else:
                sums.scatter_add_(1, action[..., None].expand(-1, 1, TABLE), tables[0][:, None])
            shown, reward, over, _, told = envs.step(action[:, 0].cpu().numpy())
            for i in np.flatnonzero(over & alive).tolist():
                plans[i] = (self.index[told["task"][i]], np.array(told["plan"][i].device))
            log_prob, live = log_policy.gather(1, action)[:, 0], on_device(alive)
            steps.append((seen, cost, mask, action[:, 0], log_prob, on_device(reward) * live, live))
            alive &= ~over
        return Episodes(*(torch.stack(column) for column in zip(*steps, strict=True))), plans

    def _told(self, shown: Any, mask: Tensor, on_device: Callable[[Any], Tensor]) -> tuple[Tensor, Tensor]:
        """The rows of next tables, and costs, or what is seen of actions."""
        if not self.stage.shows_costs:
            return on_device(shown), torch.zeros_like(mask)
        if self.stage.kinds:
            return on_device(shown["table"]), aimed({name: on_device(column) for name, column in shown.items()})
        return on_device(shown["table"]), on_device(shown["devices"][..., COST])
