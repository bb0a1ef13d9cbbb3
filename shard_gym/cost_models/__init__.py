"""Networks that predict what a shard costs, fitted to measurements. Only fitting needs torch."""

from shard_gym.cost_models.networks import ARCHITECTURES, make_network
from shard_gym.cost_models.weights import Weights

__all__ = ["ARCHITECTURES", "Weights", "make_network"]
