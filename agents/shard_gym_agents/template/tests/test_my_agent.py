import hashlib
from pathlib import Path

import numpy as np
import pytest
from my_agent import Greedy, Policy
from my_agent.policy import SUITE, WEIGHTS
from my_agent.train import train

from shard_gym import simulators, suites
from shard_gym.results.evaluate import score
from shard_gym_agents.leaderboard.entries.card import Card

TASKS = suites.get(SUITE).tasks("val")[:3]
PLANNER = simulators.make(suites.get(SUITE).planner)


@pytest.mark.parametrize("agent", [Greedy, Policy])
def test_plans_fit_repeat_and_beat_random_ones(agent):
    random = suites.get(SUITE).random_makespans("val")
    for task, makespan in zip(TASKS, random, strict=False):
        plan = agent()(task, PLANNER)
        found = score(task, plan, PLANNER)
        assert found.feasible and found.makespan < makespan
        assert agent()(task, PLANNER) == plan


def test_training_learns_and_repeats():
    weights, returns = train(seed=1, episodes=60)
    assert np.mean(returns[-20:]) > np.mean(returns[:20])
    assert np.array_equal(weights, train(seed=1, episodes=60)[0])


def test_the_card_is_whole_and_tells_the_weights():
    card = Card.load(Path(__file__).parents[1] / "card.toml")
    assert card.checkpoints == (hashlib.sha256(WEIGHTS.read_bytes()).hexdigest(),)
