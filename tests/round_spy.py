"""An agent that looks for the secret and the tasks of a round, and tells what it reads in an error."""

from contextlib import suppress
from pathlib import Path

from shard_gym import Plan

FOLDER = Path(__file__).parent


class Spy:
    """Looks around its own folder, where the round lies too."""

    def __call__(self, task, planner):
        read = ""
        for path in [*FOLDER.rglob("*secret*"), *FOLDER.rglob("tasks*")]:
            with suppress(OSError):
                read += path.read_text()
        if read:
            raise ValueError(f"read {read:.80}")
        return Plan(tuple(t % task.num_devices for t in range(task.num_tables)))
