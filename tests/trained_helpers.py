"""Policies and runs of the RNN baseline that nobody had to train."""

import json

import numpy as np
import pytest
import torch

from shard_gym import suites
from shard_gym_agents.learners import trained
from shard_gym_agents.learners.rnn import Net, Rnn

# what shipped weights tell
CARD = {"learner", "suite", "planner", "seed", "config", "command", "date", "versions"}
CARD |= {"iterations", "best_at", "steps", "simulator_calls", "minutes", "val"}
CONFIG = {"updates": 1, "horizon": 200}


@pytest.fixture(name="weights")
def no_weights(tmp_path, monkeypatch):
    """A package without weights."""
    monkeypatch.setattr(trained, "WEIGHTS", tmp_path / "weights")
    return tmp_path / "weights"


def save_policy(path, key="dlrm-50x4", seed=0, **card):
    """A network with random weights for a suite."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = Net(np.stack(suites.get(key).feature_scaling()), suites.get(key).num_devices)
    path.parent.mkdir(parents=True, exist_ok=True)
    Rnn(net).save(path, **card)
    return path


def ship_policy(suite, **card):
    """Among the package's weights, with as much of a card as a solver reads."""
    card = {"suite": suite, "planner": suites.get(suite).planner, **card}
    return save_policy(trained.WEIGHTS / "rnn" / f"{suite}.safetensors", suite, **card)


def save_run(folder, seed=0, best=1.5, suite="dlrm-10x4", **card):
    """The folder that a run leaves."""
    save_policy(folder / "best.safetensors", suite, seed)
    told = {"learner": "rnn", "suite": suite, "planner": suites.get(suite).planner, "seed": seed, "config": CONFIG}
    took = {"iteration": 7, "best": best, "best_at": 5, "steps": 1_000, "simulator_calls": 100, "seconds": 90.0}
    command = f"shard-gym train rnn --suite {suite} --out={folder} --seed {seed} --updates 1"
    (folder / "card.json").write_text(json.dumps({**told, "progress": took, "command": command, **card}))
    return folder
