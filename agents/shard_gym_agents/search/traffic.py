"""Bytes that devices send and receive where options of tables take the place of a plan in use, of any kinds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

import numpy as np

from shard_gym.plan.forms import ALL, COPY, DEVICE, HOST
from shard_gym.plan.moves import best_columns, moved_bytes, moved_bytes_of
from shard_gym.plan.plan import Plan
from shard_gym.plan.shards import shards
from shard_gym.task.constraints import BY_HOST, OF_ONE
from shard_gym_agents.search.choices import Choices, Option

CHOICE = {kind: choice for kinds, choice in ((OF_ONE, DEVICE), (BY_HOST, HOST)) for kind in kinds}
CHOICE |= {"rw": ALL, "dp": COPY}


class Traffic:
    """Moves from a plan in use to options of tables: `moves` tells the bytes of each, (2, K), sent and received."""

    def __init__(self, choices: Choices, base: Plan) -> None:
        self.choices, self.task, self.base = choices, choices.task, base
        placed = shards(self.task, base)
        placed = placed.take(placed.rows > 0)
        first = np.searchsorted(placed.table, np.arange(self.task.num_tables + 1))
        corners = np.stack([placed.row, placed.row + placed.rows, placed.column, placed.column + placed.dim])
        self.corners = [corners[:, a:b] for a, b in pairwise(first.tolist())]  # (4, S) of each table
        self.device = [placed.device[a:b] for a, b in pairwise(first.tolist())]
        self.copied = (placed.kind == "dp")[first[:-1]]
        source, _, self.dims = self.task.pieces(base.splits)
        self.pieces: list[list[int]] = [[] for _ in range(self.task.num_tables)]  # of each table in the plan in use
        for piece, table in enumerate(source):
            self.pieces[table].append(piece)
        self.members: dict[int, list[int]] = {item: [] for item in choices.items.tolist()}  # tables of each item
        for table, leader in enumerate(choices.rules.leader[:-1].tolist()):
            self.members[leader].append(table)
        self.known: dict[tuple[int, int, int, tuple[int, ...]], tuple[tuple[int, ...], np.ndarray]] = {}
        self.home = {item: option for item in choices.items.tolist() if (option := self._home(item)) is not None}

    def moves(self, item: int, option: Option) -> np.ndarray:
        """Bytes that devices send and receive for an item's option, (2, K), its pieces where most of them stays."""
        return np.sum([self._of(*one)[1] for one in self._tables(item, option)], axis=0)

    def plan(self, chosen: Mapping[int, Option]) -> Plan:
        """The plan of these options, their pieces, which are alike, on those of their devices where most stays."""
        settled = {}
        for item, option in chosen.items():
            one = next(iter(self._tables(item, option)))
            settled[item] = option._replace(targets=self._of(*one)[0])
        return self.choices.plan(settled)

    @property
    def fresh(self) -> np.ndarray:
        """Bytes that each choice of a form brings to each device it puts a shard on, about, (R, 4, K)."""
        forms, task = self.choices.forms, self.task
        held = np.zeros((task.num_tables, task.num_devices))  # share of each table
        for table, ((top, end, first, last), device) in enumerate(zip(self.corners, self.device, strict=True)):
            cells = int(task.tables.rows[table]) * int(task.tables.dim[table])
            np.add.at(held[table], device, (end - top) * (last - first) / cells)
        spans = {DEVICE: 1, HOST: self.choices.host, ALL: task.num_devices, COPY: 1}
        parts = forms.pieces[:, None] * [spans[choice] for choice in range(4)]
        share = np.maximum(1 - held, 0.0)[forms.table][:, None] / parts[..., None]
        return np.asarray(moved_bytes(task)[forms.table, None, None] * share)

    def _tables(self, item: int, option: Option) -> Iterable[tuple[int, int, int, tuple[int, ...]]]:
        """Table, form, choice and targets of each table of an item."""
        first = self.choices.forms.first
        for table in self.members[item]:
            yield table, int(option.form - first[item] + first[table]), option.choice, tuple(sorted(option.targets))

    def _of(self, table: int, form: int, choice: int, targets: tuple[int, ...]) -> tuple[tuple[int, ...], np.ndarray]:
        """The order of targets in which least moves, and what does then."""
        key = (table, form, choice, targets)
        if key not in self.known:
            piece, place = np.indices((len(targets),) * 2)
            moved = self._of_pieces(table, form, choice, piece.ravel(), np.array(targets)[place.ravel()])
            moved = moved.reshape(len(targets), len(targets), 2, -1)
            order = best_columns(-moved[..., 1, :].sum(axis=-1))
            found = moved[np.arange(len(targets)), order].sum(axis=0)
            self.known[key] = tuple(np.array(targets)[order].tolist()), found
        return self.known[key]

    def _of_pieces(self, table: int, form: int, choice: int, piece: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Bytes sent and received for pieces of a table on devices or hosts, each alone, (P, 2, K)."""
        k, total = self.task.num_devices, int(self.task.tables.rows[table])
        level, width = int(self.choices.forms.level[form]), int(self.task.tables.dim[table])
        span = {DEVICE: 1, HOST: self.choices.host}.get(choice, k)
        block = total if choice in (DEVICE, COPY) else -(-total // span)
        part = np.arange(span)
        top = np.minimum(0 * part if choice == COPY else part * block, total)
        rows = np.minimum(block, total - top)
        first = np.array(_columns(level, width))[piece]
        (old_top, old_end, old_first, old_last), old_device = self.corners[table], self.device[table]
        device = target[:, None] * span + part  # (P, span)
        tall = np.minimum(old_end, (top + rows)[:, None]) - np.maximum(old_top, top[:, None])  # (span, S)
        wide = np.minimum(old_last, (first + (width >> level))[:, None]) - np.maximum(old_first, first[:, None])
        cells = np.maximum(tall, 0)[None] * np.maximum(wide, 0)[:, None]  # (P, span, S)
        cells = cells * (old_device != device[..., None]) * (not self.copied[table])
        a_shard = moved_bytes_of(self.task, np.full(span, table), rows, np.full(span, width >> level))
        moved = np.rint(cells * (a_shard / np.maximum(rows * (width >> level), 1))[:, None]).astype(np.int64)
        found = np.zeros((len(piece), 2, k), np.int64)
        each = np.arange(len(piece))[:, None, None]
        np.add.at(found[:, 0], (each, np.broadcast_to(old_device, moved.shape)), moved)
        np.add.at(found[:, 1], (each, np.broadcast_to(device[..., None], moved.shape)), moved)
        return found

    def _home(self, item: int) -> Option | None:
        """The option that an item has in the plan in use; None if that is none of the task's."""
        found = {self._in_use(table) for table in self.members[item]}
        offset, choice, targets = found.pop() or (0, -1, ())
        form = int(self.choices.forms.first[item]) + offset
        if found or choice < 0 or not self.choices.may[form, choice]:
            return None
        return Option(0.0, form, choice, targets)

    def _in_use(self, table: int) -> tuple[int, int, tuple[int, ...]] | None:
        """Form (counted from the table's first), choice and targets of a table in the plan in use."""
        base, forms = self.base, self.choices.forms
        pieces, dims, most = self.pieces[table], self.dims, int(forms.level[forms.first[table + 1] - 1])
        choice, living = CHOICE[base.kind[table]], (base.residence[table], base.share[table])
        span = self.choices.host if choice == HOST else 1
        targets = [d // span for i in pieces for d in base.devices[i][::span]] if choice in (DEVICE, HOST) else [0]
        level = len(targets).bit_length() - 1
        alike = {dims[i] * span // len(base.devices[i]) for i in pieces} if choice in (DEVICE, HOST) else {dims[table]}
        whole = int(self.task.tables.dim[table]) >> level
        if alike != {whole} or living not in forms.residences or level > most:
            return None
        return level * len(forms.residences) + forms.residences.index(living), choice, tuple(targets)


def _columns(level: int, width: int) -> list[int]:
    """The first column of each piece, in the order that `Forms.plan` has them."""
    first = [0]
    for halving in range(1, level + 1):
        first += [column + (width >> halving) for column in first]
    return first
