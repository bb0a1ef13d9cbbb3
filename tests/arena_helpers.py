"""Processes of an arena under test."""

from pathlib import Path


def processes_of(folder):
    """Processes that have the folder on their command line, as all have that a nursery with it on its path forked."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:  # gone meanwhile
            continue
    return found
