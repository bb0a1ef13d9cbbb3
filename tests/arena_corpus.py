"""Agents that are broken, cheat or attack, one way each; `test_arena` says what the row of each has to say.

Whoever got away with it returns a plan; whoever was kept from it fails with the reason. None does lasting harm where it
succeeds: the test copies this file to a folder of its own, with files beside it that stand for others' results.
"""

import ctypes
import json
import math
import os
import resource
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from shard_gym import simulators
from shard_gym.errors import MissingDependency, UnknownName
from shard_gym.plan.plan import Plan
from shard_gym.plan.random_plans import random_placements
from shard_gym.results import evaluate
from shard_gym_agents.leaderboard.arena.frames import Line

HERE = Path(__file__).parent
FULL = os.getpid() < 20  # in a namespace of processes of its own


class Wrath(BaseException):
    pass


class Silent(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def plan_for(task, seed=0):
    return Plan(tuple(random_placements(task, 1, np.random.default_rng(seed))[0].tolist()))


def line():
    """The descriptor of the line to the warden: the highest one that is open."""
    return max(int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}"))


class Sound:
    def __call__(self, task, planner):
        return plan_for(task)


# Errors of every kind.


class Fails(Sound):
    error = ValueError("no idea")

    def __call__(self, task, planner):
        raise self.error


class Quits(Fails):
    error = SystemExit(3)


class Interrupts(Fails):
    error = KeyboardInterrupt()


class Rages(Fails):
    error = Wrath("out of my way")


class Mute(Fails):
    error = Silent()


class Surrogate(Fails):
    error = ValueError("\ud800 lost")


class Escapes(Fails):
    error = ValueError("\x1b[2J<b>|`red`")


class Windy(Sound):
    def __call__(self, task, planner):
        raise ValueError("x" * 300_000_000)


class Recurses(Sound):
    def __call__(self, task, planner):
        return self(task, planner)


# Constructors.


class Unbuilt(Sound):
    def __init__(self):
        raise RuntimeError("no checkpoint")


class QuitsUnbuilt(Sound):
    def __init__(self):
        sys.exit("goodbye")


class RagesUnbuilt(Sound):
    def __init__(self):
        raise Wrath("not today")


class SilentUnbuilt(Sound):
    def __init__(self):
        raise Silent


class UnknownUnbuilt(Sound):
    """Ended the whole run, as if its module had not been there."""

    def __init__(self):
        raise UnknownName("agent", "me", ["you"])


class MissingUnbuilt(Sound):
    def __init__(self):
        raise MissingDependency("needs more than there is")


class SleepsUnbuilt(Sound):
    def __init__(self):
        time.sleep(1000)


class DiesUnbuilt(Sound):
    def __init__(self):
        os.kill(os.getpid(), signal.SIGKILL)


class SlowlyBuilt(Sound):
    """Precomputes where no task's clock runs: the row shows how long."""

    def __init__(self):
        time.sleep(0.3)


class NotCalled:
    pass


# Descriptions.


@dataclass
class InfiniteConfig(Sound):
    limit: float = math.inf


@dataclass
class HugeConfig(Sound):
    words: str = "x" * 1_000_000


@dataclass
class DeepConfig(Sound):
    nest: list = field(default_factory=list)

    def __post_init__(self):
        for _ in range(20_000):
            self.nest = [self.nest]


class ListTrack(Sound):
    track = ["search"]  # noqa: RUF012


class OwnTrack(Sound):
    track = "winners"


class TurnsCoat(Sound):
    """Says blind first, and search in every later process and answer."""

    @property
    def track(self):
        self.asked = getattr(self, "asked", 0) + 1
        return "blind" if self.asked == 1 else "search"

    def __call__(self, task, planner):
        planner.latency(task, np.zeros((1, task.num_tables), int))
        return plan_for(task)


class OddlyDeterministic(Sound):
    @property
    def deterministic(self):
        raise Wrath("who asks?")


# Plans that are none, and plans that lie.


class ReturnsList(Sound):
    def __call__(self, task, planner):
        return [0] * task.num_tables


class ReturnsNothing(Sound):
    def __call__(self, task, planner):
        return None


class ReturnsShort(Sound):
    def __call__(self, task, planner):
        return Plan((0,))


class ReturnsFar(Sound):
    def __call__(self, task, planner):
        return Plan((99,) * task.num_tables)


class ReturnsUnplaced(Sound):
    def __call__(self, task, planner):
        return Plan.empty(task)


def forged(task, **columns):
    plan = plan_for(task)
    for name, value in columns.items():
        object.__setattr__(plan, name, value)
    return plan


class ReturnsNan(Sound):
    def __call__(self, task, planner):
        return forged(task, device=(math.nan,) * task.num_tables)


class ReturnsFloats(Sound):
    def __call__(self, task, planner):
        return forged(task, device=(0.5,) * task.num_tables)


class ReturnsHuge(Sound):
    def __call__(self, task, planner):
        return forged(task, device=(10**4000,) * task.num_tables)


class ReturnsObjects(Sound):
    def __call__(self, task, planner):
        return forged(task, device=(object(),) * task.num_tables)


class ReturnsDeep(Sound):
    def __call__(self, task, planner):
        nest = []
        for _ in range(20_000):
            nest = [nest]
        return forged(task, device=nest)


class ReturnsLong(Sound):
    """Two million devices: more than an answer may have bytes."""

    def __call__(self, task, planner):
        return forged(task, device=(0,) * 2_000_000)


class SplitsTooMuch(Sound):
    def __call__(self, task, planner):
        return forged(task, splits=(0,) * 100_000)


class Lying(Plan):
    """A plan that says that it costs nothing and breaks no rule."""

    makespan = 0.0
    violations = ()

    def to_dict(self):
        return {"schema": "shard-gym/plan/1", "device": [0] * 10, "makespan": 0.0}


class Lies(Sound):
    def __call__(self, task, planner):
        return Lying((0,) * task.num_tables)  # more than the device holds, or at least slow


class PatchesScores(Sound):
    def __call__(self, task, planner):
        evaluate.score = lambda *_: evaluate.Score(0.0, 1.0)
        evaluate.judged = evaluate.check = lambda *_: None
        return plan_for(task)


class PatchesTime(Sound):
    def __call__(self, task, planner):
        time.sleep(0.1)
        time.perf_counter = time.monotonic = time.time = lambda: 0.0
        return plan_for(task)


class PatchesJson(Sound):
    def __call__(self, task, planner):
        json.dumps = lambda *_, **__: '{"plan": NaN}'
        return plan_for(task)


class CountsBackwards(Sound):
    def __call__(self, task, planner):
        planner.calls = -5
        return plan_for(task)


class CountsInWords(Sound):
    def __call__(self, task, planner):
        planner.calls = "few"
        return plan_for(task)


# Ends of processes.


class Exits(Sound):
    def __call__(self, task, planner):
        os._exit(3)


class Segfaults(Sound):
    def __call__(self, task, planner):
        ctypes.string_at(0)


class Aborts(Sound):
    def __call__(self, task, planner):
        os.abort()


class KillsItself(Sound):
    def __call__(self, task, planner):
        os.kill(os.getpid(), signal.SIGKILL)


class StopsItself(Sound):
    def __call__(self, task, planner):
        os.kill(os.getpid(), signal.SIGSTOP)


class Sleeps(Sound):
    def __call__(self, task, planner):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        time.sleep(1000)


class Spins(Sound):
    def __call__(self, task, planner):
        while True:
            pass


class AnswersLate(Sound):
    """Just after the limit, while the grace for the line still runs."""

    def __call__(self, task, planner):
        time.sleep(0.25)
        return plan_for(task)


# Other processes.


class StopsParent(Sound):
    def __call__(self, task, planner):
        os.kill(os.getppid(), signal.SIGSTOP)
        return plan_for(task)


class KillsParent(Sound):
    def __call__(self, task, planner):
        leave_behind()
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(0.05)
        return plan_for(task)


class KillsAll(Sound):
    """Signals all that it may: only tried where that is its own."""

    def __call__(self, task, planner):
        if FULL:
            with suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        return plan_for(task)


def leave_behind():
    """Start a process in a session of its own, whose parent ends at once."""
    if not os.fork():
        os.setsid()
        if not os.fork():
            time.sleep(1000)
        os._exit(0)


class LeavesDaemons(Sound):
    def __call__(self, task, planner):
        for _ in range(3):
            leave_behind()
        return plan_for(task)


class LeavesDaemonsUnbuilt(Sound):
    def __init__(self):
        leave_behind()
        raise RuntimeError("built something else")


class ForgetsChild(Sound):
    """Forks and lets both go on, so that two processes answer."""

    def __call__(self, task, planner):
        os.fork()
        return plan_for(task)


class Multiplies(Sound):
    def __call__(self, task, planner):
        for _ in range(60):
            if not os.fork():
                time.sleep(1000)
                os._exit(0)
        time.sleep(1000)


class LooksAtParent(Sound):
    def __call__(self, task, planner):
        with open(f"/proc/{os.getppid()}/mem", "rb") as memory:
            memory.read(1)
        return plan_for(task)


class SeesOthers(Sound):
    def __call__(self, task, planner):
        others = [name for name in os.listdir("/proc") if name.isdigit()]
        if len(others) <= 3:
            raise RuntimeError("alone")
        return plan_for(task)


# Memory, disk, descriptors, rights.


class Hoards(Sound):
    def __call__(self, task, planner):
        held = []
        while True:
            held.append(bytearray(1 << 26))


class HoardsArrays(Sound):
    def __call__(self, task, planner):
        return np.ones((1 << 40,))


class HoardsTogether(Sound):
    """Each of its processes stays below the limit of one."""

    def __call__(self, task, planner):
        for _ in range(4):
            if not os.fork():
                held = b"x" * 150_000_000
                time.sleep(1000 + len(held))
        time.sleep(1000)


class FillsFile(Sound):
    def __call__(self, task, planner):
        Path("big").write_bytes(bytes(80_000_000))
        return plan_for(task)


class FillsDisk(Sound):
    def __call__(self, task, planner):
        for number in range(5):
            Path(f"big{number}").write_bytes(bytes(20_000_000))
        return plan_for(task)


class LeavesFiles(Sound):
    def __call__(self, task, planner):
        if not os.path.exists("litter"):
            Path("litter").write_text("mine")
            Path("locked/deep").mkdir(parents=True)
            Path("locked").chmod(0)
        return plan_for(task)


class OpensMuch(Sound):
    def __call__(self, task, planner):
        held = [os.open(os.devnull, os.O_RDONLY) for _ in range(100_000)]
        return plan_for(task) if held else None


class RaisesLimits(Sound):
    def __call__(self, task, planner):
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        return plan_for(task)


class DumpsCore(Sound):
    def __call__(self, task, planner):
        resource.setrlimit(resource.RLIMIT_CORE, (1 << 30, 1 << 30))
        os.abort()


# The line.


class Babbles(Sound):
    def __call__(self, task, planner):
        os.write(line(), b"\xff" * 64)
        return plan_for(task)


class Promises(Sound):
    def __call__(self, task, planner):
        os.write(line(), struct.pack("!I", 1_000_000_000))
        time.sleep(1000)


class Trickles(Sound):
    def __call__(self, task, planner):
        os.write(line(), struct.pack("!I", 1000) + b"{")
        time.sleep(1000)


def say(message):
    text = json.dumps(message).encode()
    os.write(line(), struct.pack("!I", len(text)) + text)


class Guesses(Sound):
    """Answers a question that it was not asked, with a plan."""

    def __call__(self, task, planner):
        say({"nonce": "0" * 16, "index": 1, "plan": plan_for(task).to_dict(), "error": None, "calls": 0})
        time.sleep(1000)


class AnswersTwice(Sound):
    def __call__(self, task, planner):
        once = Line.pass_on
        Line.pass_on = lambda *words: (once(*words), once(*words))
        return plan_for(task)


class ClaimsScores(Sound):
    def __call__(self, task, planner):
        say({"nonce": "", "index": 0, "plan": None, "error": None, "calls": 0, "wall_seconds": 0, "makespan": 0})
        time.sleep(1000)


class Closes(Sound):
    def __call__(self, task, planner):
        os.close(line())
        time.sleep(1000)


class BabblesUnbuilt(Sound):
    def __init__(self):
        say({"track": "blind", "deterministic": 1, "config": [], "source": None})
        time.sleep(1000)


class PraisesItself(Sound):
    """Describes itself before the worker does, as what it is not: a claim like any other."""

    def __init__(self):
        say({"track": "blind", "deterministic": True, "config": {"rank": 1}, "source": ""})


# What others know.


class AsksUnseen(Sound):
    track = "blind"

    def __call__(self, task, planner):
        return planner.latency(task, np.zeros((1, task.num_tables), int))


class CopiesPlanner(Sound):
    """Makes the planner itself: documented, a copied formula cannot be prevented."""

    track = "blind"

    def __call__(self, task, planner):
        simulators.make(planner.id).latency(task, np.zeros((1, task.num_tables), int))
        return plan_for(task)


class Reads(Sound):
    path = "best_known/dlrm-10x4.json"

    def __call__(self, task, planner):
        if not (HERE / self.path).read_text():
            raise FileNotFoundError("empty")
        return plan_for(task)


class ReadsResults(Reads):
    path = "results.jsonl"


class ReadsRival(Reads):
    path = "rival.py"


class ReadsBeyond(Reads):
    path = "../secret/key"


class ReadsPasswords(Reads):
    path = "/etc/shadow"


class UncoversResults(Sound):
    """Takes the cover off in namespaces of its own, where it has all rights."""

    def __call__(self, task, planner):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.unshare(0x10000000 | 0x00020000)
        libc.umount2(str(HERE / "best_known").encode(), 2)
        (HERE / "best_known" / "dlrm-10x4.json").read_text()
        return plan_for(task)


class Writes(Sound):
    def __call__(self, task, planner):
        (HERE / "best_known" / "dlrm-10x4.json").write_text("mine")
        (HERE / "mark").write_text("mine")
        return plan_for(task)


class WritesPackage(Sound):
    def __call__(self, task, planner):
        if not FULL:
            raise RuntimeError("not tried where it would succeed")
        Path(evaluate.__file__).write_text("mine")
        return plan_for(task)


class Connects(Sound):
    def __call__(self, task, planner):
        socket.create_connection(("127.0.0.1", int((HERE / "port").read_text())), timeout=1).close()
        return plan_for(task)


class ReadsEnvironment(Sound):
    def __call__(self, task, planner):
        if "CORPUS_SECRET" in os.environ or b"CORPUS_SECRET" in Path("/proc/self/environ").read_bytes():
            return plan_for(task)
        raise RuntimeError("not in the environment")


class FindsHome(Sound):
    def __call__(self, task, planner):
        if os.listdir(Path.home()) or os.listdir() or Path.home() == Path(os.environ.get("CORPUS_HOME", "/root")):
            return plan_for(task)
        raise RuntimeError("nothing at home")


class FindsDescriptors(Sound):
    def __call__(self, task, planner):
        mine = {"0", "1", "2", str(line())}
        ends = {fd: os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if fd not in mine}
        if any(os.path.exists(end) for fd, end in ends.items() if not end.endswith("/fd")):
            return plan_for(task)
        raise RuntimeError("nothing open")


class Prints(Sound):
    def __call__(self, task, planner):
        sys.stdout.write("\x1b]0;owned\x07" * 1000)
        sys.stderr.write("not asked\n")
        return plan_for(task)
