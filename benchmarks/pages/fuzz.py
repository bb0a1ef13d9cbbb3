"""Try malformed input on every reader: `python -m benchmarks.fuzz --inputs 10000 --seed 0`

Each target of benchmarks/fuzzing/targets.py gets its share of inputs: good files and calls, spoiled. Whatever comes
must be read, or refused by an error of ours, within five seconds and a gigabyte, and give no number that is none. What
does not is shown, shortest first, and kept in --keep, as a file for tests/corpus. With --page a seed is a part of the
page, which adds up all parts that are kept; those are not done again.
"""

from __future__ import annotations

import argparse
import logging
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import RESULTS
from benchmarks.fuzzing.targets import TARGETS, Target, Unsound
from shard_gym.errors import ShardGymError
from shard_gym.records import commands, ledger
from shard_gym.records.commands import count, names
from shard_gym.records.files import write_whole
from shard_gym.results import commit_here

SECONDS, KILOBYTES = 5, 2**20  # that an input may take
RAW, HANG, FAT, UNSOUND = "raw", "hang", "fat", "no number"
COLUMNS = {"read": "read", "refused": "refused", "raw": RAW, "hangs": HANG, "fat": FAT, "unsound": UNSOUND}
PARTS = "fuzz.parts"
PAGE = """# Malformed input

{total:,} inputs, good ones spoiled in every way that benchmarks/fuzzing knows: `python -m benchmarks.fuzz --page`.
{read:,} were read, {refused:,} refused by an error of ours; {raw} raised another error, {hangs} took more than five
seconds of CPU, {fat} more than a gigabyte, {unsound} gave a number that is none.

| target | read | refused | raw | hangs | fat | no number |
|---|---|---|---|---|---|---|
"""


class Hang(BaseException):
    """An input that takes too long."""


@dataclass(frozen=True)
class Finding:
    """An input that was neither read nor refused."""

    target: str
    what: str
    told: str
    content: bytes


def found_by(target: Target, content: bytes, folder: Path) -> tuple[str, Finding | None]:
    """Outcome of one input: "read", "refused", or a finding."""
    path = folder / f"input{target.suffix}"
    path.write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome, finding = "read", None
    try:
        with _limited(), warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            target.use(path)
    except (ShardGymError, FileNotFoundError):
        outcome = "refused"
    except Hang:
        finding = Finding(target.name, HANG, _where(), content)
    except Unsound as error:
        finding = Finding(target.name, UNSOUND, str(error), content)
    except Exception as error:
        finding = Finding(target.name, RAW, f"{type(error).__name__}: {error!s:.80} at {_where()}", content)
    if finding is None and (grown := resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) > KILOBYTES:
        finding = Finding(target.name, FAT, f"{grown // 1024} MB", content)
    return (finding.what if finding else outcome), finding


def inputs(target: Target, number: int, seed: int) -> Iterator[bytes]:
    """Inputs of a target, so many: its good ones, then spoiled ones, the same for the same seed."""
    seeds = target.seeds()
    rng = np.random.default_rng([seed, *target.name.encode()])
    for i in range(number):
        good = seeds[i] if i < len(seeds) else seeds[int(rng.integers(len(seeds)))]
        yield good if i < len(seeds) else target.spoil(good, rng)


def run(targets: Sequence[Target], number: int, seed: int) -> tuple[dict[str, Counter[str]], list[Finding]]:
    """Outcomes by target, and what was found, each kind of finding once."""
    outcomes: dict[str, Counter[str]] = {}
    findings: dict[tuple[str, ...], Finding] = {}
    logging.disable(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        for i, target in enumerate(targets):
            counts = outcomes[target.name] = Counter()
            each = number // len(targets) + (i < number % len(targets))
            for content in inputs(target, each, seed):
                outcome, finding = found_by(target, content, Path(folder))
                counts[outcome] += 1
                if finding:
                    key = (finding.target, finding.what, finding.told.rpartition(" at ")[2])
                    if key not in findings or len(content) < len(findings[key].content):
                        findings[key] = finding
    logging.disable(logging.NOTSET)
    return outcomes, list(findings.values())


def able(targets: Sequence[Target] = TARGETS) -> list[Target]:
    """The targets whose packages are installed."""
    return [target for target in targets if not target.needs or find_spec(target.needs)]


def page(parts: Sequence[dict[str, Any]]) -> str:
    """The page of all parts that are kept."""
    outcomes: dict[str, Counter[str]] = {}
    for part in parts:
        for target, counts in part["outcomes"].items():
            outcomes.setdefault(target, Counter()).update(counts)
    total = sum(outcomes.values(), Counter[str]())
    text = PAGE.format(total=total.total(), **{name: total[what] for name, what in COLUMNS.items()})
    for target, counts in outcomes.items():
        text += f"| {target} | {' | '.join(f'{counts[what]:,}' for what in COLUMNS.values())} |\n"
    kinds = [f"- {target}: {what}: {told}" for part in parts for target, what, told in part["findings"]]
    return text + "".join(f"\n{kind}" for kind in dict.fromkeys(kinds))


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz, and print what came of it."""
    made = commands.parser("python -m benchmarks.fuzz", __doc__)
    made.add_argument("--inputs", type=count, default=2_000)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--targets", type=names, help=f"comma-separated, of {', '.join(t.name for t in TARGETS)}")
    made.add_argument("--keep", type=Path, metavar="DIR", help="where inputs that were found go")
    made.add_argument("--page", type=Path, nargs="?", const=RESULTS, metavar="DIR", help="add it to the page there")
    return commands.run(made, _fuzz, arguments)


def _fuzz(options: argparse.Namespace) -> int:
    if options.page and options.seed in {part["seed"] for part in ledger.read(options.page / PARTS)}:
        print(f"seed {options.seed} is in {options.page / PARTS}")
        return 0
    chosen = [t for t in able() if options.targets is None or t.name in options.targets]
    start = time.process_time()
    outcomes, findings = run(chosen, options.inputs, options.seed)
    for name, counts in outcomes.items():
        print(f"{name:16} {', '.join(f'{n:,} {what}' for what, n in sorted(counts.items()))}")
    for finding in sorted(findings, key=lambda f: (f.target, len(f.content))):
        print(f"{finding.what}: {finding.target}: {finding.told}\n    {finding.content[:150]!r}")
        if options.keep:
            _keep(options.keep, finding)
    if options.page:
        found = [(finding.target, finding.what, finding.told) for finding in findings]
        part = {"seed": options.seed, "commit": commit_here(), "outcomes": outcomes, "findings": found}
        ledger.append(options.page / PARTS, part)
        write_whole(options.page / "fuzz.md", page(ledger.read(options.page / PARTS)))
    total = sum(outcomes.values(), Counter[str]())
    bad = sum(total[what] for what in (RAW, HANG, FAT, UNSOUND))
    told = f"{total.total():,} inputs, {bad} of them neither read nor refused, {len(findings)} kinds"
    print(f"{told}; {time.process_time() - start:.0f} s of CPU")
    return 1 if findings else 0


def _keep(folder: Path, finding: Finding) -> None:
    folder = folder / finding.target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{finding.what.replace(' ', '-')}-{len(list(folder.iterdir()))}").write_bytes(finding.content)


@contextmanager
def _limited() -> Iterator[None]:
    def late(*_: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)  # of CPU: machines are shared
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _where() -> str:
    """The last place of ours that the error came through."""
    frames = traceback.extract_tb(sys.exc_info()[2])
    ours = [frame for frame in frames if "shard_gym" in frame.filename and "site-packages" not in frame.filename]
    frame = (ours or frames)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


if __name__ == "__main__":
    sys.exit(main())
