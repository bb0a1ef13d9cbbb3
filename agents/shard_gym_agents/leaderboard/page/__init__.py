"""The leaderboard as one HTML page: `write("page.html", boards)`.

The page needs no network and asks for no other host. Tables can be read without its script; the script sorts and
filters them, draws plans, and keeps what is shown in the address.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from shard_gym import __version__
from shard_gym.errors import InvalidResult
from shard_gym.records.files import write_whole
from shard_gym.results import BENCHMARK_VERSION, commit_here
from shard_gym_agents.leaderboard.page.board import Board
from shard_gym_agents.leaderboard.page.markup import Markup, data, escaped, join, tag
from shard_gym_agents.leaderboard.page.plans import MOST_CHARACTERS
from shard_gym_agents.leaderboard.page.section import figures, section

__all__ = ["Board", "html", "write"]


def write(path: str | Path, boards: Sequence[Board]) -> None:
    """Write the page of these suites, whole or not at all."""
    write_whole(path, html(boards))


def html(boards: Sequence[Board]) -> str:
    """The page as text."""
    if not boards:
        raise InvalidResult("a page needs the runs of a suite: run one with `shard-gym leaderboard`")
    share = MOST_CHARACTERS // len(boards)
    style, script = _file("page.css"), _file("page.js")
    made = f"shard-gym {__version__}, benchmark version {BENCHMARK_VERSION}, commit {commit_here() or 'unknown'}"
    links = [tag("a", board.suite.name, href=f"#suite={board.suite.key}") for board in boards]
    parts = {
        "policy": f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src '{_hash(script)}'",
        "style": Markup(style),
        "suites": join(*links),
        "sections": join(*(section(board) for board in boards)),
        "made": made,
        "data": data([figures(board, share) for board in boards]),
        "script": Markup(script),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: escaped(parts[found[1]]), _file("page.html"))


def _file(name: str) -> str:
    """A file that the page is made of."""
    return (files(__package__) / name).read_text(encoding="utf-8").strip()


def _hash(script: str) -> str:
    """The script as a content security policy names it, so that no other one runs."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
