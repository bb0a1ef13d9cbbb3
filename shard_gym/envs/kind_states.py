"""An episode under way where tables may be of all kinds of sharding."""

from __future__ import annotations

import numpy as np

from shard_gym.envs.episodes import Episode
from shard_gym.envs.kinds import PreparedForms
from shard_gym.envs.states import State, Waiting
from shard_gym.plan.forms import DEVICE, HOST
from shard_gym.plan.nodes import MOST_HALVINGS
from shard_gym.plan.plan import Plan
from shard_gym.plan.sharing import TO_DEVICES, Sharing
from shard_gym.plan.ways import HALVE
from shard_gym.simulators import Latency

FIRST = np.zeros(1, np.int64)  # the one plan of a scalar environment


class KindState(State):
    """An episode under way: tables one after the other, the pieces of each one after the other."""

    __slots__ = ("chosen", "prepared")

    placing: Sharing  # type: ignore[assignment]  # it has what is asked of all

    def __init__(self, episode: Episode) -> None:
        p = episode.prepared
        assert isinstance(p, PreparedForms)
        self.episode, self.prepared, self.placing = episode, p, Sharing(p.ways)
        self.position, self.done = 0, False
        self.actions = []
        # form, choice, and the devices or hosts of the pieces that are placed, of each table
        self.chosen: dict[int, tuple[int, int, list[int]]] = {}
        self._turn()

    @property
    def row(self) -> int:
        """The form of the next piece; at the end of the last one."""
        return int(self.placing.row[0])

    @property
    def left(self) -> int:
        """Pieces of the next table that wait."""
        return 0 if self.done else int(self.placing.left[0])

    @property
    def excess(self) -> float:
        """The most that a memory, of a device or of its part of its host's, is over, as a share of it; 0 if none is."""
        return float(excess(self.placing)[0])

    @property
    def num_placed(self) -> int:
        """Pieces that are placed."""
        return sum(len(targets) for *_, targets in self.chosen.values())

    @property
    def num_pieces(self) -> int:
        """Pieces of all tables, as they are halved by now."""
        return self.num_placed + self.left + len(self.episode.nodes) - min(self.position + 1, len(self.episode.nodes))

    @property
    def share(self) -> float:
        """Share of the tables that is placed, pieces as their parts of one."""
        return float(share_placed(self.placing, np.array([self.position]), np.array([len(self.episode.nodes)]))[0])

    def remaining(self) -> np.ndarray:
        """Shares of the task that are left, a fresh (5,) float32: tables, their summed single cost, bytes, columns;
        the dearest table left over the dearest of all."""
        held = self.episode.remaining
        if self.done:
            return held[-1].copy()
        return still_left(held[self.position][None], held[self.position + 1][None], self.placing)[0]

    def place(self, action: int) -> None:
        """Do with the next piece as told, or what `Sharing.settled` says instead."""
        table, placing = self.episode.nodes[self.position], self.placing
        settled = placing.settled(np.array([action]))
        form, does, number = self.row, int(placing.does[settled[0]]), int(settled[0])
        if does < HALVE:
            target = {DEVICE: number, HOST: number - placing.actions.devices}.get(does, 0)
            self.chosen.setdefault(table, (form, does, []))[2].append(target)
        self.actions.append(number)
        if placing.place(settled)[0]:
            self.position += 1
            self.done = self.position == len(self.episode.nodes)
            self._turn()

    def mask(self) -> np.ndarray:
        """Legal actions, int8 (A,); at the end every device."""
        mask: np.ndarray = self.episode.last_mask.copy() if self.done else self.placing.masks()[0]
        return mask

    def held(self) -> tuple[np.ndarray, np.ndarray]:
        """Form and device of each shard that is placed."""
        forms, devices = [], []
        for form, choice, targets in self.chosen.values():
            span = self.placing.actions.span(choice)
            devices += [d for target in targets for d in range(target * span, (target + 1) * span)]
            forms += [form] * (span * len(targets))
        return np.array(forms, np.int64), np.array(devices, np.int64)

    def coming(self) -> Waiting | None:
        """Tables still to be placed; None at the end."""
        if self.done:
            return None
        p, row, table = self.prepared, self.row, self.episode.nodes[self.position]
        tables, level = p.task.tables, int(p.forms.level[row])
        residence, share = p.forms.residences[p.forms.residence[row]]
        kept = {"hbm": "", "uvm": ", in uvm", "cached": f", {share:.0%} cached"}[residence]
        later = p.sizes[self.episode.order[self.position + 1 :]].sum()
        return Waiting(
            name=("" if level == 0 else f"1/{2**level} of ") + tables.name[table] + kept,
            rows=int(tables.rows[table]),
            dim=int(tables.dim[table]) >> level,
            pooling=float(tables.pooling[table]),
            size=int(p.piece_sizes[row]),
            alone=p.cost_alone(row),
            shares=np.stack([tables.uses[table], tables.accesses[table]]),
            count=self.num_pieces - self.num_placed,
            total=int(later + p.sizes[table] * self.left // 2**level),
        )

    def bytes_by_choice(self) -> np.ndarray:
        """Bytes that each choice of sharding takes of each device, (4, K)."""
        forms, k = self.prepared.forms, self.episode.num_devices
        held = np.zeros((4, k), np.int64)
        for form, choice, targets in self.chosen.values():
            span = self.placing.actions.span(choice)
            times = np.bincount(targets, minlength=k // span).repeat(span)
            held[choice] += times * forms.part_size[0, forms.part_of(form, choice)]
        return held

    def host_free(self) -> list[float]:
        """Share of its memory that each host has left; none where nothing is kept there."""
        if not self.prepared.task.host_memory:
            return []
        by_host = self.placing.host[0].reshape(-1, self.placing.actions.per_host).min(axis=1)
        shares: list[float] = (by_host / self.prepared.task.host_memory).tolist()
        return shares

    def plan(self) -> Plan:
        """The plan so far; tables that are not placed are whole, or in the pieces that they are in by now."""
        forms, told = self.prepared.forms, []
        waiting = None if self.done else self.episode.nodes[self.position]
        for table, first in enumerate(forms.first[:-1].tolist()):
            now = self.row if table == waiting else first
            form, choice, targets = self.chosen.get(table, (now, DEVICE, []))
            told.append((form, choice, [*targets, *[-1] * (int(forms.pieces[form]) - len(targets))]))
        return forms.plan(told)

    def latency(self) -> Latency:
        """Latency of the pieces placed so far."""
        return self.prepared.decode(self.sums)

    def _turn(self) -> None:
        table = self.episode.nodes[min(self.position, len(self.episode.nodes) - 1)]
        self.placing.turn(FIRST, self.prepared.forms.first[table : table + 1])


def excess(placing: Sharing) -> np.ndarray:
    """The most that a memory is over, as a share of it, of each plan; 0 if none is."""
    capacity, host = placing.ways.capacity[placing.task], placing.ways.host[placing.task]
    over = np.maximum(-placing.free / capacity, -placing.host / np.maximum(host, 1)).max(axis=1)
    return np.where(placing.least < 0, over, 0.0)


def share_placed(placing: Sharing, position: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Share of each plan's tables that is placed, (B,); pieces count as their parts of a table."""
    done = np.where(placing.stage > 0, 1 - placing.left / pieces_of(placing), 0)
    return np.where(position < length, position + done, length) / length


def still_left(before: np.ndarray, after: np.ndarray, placing: Sharing) -> np.ndarray:
    """Remains while the pieces of a table are placed, from those before it and after it, (B, 5) float32."""
    waits = np.where(placing.stage > 0, placing.left / pieces_of(placing), 1).astype(np.float32)[:, None]
    shown = after + (before - after) * waits
    shown[:, 4] = before[:, 4]
    return shown


def pieces_of(placing: Sharing) -> np.ndarray:
    """Pieces of the next table of each plan."""
    return placing.ways.pieces[placing.row]


def stage_shown(placing: Sharing) -> np.ndarray:
    """Last numbers of the "table" observation, (B, 3): pieces left over the most, and whether they go to devices,
    and to hosts, only."""
    stage = placing.stage[:, None] == np.array([TO_DEVICES, TO_DEVICES + 1])
    return np.concatenate([placing.left[:, None] / 2**MOST_HALVINGS, stage], axis=1)
