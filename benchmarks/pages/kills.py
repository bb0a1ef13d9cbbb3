"""Kill commands at any moment and let them go on: `python -m benchmarks.kills --kills 20 --seed 0`

Each command is run to its end once, then again in a folder where it is killed by SIGKILL, so many times, each at a
moment of the time that it takes. After each kill nothing may run that it started (orphans), and the next run may lose
nothing that was kept (lost). In the end it is done, equal to the run that nobody killed (different), and its folder
holds no files that only a killed run leaves (litter). Commands are forked from this process, which has imported what
they need: kills hit their work. Each seed is a part of the page; those that are kept are not done again. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks import RESULTS, headroom
from shard_gym.errors import CorruptFile, SimulatorError
from shard_gym.records import commands, ledger, tensors
from shard_gym.records.commands import count, names
from shard_gym.records.files import BEGUN, read_json, write_whole
from shard_gym.records.locks import LOCK
from shard_gym.results import Result, commit_here
from shard_gym_agents.cli import main as cli
from shard_gym_agents.leaderboard.arena import kernel
from shard_gym_agents.leaderboard.arena.processes import descendants
from shard_gym_agents.learners import trained

GRACE = 20.0  # seconds that processes have to end after the one that started them
SHARDS, ITERATIONS, TASKS = 6, 4, 3
PARTS = "kills.parts"
HEAD = """# What kills do

Commands killed by SIGKILL at any moment of their work, {total} times, and begun again each time: `python -m
benchmarks.kills`.

| command | kills | lost | twice | orphans | failed | different | litter |
|---|---|---|---|---|---|---|---|
"""
TAIL = """
Lost and twice: rows of its files after the next kill. Orphans: processes that outlive it for more than {grace:.0f} s.
Failed: runs that ended badly without a kill. Different: ends that are not those of an undisturbed run. Litter: files
that only killed runs leave, after the next run.
"""


@dataclass(frozen=True)
class Subject:
    """A command that writes to a folder, what is kept there so far, and what is there in the end."""

    name: str
    command: Callable[[Path], int | None]
    kept: Callable[[Path], list[str]]
    end: Callable[[Path], Any]
    needs: str = "numpy"
    modules: tuple[str, ...] = ()  # that it needs, imported before


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


def _measure(folder: Path) -> int:
    from shard_gym.measuring import measure

    words = f"--batch 64 --arena-gb 0.1 --warmups 1 --runs 3 --drop 1 --shards {SHARDS} --workers 1 --out {folder}"
    return measure.main(words.split())


def _measured(folder: Path) -> list[str]:
    found = [row for path in sorted(folder.glob("rows-*.jsonl")) for row in _lines(path)]
    return [str(row["index"]) for row in found if "begun" not in row]


def _train(folder: Path) -> int:
    words = f"cloning --suite dlrm-10x4 --plans 1 --calls 20 --updates 2 --iterations {ITERATIONS} --validate-every 2"
    return cli.main(["train", *words.split(), "--checkpoint-seconds", "0.01", "--out", str(folder)])


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


def _leaderboard(folder: Path) -> int:
    words = f"--suite dlrm-10x4 --agents lookup-greedy,random --seeds 2 --tasks {4 * TASKS} --workers 2 --out {folder}"
    return cli.main(["leaderboard", *words.split(), "--best-known", str(folder / "best"), "--update-best"])


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


def _headroom(folder: Path) -> int:
    words = f"--suite dlrm-10x4 --methods local-search --calls 200 --seeds 4 --tasks {TASKS} --workers 2 --update-best"
    return headroom.main([*words.split(), "--runs", str(folder / "runs"), "--results", str(folder / "results")])


def _tried(folder: Path) -> list[str]:
    fields = ("task", "judge", "agent", "planner", "budget", "calls", "seed", "unlimited")
    path = folder / "runs" / "dlrm-10x4.jsonl"
    return [" ".join(str(row[name]) for name in fields) for row in (_lines(path) if path.exists() else ())]


def _carded(folder: Path) -> Any:
    cards = read_json(folder / "results" / "headroom" / "dlrm-10x4.json")["cards"]
    return {judge: sorted(known) for judge, known in cards.items()}, sorted(_tried(folder))


TORCH = ("torch", "torch._dynamo", "shard_gym_agents.learners.cloning", "torch.utils.tensorboard")
SUBJECTS = (
    Subject("measure", _measure, _measured, lambda folder: sorted(_measured(folder), key=int), "fbgemm_gpu"),
    Subject("train", _train, _trained, _policy, "torch", TORCH),
    Subject("leaderboard", _leaderboard, _ranked, _standing),
    Subject("headroom", _headroom, _tried, _carded),
)


def trial(subject: Subject, kills: int, seed: int, folder: Path, tell: Callable[[str], None] = print) -> Outcome:
    """Run the command to its end, then under kills, and compare."""
    outcome, rng, killed = Outcome(), np.random.default_rng(seed), folder / "killed"
    with _adopting() as others:
        start = time.monotonic()
        if code := _ended(_started(subject, folder / "whole")):
            raise SimulatorError(f"{subject.name} ends with {code} though nobody kills it")
        takes, wanted = time.monotonic() - start, subject.end(folder / "whole")
        while outcome.kills < kills:
            _kill(subject, killed, float(rng.uniform(0, takes)), outcome, others)
            if (done := outcome.kills) and done % 5 == 0:
                tell(f"{subject.name}: {done} kills, {outcome}")
            if len(set(subject.kept(killed))) == len(set(subject.kept(folder / "whole"))):
                _finish(subject, killed, wanted, outcome)
                shutil.rmtree(killed)
        _finish(subject, killed, wanted, outcome)
    return outcome


def _kill(subject: Subject, folder: Path, after: float, outcome: Outcome, others: Collection[int]) -> None:
    """Start the command and kill it after so many seconds; count what is wrong then."""
    before = _kept(subject, folder)
    process = _started(subject, folder)
    until = time.monotonic() + after
    while (code := _code(process)) is None and time.monotonic() < until:
        time.sleep(0.002)
    if code is None:
        os.kill(process, signal.SIGKILL)
        outcome.kills += 1
        code = _ended(process)
    outcome.failed += code not in (0, -signal.SIGKILL)
    outcome.orphans += _orphans(others)
    now = _kept(subject, folder)
    outcome.lost += len(set(before) - set(now))
    outcome.twice += len(now) - len(set(now))


def _finish(subject: Subject, folder: Path, wanted: Any, outcome: Outcome) -> None:
    """Let the command end; what it made must be what was made undisturbed, and nothing else be left."""
    outcome.failed += _ended(_started(subject, folder)) != 0
    outcome.different |= subject.end(folder) != wanted
    litter = [path.name for path in folder.rglob("*") if path.name == LOCK or path.name.endswith(BEGUN)]
    outcome.litter += tuple(litter)


def _started(subject: Subject, folder: Path) -> int:
    """The number of a process that runs the command."""
    folder.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    if process := os.fork():
        return process
    code: Any = 1
    try:
        os.setsid()
        sys.modules["__main__"] = ModuleType("__main__")  # what it spawns need not import this page
        log = os.open(folder.parent / f"{subject.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for end in (1, 2):
            os.dup2(log, end)
        sys.stdout, sys.stderr = (os.fdopen(end, "w", closefd=False) for end in (1, 2))
        code = subject.command(folder) or 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def _code(process: int) -> int | None:
    """The exit code of a process that has ended."""
    ended, status = os.waitpid(process, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _ended(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def _kept(subject: Subject, folder: Path) -> list[str]:
    return subject.kept(folder) if folder.exists() else []


@contextmanager
def _adopting() -> Iterator[Collection[int]]:
    """Be the parent of all processes that lose theirs; gives those that descend from this one before."""
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield {one.pid for one in descendants(os.getpid())}
    finally:
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 0)


def _orphans(others: Collection[int]) -> int:
    """Processes that outlive the one that started them; they are ended here."""
    until = time.monotonic() + GRACE
    while (left := list(_living(others))) and time.monotonic() < until:
        time.sleep(0.02)
    for process in left:
        os.kill(process, signal.SIGKILL)
    return len(left)


def _living(others: Collection[int]) -> Iterator[int]:
    for one in descendants(os.getpid()):
        with suppress(ChildProcessError):  # it has another parent
            if one.pid in others or _code(one.pid) is not None:
                continue
        if one.pid not in others:
            yield one.pid


def _lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file, which may break off."""
    content = path.read_bytes()
    kept = content[: content.rfind(b"\n") + 1].splitlines()
    return [ledger.parsed(path, number, line, json.loads) for number, line in enumerate(kept, start=1)]


def page(parts: Sequence[dict[str, Any]]) -> str:
    """The page of all parts that are kept."""
    text = HEAD.format(total=sum(part["kills"] for part in parts))
    for name in dict.fromkeys(part["command"] for part in parts):
        mine = [part for part in parts if part["command"] == name]
        counts = [sum(part[what] for part in mine) for what in ("kills", "lost", "twice", "orphans", "failed")]
        litter = sum(len(part["litter"]) for part in mine)
        text += f"| {name} | {' | '.join(map(str, [*counts, sum(part['different'] for part in mine), litter]))} |\n"
    return text + TAIL.format(grace=GRACE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill, and print what came of it."""
    made = commands.parser("python -m benchmarks.kills", __doc__)
    made.add_argument("--kills", type=count, default=20, help="of each command")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--commands", type=names, default=[subject.name for subject in SUBJECTS])
    made.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="where the page goes")
    return commands.run(made, _run, arguments)


def _run(options: argparse.Namespace) -> int:
    if not Path("/proc/self/stat").exists():
        raise CorruptFile("this page needs Linux: it looks for processes in /proc")
    os.environ["OMP_NUM_THREADS"] = "1"
    path, sound = options.out / PARTS, True
    for subject in [s for s in SUBJECTS if s.name in options.commands and find_spec(s.needs)]:
        if (subject.name, options.seed) in {(part["command"], part["seed"]) for part in ledger.read(path)}:
            continue
        for module in subject.modules:
            import_module(module)
        with tempfile.TemporaryDirectory() as folder:
            outcome = trial(subject, options.kills, options.seed, Path(folder))
        ledger.append(path, {"command": subject.name, "seed": options.seed, "commit": commit_here(), **asdict(outcome)})
        print(f"{subject.name:12} {outcome}")
        sound &= outcome.sound
    write_whole(options.out / "kills.md", page(ledger.read(path)))
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
