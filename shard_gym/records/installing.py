"""Commands that install what an extra brings, as they work where this package came from."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

NAME, CHECKOUT = "shard-gym", Path(__file__).parents[2]


def install(extra: str, checkout: Path = CHECKOUT) -> str:
    """The command that installs an extra: of the checkout, or else the packages that an installed wheel names for it.

    No package index is known to have this package, so a wheel's own name would install nothing.
    """
    if (checkout / "pyproject.toml").exists():
        where = "." if checkout == Path.cwd() else str(checkout)
        return f'pip install -e "{where}[{extra}]"'
    found = [_quoted(one) for one in _requirements() if (told := _EXTRA.search(one)) and told[1] == extra]
    return f"pip install {' '.join(found)}" if found else f'pip install "{NAME}[{extra}]"'


_EXTRA = re.compile(r""";.*\bextra == ['"]([^'"]+)['"]""")


def _requirements() -> list[str]:
    try:
        return metadata.requires(NAME) or []
    except metadata.PackageNotFoundError:
        return []


def _quoted(requirement: str) -> str:
    needed = requirement.partition(";")[0].strip()
    return f'"{needed}"' if re.search(r"[<>~!*\[ ]", needed) else needed
