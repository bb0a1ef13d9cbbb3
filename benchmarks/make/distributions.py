"""Distributions of a release, looked into: versions, names, sizes, metadata, and the compiled core."""

from __future__ import annotations

import re
import tarfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from zipfile import ZipFile

from shard_gym.errors import ShardGymError

MOST_BYTES = 15_000_000  # of a file
TOP = {"shard_gym", "shard_gym_agents"}
HEADING = re.compile(r"^## \[([^\]]+)\](?: - (\S+))?$", re.MULTILINE)
UNWANTED = ("best_known", "__pycache__", ".pyc", ".begun", ".lock")
CORE = "shard_gym/core/_compiled"
NEEDED = {"pyproject.toml", "setup.py", "README.md", "LICENSE", "shard_gym/core/core.c"}  # of a source distribution


class ReleaseRefused(ShardGymError):
    """A release that cannot be made as things are; the message says why."""


def version_of(root: Path) -> str:
    """The version that a checkout tells, the same at all places."""
    told = versions(root)
    if len(set(told.values())) > 1:
        places = ", ".join(f"{version} in {name}" for name, version in told.items())
        raise ReleaseRefused(f"one version is wanted, found {places}")
    return told["pyproject.toml"]


def versions(root: Path) -> dict[str, str]:
    """The version at each place that tells one; of the changelog the topmost."""
    found = {
        "CHANGELOG.md": HEADING,
        "CITATION.cff": re.compile(r"^version: (\S+)$", re.MULTILINE),
        "shard_gym/__init__.py": re.compile(r'^__version__ = "(.+)"$', re.MULTILINE),
    }
    told = {"pyproject.toml": str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])}
    for name, line in found.items():
        match = line.search((root / name).read_text())
        told[name] = match[1] if match else "none"
    return told


def check_wheel(wheel: Path, version: str, has_core: bool) -> None:
    """Refuse a wheel that is not what a release promises."""
    with ZipFile(wheel) as packed:
        names = packed.namelist()
        (about,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        check_metadata(packed.read(about), version)
        programs = packed.read(about.replace("METADATA", "entry_points.txt")).decode()
    check_names(wheel, names)
    if odd := sorted({name.split("/")[0] for name in names} - TOP - {about.split("/")[0]}):
        raise ReleaseRefused(f"{wheel.name} has {odd[0]}, and is to have {' and '.join(sorted(TOP))} only")
    tag, cores = wheel.stem.split("-", 2)[2], [name for name in names if name.startswith(CORE)]
    fits = tag.startswith("cp311-abi3-") if has_core else tag == "py3-none-any"
    if not fits or bool(cores) != has_core:
        wanted = "one is, for cp311-abi3: is there a C compiler?" if has_core else "none is, for every platform"
        raise ReleaseRefused(f"{wheel.name}: {len(cores)} compiled cores, where {wanted}")
    if "shard-gym = " not in programs:
        raise ReleaseRefused(f"{wheel.name} has no command shard-gym")


def check_sdist(sdist: Path, version: str) -> None:
    """Refuse a source distribution that lacks what wheels are built of, or has what was built."""
    with tarfile.open(sdist) as packed:
        names = [name.partition("/")[2] for name in packed.getnames()]
        about = packed.extractfile(f"{packed.getnames()[0].split('/')[0]}/PKG-INFO")
        check_metadata(about.read() if about else b"", version)
    check_names(sdist, names)
    if missing := NEEDED - set(names):
        raise ReleaseRefused(f"{sdist.name} lacks {', '.join(sorted(missing))}")
    if built := [name for name in names if name.endswith((".so", ".pyd"))]:
        raise ReleaseRefused(f"{sdist.name} has {built[0]}, which was built here")


def check_names(file: Path, names: Sequence[str]) -> None:
    """Refuse files that are too large, or hold what stays in the checkout."""
    if (size := file.stat().st_size) >= MOST_BYTES:
        raise ReleaseRefused(f"{file.name} has {size / 1e6:.1f} MB, {MOST_BYTES / 1e6:.0f} at most")
    if odd := [name for name in names if any(word in name for word in UNWANTED)]:
        raise ReleaseRefused(f"{file.name} has {odd[0]}, and {len(odd) - 1} more that stay in the checkout")


def check_metadata(content: bytes, version: str) -> None:
    """Refuse metadata that an index would refuse, or that says other than the release."""
    from packaging.metadata import Metadata

    try:
        found = Metadata.from_email(content, validate=True)
    except ExceptionGroup as error:
        raise ReleaseRefused(f"metadata: {'; '.join(map(str, error.exceptions))}") from error
    if (found.name, str(found.version)) != ("shard-gym", version):
        raise ReleaseRefused(f"metadata are of {found.name} {found.version}, not of shard-gym {version}")
    texts = {"summary": found.summary, "README": found.description, "licence": found.license_expression}
    if missing := [name for name, text in texts.items() if not text]:
        raise ReleaseRefused(f"metadata have no {missing[0]}")
    if found.description_content_type != "text/markdown":
        raise ReleaseRefused(f"the README is {found.description_content_type}, not text/markdown")
