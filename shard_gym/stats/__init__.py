"""What a plan puts on each rank, in TorchRec's words, and how each number comes about: `shard-gym stats`.

from shard_gym.stats import Budget, plan_stats, report

stats = plan_stats(task, plan, simulator, accounting="torchrec", budget=Budget(80 * GB, reserve=Reserve(0.15)))
print(report(stats))
"""

from shard_gym.stats.explain import Explanation, explain
from shard_gym.stats.imbalance import Imbalance, imbalance
from shard_gym.stats.plans import plan_stats, setup_of, tables_of
from shard_gym.stats.text import report
from shard_gym.stats.values import Budget, Phases, Stats
from shard_gym.stats.why import Room, room

__all__ = [
    "Budget",
    "Explanation",
    "Imbalance",
    "Phases",
    "Room",
    "Stats",
    "explain",
    "imbalance",
    "plan_stats",
    "report",
    "room",
    "setup_of",
    "tables_of",
]
