"""DreamShard with the planner in the loop: the MDP that its policy learns in is the planner's own. Needs torch.

No cost network is collected for or fitted, and REINFORCE sees true makespans. Beside the sum of its tables'
representations, the policy is shown what the planner says of each device with the next table on it, and what
memory would be left there. A device's score is a weighted sum of these, plus a small network's. Training begins
where the only weight is that of the device's cost above the least one, so that the first policy *is* cost-greedy, and
learns where to deviate; `greedy=False` begins with no weights at all.
Where tables find no room in the order of their costs, the solver tries orders that lean more and more to size.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shard_gym import simulators
from shard_gym.errors import CorruptFile, InfeasibleTask, InvalidTask
from shard_gym.plan import Plan
from shard_gym.simulators import FastSimulator, Simulator
from shard_gym.simulators.base import Counted
from shard_gym.suites import Suite
from shard_gym.tables import FEATURES as TABLE
from shard_gym.tasks import Task
from shard_gym_agents.learners import boards
from shard_gym_agents.learners.checkpoints import load_tensors, packed, save_tensors, unpack
from shard_gym_agents.learners.dreamshard_costed import EXCESS, FEATURES, Costed, Devices
from shard_gym_agents.learners.dreamshard_networks import mlp
from shard_gym_agents.learners.training import episode_seeds
from shard_gym_agents.solver import require_fast

WIDTH = 64
SHARP = 20.0  # what weighted sums are multiplied with: sampled plans are then about as good as the best


@dataclass(frozen=True)
class Config:
    """Ours, not the paper's."""

    updates: int = 10  # of the policy, an iteration
    tasks: int = 4  # an update
    episodes: int = 32  # of each of them
    entropy: float = 0.0
    learning_rate: float = 1e-3  # of Adam, at first; it falls linearly
    weights_rate: float = 1e-2  # that of the weighted sum
    horizon: int = 200  # iterations until both are 0
    divide: bool = True  # advantages by their standard deviation
    greedy: bool = True  # training begins at cost-greedy

    def __post_init__(self) -> None:
        if min(self.updates, self.tasks, self.horizon) < 1 or self.episodes < 2:
            raise InvalidTask("counts are 1 or more, and episodes 2 or more: their mean is the baseline")


class Net(nn.Module):
    """21-128-64 a table, summed; 15-64 what is seen; a device's and the mean of all, 64-64 each, 64-1."""

    scaling: Tensor

    def __init__(self, scaling: np.ndarray, greedy: bool = True) -> None:
        super().__init__()
        self.table, self.seen = mlp(len(TABLE), 128, WIDTH), nn.Linear(len(FEATURES), WIDTH)
        self.inner, self.all = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.last, self.weights = nn.Parameter(torch.zeros(WIDTH)), nn.Parameter(torch.zeros(len(FEATURES)))
        with torch.no_grad():
            self.weights[EXCESS] = -float(greedy)
        self.register_buffer("scaling", torch.from_numpy(scaling))

    def forward(self, sums: Tensor, seen: Tensor) -> Tensor:
        """Sums of tables with the next one on each device (..., K, 64), and what is seen (..., K, 15) -> (..., K)."""
        device = F.relu(sums + self.seen(seen))
        hidden = F.relu(self.inner(device) + self.all(device.mean(dim=-2, keepdim=True)))
        return SHARP * (seen @ self.weights) + hidden @ self.last

    def __repr__(self) -> str:  # results of solvers hold it
        return f"{sum(p.numel() for p in self.parameters())} weights"


@dataclass(frozen=True, eq=False)
class Played:
    """Whole episodes, side by side."""

    actions: Tensor  # (B, N) the device of each table, as they were shown
    seen: Tensor  # (B, N, K, 15)
    legal: Tensor  # (B, N, K) which devices had room for it
    devices: Devices  # at the end

    def placements(self) -> np.ndarray:
        """The device of each table in the order of the task, (B, N); tasks of one length only."""
        order = torch.from_numpy(self.devices.costed.order)
        return self.devices.shown[boards.to_table_order(order, self.actions.cpu()).numpy()]


@torch.no_grad()
def play(net: Net, costed: Costed, planner: FastSimulator, generator: torch.Generator | None) -> Played:
    """Place all tables; devices are drawn, or the best."""
    state, where = Devices(costed, planner), net.weights.device
    tables = _tables(net, costed)
    sums, each = tables.new_zeros(*state.free.shape, WIDTH), torch.arange(len(state.shown), device=where)
    steps = []
    for step, table in enumerate(tables[:, :, None].unbind(1)):
        seen, legal = (torch.from_numpy(column).to(where) for column in state.look(step))
        scores = torch.where(legal, net(sums + table, seen), boards.ILLEGAL)
        chosen = boards.choose(scores, generator)
        state.place(step, chosen.cpu().numpy())
        sums.addcmul_((chosen[:, None] == each)[..., None], table)
        steps.append((chosen, seen, legal))
    actions, seen, legal = (torch.stack(column, 1) for column in zip(*steps, strict=True))
    return Played(actions, seen, legal, state)


def log_policy(net: Net, costed: Costed, played: Played) -> Tensor:
    """Log probabilities of the devices at each step, masked as they were drawn, (B, N, K)."""
    tables = _tables(net, costed)[:, :, None]
    added = F.one_hot(played.actions, played.legal.shape[2])[..., None] * tables  # (B, N, K, 64)
    sums = added.cumsum(dim=1) - added + tables
    return net(sums, played.seen).masked_fill(~played.legal, boards.ILLEGAL).log_softmax(-1)


def _tables(net: Net, costed: Costed) -> Tensor:
    """Representations, (B, N, 64); zeros where padded."""
    where = net.weights.device
    real = torch.from_numpy(costed.real).to(where)
    return net.table(torch.from_numpy(costed.features).to(where)) * real[..., None]


class Learner:
    """REINFORCE, an update after the episodes of a few tasks."""

    def __init__(self, suite: Suite, config: Config, seed: int, device: str = "cpu") -> None:
        self.suite, self.config, self.seed, self.device = suite, config, seed, device
        self.tasks, self.planner = suite.tasks("train"), Counted(require_fast(simulators.make(suite.planner)))
        self.scaling = np.stack(suite.feature_scaling())
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.net = Net(self.scaling, config.greedy)
        self.costed = self.first_orders()
        self.net.to(device)
        others = [p for name, p in self.net.named_parameters() if name != "weights"]
        self.optimizer = torch.optim.Adam([{"params": others}, {"params": [self.net.weights]}], lr=0.0)
        self.iteration = 0

    def first_orders(self) -> Costed:
        """Each training task in the first order in which cost-greedy finds room for all of its tables."""
        greedy, leans = Net(self.scaling), np.zeros(len(self.tasks))
        for lean in boards.LEANS[1:]:
            costed = Costed.of(self.tasks, self.planner, self.scaling, leans)
            dead_end = (play(greedy, costed, self.planner, None).devices.free < 0).any(axis=1)
            if not dead_end.any():
                return costed
            leans[dead_end] = lean
        return Costed.of(self.tasks, self.planner, self.scaling, leans)

    def iterate(self) -> dict[str, float]:
        """A few updates; means of what they tell."""
        c, before = self.config, self.planner.calls if self.iteration else 0  # `first_orders` counts, too
        seed = episode_seeds(self.seed, self.iteration, 1)[0]
        generator = torch.Generator(self.device).manual_seed(int(seed))
        left = max(1, c.horizon - self.iteration) / c.horizon
        for group, rate in zip(self.optimizer.param_groups, (c.learning_rate, c.weights_rate), strict=True):
            group["lr"] = rate * left
        told = np.array([self.update(generator) for _ in range(c.updates)])
        self.iteration += 1
        means = dict(zip(("makespan", "over_memory", "policy_loss"), told[:, :3].mean(axis=0).tolist(), strict=True))
        return {"steps": int(told[:, 3].sum()), "simulator_calls": self.planner.calls - before, **means}

    def update(self, generator: torch.Generator) -> tuple[float, float, float, int]:
        """Mean makespan in ms, share of episodes over memory, loss, and steps."""
        c = self.config
        rows = torch.randint(len(self.tasks), (c.tasks,), generator=generator, device=self.device)
        costed = self.costed.take(rows.repeat_interleave(c.episodes).cpu().numpy())
        played = play(self.net, costed, self.planner, generator)
        makespans = torch.from_numpy(played.devices.makespan()).view(c.tasks, c.episodes)
        free, capacity = (torch.from_numpy(column) for column in (played.devices.free, costed.capacity))
        over = boards.overshoot(free, capacity).view(c.tasks, c.episodes)
        advantage = boards.advantages(boards.rewards(makespans, over), c.divide).flatten().float().to(self.device)
        real, log = torch.from_numpy(costed.real).to(self.device), log_policy(self.net, costed, played)
        loss = boards.reinforce_loss(log, played.actions, advantage, real, c.entropy)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return makespans.mean().item(), (over > 0).float().mean().item(), loss.item(), int(real.sum())

    def state(self) -> dict[str, Tensor]:
        """Network, optimizer and counter; generators are seeded anew each iteration."""
        return packed(net=self.net, optimizer=self.optimizer, iteration=self.iteration)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from there."""
        unpack(state, net=self.net, optimizer=self.optimizer)
        self.iteration = int(state["iteration"])

    def solver(self) -> DreamShardPlanner:
        """A copy of the network as it is."""
        return DreamShardPlanner(copy.deepcopy(self.net).cpu())


@dataclass(frozen=True, eq=False)
class DreamShardPlanner:
    """Each table to the device of the highest score where it may go, as the planner's costs and the policy have it."""

    track: ClassVar[str] = "search"
    deterministic: ClassVar[bool] = True
    net: Net

    def __call__(self, task: Task, planner: Simulator) -> Plan:
        _, placement, why = self._placed(task, require_fast(planner))
        if why is not None:
            raise why
        return Plan(tuple(placement.tolist()))

    def samples(self, task: Task, planner: Simulator, count: int, seed: int = 0) -> np.ndarray:
        """Plans drawn from the policy, (count, N), in the order of its own plan; some may not be feasible."""
        planner, generator = require_fast(planner), torch.Generator().manual_seed(seed)
        costed, *_ = self._placed(task, planner)
        costed = costed.take(np.zeros(count, np.int64))
        return play(self.net, costed, planner, generator).placements()

    def _placed(self, task: Task, planner: FastSimulator) -> tuple[Costed, np.ndarray, InfeasibleTask | None]:
        """The best placement in the first order without a dead end, else in the last one, and what that one missed."""
        for lean in boards.LEANS:
            costed = Costed.of([task], planner, self.net.scaling.numpy(), np.array([lean]))
            placement = play(self.net, costed, planner, None).placements()[0]
            if (why := boards.missed(task, costed.order[0], placement)) is None:
                break
        return costed, placement, why

    def save(self, path: str | Path, **card: Any) -> None:
        """A safetensors file with a card."""
        save_tensors(path, self.net.state_dict(), {**card, "kind": "dreamshard-planner", "seen": list(FEATURES)})


def load(path: str | Path) -> DreamShardPlanner:
    """Read what `DreamShardPlanner.save` wrote."""
    kept, card = load_tensors(path, "dreamshard-planner")
    net = Net(np.zeros((2, len(TABLE))))
    try:
        net.load_state_dict(kept)
    except RuntimeError as error:
        raise CorruptFile(f"{path} holds another network than the policy's: {error}") from error
    if card.get("seen") != list(FEATURES):
        raise CorruptFile(f"{path} expects to see {card.get('seen')} of devices, here it is {list(FEATURES)}")
    return DreamShardPlanner(net)
