"""Limits of a training run. Needs no torch, so that a command line can be made without it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Limits of a run, and how often it is validated and kept."""

    iterations: int = 200  # at most
    validate_every: int = 10  # iterations
    patience: int = 20  # validations without a better one before training stops
    checkpoint_seconds: float = 30.0  # seconds from one checkpoint to the next
