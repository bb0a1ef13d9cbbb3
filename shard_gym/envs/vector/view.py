"""Views: observations of all environments of a vector environment, and what all of them share.

A view is told when a step was `placed`, then of episodes that `begin`, then to `update` itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shard_gym.envs.episodes import Scales
from shard_gym.envs.vector.shelf import Shelf
from shard_gym.envs.vector.states import States


class View:
    """An observation of all environments; what a view keeps between steps it is told by the first three."""

    def placed(self) -> None:
        """Take in what a step placed."""

    def begin(self, envs: np.ndarray) -> None:
        """Take in that these environments begin an episode."""

    def update(self) -> None:
        """Take in the costs after a step or reset."""

    def show(self, masks: np.ndarray) -> Any:
        """Observations of all environments."""
        raise NotImplementedError

    def final(self, envs: np.ndarray, cost: np.ndarray) -> Any:
        """Observations of environments whose episodes are over and not yet followed by others."""
        raise NotImplementedError


def scales_of(shelf: Shelf, states: States, envs: np.ndarray) -> Scales:
    """Units of each of some environments, (c, ...)."""
    of, slots = shelf.slots, states.slot[envs]
    capacity, largest, total = shelf.options.capacity[slots], of.largest[slots, None], of.total_cost[slots, None]
    return Scales(capacity, largest, total, of.even_share[slots, None], of.speed[slots], states.num_devices)
