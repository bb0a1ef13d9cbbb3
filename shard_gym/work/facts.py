"""Facts of a machine that all nodes of a cluster must share. Standard library alone: it is sent to nodes as it is."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

ABSENT = "none"
BUILT = (".so", ".pyd")  # compiled on each machine, from sources that are compared


def tell(packages: Sequence[str], modules: Sequence[str]) -> dict[str, str]:
    """Versions, a digest of the files of each of our packages, and whether modules that are needed can be found."""
    found = {"Python": platform.python_version()}
    found |= {name: _version(name) for name in ("ray", "numpy")}
    found |= {name: _digest(name) for name in packages}
    return found | {f"module {name}": "there" if find_spec(name) else ABSENT for name in modules}


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ABSENT


def _digest(package: str) -> str:
    """Hash of all files of a package, weights and tables too."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return ABSENT
    folder, digest = Path(spec.origin).parent, hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix not in BUILT):
        if "__pycache__" not in path.parts:
            digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def compared(here: Mapping[str, str], packages: Sequence[str], modules: Sequence[str]) -> str:
    """Words on what is other on this machine than what was told of another one; empty where both may work together."""
    return difference(here, tell(packages, modules))


def difference(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """Words on what is other there than here, and what helps; empty where both may work together."""
    lacking = [key.removeprefix("module ") for key in there if key.startswith("module ") and there[key] == ABSENT]
    if lacking:
        return f"lacks {', '.join(lacking)}: install there what the work needs"
    other = [key for key in here if not key.startswith("module ") and here[key] != there.get(key, ABSENT)]
    told = ", ".join(f"{key} {there.get(key, ABSENT)} (here {here[key]})" for key in other)
    return f"has {told}: install the same versions on all nodes" if told else ""
