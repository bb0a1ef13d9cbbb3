"""Rules of a run: limits of what agents use, and views of the files that each may see."""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import shard_gym
import shard_gym_agents
from shard_gym import simulators
from shard_gym_agents.leaderboard.arena.job import Job

FULL, LIMITS = "full", "limits"
GB = 1e9
# A root that programs run in, without anybody's files.
PROGRAMS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/usr", "/nix", "/gnu")  # with their libraries
SETTINGS = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime", "nsswitch.conf", "hosts")
NAMES = ("passwd", "group")  # of users, not their passwords
DEVICES = ("null", "zero", "full", "random", "urandom")
SYSTEM = (
    *PROGRAMS,
    *(f"/etc/{name}" for name in (*SETTINGS, *NAMES)),
    *(f"/dev/{name}" for name in DEVICES),
    "/sys/devices/system",  # the shape of the machine
)
# Of the environment an agent gets these, and threads as the leaderboard sets them.
KEPT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX")
SETTLED = ("PYTHONHASHSEED", "SHARD_GYM_CORE")  # by whoever wants the same again
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# Folders of a checkout that hold what others found: results, best known plans, the history of both, runs.
SECRET = ("benchmarks/results", ".git", "runs")
ROOT = Path(str(shard_gym.__file__)).parents[1]  # the checkout, or site-packages
CHECKOUT = {str(ROOT)} if (ROOT / "pyproject.toml").exists() else set()
# Folders that hold everybody's files, or that an agent has its own of: they are never shown as a whole.
CROWDED = {"/", "/tmp", "/dev", "/dev/shm", "/proc", "/sys", "/etc", "/home", os.path.expanduser("~"), *CHECKOUT}
PACKAGES = [str(Path(str(package.__file__)).parent) for package in (shard_gym, shard_gym_agents)]


@dataclass(frozen=True)
class Rules:
    """Limits of every agent of a run; `processes` and `memory` are of all its processes together."""

    isolation: str = "auto"  # full, limits, or the best there is
    build_seconds: float = 120.0  # to import and build an agent; torch takes its time
    memory: float = 8 * GB
    disk: float = 0.25 * GB  # at full: all it writes; at limits: a file
    files: int = 1024  # open at a time
    processes: int = 200
    environment: tuple[str, ...] = ()  # names of variables to keep, beside KEPT
    readable: tuple[str, ...] = ()  # paths that agents may read at full, beside their own
    secret: tuple[str, ...] = ()  # paths that they may not, inside of what they may
    verbose: bool = False  # agents' output goes to stderr
    modules: tuple[str, ...] = ()  # that register suites and simulators, imported before agents are forked


@dataclass(frozen=True)
class View:
    """The files that an agent sees at full: the longest path that holds a file decides."""

    readable: tuple[str, ...]
    secret: tuple[str, ...] = field(default=())


def view(job: Job, rules: Rules, others: Iterable[str] = ()) -> View:
    """The view of a job's agent; `others` are the agents that it must not read."""
    planner = [job.planner] if job.planner.endswith(simulators.WEIGHTS) else []
    readable = [*SYSTEM, *interpreter(), *PACKAGES, *rules.readable, place(job.agent), job.checkpoint, *planner]
    rivals = {place(other, alone=True) for other in others} - {place(job.agent, alone=True)}
    judge = [] if job.judge == job.planner else judge_files(job.judge)
    secret = [*rules.secret, *(str(ROOT / name) for name in SECRET), *rivals, *judge]
    return View(_there(readable), _there(secret))


def bare() -> View:
    """The view of no agent: Python and the packages."""
    return View(_there([*SYSTEM, *interpreter(), *PACKAGES]))


def interpreter() -> list[str]:
    """Python itself, and wherever it finds modules but in the current folder and this checkout."""
    ours = {os.getcwd(), *CHECKOUT}
    paths = [os.path.abspath(path) for path in sys.path if os.path.abspath(path) not in ours]
    return [sys.prefix, sys.base_prefix, *site.getsitepackages(), *paths]


@cache
def place(agent: str, alone: bool = False) -> str:
    """The folder that a user's agent is imported from, or, `alone` or in a crowd, its package or file; "" for ours."""
    top = shard_gym_agents.installed().get(agent, agent).partition(":")[0].partition(".")[0]
    try:
        spec = find_spec(top) if agent not in shard_gym_agents.AGENTS else None
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return ""
    found = [*(spec.submodule_search_locations or ()), spec.origin if spec.has_location else None][0]
    if found is None:
        return ""
    folder = os.path.dirname(os.path.abspath(found))
    return found if alone or folder in CROWDED else folder


def findable(agent: str) -> bool:
    """True if there is a module of that name; whether it has the class is seen where it is imported."""
    return bool(place(agent))


def judge_files(judge: str) -> list[str]:
    """The weights of a judge."""
    if judge.endswith(simulators.WEIGHTS):
        return [judge]
    fits = Path(str(simulators.__file__)).parent / "fits"
    return [str(fits / f"{judge.partition(':')[2]}{simulators.WEIGHTS}")]


def _there(paths: Sequence[str]) -> tuple[str, ...]:
    """The paths that lead somewhere, absolute, each once."""
    absolute = dict.fromkeys(os.path.abspath(path) for path in paths if path)
    return tuple(path for path in absolute if path not in CROWDED and os.path.exists(path))
