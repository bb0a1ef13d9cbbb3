"""Text of others, agents' names and errors for example, made harmless for terminals and pages."""

from __future__ import annotations

import unicodedata

_UNPRINTED = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}  # controls, directions, surrogates, lines: as escapes
_MARKUP = {ord(c): f"&#{ord(c)};" for c in "|<>&`"}


def plain(text: str, keep: str = "") -> str:
    """Printable text in one line: what would move a cursor, turn a direction or fail to print becomes an escape."""
    if text.isprintable():
        return text
    return "".join(c if c in keep or unicodedata.category(c) not in _UNPRINTED else _escape(c) for c in text)


def markdown(text: str) -> str:
    """The same as a cell of a Markdown table, without links, tags and markup."""
    return plain(text).translate(_MARKUP).replace("](", "]&#40;")


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()
