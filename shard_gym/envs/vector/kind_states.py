"""Many episodes under way where tables may be of all kinds of sharding, as arrays with one entry an environment."""

from __future__ import annotations

import numpy as np

from shard_gym.envs.kind_states import excess, share_placed
from shard_gym.envs.vector.kind_shelf import KindShelf
from shard_gym.envs.vector.shelf import Shelf
from shard_gym.envs.vector.states import States
from shard_gym.plan.sharing import Sharing


class KindStates(States):
    """Episodes under way, one of each environment: which table is next in each, beside the `Sharing` of all."""

    shelf: KindShelf
    placing: Sharing  # type: ignore[assignment]  # it has what is asked of both

    def __init__(self, shelf: KindShelf, num_envs: int) -> None:
        self._steps = np.zeros(num_envs, np.int64)
        self._finished = np.zeros(num_envs, bool)  # environments whose table was placed by the last step
        super().__init__(shelf, num_envs, True)

    def _placing(self, track: bool) -> Sharing:  # type: ignore[override]
        return Sharing(self.shelf.options, self.num_envs)

    @property
    def steps(self) -> np.ndarray:
        """Steps of each episode so far, (n,)."""
        return self._steps

    def begin(self, envs: np.ndarray, slots: np.ndarray, keys: np.ndarray | None) -> None:
        """New episodes of the tasks in these slots, in orders of their own where there are keys."""
        super().begin(envs, slots, keys)
        self._steps[envs] = 0
        self.placing.turn(envs, self.shelf.rows.form[self.rows(envs)[:, 0]])

    def place(self, actions: np.ndarray) -> None:
        """Do with every next piece as told. What was at its end is garbage now: begin it."""
        over = self.over()
        actions = self.placing.settled(actions)
        self.log.reshape(-1)[self._log + self._steps] = actions
        self.last_row, self.last_actions = self.row, actions
        self._finished = self.placing.place(actions) | over
        self.position = self.position + self._finished
        self._steps += 1

    def look(self) -> None:
        """Find what waits now."""
        super().look()
        finished = np.flatnonzero(self._finished)
        self.placing.turn(finished, self.shelf.rows.form[self.row[finished]])
        self._finished = np.zeros(self.num_envs, bool)

    def share(self) -> np.ndarray:
        """Share of tables that are placed, (n,)."""
        return share_placed(self.placing, self.position, self.length)

    def masks(self) -> np.ndarray:
        """Legal actions, a fresh int8 (n, A)."""
        masks, over = self.placing.masks(), np.flatnonzero(self.over())
        masks[over] = self.final_masks(len(over))
        return masks

    def excess(self, envs: np.ndarray) -> np.ndarray:
        """Excess of bytes, of devices and of hosts."""
        return excess(self.placing)[envs]

    def device_sums(self, envs: np.ndarray) -> np.ndarray:
        """Sum of the vectors on each device, (c, K, H)."""
        return self.placing.sums[envs]


def states_of(shelf: Shelf, num_envs: int, track: bool) -> States:
    """The states of environments."""
    return KindStates(shelf, num_envs) if isinstance(shelf, KindShelf) else States(shelf, num_envs, track)
