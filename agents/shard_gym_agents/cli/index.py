"""The commands of `shard-gym`: what each is for, and where it is. None is imported before it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from shard_gym.errors import MissingDependency
from shard_gym.records import commands


@dataclass(frozen=True)
class Command:
    """A command: `path` is module:function of its Parser, whose default `run` is called with the options.

    `main` is of one that reads its arguments by itself: module:function of arguments that gives the exit code.
    """

    about: str
    path: str
    main: str = ""

    def parser(self) -> commands.Parser:
        """A new parser."""
        made: commands.Parser = _found(self.path)()
        return made

    def run(self, arguments: Sequence[str]) -> int:
        """Do what the arguments say; the exit code."""
        if self.main:
            return int(_found(self.main)(arguments))
        return commands.run(self.parser(), lambda options: options.run(options), arguments)


CLI, BOARD = "shard_gym_agents.cli", "shard_gym_agents.leaderboard"
GROUPS: dict[str, dict[str, Command]] = {
    "plan": {
        "solve": Command("plan a task: your tables, or a suite's", f"{CLI}.solve:solve_parser"),
        "reshard": Command("change the plan in use where that pays", f"{CLI}.solve:reshard_parser"),
        "score": Command("tell what a plan is worth", f"{CLI}.solve:score_parser"),
        "diff": Command("tell what moves from one plan to another", f"{CLI}.solve:diff_parser"),
        "show": Command("draw a plan: what each device costs and holds", f"{CLI}.show:show_parser"),
        "stats": Command("tell what a plan does on each rank and why, as TorchRec reports it", f"{CLI}.stats:parser"),
        "sweep": Command("plan the same tables on several machines, and compare", f"{CLI}.sweep:parser"),
        "export": Command("write a plan as TorchRec's sharding plan", f"{CLI}.export:parser"),
        "bound": Command("tell what no plan of a task beats, with a certificate", f"{CLI}.bounds:bound_parser"),
        "flex": Command("share out rows of sequence tables in tiers, by FlexShard", f"{CLI}.flex:parser"),
        "flex curve": Command("count how often a log looks rows up (needs pyarrow)", f"{CLI}.logs:curve_parser"),
        "profile": Command("make tables of a log: CSV or Parquet (needs pyarrow)", f"{CLI}.logs:profile_parser"),
    },
    "measure and fit": {
        "measure": Command(
            "measure shards on this machine (needs torch and FBGEMM)", "shard_gym.measuring.measure:parser"
        ),
        "measure comm": Command(
            "measure all-to-alls between processes (needs torch)", "shard_gym.measuring.measure:comm_parser"
        ),
        "fit": Command(
            "fit a cost network to measurements (needs torch)",
            "shard_gym.measuring.fitting:parser",
            "shard_gym.measuring.fitting:main",
        ),
        "train": Command("train a learner on a suite (needs torch)", f"{CLI}.train:parser", f"{CLI}.train:main"),
    },
    "benchmark": {
        "suites": Command("list the suites", f"{CLI}.lists:suites_parser"),
        "agents": Command("list the agents", f"{CLI}.lists:agents_parser"),
        "leaderboard": Command("rank agents on suites", f"{BOARD}.command:parser", f"{BOARD}.command:main"),
        "page": Command("show stored results as an HTML page", f"{BOARD}.page.command:parser"),
        "round new": Command("announce a sealed round, on tasks nobody has seen", f"{BOARD}.rounds.command:new_parser"),
        "round open": Command("let agents plan the tasks of a round", f"{BOARD}.rounds.command:open_parser"),
        "round close": Command("reveal a round's seed, replay and rank", f"{BOARD}.rounds.command:close_parser"),
        "round check": Command("replay a closed round", f"{BOARD}.rounds.command:check_parser"),
        "merge": Command("unite what parts of one piece of work wrote", f"{CLI}.merge:parser"),
        "new-agent": Command("write a package with agents of yours, a test and a card", f"{CLI}.new_agent:parser"),
    },
    "share": {
        "replay": Command("score stored results again, and refuse what comes out otherwise", f"{CLI}.replay:parser"),
        "submit": Command("pack an agent's runs and its card", f"{BOARD}.entries.command:submit_parser"),
        "validate": Command("check entries: score every plan again", f"{BOARD}.entries.command:validate_parser"),
        "verify": Command("accept or refuse certificates of bounds", f"{CLI}.bounds:verify_parser"),
    },
    "this program": {
        "completion": Command("print what lets a shell complete commands", f"{CLI}.completion:parser"),
    },
}
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}


def _found(path: str) -> Any:
    """The function of that path."""
    module, _, function = path.partition(":")
    try:
        return getattr(import_module(module), function)
    except ModuleNotFoundError as error:
        raise MissingDependency(f"this command needs {error.name}: pip install {error.name}") from error
