"""Infos of many environments, some of it made only when it is looked at."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, Sequence, ValuesView
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Later:
    """A value not made yet."""

    make: Callable[[], Any]


class Infos(dict[str, Any]):
    """A dict in which a `Later` is made when it is first looked at; gymnasium's wrappers want a real dict.

    A plan for each of a thousand finished episodes takes longer than all their steps, and most are never read.
    """

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if isinstance(value, Later):
            value = self[key] = value.make()
        return value

    def __iter__(self) -> Iterator[str]:  # with one of our own, dict(infos) and {**infos} go by __getitem__ too
        return super().__iter__()

    def get(self, key: str, default: Any = None) -> Any:
        """As a dict's."""
        return self[key] if key in self else default  # noqa: SIM401

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        """As a dict's."""
        return ItemsView(self)

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        """As a dict's."""
        return ValuesView(self)

    def pop(self, key: str, *default: Any) -> Any:
        """As a dict's."""
        if key in self:
            self[key]  # made
        return super().pop(key, *default)

    def copy(self) -> dict[str, Any]:
        """As a dict's."""
        return dict(self)

    def __repr__(self) -> str:
        return repr(dict(self))


def objects(values: Sequence[Any]) -> np.ndarray:
    """A flat array of these, whatever they are."""
    return np.fromiter(values, object, len(values))


def spread_out(values: np.ndarray, envs: np.ndarray, num_envs: int) -> np.ndarray:
    """Values of some environments in an array of all, as gymnasium tells them: 0, or None, for the others."""
    shape = (num_envs, *values.shape[1:])
    out = np.full(shape, None) if values.dtype == object else np.zeros(shape, values.dtype)
    out[envs] = values
    return out
