"""The picture of an episode in docs/environment.md: four moments of a solver's plan, played in the environment.

python -m benchmarks.episode [--suite MetaSyn-80x8] [--agent cost-greedy] [--out docs/episode.png]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import shard_gym_agents
from shard_gym.envs.env import ShardingEnv
from shard_gym.records import commands
from shard_gym.task import suites

GAP = 8  # pixels between two moments


def frames(suite: str, agent: str) -> list[np.ndarray]:
    """The pictures of an episode on the first test task, from none placed to all."""
    env = ShardingEnv(suite, split="test", observation="set", reward="latency", render_mode="rgb_array")
    task = env.bank.tasks[0]
    plan = shard_gym_agents.make(agent)(task, env.simulator)
    shown, _ = env.reset(seed=0, options={"task": task})
    pictures, over = [env.render()], False
    while not over:
        table = shown["order"][shown["position"][0]]
        shown, _, over, _, _ = env.step(plan.device[table])
        pictures.append(env.render())
    return pictures


def four_moments(pictures: list[np.ndarray]) -> np.ndarray:
    """The first, the one after a third, that after two thirds and the last, two by two."""
    last = len(pictures) - 1
    moments = [pictures[round(last * i / 3)] for i in range(4)]
    height, width, _ = moments[0].shape
    sheet = np.full((2 * height + GAP, 2 * width + GAP, 3), 160, np.uint8)
    for i, picture in enumerate(moments):
        top, left = (i // 2) * (height + GAP), (i % 2) * (width + GAP)
        sheet[top : top + height, left : left + width] = picture
    return sheet


def draw(options: argparse.Namespace) -> None:
    """Make the picture."""
    from matplotlib.image import imsave  # an extra

    imsave(options.out, four_moments(frames(options.suite, options.agent)), pil_kwargs={"optimize": True})


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw what the command says."""
    parser = commands.parser("python -m benchmarks.episode", __doc__)
    parser.add_argument("--suite", default="MetaSyn-80x8", type=lambda name: suites.get(name).name)
    parser.add_argument("--agent", default="cost-greedy")
    parser.add_argument("--out", default="docs/episode.png", type=Path)
    return commands.run(parser, draw, arguments)


if __name__ == "__main__":
    sys.exit(main())
