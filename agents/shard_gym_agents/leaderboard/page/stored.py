"""Boards of results on disk. Every plan is scored again: what comes out otherwise is refused, with its line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shard_gym.errors import InvalidResult
from shard_gym.plan.plan import Plan
from shard_gym.results.replay import Replay
from shard_gym.task import suites
from shard_gym_agents.leaderboard.entries.card import Card
from shard_gym_agents.leaderboard.entries.entry import PLANS, read
from shard_gym_agents.leaderboard.kept import Watched
from shard_gym_agents.leaderboard.page.board import Board
from shard_gym_agents.leaderboard.references import load_best, references
from shard_gym_agents.leaderboard.report import ranking
from shard_gym_agents.leaderboard.runs import Judged

PATTERNS = ("*.jsonl", f"**/{PLANS}")  # of a leaderboard's folder, else of entries below one
RANKED = 0.1  # seconds a task that ranks are of, where agents were given several budgets

Key = tuple[float, str, int | None]  # budget, agent, seed


@dataclass
class Stored:
    """Runs of a suite, as files have them; budget 0 is of agents that take none."""

    split: str
    cards: dict[str, Card] = field(default_factory=dict)
    runs: dict[Key, dict[int, Judged]] = field(default_factory=dict)  # by number of the task

    def add(self, pair: Judged) -> None:
        """Count a run in."""
        result = pair[0]
        budget = result.config.get("budget") or 0.0
        if not isinstance(budget, int | float) or budget < 0:
            raise InvalidResult(f"a budget is seconds, {result.agent[:60]!r} has {budget!r:.60}")
        run = self.runs.setdefault((float(budget), result.agent, result.seed), {})
        if result.index in run:
            raise InvalidResult(f"{result.agent[:60]!r} has task number {result.index} of {result.suite} in two files")
        run[result.index] = pair

    def budgets(self) -> list[float]:
        """The budgets that agents were given, first the one that decides their ranks."""
        found = sorted({budget for budget, *_ in self.runs if budget})
        return sorted(found, key=lambda budget: (budget != RANKED, -budget))

    def of(self, *budgets: float) -> dict[str, list[list[Judged]]]:
        """Runs by agent and seed of those that were given one of these budgets."""
        found: dict[str, list[list[Judged]]] = {}
        for (given, agent, _), runs in self.runs.items():
            if given in budgets:
                found.setdefault(agent, []).append([runs[index] for index in sorted(runs)])
        return found


def boards(paths: Iterable[Path], best_known: Path, host: str = "") -> list[Board]:
    """A board of each suite in these files and folders."""
    found: dict[str, Stored] = {}
    for path in files_in(paths):
        card, replayed = _card(path), Replay(path)
        for pair in replayed:
            key = pair[0].suite
            split = replayed.suites[key].split
            if found.setdefault(key, Stored(split)).split != split:
                raise InvalidResult(f"{path}: {split} tasks of {key}, and {found[key].split} tasks in another file")
            found[key].add(pair)
            if card is not None:
                found[key].cards[pair[0].agent] = card
    if "" in found:
        raise InvalidResult("a page shows the runs of suites, and these are of tasks of no suite")
    return [_board(key, stored, best_known, host) for key, stored in found.items()]


def files_in(paths: Iterable[Path]) -> Iterator[Path]:
    """The files of results that are meant: files themselves, and those of a leaderboard's folder or of entries."""
    for path in paths:
        kinds = (sorted(path.glob(pattern)) for pattern in PATTERNS) if path.is_dir() else [[path]]
        inside = next(filter(None, kinds), [])
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
    return Board(ranked, runs, known, plans, host=host, cards=stored.cards)


def _card(path: Path) -> Card | None:
    """The card of an entry's results; an entry that is not whole, or contradicts its card, is refused."""
    if path.name != PLANS:
        return None
    entry = read(path.parent)
    entry.claims.check_card(entry.card)
    return entry.card


def _tasks(key: str, runs: Sequence[Sequence[Judged]]) -> int:
    """The number of tasks, the same in every run."""
    counts = {len(one) for one in runs}
    if len(counts) > 1:
        raise InvalidResult(f"runs of {key} are over {min(counts)} tasks and over {max(counts)}: show them apart")
    return counts.pop()
