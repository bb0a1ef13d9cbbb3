"""Train the policy: `python -m my_agent.train`. Some seconds on one core; the same seed gives the same file."""

import hashlib
import re
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from my_agent.policy import SUITE, WEIGHTS, play
from shard_gym import env_for, suites

CARD = Path(__file__).parents[1] / "card.toml"


def train(seed: int = 0, episodes: int = 120, rate: float = 0.05) -> tuple[np.ndarray, list[float]]:
    """Weights and the returns of all episodes: REINFORCE, its baseline the mean of the returns so far."""
    env, rng = env_for(suites.get(SUITE).tasks("train"), SUITE, observation="ahead"), np.random.default_rng(seed)
    env.reset(seed=seed)
    weights, returns = rng.normal(0, 0.1, 3), []
    for _ in range(episodes):
        paid, gradient = play(env, weights, rng)
        if returns:
            weights = weights + rate * (paid - np.mean(returns[-20:])) * gradient
        returns.append(paid)
    return weights, returns


def main() -> None:
    """Train, and write the weights and their hash."""
    weights, returns = train()
    content = save({"devices": weights})
    WEIGHTS.write_bytes(content)
    line = f'checkpoints = ["{hashlib.sha256(content).hexdigest()}"]'
    CARD.write_text(re.sub(r"(?m)^checkpoints = .*$", line, CARD.read_text()))
    print(
        f"mean return {np.mean(returns[:30]):.3f} at first, {np.mean(returns[-30:]):.3f} at last; wrote {WEIGHTS.name}"
    )


if __name__ == "__main__":
    main()
