"""Tiers one stretch of rows at a time, as a Gymnasium environment: `gym.make("ShardGym-Flex-4x8")`."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from shard_gym.envs.canvas import DARK_BLUE, GREY, LIGHT_BLUE, ORANGE, Canvas
from shard_gym.envs.env import BadAction, NoEpisode
from shard_gym.envs.episodes import task_index
from shard_gym.errors import InvalidTask, UnknownName
from shard_gym.flexshard import NAMES
from shard_gym.flexshard.curves import zipf_mandelbrot
from shard_gym.flexshard.network import BATCH, MODELS, fitted_curve, network
from shard_gym.flexshard.tiers import TIERS, RowTask, SequenceTable, merged

COUNTS = {"train": 90, "val": 10, "test": 50}  # tasks of each split
STRETCHES = 64  # of rows, an episode's steps
FIRST = 1e-6  # share of all rows in the first stretch; each further one is larger by the same factor
WIDTH = 11  # of an observation
_CHOICES = "choose 0 for DP, 1 for Flex, 2 for RW"
COLOURS = (DARK_BLUE, LIGHT_BLUE, ORANGE)  # of the tiers
SLACK = 1e-9  # share of the memory that rounding may take


@dataclass(frozen=True, eq=False)
class Stretches:
    """A task's rows, most frequent first, in stretches that go to a tier each; arrays are (T,) or (3, T) by tier."""

    task: RowTask

    def __post_init__(self) -> None:
        if pooled := [table.name for table in self.task.tables if table.pooled]:
            raise InvalidTask(f"table {pooled[0]!r} is pooled: it has no stretches, it goes to one tier as a whole")
        if not any(table.curve.length for table in self.task.tables):
            raise InvalidTask("no sample looks any row up: there is nothing to communicate")

    @cached_property
    def _parts(self) -> tuple[np.ndarray, ...]:
        """Rows, lookups, bytes and looked up bytes of each stretch."""
        p, rows, row_bytes, _ = merged(self.task)
        ends = np.cumsum(rows)
        cuts = np.geomspace(max(1.0, FIRST * ends[-1]), ends[-1], STRETCHES)
        columns = (rows, rows * p, rows * row_bytes, rows * row_bytes * p)
        at = np.concatenate([[0.0], cuts])
        return tuple(np.diff(np.interp(at, np.append(0, ends), np.append(0, np.cumsum(c)))) for c in columns)

    @cached_property
    def memory(self) -> np.ndarray:
        """Bytes a GPU of each stretch in each tier."""
        return self._in_tiers("memory")

    @cached_property
    def ms(self) -> np.ndarray:
        """Communication in a step, but for latencies."""
        return self._in_tiers("ms")

    @cached_property
    def latency(self) -> np.ndarray:
        """Latency of each tier that has any rows, (3,)."""
        return np.array([line.latency_ms for line in self.task.lines.values()])

    @cached_property
    def rw_ms(self) -> float:
        """All rows in RW: what rewards are measured in."""
        return float(self.ms[-1].sum() + self.latency[-1])

    @cached_property
    def rw_memory(self) -> float:
        """All rows in RW: what memory is measured in."""
        return float(self.memory[-1].sum())

    @cached_property
    def budget(self) -> float:
        """Bytes a GPU."""
        return self.rw_memory + self.task.extra_bytes

    def overshoot(self, memory: Any) -> np.ndarray:
        """Bytes above the budget; none where it may be rounding."""
        above = np.asarray(memory) - self.budget
        return np.where(above > SLACK * self.rw_memory, above, 0.0)

    @cached_property
    def worst_ms(self) -> float:
        """No tiers communicate for longer."""
        return float(self.ms.max(axis=0).sum() + self.latency.sum())

    @cached_property
    def later(self) -> np.ndarray:
        """The least memory that the stretches from each one on can take, (T + 1,)."""
        return np.append(np.cumsum(self.memory.min(axis=0)[::-1])[::-1], 0.0)

    @cached_property
    def shown(self) -> np.ndarray:
        """Numbers of each stretch in an observation, (T, 7); zeros at the end."""
        rows, lookups, size, looked_up = self._parts
        p = np.divide(looked_up, size, out=np.zeros_like(size), where=size > 0)
        dp, flex, rw = self.memory / self.rw_memory
        dp_ms, flex_ms, rw_ms = self.ms / self.rw_ms
        columns = (np.log10(np.maximum(p, 1e-12)) / 6, lookups / lookups.sum(), rows / rows.sum())
        told = np.stack([*columns, dp - rw, flex - rw, dp_ms - rw_ms, flex_ms - rw_ms], axis=1)
        return np.concatenate([told, np.zeros((1, 7))])

    def _in_tiers(self, what: str) -> np.ndarray:
        _, _, size, looked_up = self._parts
        lines = [getattr(line, what) for line in self.task.lines.values()]
        return np.array([constant * size + slope * looked_up for constant, slope in lines])


class FlexEnv(gym.Env[np.ndarray, np.int64]):
    """Give each stretch of a task's rows, most frequent first, a tier: 0 DP, 1 Flex, 2 RW.

    **Observation**, `Box[11]`: of the next stretch the logarithm of its rows' mean probability (over 6), its share of
    lookups and of rows, what DP and Flex would add to RW's memory and to RW's communication (over all of RW's);
    the memory left if all other stretches were RW, the memory that would be left after the least they can take, the
    communication so far, the share of stretches done. At the end the first seven are 0.

    **Reward**, 0 before the end: minus the step's communication over that of RW; if a GPU is over its memory, minus the
    worst that any plan could take and the overshoot, below every plan that fits. `info["action_mask"]` and
    `action_masks()` leave the tiers after which all rows can still be held. Every `info` has `task`, the index in the
    bank, and `comm_ms`, `memory_bytes` and `feasible`, which are 0 before the end; `tiers` are those chosen so far.
    """

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 8}  # noqa: RUF012  # gymnasium's own declaration

    def __init__(
        self, tasks: str | Sequence[RowTask] = "4x8", split: str = "train", render_mode: str | None = None
    ) -> None:
        self._bank = (tasks, split) if isinstance(tasks, str) else None
        self.tasks = flex_tasks(tasks, split) if isinstance(tasks, str) else tuple(tasks)
        if not self.tasks or not all(isinstance(task, RowTask) for task in self.tasks):
            raise InvalidTask(f"tasks are a bank's name or at least one RowTask, got {tasks!r:.80}")
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise UnknownName("render_mode", render_mode, (None, *self.metadata["render_modes"]))
        self.render_mode = render_mode
        self.action_space = spaces.Discrete(len(TIERS))
        self.observation_space = spaces.Box(-np.inf, np.inf, (WIDTH,), np.float32)
        self._stretches = [Stretches(task) for task in self.tasks]
        self._seed, self._episode, self._index = -1, 0, 0
        self._tiers: list[int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Pickle a bank by its name: its tasks take megabytes."""
        large = () if self._bank is None else ("tasks", "_stretches")
        return {name: value for name, value in vars(self).items() if name not in large}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self._bank is not None:
            self.tasks = flex_tasks(*self._bank)
            self._stretches = [Stretches(task) for task in self.tasks]

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin the next episode, the first one of `seed`, or that of `options={"task": index}`."""
        super().reset(seed=seed)
        if not isinstance(options, Mapping | None):
            raise InvalidTask(f"reset options are a dict, {{'task': an index}}, got {options!r:.80}")
        for option in (options or {}).keys() - {"task"}:
            raise UnknownName("reset option", option, ["task"])
        if seed is not None:
            self._seed, self._episode = seed, 0
        elif self._seed < 0:
            self._seed = int(self.np_random.integers(2**63))
        if options and "task" in options:
            self._index = self._task(options["task"])
        else:
            self._index = task_index(self._seed, self._episode, len(self.tasks))
            self._episode += 1
        self._tiers = []
        return self._shown(), self._info()

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Put the next stretch in a tier."""
        tiers = self._started()
        if len(tiers) == STRETCHES:
            raise NoEpisode("every stretch has its tier and the episode is over: call reset() before the next step")
        tiers.append(_tier(action))
        shown, info = self._shown(), self._info()
        if len(tiers) < STRETCHES:
            return shown, 0.0, False, False, info
        memory, ms, of = self._memory(), self._ms(), self._of
        overshoot = float(of.overshoot(memory))
        reward = -of.worst_ms / of.rw_ms - overshoot / of.rw_memory if overshoot else -ms / of.rw_ms
        ends = {"comm_ms": ms, "memory_bytes": memory, "feasible": not overshoot}
        return shown, reward, True, False, info | ends

    @property
    def tiers(self) -> tuple[int, ...]:
        """The tiers chosen so far in this episode."""
        return tuple(self._started())

    def action_masks(self) -> np.ndarray:
        """`info["action_mask"]` as bools. The name is sb3-contrib's."""
        return self._mask().astype(bool)

    def render(self) -> str | np.ndarray | None:  # type: ignore[override]
        """The tiers so far: D, F and R, or a picture (height, width, 3) uint8."""
        if self.render_mode == "rgb_array":
            return self._picture()
        return "".join("DFR"[tier] for tier in self._started()) if self.render_mode == "ansi" else None

    def _picture(self) -> np.ndarray:
        """Stretches from the most frequent rows on, coloured by tier, and the memory below them."""
        tiers, of, (left, width) = self._started(), self._of, (16, 9)
        canvas, full = Canvas(2 * left + STRETCHES * width, 144), STRETCHES * width
        for at in range(STRETCHES):
            box = (left + at * width, 40, left + (at + 1) * width - 1, 80)
            canvas.box(box, COLOURS[tiers[at]] if at < len(tiers) else GREY, outline=at >= len(tiers))
        for name, colour, x in zip(("DP", "Flex", "RW"), COLOURS, (left, left + 60, left + 120), strict=True):
            canvas.text(name, (x, 20), 16, colour)
        canvas.text(f"{self._ms() / of.rw_ms:.3f} of the communication of RW", (left + full, 20), 14, align=1.0)
        share = self._memory() / of.budget if of.budget > 0 else 1.0
        canvas.box((left, 100, left + round(full * min(share, 1.0)), 120), ORANGE if share > 1 else DARK_BLUE)
        canvas.box((left, 100, left + full, 120), GREY, outline=True)
        canvas.text(f"memory {share:.1%}", (left, 132), 14)
        return canvas.pixels()

    def _info(self) -> dict[str, Any]:
        told = {"comm_ms": 0.0, "memory_bytes": 0.0, "feasible": False, "task": self._index}
        return {"action_mask": self._mask(), **told}

    @property
    def _of(self) -> Stretches:
        return self._stretches[self._index]

    def _shown(self) -> np.ndarray:
        of, done = self._of, len(self._started())
        rest = of.memory[-1, done:].sum()
        left = (of.budget - self._memory() - rest, of.budget - self._memory() - of.later[done])
        shares = [*(part / of.rw_memory for part in left), self._ms() / of.rw_ms, done / STRETCHES]
        return np.array([*of.shown[done], *shares], np.float32)

    def _mask(self) -> np.ndarray:
        """Tiers after which the rest can still fit; all where none is."""
        of, done = self._of, len(self._started())
        if done == STRETCHES:
            return np.ones(len(TIERS), np.int8)
        fits = of.overshoot(self._memory() + of.memory[:, done] + of.later[done + 1]) == 0
        return np.array(fits if fits.any() else [True] * len(TIERS), np.int8)

    def _task(self, index: Any) -> int:
        try:
            return range(len(self.tasks))[index]
        except (IndexError, TypeError) as error:
            raise InvalidTask(f"options['task'] is an index of the {len(self.tasks)} tasks, not {index!r}") from error

    def _memory(self) -> float:
        tiers = self._started()
        return float(self._of.memory[tiers, range(len(tiers))].sum())

    def _ms(self) -> float:
        tiers = self._started()
        used = sorted(set(tiers))
        return float(self._of.ms[tiers, range(len(tiers))].sum() + self._of.latency[used].sum())

    def _started(self) -> list[int]:
        if self._tiers is None:
            raise NoEpisode("there is no episode yet: call reset() first")
        return self._tiers


def _tier(action: Any) -> int:
    try:
        tier = operator.index(action)
    except TypeError as error:
        raise BadAction(f"an action is an int, not {action!r:.80}: {_CHOICES}") from error
    if not 0 <= tier < len(TIERS):
        raise BadAction(f"there is no action {tier}: {_CHOICES}")
    return tier


@cache
def flex_tasks(name: str, split: str = "train") -> tuple[RowTask, ...]:
    """The tasks of an id; "RM" are the published models, the same in every split."""
    if name not in NAMES:
        raise UnknownName("bank of row tasks", name, NAMES)
    if split not in COUNTS:
        raise UnknownName("split", split, COUNTS)
    if name == "RM":
        return tuple(_row_task(SequenceTable(m.name, fitted_curve(m.name), m.dim)) for m in MODELS.values())
    rng = np.random.default_rng([8, tuple(COUNTS).index(split)])
    return tuple(_row_task(*(_drawn(rng, i) for i in range(rng.integers(1, 5)))) for _ in range(COUNTS[split]))


def _row_task(*tables: SequenceTable) -> RowTask:
    return RowTask(tables, network("a100-4x8"), BATCH)


def _drawn(rng: np.random.Generator, index: int) -> SequenceTable:
    """A table as sequence models have them: millions of rows, hundreds of lookups a sample, a skewed curve."""
    rows = int(10 ** rng.uniform(6, 7.5))
    length, exponent, shift = float(10 ** rng.uniform(1.7, 3)), rng.uniform(0.6, 1.3), float(10 ** rng.uniform(0, 3))
    curve = zipf_mandelbrot(rows, round(length, 1), round(exponent, 3), round(shift, 1))
    return SequenceTable(f"t{index}", curve, int(rng.choice([64, 128, 256])))
