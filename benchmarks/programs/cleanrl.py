"""CleanRL's `ppo.py` as it is, its flags aside.

It pins gymnasium 0.29 and Python 3.10, which ShardGym does not support; on 1.x it runs, and prints no returns.
"""

from __future__ import annotations

import runpy
import sys
from typing import Any

import numpy as np
import torch

from benchmarks.programs import ENV_ID, TABLES, Clock, Options, Row, run, trained

LONGER, PACE = 5, 3_000  # times the seconds, and steps a second that are hoped for: it stops after steps
FLAGS = {
    "env-id": f"shard_gym:{ENV_ID}",
    "num-envs": 16,
    "num-steps": 4 * TABLES,
    "num-minibatches": 8,
    "update-epochs": 10,
    "learning-rate": 1e-3,
    "gamma": 1.0,
}


def ppo(options: Options) -> Row:
    """The script, run as a command would run it."""
    assert options.source
    steps, before = int(options.seconds * LONGER * PACE), sys.argv
    told = " ".join(f"--{name} {value}" for name, value in FLAGS.items())
    sys.argv = ["ppo.py", *told.split(), "--total-timesteps", str(steps)]
    clock = Clock()
    try:
        left = runpy.run_path(str(options.source / "cleanrl" / "ppo.py"), run_name="__main__")
    finally:
        sys.argv = before
    spent = clock()

    def act(shown: Any, masks: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return left["agent"].actor(torch.as_tensor(shown)).argmax(dim=1).numpy()

    return trained(left["global_step"], spent, act, told)


if __name__ == "__main__":
    torch.set_num_threads(1)
    run((), {"ppo.py": ppo})
