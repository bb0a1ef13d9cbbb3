"""What other people's learners and tests make of the environments.

    python -m benchmarks.clients sb3 [--seconds 60] [--source FOLDER]

Makes an environment of the client's own (.venv-clients/NAME) with what it pins, runs `benchmarks/programs/NAME.py` in
it, and puts what that finds beside what is kept of the other clients in benchmarks/results/clients.json and clients.md.
Code that is on no package index is looked for in --source. Without a name it lists the clients.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import pages
from benchmarks.pages import Row
from shard_gym.errors import ShardGymError, UnknownName
from shard_gym.records.commands import seconds
from shard_gym.records.files import read_json, write_whole

SCHEMA = "clients/1"
ROOT = Path(__file__).parents[2]
PLACE = ROOT / ".venv-clients"
TORCH = "torch==2.13.0"  # first, so that nothing else decides its build
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
    "torchrl": Client("TorchRL", ("torchrl==0.14.1", "tensordict==0.15.3")),
    "tianshou": Client("Tianshou", ("tianshou==2.0.1",)),
    "minari": Client("Minari", ("minari[hdf5,create]==0.5.4", "pillow")),
    "pufferlib": Client("PufferLib", ("pufferlib==3.0.0",)),
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
            raise ClientFailed(f"{CLIENTS[name].about} cannot be installed: {_last_line(done.stderr)}")
    write_whole(stamp, json.dumps(needs))
    return python


def rows_of(name: str, limit: float, source: Path | None) -> list[Row]:
    """What the client's program finds, run in a folder that is thrown away."""
    client, program = CLIENTS[name], f"benchmarks.programs.{name}"
    if client.source and not (source and source.is_dir()):
        raise ClientFailed(f"{client.about} are in no package: give --source FOLDER, a checkout of {client.source}")
    python = python_of(name)
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "rows.json"
        command: list[str | Path] = [python, "-m", program, "--seconds", str(limit), "--out", found]
        command += ["--source", source.resolve()] if source else []
        path = os.pathsep.join([str(ROOT), str(ROOT / "agents")])
        done = subprocess.run(command, cwd=folder, env={**os.environ, **ONE_THREAD, "PYTHONPATH": path})
        if done.returncode or not found.exists():
            raise ClientFailed(f"the program of {client.about} ended with {done.returncode}: see above")
        return list(read_json(found))


def measure(options: argparse.Namespace) -> pages.Found:
    """Rows of the client, beside those that are kept of others."""
    name = options.name
    if name not in CLIENTS:
        raise UnknownName("client", name, CLIENTS)
    kept = options.out / "clients.json"
    before = pages.kept_of(kept, SCHEMA)["clients"] if kept.exists() else {}
    try:
        rows = rows_of(name, options.seconds, options.source)
    except ClientFailed as failed:
        if "cannot be installed" not in str(failed):
            raise
        rows = [{"what": "install", "error": str(failed)}]
    found = {**before, name: rows}
    return {"clients": {each: found[each] for each in CLIENTS if each in found}}
