"""How far predictions are from measurements."""

from __future__ import annotations

import numpy as np

NORMAL_90 = 1.6449  # standard deviations on either side that hold 90 % of a normal distribution


def errors(predicted: np.ndarray, measured: np.ndarray) -> dict[str, float]:
    """MAE and MSE in ms, MAPE, bias (mean of predicted / measured - 1) and Spearman's rank correlation."""
    gap, relative = predicted - measured, predicted / measured - 1
    return {
        "mae_ms": float(abs(gap).mean()),
        "mse_ms2": float((gap**2).mean()),
        "mape": float(abs(relative).mean()),
        "bias": float(relative.mean()),
        "spearman": spearman(predicted, measured),
    }


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Rank correlation; equal values share the mean of their ranks."""
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def coverage(predicted: np.ndarray, spread: np.ndarray, measured: np.ndarray) -> float:
    """Share of measurements inside the 90 % interval around their prediction."""
    return float((abs(measured - predicted) <= NORMAL_90 * spread).mean())


def _ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]
