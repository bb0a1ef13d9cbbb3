"""What finished episodes are worth, all of a step judged together, and what `info` tells of them."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from shard_gym import rewards
from shard_gym.simulators import Latency
from shard_gym.vector.costs import latencies
from shard_gym.vector.infos import Infos, Later, objects, spread_out
from shard_gym.vector.record import Record
from shard_gym.vector.shelf import Shelf
from shard_gym.vector.states import States


@dataclass(frozen=True, eq=False)
class Ends:
    """The ends of some environments' episodes; see `rewards.Outcome`."""

    envs: np.ndarray
    record: Record
    latency: Latency  # (c, K)
    cost: np.ndarray  # (c, K)
    makespan: np.ndarray  # ms
    balance: np.ndarray
    excess: np.ndarray
    hash: np.ndarray

    def info(self, num_envs: int) -> Infos:
        """As gymnasium's vector environments tell it: an array for each key, and beside it where it is told."""

        def all_of(values: np.ndarray) -> np.ndarray:
            return spread_out(values, self.envs, num_envs)

        told = {
            "plan": Later(lambda: all_of(objects(self.record.plans()))),
            "latency": Later(lambda: all_of(objects(self.latencies()))),
            "makespan": all_of(self.makespan),
            "balance": all_of(self.balance),
            "feasible": all_of(self.excess == 0),
            "task": all_of(self.hash),
        }
        slowest = self.cost.argmax(axis=1)[:, None]
        for name in ("spread", "distance"):
            if (values := getattr(self.latency, name)) is not None:
                told[name] = all_of(np.take_along_axis(values, slowest, axis=1)[:, 0])
        where = all_of(np.ones(len(self.envs), bool))
        return Infos(told | {f"_{key}": where for key in told})

    def latencies(self) -> list[Latency]:
        """One of each environment."""
        return [one_of(self.latency, i) for i in range(len(self.envs))]


def one_of(latency: Latency, i: int) -> Latency:
    """Of one environment."""
    phases = {f.name: getattr(latency, f.name) for f in fields(Latency)}
    return Latency(**{name: phase[i] for name, phase in phases.items() if phase is not None})


def judged(shelf: Shelf, states: States, envs: np.ndarray) -> Ends:
    """Judge episodes that are over."""
    record = Record.of(states, envs)
    latency, cost = latencies(shelf, states, envs)
    excess = _excess(shelf, states, envs, record, latency)
    hashes = shelf.slots.hash[states.slot[envs]]
    return Ends(envs, record, latency, cost, cost.max(axis=1), latency.balance, excess, hashes)


def end_rewards(shelf: Shelf, states: States, ends: Ends) -> np.ndarray:
    """The whole return of each episode, as `rewards.end_reward`."""
    if not shelf.scored:
        return rewards.balance_reward(ends.balance, ends.excess)
    slots = states.slot[ends.envs]
    worst, reference = shelf.slots.worst[slots], shelf.slots.reference[slots]
    return rewards.latency_reward(ends.makespan, ends.excess, worst, reference)


def _excess(shelf: Shelf, states: States, envs: np.ndarray, record: Record, latency: Latency) -> np.ndarray:
    """As `rewards.outcome` finds it; plans of tasks with constraints are looked at one by one."""
    excess, slots = np.zeros(len(envs)), states.slot[envs]
    over = np.flatnonzero(states.least[envs] < 0)
    excess[over] = (-states.free[envs[over]] / shelf.slots.capacity[slots[over]]).max(axis=1)
    for i in np.flatnonzero(shelf.slots.constrained[slots]).tolist():
        task, free = record.episode(i).prepared.task, states.free[envs[i]].tolist()
        excess[i] = rewards.outcome(task, record.plan(i), one_of(latency, i), free).excess
    return excess
