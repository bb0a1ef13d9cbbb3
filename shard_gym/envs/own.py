"""Environments of tasks drawn from a user's own tables: `gym.make("ShardGym-Own", tables="tables.csv", ...)`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypedDict, Unpack

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from shard_gym.envs.bank import Bank
from shard_gym.envs.env import ShardingEnv
from shard_gym.envs.vector_env import NEXT_STEP, ShardingVectorEnv
from shard_gym.errors import InfeasibleTask, InvalidTask, UnknownName
from shard_gym.plan.feasibility import first_fit_decreasing, quick
from shard_gym.plan.forms import beyond_columns
from shard_gym.plan.nodes import halvings
from shard_gym.records.numbers import whole
from shard_gym.tables.pool import TablePool
from shard_gym.task import suites
from shard_gym.task.links import Links
from shard_gym.task.own import Tables, memory_of, read_tables, refuse_unknown, task_of
from shard_gym.task.suites import SPLITS
from shard_gym.task.task import Task

TRIES = 1_000  # draws for one task, at most
_CUTS = (3 / 5, 4 / 5)  # shares of the pool's tables where train ends, and val
_NEEDED = ("tables", "devices", "memory_gb", "tables_per_task")
_SHOWN = ("observation", "reward", "order", "simulator", "render_mode", "info")  # arguments of ShardingEnv


class MissingSetting(InvalidTask, gym.error.MissingArgument):
    """A setting that a user's own tables need is missing."""


class BankSettings(TypedDict, total=False):
    """Settings of `own_bank`; from `pooling` on, as `make_task`."""

    unseen: bool  # val and test tasks hold tables that no training task has; True unless told
    split_action: bool  # episodes may halve tables, as those of -Split ids may; False unless told
    scaling: str | tuple[np.ndarray, np.ndarray]  # constants, or a suite that has them; the pool's unless told
    pooling: Mapping[str, float]
    objective: str
    batch: int
    optimizer: str
    accounting: str
    speed: Sequence[float]
    links: Links | None
    kinds: Sequence[str]
    residences: Sequence[str]
    host_memory: int
    host_link: float | None


def own_bank(
    tables: Tables,
    devices: int,
    memory_gb: float | Sequence[float],
    tables_per_task: int,
    *,
    num_tasks: int = 100,
    seed: int = 0,
    split: str = "train",
    **settings: Unpack[BankSettings],
) -> Bank:
    """Tasks drawn from your own tables, the same for the same seed; tables, devices and memory as `make_task`'s.

    Each split has `num_tasks` tasks of `tables_per_task` different tables, no two tasks of the same ones, and draws
    from tables of its own: by the seed, three fifths of the pool are for train, a fifth for val, a fifth for test.
    With `unseen=False` all splits draw from the whole pool, and only their draws differ. Draws that first-fit, largest
    table first, finds no room for are drawn again.

    Features are scaled by the mean and deviation of the pool's training tables, the same for all splits. A policy
    trained on a suite needs that suite's instead: `scaling="core-80x8"`.
    """
    refuse_unknown(settings, BankSettings.__annotations__)
    size, count = _number("tables_per_task", tables_per_task, 1), _number("num_tasks", num_tasks, 1)
    unseen, split_action = settings.pop("unseen", True), settings.pop("split_action", False)
    for name, value in (("unseen", unseen), ("split_action", split_action)):
        if not isinstance(value, bool):
            raise InvalidTask(f"{name} is True or False, got {value!r:.80}")
    scaling = settings.pop("scaling", None)
    pool = read_tables(tables, settings.pop("pooling", None), settings)
    parts = _parts(pool, _number("seed", seed, 0), unseen)
    if split not in parts:
        raise UnknownName("split", split, parts)
    _check_enough(parts[split], split, size, count if unseen else len(SPLITS) * count)
    memory, told = memory_of(devices, memory_gb), {"splits_allowed": split_action, **settings}

    def task(ids: np.ndarray) -> Task:
        return task_of(pool.take(ids), memory, told)  # type: ignore[arg-type]

    # splits that share tables all draw the same, and each takes its stretch of it
    stream, skipped = (SPLITS.index(split), 0) if unseen else (len(SPLITS), SPLITS.index(split) * count)
    draws = _draws(task, parts[split], size, np.random.default_rng([seed, stream]))
    constants = _constants(pool.take(parts["train"])) if scaling is None else _scaling(scaling)
    return Bank(tuple(islice(draws, skipped, skipped + count)), constants, None, split, split_action)


def make_own_env(**settings: Any) -> ShardingEnv:
    """The environment of tasks drawn from your own tables: `own_bank`'s arguments, and `ShardingEnv`'s but `tasks`."""
    if missing := [name for name in _NEEDED if name not in settings]:
        raise MissingSetting(
            f"tables of your own need {', '.join(_NEEDED)}, and {missing[0]} is missing: "
            'gym.make("ShardGym-Own", tables="tables.csv", devices=4, memory_gb=16, tables_per_task=40)'
        )
    refuse_unknown(settings, (*_NEEDED, "num_tasks", "seed", "split", *BankSettings.__annotations__, *_SHOWN))
    shown = {name: settings.pop(name) for name in _SHOWN if name in settings}
    return ShardingEnv(own_bank(**settings), **shown)


make_own_env.metadata = ShardingEnv.metadata  # type: ignore[attr-defined]  # where gymnasium looks for render modes


def make_own_vector_env(
    num_envs: int = 1, autoreset_mode: str | AutoresetMode = NEXT_STEP, copy: bool = True, **settings: Any
) -> ShardingVectorEnv:
    """The vector environment of tasks drawn from your own tables; settings as `make_own_env`."""
    return ShardingVectorEnv(make_own_env(**settings), num_envs, autoreset_mode, copy)


def _parts(pool: TablePool, seed: int, unseen: bool) -> dict[str, np.ndarray]:
    """The tables that each split draws from."""
    if not unseen:
        return dict.fromkeys(SPLITS, np.arange(len(pool)))
    shuffled = np.random.default_rng(seed).permutation(len(pool))
    cuts = [int(share * len(pool)) for share in _CUTS]
    return dict(zip(SPLITS, np.split(shuffled, cuts), strict=True))


def _check_enough(part: np.ndarray, split: str, size: int, count: int) -> None:
    """Refuse more tasks than there are different ones."""
    where = f"{split} draws from {len(part)} tables"
    fewer = "take fewer, or let all splits draw from all tables: unseen=False"
    if size > len(part):
        raise InvalidTask(f"{where}, too few for tables_per_task={size}: {fewer}")
    if (different := math.comb(len(part), size)) < count:
        raise InvalidTask(
            f"{where}, and {size} of them make {different} different tasks, fewer than the {count} that are wanted: "
            "take another tables_per_task, or a smaller num_tasks"
        )


def _draws(
    task_of_ids: Callable[[np.ndarray], Task], part: np.ndarray, size: int, rng: np.random.Generator
) -> Iterator[Task]:
    """Tasks that there is room for, no two of the same tables."""
    drawn: set[frozenset[int]] = set()
    while True:
        problem = "all that were drawn had been drawn before"
        for _ in range(TRIES):
            ids = rng.choice(part, size, replace=False)
            if (picked := frozenset(ids.tolist())) in drawn:
                continue
            task = task_of_ids(ids)
            try:
                _check_room(task)
            except InfeasibleTask as error:
                problem = f"for the last one, {error}"
                continue
            drawn.add(picked)
            yield task
            break
        else:
            raise InfeasibleTask(
                f"no task of {size} tables that has room and is new in {TRIES:,} draws: {problem}; "
                "take fewer tables a task, more memory_gb or more devices"
            )


def _check_room(task: Task) -> None:
    """Refuse a task that simple rules find no plan of: first-fit places it, whole or in the smallest pieces, or where
    there are more kinds of sharding, `evenly` does."""
    if beyond_columns(task):
        if not (verdict := quick(task)).feasible:
            raise InfeasibleTask(verdict.reason)
        return
    try:
        first_fit_decreasing(task)
    except InfeasibleTask:
        pieces = _smallest_pieces(task)
        if pieces is task:
            raise
        first_fit_decreasing(pieces)


def _smallest_pieces(task: Task) -> Task:
    """The task with every table halved as often as an episode may."""
    left, splits = halvings(task).tolist(), []
    for piece, _ in enumerate(left):  # it grows meanwhile
        while left[piece]:
            left[piece] -= 1
            left.append(left[piece])
            splits.append(piece)
    return task.split(splits)


def _constants(training: TablePool) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of the training tables' features; deviations of zero are given as 1."""
    features = training.features().astype(np.float64)
    deviation = features.std(axis=0)
    return features.mean(axis=0), np.where(deviation > 1e-9, deviation, 1.0)


def _scaling(given: Any) -> tuple[np.ndarray, np.ndarray]:
    return suites.get(given).feature_scaling() if isinstance(given, str) else given


def _number(setting: str, given: Any, least: int) -> int:
    try:
        number = whole(given)
    except TypeError as error:
        raise InvalidTask(f"{setting} is a whole number from {least}, got {given!r:.80}") from error
    if number < least:
        raise InvalidTask(f"{setting} is a whole number from {least}, got {number}")
    return number
