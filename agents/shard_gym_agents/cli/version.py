"""Versions: of this package, of its core, and of the packages that its extras bring. Imports none of these."""

from __future__ import annotations

import argparse
import platform
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from shard_gym import __version__, core
from shard_gym.records import commands
from shard_gym.results import commit_here

NEEDED = ("numpy", "gymnasium", "safetensors")
BACKENDS = {  # module: its distributions, the first that is there counts
    "torch": ("torch",),
    "fbgemm_gpu": ("fbgemm-gpu-cpu", "fbgemm-gpu"),
    "torchrec": ("torchrec",),
    "highspy": ("highspy",),
    "ray": ("ray",),
    "stable_baselines3": ("stable-baselines3",),
    "sb3_contrib": ("sb3-contrib",),
    "pyarrow": ("pyarrow",),
    "matplotlib": ("matplotlib",),
}


def tell(as_json: bool) -> int:
    """Print the versions; the exit code."""
    told = facts()
    commands.answer(argparse.Namespace(json=as_json), "version/1", lambda: told, lambda: text(told))
    return 0


def facts() -> dict[str, Any]:
    """Versions by name; null for what is not there."""
    return {
        "version": __version__,
        "commit": commit_here(),
        "core": core.name(),
        "python": platform.python_version(),
        "packages": {name: _version(name, (name,)) for name in NEEDED},
        "backends": {name: _version(name, distributions) for name, distributions in BACKENDS.items()},
    }


def text(told: dict[str, Any]) -> str:
    """The same in some lines."""
    lines = [f"shard-gym {told['version']}, core {told['core']}"]
    lines += [f"commit {told['commit']}"] if told["commit"] else []
    packages = {"python": told["python"], **told["packages"]}
    lines.append(", ".join(f"{name} {number}" for name, number in packages.items()))
    there = [f"{name} {number}" for name, number in told["backends"].items() if number]
    lines += [f"backends: {', '.join(there) or 'none'}"]
    absent = [name for name, number in told["backends"].items() if not number]
    return "\n".join([*lines, *([f"not installed: {', '.join(absent)}"] if absent else [])])


def _version(module: str, distributions: tuple[str, ...]) -> str | None:
    """The version that the package's own files tell; "?" if it was unpacked without these."""
    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "?" if find_spec(module) else None
