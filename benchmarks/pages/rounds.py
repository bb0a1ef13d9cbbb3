"""Rehearsal of sealed rounds: do they rank agents as the public test does? `python -m benchmarks.rounds`.

Ten agents plan the public test tasks of two suites, and then a round on each: tasks drawn anew, of a fresh pool and a
secret seed, through `shard-gym round` from its announcement to its close. Gaps on public tasks are to the best known
plans, those of a round to the better of cost-greedy and some seconds of auto, so only the order of agents is compared.
Writes benchmarks/results/rounds.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks import RESULTS, pages
from benchmarks.counted import CALLS
from shard_gym.errors import ShardGymError
from shard_gym.records.commands import count, names, seconds
from shard_gym.task import suites
from shard_gym.task.suites import Suite
from shard_gym_agents.cli.main import main as cli
from shard_gym_agents.leaderboard.arena.job import Job
from shard_gym_agents.leaderboard.arena.rules import Rules
from shard_gym_agents.leaderboard.references import references
from shard_gym_agents.leaderboard.rounds import closing, folder
from shard_gym_agents.leaderboard.rounds.contest import play
from shard_gym_agents.leaderboard.rounds.sealed import Secret
from shard_gym_agents.leaderboard.runs import Scope
from shard_gym_agents.leaderboard.statistics import interval, mean, paired

SUITES = "core-80x8,tight-80x8"
AGENTS = (
    "benchmarks.counted:Auto,benchmarks.counted:Beam,benchmarks.counted:LocalSearch,dreamshard-planner,maskable-ppo,"
    "neuroshard,cost-greedy,lookup-greedy,size-lookup-log-greedy,dim-greedy"
)
RESAMPLES = 2_000
Gaps = dict[str, list[float]]  # by agent, task by task


def measure(options: argparse.Namespace) -> pages.Found:
    """Gaps of every agent on public tasks and in a round, suite by suite."""
    found = {}
    with TemporaryDirectory() as scratch:
        for key in options.suite:
            suite, place = suites.get(key), Path(scratch) / key
            found[suite.key] = {"public": public(suite, options, place / "public"), "round": sealed(options, place)}
    return {"suites": found, "tasks": options.tasks, "reference_budget": options.reference_budget}


def public(suite: Suite, options: argparse.Namespace, scratch: Path) -> Gaps:
    """Gaps on the public test tasks."""
    told = {"planner": suite.planner, "judge": suite.judge}
    jobs = [Job(suite=suite.key, agent=agent, seed=0, **told) for agent in options.agents]
    played = play(jobs, Rules(), Scope(scratch), workers=1, users=_split(options.agents)[1])
    _refuse_absent(dict(played.unable))
    known = references(suite, "test", suite.num_tasks("test"), suite.judge, RESULTS / "best_known")
    return gaps({job.agent: pairs for job, pairs in played.runs.items()}, known.random, known.best)


def sealed(options: argparse.Namespace, place: Path) -> Gaps:
    """Gaps in a round, which is announced, opened, closed and checked."""
    where, key = str(place / "round"), place.name
    rules = ["--tasks", options.tasks, "--seeds", 1, "--reference-budget", f"{options.reference_budget}s"]
    ours, users = _split(options.agents)
    agents = ["--agents", ",".join(ours), *(word for user in users for word in ("--agent", user))]
    stages = [["new", where, "--suite", key, *rules], ["open", where, *agents, "--isolation", "auto"]]
    for words in [*stages, ["close", where], ["check", where]]:
        if code := cli(["round", *map(str, words)]):
            raise ShardGymError(f"shard-gym round {words[0]} ended with exit code {code}")
    opened = folder.read(place / "round", folder.Opened)
    _refuse_absent(opened.unable)
    closed, rules = folder.read(place / "round", folder.Closed), folder.read(place / "round", folder.Round)
    found = closing.replayed(place / "round", rules, Secret(closed.seed, closed.salt))
    return gaps(found.runs, found.random, found.reference)


def gaps(runs: closing.Runs, random: np.ndarray, reference: np.ndarray) -> Gaps:
    """Gaps of each agent's first seed to a reference, as shares of it."""
    tables = {sample.agent: sample.gaps(random, reference)[:, 0] for sample in closing.samples(runs)}
    return {agent: [round(float(gap), 6) for gap in table] for agent, table in tables.items()}


def agreement(public: np.ndarray, of_round: np.ndarray) -> np.ndarray:
    """Kendall's rank correlation tau-b of the mean gaps (..., agents) of two sets of tasks."""
    first, second = np.array(list(combinations(range(public.shape[-1]), 2))).T
    x, y = (np.sign(means[..., first] - means[..., second]) for means in (public, of_round))
    ordered = np.sqrt(np.abs(x).sum(axis=-1) * np.abs(y).sum(axis=-1))
    return np.asarray((x * y).sum(axis=-1) / ordered)


def resampled(gaps: np.ndarray, tasks: int, seed: int) -> np.ndarray:
    """Mean gaps of resamples of so many tasks, (RESAMPLES, agents), of gaps (agents, T)."""
    drawn = np.random.default_rng(seed).integers(gaps.shape[1], size=(RESAMPLES, tasks))
    return gaps[:, drawn].mean(axis=2).T


def page(found: pages.Found) -> str:
    """The comparison as Markdown."""
    lines = [
        "# Does a sealed round rank agents as the public test does?",
        "",
        f"Made by `{found['command']}`: rounds of {found['tasks']} tasks, one seed. Searches ask the",
        f"planner {CALLS:,} times a task, so that a busy machine changes nothing. Gaps on public tasks are to the best",
        f"known plan, in a round to the better of cost-greedy and {found['reference_budget']:g} s of auto: compare",
        "places, not gaps. Brackets hold 95 %, over tasks. A run without a plan counts as the mean random plan.",
        "",
    ]
    for key, told in found["suites"].items():
        lines += _section(key, told["public"], told["round"])
    return "\n".join(lines)


def _section(key: str, public: Gaps, of_round: Gaps) -> list[str]:
    agents = sorted(public, key=lambda agent: float(np.mean(public[agent])))
    both = [np.array([gaps[agent] for agent in agents]) for gaps in (public, of_round)]
    tasks = both[1].shape[1]
    places = [1 + (table.mean(axis=1)[:, None] > table.mean(axis=1)).sum(axis=1) for table in both]
    rows = []
    for i, agent in enumerate(agents):
        cells = [cell for table, place in zip(both, places, strict=True) for cell in (str(place[i]), _gap(table[i]))]
        rows.append([_name(agent), *cells])
    tau = float(agreement(both[0].mean(axis=1), both[1].mean(axis=1)))
    drawn = agreement(*(resampled(table, table.shape[1], seed) for seed, table in enumerate(both)))
    by_chance = agreement(both[0].mean(axis=1), resampled(both[0], tasks, seed=2))
    return [
        f"## {key}",
        "",
        *pages.table(("agent", f"place of {both[0].shape[1]} public tasks", "gap", "place in the round", "gap"), rows),
        "",
        f"Rank correlation (Kendall) {tau:.2f} [{_between(drawn)}]. {tasks} public tasks drawn at random give",
        f"{by_chance.mean():.2f} [{_between(by_chance)}] with all of them: that much a smaller number of tasks does.",
        "",
        *_changed(agents, both),
        "",
    ]


def _changed(agents: Sequence[str], both: Sequence[np.ndarray]) -> list[str]:
    """Lines on pairs of agents whose order changes."""
    rows, resolved = [], 0
    for i, j in combinations(range(len(agents)), 2):
        pairs = [paired(table[j][:, None], table[i][:, None]) for table in both]
        if pairs[0].difference * pairs[1].difference < 0:
            apart = all(not pair.low <= 0 <= pair.high for pair in pairs)
            resolved += apart
            cells = [f"{p.difference:+.2%} [{p.low:+.2%}, {p.high:+.2%}]" for p in pairs]
            rows.append([f"{_name(agents[j])} over {_name(agents[i])}", *cells, "yes" if apart else "no"])
    if not rows:
        return ["No pair of agents changes its order."]
    told = f"{len(rows)} of {len(agents) * (len(agents) - 1) // 2} pairs change their order, {resolved} of them beyond"
    head = ("difference of mean gaps", "public", "round", "beyond both intervals")
    return [f"{told} both intervals:", "", *pages.table(head, rows)]


def _name(agent: str) -> str:
    """The name of an agent, without its module."""
    return agent.rpartition(":")[2]


def _gap(gaps: np.ndarray) -> str:
    low, high = interval(gaps[:, None], mean)
    return f"{gaps.mean():+.2%} [{low:+.2%}, {high:+.2%}]"


def _between(values: np.ndarray) -> str:
    low, high = np.percentile(values, [2.5, 97.5])
    return f"{low:.2f}, {high:.2f}"


def _split(agents: Sequence[str]) -> tuple[list[str], list[str]]:
    """Registered agents, and those by module and class."""
    return [name for name in agents if ":" not in name], [name for name in agents if ":" in name]


def _refuse_absent(unable: dict[str, str]) -> None:
    for agent, why in unable.items():
        raise ShardGymError(f"{agent} cannot run: {why}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Hold the rounds, compare, print and write the page."""
    made = pages.parser("rounds", __doc__)
    made.add_argument("--suite", type=names, default=names(SUITES), help=f"default {SUITES}")
    made.add_argument("--agents", type=names, default=names(AGENTS))
    made.add_argument("--tasks", type=count, default=20, help="of a round")
    made.add_argument("--reference-budget", type=seconds, default=1.0, help="of the host's auto, a task")
    return pages.run(made, measure, page, arguments, schema="shard-gym/rehearsal/1")


if __name__ == "__main__":
    sys.exit(main())
