"""Boards of results on disk. Every plan is scored again: what comes out otherwise is refused, with its line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shard_gym.errors import InvalidResult
from shard_gym.plan.plan import Plan
from shard_gym.results.replay import Replay
from shard_gym.task import suites
from shard_gym_agents.leaderboard.kept import Watched
from shard_gym_agents.leaderboard.page.board import Board
from shard_gym_agents.leaderboard.references import load_best, references
from shard_gym_agents.leaderboard.report import ranking
from shard_gym_agents.leaderboard.runs import Judged

PATTERNS = ("*.jsonl", "**/plans.jsonl.gz")  # of a leaderboard's folder, and of entries below a folder
RANKED = 0.1  # seconds a task that ranks are of, where agents were given several budgets

Key = tuple[float, str, int | None]  # budget, agent, seed


@dataclass
class Stored:
    """Runs of a suite, as files have them; budget 0 is of agents that take none."""

    split: str
    runs: dict[Key, list[Judged]] = field(default_factory=dict)

    def add(self, pair: Judged) -> None:
        """Count a run in."""
        result = pair[0]
        budget = result.config.get("budget")
        key = float(budget) if isinstance(budget, int | float) else 0.0, result.agent, result.seed
        self.runs.setdefault(key, []).append(pair)

    def budgets(self) -> list[float]:
        """The budgets that agents were given, first the one that decides their ranks."""
        found = sorted({budget for budget, *_ in self.runs if budget})
        return sorted(found, key=lambda budget: budget != RANKED and -budget)

    def of(self, *budgets: float) -> dict[str, list[list[Judged]]]:
        """Runs by agent and seed of those that were given one of these budgets."""
        found: dict[str, list[list[Judged]]] = {}
        for (given, agent, _), runs in self.runs.items():
            if given in budgets:
                found.setdefault(agent, []).append(sorted(runs, key=lambda pair: pair[0].index))
        return found


def boards(paths: Iterable[Path], best_known: Path, host: str = "") -> list[Board]:
    """A board of each suite in these files and folders."""
    found: dict[str, Stored] = {}
    for path in files_in(paths):
        replayed = Replay(path)
        for pair in replayed:
            key = pair[0].suite
            split = replayed.suites[key].split
            if found.setdefault(key, Stored(split)).split != split:
                raise InvalidResult(f"{path}: {split} tasks of {key}, and {found[key].split} tasks in another file")
            found[key].add(pair)
    if "" in found:
        raise InvalidResult("a page shows the runs of suites, and these are of tasks of no suite")
    return [_board(key, stored, best_known, host) for key, stored in found.items()]


def files_in(paths: Iterable[Path]) -> Iterator[Path]:
    """The files of results that are meant: files themselves, and those of a leaderboard's folder or of entries."""
    for path in paths:
        inside = [file for pattern in PATTERNS for file in sorted(path.glob(pattern))] if path.is_dir() else [path]
        if not inside:
            raise InvalidResult(f"{path} holds no results: give what a leaderboard wrote, or an entry")
        yield from inside


def _board(key: str, stored: Stored, best_known: Path, host: str) -> Board:
    suite = suites.get(key)
    first, *others = stored.budgets() or [0.0]
    runs = stored.of(0.0, first)
    tasks = _tasks(key, [pair for by_seed in runs.values() for pair in by_seed])
    results = [pair[0] for by_seed in runs.values() for one in by_seed for pair in one]
    judges = sorted({(result.planner, result.judge) for result in results})
    if len(judges) > 1:
        raise InvalidResult(f"runs of {key} by several planners and judges cannot be compared: {judges}")
    judge = judges[0][1]
    known = references(suite, stored.split, tasks, judge, best_known)
    more = {budget: stored.of(budget) for budget in others}
    ranked = ranking(suite, stored.split, runs, known, (), {agent: Watched() for agent in runs}, more)
    best = load_best(best_known / f"{key}.json", judge, ())
    plans = {task: Plan.from_dict(entry["plan"]) for task, entry in best.items()}
    return Board(ranked, runs, known, plans, host=host)


def _tasks(key: str, runs: Sequence[Sequence[Judged]]) -> int:
    """The number of tasks, the same in every run."""
    counts = {len(one) for one in runs}
    if len(counts) > 1:
        raise InvalidResult(f"runs of {key} are over {min(counts)} tasks and over {max(counts)}: show them apart")
    return counts.pop()
