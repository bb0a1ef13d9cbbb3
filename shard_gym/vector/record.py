"""What environments did, kept so that plans and scalar states can be made of it when somebody asks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shard_gym.episodes import Episode
from shard_gym.plan import Plan
from shard_gym.states import AnyState, SplitState, State
from shard_gym.vector.states import States


@dataclass(frozen=True, eq=False)
class Record:
    """The actions of some environments in their episodes, (c, ...)."""

    episodes: np.ndarray  # of their tasks, as objects
    nodes: np.ndarray | None  # at each position, where that differs from episode to episode
    actions: np.ndarray
    steps: np.ndarray

    @classmethod
    def of(cls, states: States, envs: np.ndarray) -> Record:
        """What they did so far."""
        nodes = None if states.orders is None else states.shelf.rows.node[states.rows(envs)]
        steps = (states.position if states.pieces is None else states.pieces.steps)[envs]
        actions = states.log[envs, : steps.max(initial=0)]
        return cls(states.shelf.slots.episode[states.slot[envs]], nodes, actions, steps)

    def episode(self, i: int) -> Episode:
        """With the order it was played in."""
        episode: Episode = self.episodes[i]
        return episode if self.nodes is None else Episode(episode.prepared, self.nodes[i, : len(episode.order)])

    def plan(self, i: int) -> Plan:
        """Where it put the tables."""
        episode, actions = self.episode(i), self.actions[i, : self.steps[i]]
        if episode.prepared.split_action:
            return SplitState.replayed(episode, actions.tolist()).plan()
        device = np.full(len(episode.order), -1)
        device[episode.order[: len(actions)]] = actions
        return Plan(tuple(device.tolist()))

    def state(self, i: int) -> AnyState:
        """Its state, as a `ShardingEnv` would have it."""
        episode, actions = self.episode(i), self.actions[i, : self.steps[i]].tolist()
        if episode.prepared.split_action:
            return SplitState.replayed(episode, actions)
        state = State.start(episode, track=False)
        for action in actions:
            state.place(action)
        return state

    def plans(self) -> list[Plan]:
        """All plans."""
        return [self.plan(i) for i in range(len(self.steps))]
