"""Agents as users write them, copied by the tests to a folder of their own, beside `helper.py` and weights."""

import multiprocessing
import os
import tempfile
import threading
import time
from pathlib import Path

import helper
import numpy as np

from shard_gym import simulators
from shard_gym.plan.plan import Plan
from shard_gym.plan.random_plans import random_placements


class Plain:
    def __call__(self, task, planner):
        return Plan(tuple(random_placements(task, 1, np.random.default_rng(0))[0].tolist()))


def burn(seconds, clock):
    while clock() < seconds:
        pass


class Burns(Plain):
    """A child uses the CPU, after all that it inherited was counted."""

    def __call__(self, task, planner):
        if not os.fork():
            burn(0.2, time.process_time)
            os._exit(0)
        os.wait()
        return super().__call__(task, planner)


class Idles(Plain):
    """A thread goes on after each answer."""

    def __call__(self, task, planner):
        threading.Thread(target=burn, args=(0.2, time.thread_time), daemon=True).start()
        return super().__call__(task, planner)


class Quiet(Plain):
    """Closes its output, leaves an orphan that ends, and waits."""

    def __call__(self, task, planner):
        os.close(1)
        os.close(2)
        if not os.fork():
            os.fork()
            os._exit(0)
        os.wait()
        time.sleep(1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        return super().__call__(task, planner)


class Peeks(Plain):
    """Reads the judge's weights, then the planner's."""

    def __call__(self, task, planner):
        fits = Path(simulators.__file__).parent / "fits"
        raise RuntimeError(
            [len((fits / f"{name}.safetensors").read_bytes()) > 0 for name in ("cpu-judge-v1", "cpu-v1")]
        )


class Usual(Plain):
    """Does what agents do: reads files of its own and named ones, starts processes, writes for itself."""

    def __init__(self, seed=0):
        self.weights = np.load(Path(__file__).with_name("weights.npy"))
        self.named = Path(os.environ["NAMED"]).read_text()

    def __call__(self, task, planner):
        with tempfile.TemporaryDirectory() as folder, multiprocessing.get_context("fork").Pool(2) as pool:
            Path(folder, "file").write_text("x")
            assert pool.map(helper.double, [1, 2]) == [2, 4] and self.weights.sum() == 3 and self.named == "named"
        return super().__call__(task, planner)


class Packages(Plain):
    def __call__(self, task, planner):
        import highspy
        import torch

        model = highspy.Highs()
        assert torch.ones(3).sum() == 3 and model.getNumCol() == 0
        return super().__call__(task, planner)


class Learned(Plain):
    def __call__(self, task, planner):
        import stable_baselines3

        assert stable_baselines3.PPO
        return super().__call__(task, planner)
