"""Programs that run a client's own code on our ids, each in an environment that `python -m benchmarks.clients` makes.

A program gives `run` its trials: names, and functions of `Options` that return a row. A row of a training has `id`,
`settings`, `steps`, `seconds` (CPU) and `return` on test tasks, beside which `run` puts those of random devices and of
cost-greedy; a row of tests has `passed`, `failed`, `skipped` and `failures`. What a trial raises is its row's `error`.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import shard_gym  # noqa: F401  # registers the ids
import shard_gym_agents
from shard_gym.envs.episodes import task_index
from shard_gym.results.evaluate import score

ENV_ID, KINDS_ID = "ShardGym-Core-60x4-Flat", "ShardGym-Core-80x8-AllKinds-Flat"
TABLES = 60  # steps of an episode of it
EPISODES = 100
Act = Callable[[Any, np.ndarray], np.ndarray]  # from observations and masks to actions
Row = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """Settings of the command."""

    seconds: float  # of CPU, for a training
    source: Path | None = None  # checkout of the client


class Clock:
    """CPU time of this process since the clock was made."""

    def __init__(self) -> None:
        self.start = time.process_time()

    def __call__(self) -> float:
        return time.process_time() - self.start


def trained(steps: int, seconds: float, act: Act, settings: str, env_id: str = ENV_ID) -> Row:
    """Row of a training."""
    numbers = {"steps": int(steps), "seconds": round(seconds, 1), "return": mean_return(env_id, act)}
    return {"id": env_id, "settings": settings, **numbers}


def mean_return(env_id: str, act: Act, **settings: Any) -> float:
    """Mean return over one episode of each of many environments on test tasks, the same for all who are asked."""
    envs = gym.make_vec(env_id, num_envs=EPISODES, split="test", **settings)
    shown, infos = envs.reset(seed=0)
    total, playing = np.zeros(EPISODES), np.ones(EPISODES, bool)
    while playing.any():
        shown, rewards, over, _, infos = envs.step(np.asarray(act(shown, infos["action_mask"])))
        total += np.where(playing, rewards, 0)
        playing &= ~over
    return float(total.mean())


@cache
def levels(env_id: str, **settings: Any) -> tuple[float, float]:
    """Mean returns of random legal devices, and of cost-greedy."""
    rng = np.random.default_rng(0)

    def anywhere(shown: Any, masks: np.ndarray) -> np.ndarray:
        return np.where(masks, rng.random(masks.shape), -1).argmax(axis=1)

    def cheapest(shown: dict[str, np.ndarray], masks: np.ndarray) -> np.ndarray:
        return np.where(masks, shown["ahead"], np.inf).argmin(axis=1)

    if env_id == KINDS_ID:  # where cost-greedy is not the next action that looks cheapest
        return mean_return(env_id, anywhere), greedy_return(env_id)
    ahead = {"observation": "ahead", "order": "cost", **settings}
    return mean_return(env_id, anywhere, **settings), mean_return(env_id, cheapest, **ahead)


def greedy_return(env_id: str) -> float:
    """Mean return of cost-greedy's plans of the tasks that `mean_return` asks for, by the reward "latency"."""
    env = gym.make(env_id, split="test").unwrapped
    greedy, bank, found = shard_gym_agents.make("cost-greedy"), env.bank, {}  # type: ignore[attr-defined]
    played = [task_index(seed, 0, len(bank.tasks)) for seed in range(EPISODES)]
    for index in set(played):
        plan = greedy(bank.tasks[index], env.simulator)  # type: ignore[attr-defined]
        makespan = score(bank.tasks[index], plan, env.simulator).makespan  # type: ignore[attr-defined]
        found[index] = -makespan / bank.random_makespan(index, env.simulator.id)  # type: ignore[attr-defined]
    return float(np.mean([found[index] for index in played]))


def run(packages: tuple[str, ...], trials: Mapping[str, Callable[[Options], Row]]) -> None:
    """Every trial, and its row in a file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--source", type=Path)
    parser.add_argument("--only", action="append", help="a trial's name")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    options = Options(given.seconds, given.source)
    versions = {name: version(name) for name in ("gymnasium", "torch", *packages)}
    rows = [_row(name, trial, options) for name, trial in trials.items() if name in (given.only or trials)]
    given.out.write_text(json.dumps({"versions": versions, "rows": rows}))


def _row(name: str, trial: Callable[[Options], Row], options: Options) -> Row:
    try:
        row = {"what": name, **trial(options)}
    except Exception as error:  # a client that does not work is a result
        traceback.print_exc()
        row = {"what": name, "error": f"{type(error).__name__}: {error}".splitlines()[0]}
    if "return" in row and "random" not in row:
        row["random"], row["greedy"] = levels(row["id"])
    print(json.dumps(row), flush=True)
    return row
