"""Kill commands at any moment and let them go on: `python -m benchmarks.kills --kills 20 --seed 0`

Each command is run to its end once, then again in a folder where it is killed by SIGKILL, so many times, each at a
moment of the time that it takes. After each kill nothing may run that it started (orphans), and the next run may lose
nothing that was kept (lost). In the end it is done, equal to the run that nobody killed (different), and its folder
holds no files that only a killed run leaves (litter). Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from shard_gym.errors import CorruptFile, SimulatorError
from shard_gym.records import commands, ledger, tensors
from shard_gym.records.commands import count, names
from shard_gym.records.files import BEGUN, read_json
from shard_gym.records.locks import LOCK
from shard_gym.results import Result
from shard_gym_agents.learners import trained

MARK = "SHARD_GYM_KILLS"  # in the environment of all that a trial starts
GRACE = 20.0  # seconds that processes have to end after the one that started them
SHARDS, ITERATIONS, TASKS = 6, 4, 3


@dataclass(frozen=True)
class Subject:
    """A command that writes to a folder, what is kept there so far, and what is there in the end."""

    name: str
    command: Callable[[Path], list[str]]
    kept: Callable[[Path], list[str]]
    end: Callable[[Path], Any]
    needs: str = "numpy"


@dataclass
class Outcome:
    """Counts of what went wrong with a command under so many kills."""

    kills: int = 0
    lost: int = 0  # of what a killed run had kept
    twice: int = 0
    orphans: int = 0
    failed: int = 0  # runs that ended by themselves, but badly
    different: bool = False
    litter: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        """True if nothing went wrong."""
        return not (self.lost or self.twice or self.orphans or self.failed or self.different or self.litter)


def _module(name: str, *words: str) -> list[str]:
    return [sys.executable, "-m", name, *words]


def _gym(*words: str) -> list[str]:
    return [sys.executable, "-c", "import sys; from shard_gym_agents.cli.main import main; sys.exit(main())", *words]


def _measure(folder: Path) -> list[str]:
    words = f"--batch 64 --arena-gb 0.1 --warmups 1 --runs 3 --drop 1 --shards {SHARDS} --workers 2 --out {folder}"
    return _module("shard_gym.measuring.measure", *words.split())


def _measured(folder: Path) -> list[str]:
    found = [row for path in sorted(folder.glob("rows-*.jsonl")) for row in _lines(path)]
    return [str(row["index"]) for row in found if "begun" not in row]


def _train(folder: Path) -> list[str]:
    words = f"cloning --suite dlrm-10x4 --plans 1 --calls 20 --updates 2 --iterations {ITERATIONS} --validate-every 2"
    return _gym("train", *words.split(), "--checkpoint-seconds", "0.01", "--out", str(folder))


def _trained(folder: Path) -> list[str]:
    """Iterations up to the checkpoint: what comes after it is done again."""
    from shard_gym_agents.learners.learner import load_tensors

    path = folder / "checkpoint.safetensors"
    done = load_tensors(path, "checkpoint")[1]["progress"]["iteration"] if path.exists() else 0
    return [str(i) for i in range(1, done + 1)]


def _policy(folder: Path) -> Any:
    """Iterations that were logged, and the weights of the best policy; its card tells seconds, too."""
    lines = [json.loads(line) for line in (folder / "scalars.jsonl").read_text().splitlines()]
    weights, _ = tensors.read(folder / "best.safetensors", trained.SCHEMA, "train it again")
    return [line["iteration"] for line in lines], {name: array.tobytes() for name, array in weights.items()}


def _leaderboard(folder: Path) -> list[str]:
    words = f"--suite dlrm-10x4 --agents lookup-greedy,random --seeds 2 --tasks {4 * TASKS} --workers 2 --out {folder}"
    return _gym("leaderboard", *words.split(), "--best-known", str(folder / "best"), "--update-best")


def _ranked(folder: Path) -> list[str]:
    whole = folder / "dlrm-10x4.jsonl"
    if whole.exists():
        return sorted({f"{r['agent']} {r['seed']} {r['task']}" for r in _lines(whole) if "agent" in r})
    kept = [row for path in sorted((folder / "partial").glob("*.jsonl")) for row in _lines(path)]
    found = [Result.from_json(row["result"]) for row in kept]
    return [f"{result.agent} {result.seed} {result.task}" for result in found]


def _standing(folder: Path) -> Any:
    plans = [(r["agent"], r["seed"], r["task"], r["plan"]) for r in _lines(folder / "dlrm-10x4.jsonl") if "agent" in r]
    best = read_json(folder / "best" / "dlrm-10x4.json")["best"]
    left = [path.name for path in (folder / "partial").glob("*")]
    return plans, {judge: sorted(known) for judge, known in best.items()}, left


def _headroom(folder: Path) -> list[str]:
    words = f"--suite dlrm-10x4 --methods local-search --calls 200 --seeds 4 --tasks {TASKS} --workers 2 --update-best"
    return _module(
        "benchmarks.headroom", *words.split(), "--runs", str(folder / "runs"), "--results", str(folder / "results")
    )


def _tried(folder: Path) -> list[str]:
    fields = ("task", "judge", "agent", "planner", "budget", "calls", "seed", "unlimited")
    path = folder / "runs" / "dlrm-10x4.jsonl"
    return [" ".join(str(row[name]) for name in fields) for row in (_lines(path) if path.exists() else ())]


def _carded(folder: Path) -> Any:
    cards = read_json(folder / "results" / "headroom" / "dlrm-10x4.json")["cards"]
    return {judge: sorted(known) for judge, known in cards.items()}, sorted(_tried(folder))


SUBJECTS = (
    Subject("measure", _measure, _measured, lambda folder: sorted(_measured(folder), key=int), "fbgemm_gpu"),
    Subject("train", _train, _trained, _policy, "torch"),
    Subject("leaderboard", _leaderboard, _ranked, _standing),
    Subject("headroom", _headroom, _tried, _carded),
)


def trial(subject: Subject, kills: int, seed: int, folder: Path, tell: Callable[[str], None] = print) -> Outcome:
    """Run the command to its end, then under kills, and compare."""
    start = time.monotonic()
    if code := _started(subject, folder / "whole").wait():
        raise SimulatorError(f"{subject.name} ends with {code} though nobody kills it")
    takes, wanted = time.monotonic() - start, subject.end(folder / "whole")
    outcome, rng, killed = Outcome(), np.random.default_rng(seed), folder / "killed"
    while outcome.kills < kills:
        _killed(subject, killed, float(rng.uniform(0, takes)), outcome)
        if (done := outcome.kills) and done % 5 == 0:
            tell(f"{subject.name}: {done} kills, {outcome}")
        if len(set(subject.kept(killed))) == len(set(subject.kept(folder / "whole"))):
            _ended(subject, killed, wanted, outcome)
            shutil.rmtree(killed)
    _ended(subject, killed, wanted, outcome)
    return outcome


def _killed(subject: Subject, folder: Path, after: float, outcome: Outcome) -> None:
    """Start the command and kill it after so many seconds; count what is wrong then."""
    before = _kept(subject, folder)
    process = _started(subject, folder)
    try:
        process.wait(after)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        outcome.kills += 1
    outcome.failed += process.wait() not in (0, -signal.SIGKILL)
    outcome.orphans += _orphans()
    now = _kept(subject, folder)
    outcome.lost += len(set(before) - set(now))
    outcome.twice += len(now) - len(set(now))


def _ended(subject: Subject, folder: Path, wanted: Any, outcome: Outcome) -> None:
    """Let the command end; what it made must be what was made undisturbed, and nothing else be left."""
    outcome.failed += _started(subject, folder).wait() != 0
    outcome.different |= subject.end(folder) != wanted
    litter = [path.name for path in folder.rglob("*") if path.name == LOCK or path.name.endswith(BEGUN)]
    outcome.litter += tuple(litter)


def _started(subject: Subject, folder: Path) -> subprocess.Popen[bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {MARK: str(os.getpid()), "OMP_NUM_THREADS": "1"}
    with (folder.parent / f"{subject.name}.log").open("ab") as log:
        return subprocess.Popen(subject.command(folder), env=environment, stdout=log, stderr=log)


def _kept(subject: Subject, folder: Path) -> list[str]:
    return subject.kept(folder) if folder.exists() else []


def _orphans() -> int:
    """Processes of ours that outlive the one that started them; they are ended here."""
    until = time.monotonic() + GRACE
    while (left := list(_marked())) and time.monotonic() < until:
        time.sleep(0.05)
    for process in left:
        os.kill(process, signal.SIGKILL)
    return len(left)


def _marked() -> Iterator[int]:
    mark = f"{MARK}={os.getpid()}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)
        except OSError:  # it ended, or is another user's
            continue


def _lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file, which may break off."""
    content = path.read_bytes()
    kept = content[: content.rfind(b"\n") + 1].splitlines()
    return [ledger.parsed(path, number, line, json.loads) for number, line in enumerate(kept, start=1)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill, and print what came of it."""
    made = commands.parser("python -m benchmarks.kills", __doc__)
    made.add_argument("--kills", type=count, default=20, help="of each command")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--commands", type=names, default=[subject.name for subject in SUBJECTS])
    return commands.run(made, _kill, arguments)


def _kill(options: argparse.Namespace) -> int:
    chosen = [s for s in SUBJECTS if s.name in options.commands and find_spec(s.needs)]
    if not Path("/proc/self/environ").exists():
        raise CorruptFile("this page needs Linux: it looks for processes in /proc")
    found = {}
    for subject in chosen:
        with tempfile.TemporaryDirectory() as folder:
            found[subject.name] = trial(subject, options.kills, options.seed, Path(folder))
    for name, outcome in found.items():
        print(f"{name:12} {outcome}")
    return 0 if all(outcome.sound for outcome in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
