"""Other people's learners and tests on our environments.

    python -m benchmarks.clients sb3 [--seconds 60] [--source FOLDER]

Makes an environment of the client's own (.venv-clients/NAME) with what it pins, runs `benchmarks/programs/NAME.py` in
it, and puts what that finds beside what is kept of the other clients in benchmarks/results/clients.json and clients.md.
Code that is on no package index is looked for in --source.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import pages
from benchmarks.pages import Row
from shard_gym.errors import ShardGymError, UnknownName
from shard_gym.measuring.host import hardware
from shard_gym.records.commands import seconds
from shard_gym.records.files import read_json, write_whole

SCHEMA = "clients/1"
ROOT = Path(__file__).parents[2]
PLACE = ROOT / ".venv-clients"
TORCH = "torch==2.13.0"  # first, so that nothing else decides its build
TRAINING = ("client", "what", "id", "steps", "seconds", "steps/s", "return", "random", "cost-greedy", "x greedy")
TESTS = ("client", "what", "passed", "failed", "skipped")
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class ClientFailed(ShardGymError):
    """A client could not be installed, or its program ended without a result."""


@dataclass(frozen=True)
class Client:
    """Somebody else's code, and how it is installed."""

    about: str
    needs: tuple[str, ...]  # of the package index, beside torch
    source: str = ""  # what --source is a checkout of


CLIENTS = {
    "gymnasium": Client(
        "Gymnasium's own tests",
        ("gymnasium==1.4.0", "pytest==9.2.0", "pytest-mock", "scipy", "pygame-ce"),
        source="Gymnasium 1.4.0 (its folder `tests`)",
    ),
    "sb3": Client("Stable-Baselines3", ("stable-baselines3==2.9.2", "sb3-contrib==2.9.2")),
    "rl_zoo3": Client("RL Baselines3 Zoo", ("rl-zoo3==2.9.2",)),
    "cleanrl": Client("CleanRL", ("tyro", "tensorboard"), source="CleanRL (its file `cleanrl/ppo.py`)"),
    "rllib": Client("RLlib", ("ray[rllib]==2.60.0",)),
    "torchrl": Client("TorchRL", ("torchrl==0.14.1",)),
    "tianshou": Client("Tianshou", ("tianshou[eval]==2.0.1",)),
    "pufferlib": Client(
        "PufferLib",
        ("gym==0.23.1", "psutil", "rich", "rich-argparse", "pyro-ppl", "ninja", "setuptools"),
        source="PufferLib 3.0.0 (its source distribution, unpacked)",
    ),
    "minari": Client("Minari", ("minari[hdf5,create]==0.5.4", "pillow")),
}


def python_of(name: str) -> Path:
    """The Python of a client's environment, which is made if it is not there or was made for other versions."""
    folder, needs = PLACE / name, [TORCH, *CLIENTS[name].needs]
    python, stamp = folder / "bin" / "python", folder / "needs.json"
    if stamp.exists() and read_json(stamp) == needs:
        return python
    install = [python, "-m", "pip", "install", "--quiet"]
    for command in (
        [sys.executable, "-m", "venv", "--clear", folder],
        [*install, TORCH],
        [*install, *needs, "-e", ROOT],
    ):
        done = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.lower().startswith("error")]
            raise ClientFailed(f"pip: {' '.join(errors or ['failed'])}")
    write_whole(stamp, json.dumps(needs))
    return python


def found_by(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Versions and rows of the client's program, run in a folder that is thrown away."""
    client, source = CLIENTS[name], options.source
    if client.source and not (source and source.is_dir()):
        raise ClientFailed(f"{client.about} is in no package: give --source FOLDER, a checkout of {client.source}")
    try:
        python = python_of(name)
    except ClientFailed as failed:  # a result like another
        return {"versions": {}, "rows": [{"what": "installation", "error": str(failed)}]}
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        given = ["--seconds", str(options.seconds), "--out", found, *(("--source", source.resolve()) if source else ())]
        code = call(python, f"benchmarks.programs.{name}", given, folder)
        if code or not found.exists():
            raise ClientFailed(f"the program of {client.about} ended with {code}: see above")
        return dict(read_json(found))


def call(python: Path, program: str, arguments: Sequence[str | Path], folder: str | Path) -> int:
    """The exit code of a program, with one thread and with the modules of this checkout."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "agents")])
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": path}
    return subprocess.run([python, "-m", program, *arguments], cwd=folder, env=environment).returncode


def measure(options: argparse.Namespace) -> pages.Found:
    """Rows of the client's program, beside those that are kept of others."""
    if options.name not in CLIENTS:
        raise UnknownName("client", options.name, CLIENTS)
    about = {"command": _command(options), "machine": hardware("cpu")["device"]}
    row = {**about, **found_by(options.name, options)}
    kept = options.out / "clients.json"
    found = {**(pages.kept_of(kept, SCHEMA)["clients"] if kept.exists() else {}), options.name: row}
    return {"command": about["command"], "clients": {name: found[name] for name in CLIENTS if name in found}}


def _command(options: argparse.Namespace) -> str:
    """The command, without the place where somebody keeps a checkout."""
    source = " --source FOLDER" if options.source else ""
    return f"python -m benchmarks.clients {options.name} --seconds {options.seconds:g}s{source}"


def page(found: pages.Found) -> str:
    """The page."""
    clients: dict[str, dict[str, Any]] = found["clients"]
    rows = [(name, row) for name, client in clients.items() for row in client["rows"]]
    lines = [
        "# Clients",
        "",
        "Other people's learners and tests, unchanged, each by `python -m benchmarks.clients NAME` in an environment",
        "of its own, with one thread. Return: of the policy's likeliest actions on 100 episodes of test tasks, beside",
        "random legal devices and cost-greedy on the same; x greedy: over cost-greedy's, so over 1 is slower. Seconds",
        "and steps a second are of CPU time, training included; PPO of SB3 and CleanRL have more seconds than others.",
        "",
        *pages.table(
            ("client", "versions", "machine", "command"), [_told(name, client) for name, client in clients.items()]
        ),
        "",
        "## Training",
        "",
        *pages.table(TRAINING, [_training(name, row) for name, row in rows if "steps" in row]),
        "",
        *(f"- {CLIENTS[name].about}, {row['what']}: `{row['settings']}`" for name, row in rows if "steps" in row),
        "",
        "## Tests",
        "",
        "What fails asks CartPole for its gravity, or takes keys of infos for dicts: true where infos are empty.",
        "",
        *pages.table(TESTS, [_tests(name, row) for name, row in rows if "passed" in row]),
        "",
        *(f"- {count} x {failure}" for _, row in rows for failure, count in _failures(row).items()),
        "",
        "## What does not work",
        "",
        *([f"- {CLIENTS[name].about}, {row['what']}: {row['error']}" for name, row in rows if "error" in row] or ["-"]),
        "",
    ]
    return "\n".join(lines)


def _told(name: str, client: dict[str, Any]) -> tuple[str, ...]:
    versions = ", ".join(f"{package} {number}" for package, number in client["versions"].items())
    return CLIENTS[name].about, versions, client["machine"], f"`{client['command']}`"


def _training(name: str, row: Row) -> list[str]:
    speed = f"{row['steps'] / row['seconds']:,.0f}" if row["seconds"] else ""
    cells = [CLIENTS[name].about, row["what"], row["id"], f"{row['steps']:,}", f"{row['seconds']:.0f}", speed]
    if "return" not in row:
        return [*cells, "", "", "", ""]
    returns = (row["return"], row["random"], row["greedy"])
    return [*cells, *(f"{value:.4f}" for value in returns), f"{row['return'] / row['greedy']:.3f}"]


def _tests(name: str, row: Row) -> list[str]:
    return [CLIENTS[name].about, row["what"], *(f"{row[outcome]:,}" for outcome in ("passed", "failed", "skipped"))]


def _failures(row: Row) -> Counter[str]:
    """Count of each failed test and message, over the parameters of the test."""
    return Counter(re.sub(r"\[.*?\]:", ":", failure, count=1) for failure in row.get("failures", ()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a client and write the page."""
    made = pages.parser("clients", __doc__)
    made.add_argument("name", nargs="?", default="", metavar="NAME", help=f"one of {', '.join(CLIENTS)}")
    made.add_argument("--seconds", type=seconds, default=60.0, metavar="TIME", help="CPU time of a training: 20s, 5m")
    made.add_argument("--source", type=Path, metavar="FOLDER", help="checkout of a client that is on no package index")
    return pages.run(made, measure, page, arguments, schema=SCHEMA)


if __name__ == "__main__":
    sys.exit(main())
