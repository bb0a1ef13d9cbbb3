"""AutoShard's actors: they play episodes with the weights they are sent, here or in other processes. Needs torch.

Numbers go to an actor and numbers come back (`Order`, `Played`), so that it may as well sit behind a network.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from shard_gym import simulators
from shard_gym.bank import Bank
from shard_gym.env import ShardingEnv
from shard_gym.episodes import hashed
from shard_gym.errors import ShardGymError
from shard_gym.simulators.base import Counted, FastSimulator
from shard_gym.suites import Suite
from shard_gym.tasks import Task
from shard_gym.vector_env import ShardingVectorEnv
from shard_gym_agents.learners.autoshard_costs import OwnCosts
from shard_gym_agents.learners.autoshard_network import TABLE, Net
from shard_gym_agents.learners.boards import ILLEGAL
from shard_gym_agents.learners.checkpoints import under
from shard_gym_agents.learners.impala import Episodes
from shard_gym_agents.learners.training import episode_seeds
from shard_gym_agents.solver import require_fast

COST = 2  # the column of predicted costs in what "full" shows of devices


class ActorLost(ShardGymError):
    """A process that played is gone; the message says how to go on."""


@dataclass(frozen=True, eq=False)
class Stage:
    """What actors play on; enough to build their environments in another process."""

    tasks: tuple[Task, ...]
    suite: Suite | None  # names the planner, and holds what rewards refer to
    scaling: np.ndarray  # (2, 21)
    shows_costs: bool
    order: str | None
    reward: str | None
    own_costs: bool = False  # costs come from AutoShard's own network, whose weights are sent too

    def env(self, simulator: Any) -> ShardingEnv:
        """One environment."""
        bank = Bank(self.tasks, (self.scaling[0], self.scaling[1]), self.suite)
        shows = "full" if self.shows_costs else "table"
        return ShardingEnv(bank, observation=shows, reward=self.reward, order=self.order, simulator=simulator)


@dataclass(frozen=True, eq=False)
class Order:
    """What an actor is sent: play one episode in each environment."""

    seed: int
    version: int  # of the weights: updates they have seen
    weights: Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Played:
    """What an actor sends back."""

    episodes: Episodes
    version: int
    calls: int  # plans that the simulator was asked about
    plans: list[tuple[int, np.ndarray]]  # of each episode: index of its task, device of each table

    @classmethod
    def together(cls, parts: list[Played]) -> Played:
        """What several actors sent."""
        if len(parts) == 1:
            return parts[0]
        episodes = Episodes.side_by_side([part.episodes for part in parts])
        plans = [plan for part in parts for plan in part.plans]
        return cls(episodes, min(part.version for part in parts), sum(part.calls for part in parts), plans)


class Actor:
    """Some environments, and a network to play them with."""

    def __init__(
        self, stage: Stage, num_envs: int, device: str | torch.device = "cpu", simulator: FastSimulator | None = None
    ) -> None:
        self.stage, self.num_envs, self.device = stage, num_envs, torch.device(device)
        self.net = Net().to(self.device)
        self.index = {task.hash: i for i, task in enumerate(stage.tasks)}
        if simulator is None and stage.suite and not stage.own_costs:
            simulator = require_fast(simulators.make(stage.suite.planner))
        if simulator is not None:
            self._build(simulator)

    def _build(self, costs: FastSimulator) -> None:
        self.simulator = Counted(costs)
        self.envs = ShardingVectorEnv(self.stage.env(self.simulator), self.num_envs)

    def play(self, order: Order) -> Played:
        """One episode of each environment."""
        self.net.load_state_dict(under(order.weights, "net"))
        if self.stage.own_costs:
            self._build(OwnCosts(under(order.weights, "costs"), self.stage.scaling))
        calls = self.simulator.calls
        generator = torch.Generator(self.device).manual_seed(order.seed)
        episodes, plans = self._play(order.seed, generator)
        return Played(episodes, order.version, self.simulator.calls - calls, plans)

    @torch.no_grad()
    def _play(self, seed: int, generator: torch.Generator) -> tuple[Episodes, list[tuple[int, np.ndarray]]]:
        envs, net = self.envs, self.net
        shown, _ = envs.reset(seed=episode_seeds(seed, 0, self.num_envs))
        alive, memory, steps = np.ones(self.num_envs, bool), None, []
        plans: list[Any] = [None] * self.num_envs
        sums = torch.zeros(self.num_envs, envs.num_actions, TABLE, device=self.device)
        on_device = partial(torch.as_tensor, dtype=torch.float32, device=self.device)
        while alive.any():
            row, costs = (shown["table"], shown["devices"][..., COST]) if self.stage.shows_costs else (shown, None)
            seen, mask = on_device(row), on_device(envs.action_masks())
            cost = torch.zeros_like(mask) if costs is None else on_device(costs)
            tables, states, memory = net.states(seen[None], memory)
            log_policy = F.log_softmax(net.scores(states[0], sums, cost).masked_fill(mask == 0, ILLEGAL), -1)
            action = torch.multinomial(log_policy.exp(), 1, generator=generator)
            sums.scatter_add_(1, action[..., None].expand(-1, 1, TABLE), tables[0][:, None])
            shown, reward, over, _, told = envs.step(action[:, 0].cpu().numpy())
            for i in np.flatnonzero(over & alive).tolist():
                plans[i] = (self.index[told["task"][i]], np.array(told["plan"][i].device))
            log_prob, live = log_policy.gather(1, action)[:, 0], on_device(alive)
            steps.append((seen, cost, mask, action[:, 0], log_prob, on_device(reward) * live, live))
            alive &= ~over
        return Episodes(*(torch.stack(column) for column in zip(*steps, strict=True))), plans


class Crew(Protocol):
    """All actors of a learner."""

    def send(self, order: Order) -> None:
        """Let them play; one order at a time."""
        ...

    def receive(self) -> Played:
        """What they played, once all have."""
        ...


class Here:
    """One actor, in this process; it plays when it is asked for what it played."""

    def __init__(self, stage: Stage, num_envs: int, device: str | torch.device) -> None:
        self.actor = Actor(stage, num_envs, device)
        self.order: Order | None = None

    def send(self, order: Order) -> None:
        """Remember it."""
        self.order = order

    def receive(self) -> Played:
        """Do it."""
        assert self.order is not None
        return self.actor.play(_for_actor(self.order, 0))


class Processes:
    """Actors that play while the learner learns, each in a process of its own and on the CPU."""

    def __init__(self, stage: Stage, num_envs: int, actors: int) -> None:
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload([__name__])  # torch takes seconds to import
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        self.stage, self.each, self.actors = stage, num_envs // actors, actors

    def send(self, order: Order) -> None:
        """To all of them; the first time they are started."""
        while len(self.pipes) < self.actors:
            near, far = self.context.Pipe()
            process = self.context.Process(target=serve, args=(far, self.stage, self.each), daemon=True)
            process.start()
            far.close()
            self.processes.append(process)
            self.pipes.append(near)
        for i, pipe in enumerate(self.pipes):
            self._try(partial(pipe.send, _for_actor(order, i)))

    def receive(self) -> Played:
        """From all of them, always in the same order."""
        found = [self._try(pipe.recv) for pipe in self.pipes]
        if lost := next((one for one in found if isinstance(one, ActorLost)), None):
            raise lost
        return Played.together(found)

    def _try(self, do: Any) -> Any:
        try:
            return do()
        except (EOFError, OSError) as error:
            raise ActorLost(
                "an actor's process is gone, killed perhaps for want of memory: the same command goes on, with "
                "fewer --actors in another folder"
            ) from error


def serve(pipe: Connection, stage: Stage, num_envs: int) -> None:
    """An actor's process: orders in, episodes out, until the learner is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the learner's to handle
    torch.set_num_threads(1)
    try:
        actor = Actor(stage, num_envs)
        while True:
            pipe.send(actor.play(pipe.recv()))
    except (EOFError, OSError):
        return
    except ShardGymError as error:
        pipe.send(ActorLost(f"an actor's process ended: {error}"))


def _for_actor(order: Order, number: int) -> Order:
    """Every actor has draws of its own."""
    weights = {name: value.cpu() for name, value in order.weights.items()}
    return Order(int(hashed(order.seed, number)) % 2**63, order.version, weights)
