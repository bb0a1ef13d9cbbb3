"""The state that an episode begins with, and those that it leads to."""

from __future__ import annotations

from collections.abc import Iterable

from shard_gym.envs.episodes import Episode
from shard_gym.envs.states import State


def begun(episode: Episode, track: bool = False) -> State:
    """The state that an episode begins with."""
    if episode.prepared.forms is None:
        return State(episode, track)
    from shard_gym.envs.kind_states import KindState

    return KindState(episode)


def replayed(episode: Episode, actions: Iterable[int]) -> State:
    """The state that these actions lead to."""
    state = begun(episode)
    for action in actions:
        state.place(action)
    return state
