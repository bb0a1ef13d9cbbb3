"""Pages: what was measured, as Markdown in benchmarks/results, each by `python -m benchmarks.NAME`.

| NAME | page | what it tells |
|---|---|---|
| certificates | certificates.md | bounds on headroom cards that anybody can verify |
| clients | clients.md | what other people's learners and tests make of the environments |
| controls | controls.md | what a policy adds over its features, over imitation and over search |
| decisions | in fidelity.md | what predicted costs are worth to a search |
| executed | executed.md | plans of every kind, trained by TorchRec on gloo |
| fidelity | fidelity.md | how true predicted costs are |
| fidelity_v2 | fidelity_v2.md | the same of the second edition of the fits, from committed data in seconds |
| flexshard | flexshard.md | rows in tiers against the linear relaxation, in bytes sent, and by PPO |
| fuzz | fuzz.md | what malformed input does to readers, constructors and commands |
| headroom | headroom.md | how much each suite leaves to find; searches for best known plans |
| kills | kills.md | what is lost, left running or left over when commands are killed |
| leaderboard | SUITE.md | agents on a suite, ranked |
| learners | learners.md | what every learner reaches on the main suites |
| papers | papers.md, papers_*.md | the papers' tables and figures beside ours |
| ray_page | ray.md | work on Ray under kills, and what Ray costs |
| ray_training | ray_training.md | what Ray costs AutoShard's actors, and how many of them a driver hears |
| resharding | resharding.md | what it costs to follow a workload that changes |
| rounds | rounds.md | whether a sealed round ranks agents as the public test does |
| scaling | scaling.md | time and memory of a plan over the size of the task |
| searches | searches.md | what the searches reach in a time, suite by suite |
| throughput | printed, speed.md | steps, plans and predictions a second, beside their targets |
| torchrec_plans | torchrec_plans.md | TorchRec's planner beside ours, over all kinds of sharding |
| torchrec_whole | torchrec.md | the same of whole tables |
| vector_throughput | vector.md | steps of the vector environment, by number and size |

A page is a module with `measure(options)`, which returns what it found as JSON holds it, and `page(found)`, which makes
Markdown of that; `run` does the rest: flags, the JSON that is kept where a schema is named, the file, the print. Those
that take hours keep what they find piece by piece and make their page of that: headroom, papers and searches.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import RESULTS
from shard_gym.errors import CorruptFile
from shard_gym.records import commands
from shard_gym.records.files import read_json, write_whole
from shard_gym.results import commit_here

Found = dict[str, Any]  # what a page shows, as JSON holds it
Row = dict[str, Any]  # a line of it
PAPERS = "shard-gym/papers/1"
SIZE, DPI = (9.0, 3.4), 80  # of pictures of papers


def parser(name: str, about: str | None) -> argparse.ArgumentParser:
    """The parser of `python -m benchmarks.NAME`, with the flag that all pages have."""
    made = commands.parser(f"python -m benchmarks.{name}", about)
    made.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="where the page goes")
    return made


def run(
    made: argparse.ArgumentParser,
    measure: Callable[[argparse.Namespace], Found],
    page: Callable[[Found], str],
    arguments: Sequence[str] | None = None,
    *,
    schema: str = "",
    file: str = "",
) -> int:
    """Measure, write the page and print it; the exit code.

    With a schema what is found is kept as JSON, too, and `--page` makes the page of that again.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if schema:
        made.add_argument("--page", action="store_true", help="run nothing: make the page again from its JSON")

    def command(options: argparse.Namespace) -> None:
        name = file or f"{made.prog.rpartition('.')[2]}.md"
        path = options.out if options.out.suffix == ".md" else options.out / name
        options.given, options.command = given, told(made, given)
        kept = path.with_suffix(".json")
        if schema and options.page:
            found = kept_of(kept, schema)
        else:
            found = {"schema": schema, "commit": commit_here(), "command": options.command, **measure(options)}
            if schema:
                write_whole(kept, json.dumps(found, indent=1, allow_nan=False) + "\n")
        text = page(found)
        write_whole(path, text)
        print(text)

    return commands.run(made, command, given)


def told(made: argparse.ArgumentParser, given: Sequence[str]) -> str:
    """The command as pages tell it."""
    return " ".join(filter(None, (made.prog, shlex.join(given))))


def kept_of(path: Path, schema: str) -> Found:
    """The JSON that an earlier run kept."""
    kept = read_json(path)
    if not isinstance(kept, dict) or kept.get("schema") != schema:
        found = kept.get("schema") if isinstance(kept, dict) else None
        raise CorruptFile(f"{path} is of schema {found}, not {schema}: measure again")
    return kept


def spread(values: Sequence[float], form: str = ".3f") -> str:
    """Mean ± standard deviation over seeds, or the value alone."""
    mean = f"{np.mean(values):{form}}"
    return mean if len(values) < 2 else f"{mean} ± {np.std(values, ddof=1):{form.lstrip('+')}}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    return ["| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *rows)]


def picture(draw: Callable[[Any], None], size: tuple[float, float], dpi: int, kind: str = "png") -> bytes:
    """Picture that `draw` puts on a figure; the same figure gives the same bytes."""
    from matplotlib import rcParams  # an extra
    from matplotlib.figure import Figure

    rcParams["svg.hashsalt"] = "shard-gym"
    figure, buffer = Figure(figsize=size, layout="constrained"), io.BytesIO()
    draw(figure)
    figure.savefig(buffer, format=kind, dpi=dpi, metadata={"png": {"Software": None}, "svg": {"Date": None}}[kind])
    return buffer.getvalue()


def one_core() -> None:
    """Keep this process and those that it starts on one core, with one thread each."""
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


@dataclass(frozen=True)
class Section:
    """One figure or table of a paper."""

    title: str
    measure: Callable[[Any], Found]  # told a `policies.Lab`
    show: Callable[[Found], list[str]]
    draw: Callable[..., None] | None = None  # on a matplotlib figure


@dataclass(frozen=True)
class Paper:
    """A paper's sections, kept as JSON and shown as Markdown; `name` is the files'."""

    name: str
    about: str
    sections: dict[str, Section]

    def measure(self, asked: Sequence[str], lab: Any, out: Path, command: str) -> None:
        """Measure sections one by one; each is kept as soon as it is there."""
        for key in asked:
            start = time.monotonic()
            found = self.sections[key].measure(lab)
            about = {"command": command, "commit": commit_here(), "tasks": lab.tasks}
            kept = self.kept(out) | {key: {**about, "minutes": (time.monotonic() - start) / 60, "found": found}}
            content = {"schema": PAPERS, "sections": kept}
            write_whole(out / f"{self.name}.json", json.dumps(content, indent=1, allow_nan=False) + "\n")
            self.write(out)

    def kept(self, out: Path) -> dict[str, Any]:
        """The sections measured so far."""
        path = out / f"{self.name}.json"
        if not path.exists():
            return {}
        sections: Found = kept_of(path, PAPERS)["sections"]
        if not sections.keys() <= self.sections.keys():
            raise CorruptFile(f"{path} does not hold sections of {self.name}: delete it")
        return sections

    def write(self, out: Path) -> None:
        """The page and its pictures, from what is kept."""
        kept, lines = self.kept(out), [f"# {self.about.splitlines()[0]}", "", *self.about.splitlines()[2:], ""]
        for key, section in self.sections.items():
            if key not in kept:
                continue
            lines += [f"## {section.title}", "", *section.show(kept[key]["found"]), ""]
            if section.draw is not None:
                name = f"{self.name}_{key}.png"
                write_whole(out / name, picture(partial(section.draw, found=kept[key]["found"]), SIZE, DPI))
                lines += [f"![{section.title}]({name})", ""]
            lines += [_made(kept[key]), ""]
        write_whole(out / f"{self.name}.md", "\n".join(lines))


def _made(kept: dict[str, Any]) -> str:
    found, tasks = kept["found"], f"the first {kept['tasks']} tasks only, " if kept["tasks"] else ""
    training = found.get("spent")
    told = (
        f"training seeds: {training['seeds']}, iterations: at most {training['iterations']}, "
        f"{training['training_minutes']:.1f} minutes of training in all, the first by `{training['command']}`; "
        if training
        else ""
    )
    return f"Made by `{kept['command']}`: {tasks}{told}{kept['minutes']:.1f} minutes for this section."


def points(values: Sequence[Sequence[float]]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation over seeds of each point."""
    return np.array([np.mean(v) for v in values]), np.array([np.std(v, ddof=1) if len(v) > 1 else 0.0 for v in values])
