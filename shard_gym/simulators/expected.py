"""The expected time of the slowest device, where each one's is known to a spread."""

from __future__ import annotations

import numpy as np

# Abramowitz and Stegun, 7.1.26: erf to 1.5e-7
_P, _A = 0.3275911, (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
TINY = 1e-12


def expected_max(mean: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Mean of the largest of K independent normal times, (..., K) means and standard deviations -> (...).

    The largest so far is taken to be normal again (Clark 1961): exact for two devices, and
    close for more.
    """
    mean, spread = np.broadcast_arrays(np.asarray(mean, np.float64), np.asarray(spread, np.float64))
    order = np.argsort(mean, axis=-1)  # the answer does not depend on the order that devices come in
    mean, spread = np.take_along_axis(mean, order, -1), np.take_along_axis(spread, order, -1)
    largest, variance = mean[..., 0], spread[..., 0] ** 2
    for k in range(1, mean.shape[-1]):
        largest, variance = _larger(largest, variance, mean[..., k], spread[..., k] ** 2)
    return largest


def _larger(
    one: np.ndarray, one_variance: np.ndarray, other: np.ndarray, other_variance: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of the larger of two independent normal numbers."""
    apart = np.sqrt(one_variance + other_variance) + TINY
    at = (one - other) / apart
    share, density = _normal(at), np.exp(-(at**2) / 2) / np.sqrt(2 * np.pi)
    mean = one * share + other * (1 - share) + apart * density
    square = (one**2 + one_variance) * share + (other**2 + other_variance) * (1 - share)
    square += (one + other) * apart * density
    return mean, np.maximum(square - mean**2, 0.0)


def _normal(at: np.ndarray) -> np.ndarray:
    """Share of a standard normal below these values."""
    t = 1 / (1 + _P * np.abs(at) / np.sqrt(2))
    tail = t * (_A[0] + t * (_A[1] + t * (_A[2] + t * (_A[3] + t * _A[4])))) * np.exp(-(at**2) / 2) / 2
    return np.where(at < 0, tail, 1 - tail)
