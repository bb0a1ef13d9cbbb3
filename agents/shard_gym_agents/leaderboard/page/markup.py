"""HTML and SVG as text; whatever others wrote is shown as text, never read as markup."""

from __future__ import annotations

import html
import json
from typing import Any

from shard_gym.records.escape import plain

LONGEST_NAME = 60  # characters of an agent's name that tables and charts show


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """An element. `class_` is its class and `data_v` its data-v; False and None leave an attribute out."""
    opened = "".join(_attribute(key, value) for key, value in attributes.items())
    return Markup(f"<{name}{opened}>{join(*children)}</{name}>")


def void(name: str, **attributes: object) -> Markup:
    """An element that holds nothing, as `<input/>`."""
    return Markup(f"<{name}{''.join(_attribute(key, value) for key, value in attributes.items())}/>")


def join(*children: object) -> Markup:
    """Children side by side; None is nothing."""
    return Markup("".join(escaped(child) for child in children if child is not None))


def escaped(value: object) -> str:
    """A value as HTML; what is no markup becomes harmless text."""
    return value if isinstance(value, Markup) else html.escape(plain(str(value)))


def short(text: str, longest: int = LONGEST_NAME) -> str:
    """The beginning of a long text, in printable characters."""
    shown = plain(text[: longest + 1])
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def number(value: float, digits: int = 1) -> str:
    """A coordinate in few characters."""
    return f"{value:.{digits}f}".rstrip("0").rstrip(".") if digits else f"{value:.0f}"


def data(value: Any) -> Markup:
    """JSON that stays inside its `<script>`, whatever texts it holds."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escaped(value)}"'
