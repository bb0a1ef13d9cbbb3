"""Survey this host's hardware: `python -m shard_gym.measuring --plan NAME --device cuda --minutes 21 --out DIR`.

Checks the operator, measures shards for a planner and for a judge, fits both, chooses plans, measures them, and writes
DIR/NAME-*: six result files, the plans and a page. Run it again to go on where it was stopped or killed. Needs numpy,
torch, FBGEMM and safetensors only; with `--device cpu` and few minutes it is a rehearsal.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from shard_gym.measuring.measure import add_settings, settings_of
from shard_gym.measuring.noise import limit_of
from shard_gym.measuring.survey import MINUTES, Stopped, Survey
from shard_gym.records import commands
from shard_gym.records.commands import seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the survey."""
    made = commands.parser("python -m shard_gym.measuring", __doc__)
    made.add_argument("--plan", type=_name, required=True, metavar="NAME", help="what to call the hardware")
    made.add_argument("--out", type=Path, required=True, help="folder of the survey; the same folder resumes it")
    total = sum(MINUTES.values())
    made.add_argument(
        "--minutes", type=float, default=total, help="of all stages together; each measures a least number"
    )
    made.add_argument("--stop-after", type=seconds, default=math.inf, help="end this call in good order, such as 9m")
    made.add_argument("--noise", type=float, help="largest median difference of repeats; 0.02, on a CPU 0.3")
    add_settings(made)
    made.set_defaults(clock="thread")
    return commands.run(made, survey, arguments)


def survey(options: argparse.Namespace) -> None:
    """Survey until done, or until this call's time is over."""
    settings = settings_of(options)
    noise = limit_of(settings.device) if options.noise is None else options.noise
    stop_at = time.monotonic() + options.stop_after
    run = Survey(options.plan, options.out, settings, options.minutes, options.workers, noise, stop_at)
    try:
        run.run(_tell)
    except Stopped:
        _tell("stopped: the same command goes on")


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _name(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", text):
        raise argparse.ArgumentTypeError(f"a name has small letters, digits and single dashes, got {text!r}")
    return text


if __name__ == "__main__":
    sys.exit(main())
