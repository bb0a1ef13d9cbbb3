"""Files that are either whole or not there."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from shard_gym.records.guard import parsed_json, text_of
from shard_gym.records.locks import locked

DATA = Path(__file__).parents[1] / "data"  # what comes with the package
BEGUN = ".begun"  # how the names of files end that are not whole yet


def write_whole(path: str | Path, content: str | bytes, mode: int = 0o644) -> None:
    """Write beside `path` and rename, so that a crash leaves the old file or the new one; `mode` says who may read."""
    with whole(path, mode) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def whole(path: str | Path, mode: int = 0o644) -> Iterator[IO[bytes]]:
    """A file to write to that takes the place of `path` when it is whole; what killed processes left goes.

    A link stays one, the file that it leads to is written. A device or a folder is refused.
    """
    path = _target(Path(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path)
    file, beside = _begun(path)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.chmod(beside, mode)
            os.replace(beside, path)
        sync_folder(path.parent)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(beside)
        raise


def sync_folder(folder: Path) -> None:
    """Force a folder's names to disk, so that a rename outlives a loss of power."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows opens no folders
        return
    try:
        os.fsync(handle)
    except OSError:  # some file systems cannot
        pass
    finally:
        os.close(handle)


def json_sha256(data: Any) -> str:
    """The hash of what JSON holds, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def read_json(path: str | Path) -> Any:
    """The content of a JSON file; says where it breaks off when it does."""
    return parsed_json(text_of(path), f"{path} is not JSON")


def _target(path: Path) -> Path:
    """The path without links; what is there must be a plain file, or nothing."""
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        raise FileExistsError(f"{path} is a folder, a device or a pipe, and no file that could be written")
    return path


def _begun(path: Path) -> tuple[IO[bytes], str]:
    """A new file beside `path`, locked, so that who sweeps sees that it is in work; and its name."""
    while True:
        handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=BEGUN)
        file = os.fdopen(handle, "wb")
        locked(file, wait=True)
        if os.path.exists(beside):  # not swept before it was locked
            return file, beside
        file.close()


def _sweep(path: Path) -> None:
    """Remove what killed processes left of `path`: files that were begun and that nobody holds any more."""
    for left in path.parent.glob(f".{_literal(path.name)}.*{BEGUN}"):
        with suppress(OSError), left.open("rb") as file:
            if locked(file, wait=False):
                left.unlink()


def _literal(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)
