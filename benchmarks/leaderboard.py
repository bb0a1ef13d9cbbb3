"""Run agents on suites and rank them: `python -m benchmarks.leaderboard --agent my_module:MyAgent`.

A run with the published settings writes to benchmarks/results, any other one to runs/leaderboard or `--out`.
"""

import sys

from benchmarks import RESULTS
from shard_gym_agents.leaderboard import command


def main(arguments: list[str] | None = None) -> int:
    """The leaderboard of this repository."""
    given = sys.argv[1:] if arguments is None else arguments
    return command.main(given, "python -m benchmarks.leaderboard", RESULTS)


if __name__ == "__main__":
    sys.exit(main())
