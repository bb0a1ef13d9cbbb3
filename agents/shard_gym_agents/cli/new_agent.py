"""Write a package with agents of yours: a rule, a policy that is trained at once, their test and their card.

Then: cd my_agent; python -m pytest; shard-gym leaderboard --suite core-60x4 --agent my_agent:Policy"""

from __future__ import annotations

import argparse
import keyword
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from shard_gym.errors import InvalidTask, ShardGymError
from shard_gym.records import commands
from shard_gym.records.files import write_whole

TEMPLATE = Path(__file__).parents[1] / "template"
PLACEHOLDER = "my_agent"
SUFFIXES = (".py", ".toml", ".md")
LONGEST = 40  # characters of a name


def parser() -> commands.Parser:
    """Options of `new-agent`."""
    examples = ("shard-gym new-agent my_agent", "shard-gym new-agent my_agent --out work/my_agent")
    kept = "the folder may be there, half made: remove it before the same command begins again"
    made = commands.parser("shard-gym new-agent", __doc__, examples=examples, answer="the folder", kept=kept)
    made.add_argument("name", metavar="NAME", help="of the package: lower-case letters, digits and _")
    made.add_argument("--out", type=Path, metavar="DIR", help="default: a folder of that name")
    made.set_defaults(run=new_agent)
    return made


def new_agent(options: argparse.Namespace) -> None:
    """Write the package as told on the command line."""
    out = options.out or Path(options.name)
    with commands.waiting(options, "training its policy"):
        trained = write(options.name, out)
    commands.answer(
        options,
        "new-agent/1",
        lambda: {"name": options.name, "folder": out},
        lambda: f"{trained}\nwrote {out}; now: cd {out} && python -m pytest, then the commands of its README.md",
    )


def write(name: str, out: Path) -> str:
    """The package in a new folder, its policy trained; what the training said."""
    _check(name, out)
    for source in sorted(path for path in TEMPLATE.rglob("*") if path.suffix in SUFFIXES):
        where = out / source.relative_to(TEMPLATE).as_posix().replace(PLACEHOLDER, name)
        write_whole(where, source.read_text().replace(PLACEHOLDER, name))
    done = subprocess.run([sys.executable, "-m", f"{name}.train"], cwd=out, capture_output=True, text=True)
    if done.returncode:
        raise ShardGymError(f"{out} is written, but its policy could not be trained: {done.stderr.strip()[-500:]}")
    return done.stdout.strip()


def _check(name: str, out: Path) -> None:
    """Refuse a name that is no package's, or another's, and a folder that is taken."""
    if len(name) > LONGEST or not name.isidentifier() or not name.isascii() or name != name.lower():
        raise InvalidTask(f"{name!r:.60} is no name of a package: lower-case letters, digits and _, {LONGEST} at most")
    if keyword.iskeyword(name) or (not out.exists() and find_spec(name) is not None):
        raise InvalidTask(f"{name!r} is taken, by Python or a package that is installed: choose another name")
    if out.exists():
        raise InvalidTask(f"{out} is there already: choose another name, or --out")
