"""Write the makespans of the best known plans, without the plans, for the wheel: `python -m benchmarks.makespans`

To be run after the best known plans changed; a test tells when.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from benchmarks import RESULTS
from shard_gym.records.files import read_json, write_whole
from shard_gym.task import suites
from shard_gym_agents.leaderboard import references

FILE = Path(references.__file__).parent / references.SHIPPED


def best_makespans() -> dict[str, np.ndarray]:
    """The best known makespans of test tasks in ms, in the order of the tasks, by `suite/judge`."""
    found = {}
    for path in sorted((RESULTS / "best_known").glob("*.json")):
        tasks = suites.get(path.stem).tasks("test")
        for judge, known in read_json(path)["best"].items():
            told = [known[task.hash]["makespan"] if task.hash in known else np.nan for task in tasks]
            found[f"{path.stem}/{judge}"] = np.array(told, float)
    return found


def main() -> None:
    """Write the file."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **best_makespans())
    write_whole(FILE, buffer.getvalue())
    print(f"{FILE.name}: {len(buffer.getvalue()) / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
