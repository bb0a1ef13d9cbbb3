"""Uses of a table's rows in one batch: histograms of 17 bins, and their whole numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

NUM_BINS = 17
# Bin b counts rows used more than BIN_EDGES[b] and at most BIN_EDGES[b + 1] times in a batch.
BIN_EDGES = np.array([0, *(2**b for b in range(16)), np.iinfo(np.int64).max])
LOW = BIN_EDGES[:-1] + 1  # fewest and most uses of a row in each bin
HIGH = BIN_EDGES[1:]
ROUNDING = 1e-3  # shares may be off by as much
UPWARD, DOWNWARD = range(NUM_BINS), range(NUM_BINS - 1, -1, -1)
DRIFT = 0.05  # share of the rows, or of the lookups, that may change bins to make whole numbers fit


def bin_of(counts: np.ndarray) -> np.ndarray:
    """The bin of uses that each count (>= 1) falls in."""
    return np.searchsorted(BIN_EDGES, counts, side="left") - 1


def use_histogram(counts: np.ndarray) -> tuple[int, np.ndarray, np.ndarray]:
    """(distinct, uses, accesses) of a table from how often each touched row is used."""
    counts = counts[counts > 0]
    if not len(counts):
        return 0, np.zeros(NUM_BINS, np.float32), np.zeros(NUM_BINS, np.float32)
    bins = bin_of(counts)
    uses = np.bincount(bins, minlength=NUM_BINS) / len(counts)
    accesses = np.bincount(bins, weights=counts, minlength=NUM_BINS) / counts.sum()
    return len(counts), uses.astype(np.float32), accesses.astype(np.float32)


def spread_evenly(rows: np.ndarray, lookups: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(distinct, uses, accesses) of tables whose lookups, (N,), are spread as evenly as whole numbers allow."""
    distinct = np.minimum(rows, lookups).astype(np.int64)
    uses, accesses = np.zeros((2, len(rows), NUM_BINS), np.float32)
    for i, (d, m) in enumerate(zip(distinct, lookups, strict=True)):
        if d <= 0:
            continue
        low, extra = divmod(int(m), int(d))  # `extra` rows are used once more than the others
        for count, share in ((low, 1 - extra / d), (low + 1, extra / d)):
            if share > 0:
                b = bin_of(np.array(count))
                uses[i, b] += share
                accesses[i, b] += share * d * count / m
    return distinct, uses, accesses


def drawn_counts(
    touched: np.ndarray, looked_up: np.ndarray, share: float, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Expected counts (N, 17) in a share of the batch's samples; bins stay those of the whole batch.

    A row used c times is missed by a share f of the samples with probability (1 - f)**c. In a larger batch, rows
    used once are taken to be new ones each time, as far as a table has `rows` (N,).
    """
    touched, looked_up = touched.astype(np.float64), looked_up * share
    if share < 1:
        return touched * (1 - (1 - share) ** (looked_up / share / np.maximum(touched, 1))), looked_up
    touched[:, 0] = np.minimum(touched[:, 0] * share, rows - touched[:, 1:].sum(axis=1))
    return touched, looked_up


def kept_share(row: np.ndarray, touched: np.ndarray, cache_bytes: float | np.ndarray) -> np.ndarray:
    """Share of each bin's rows, of `row` bytes (N,), that a cache keeps which holds the most used ones, (N, 17).

    A fused kernel walks the tables one after the other, so each has the cache to itself. Of several caches (C, 1, 1)
    at once, (C, N, 17).
    """
    hottest_first = (touched * row[:, None])[:, ::-1]
    room = cache_bytes - (np.cumsum(hottest_first, axis=1) - hottest_first)
    return np.clip(room / np.maximum(hottest_first, 1), 0, 1)[..., ::-1]


def lookup_bounds(touched: np.ndarray, lookups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fewest lookups that rows in each bin make, and the most they can of a table's `lookups` (N,); both (N, 17)."""
    total = lookups[:, None]  # below 2**53; the inner minima keep products from overflowing
    least = np.minimum(touched, 2**57 // LOW) * LOW
    most = np.minimum(np.minimum(touched, total // HIGH + 1) * HIGH, total)
    return least, most


def agree(touched: np.ndarray, looked_up: np.ndarray, distinct: np.ndarray, lookups: np.ndarray) -> np.ndarray:
    """True for tables whose counts (N, 17) add up, with every row's uses inside its bin, (N,)."""
    least, most = lookup_bounds(touched, lookups)
    inside = ((least <= looked_up) & (looked_up <= most)).all(axis=1)
    return inside & (touched.sum(axis=1) == distinct) & (looked_up.sum(axis=1) == lookups)


def fitted_counts(
    uses: np.ndarray, accesses: np.ndarray, distinct: np.ndarray, lookups: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts that `agree`, close to shares (N, 17) that were rounded; and which tables have none within DRIFT."""
    wanted, told = largest_remainders(accesses, lookups), largest_remainders(uses, distinct)
    # as many rows as those lookups need and allow, but no share further away than rounding explains
    rows_off, lookups_off = (np.rint(ROUNDING * total).astype(np.int64)[:, None] for total in (distinct, lookups))
    fewest = np.where(wanted + lookups_off >= LOW, -(-wanted // HIGH), 0)
    most = np.maximum(wanted // LOW, fewest)
    touched = np.clip(np.clip(told, fewest, most), np.maximum(told - rows_off, 0), told + rows_off)
    for low, high in ((np.minimum(fewest, touched), np.maximum(most, touched)), (0 * touched, 2 * touched)):
        touched = touched + share_out(distinct - touched.sum(axis=1), touched, low, np.maximum(high, touched))
    touched = _within_reach(touched, lookups)
    least, greatest = lookup_bounds(touched, lookups)
    looked_up = np.clip(wanted, least, greatest)
    looked_up += share_out(lookups - looked_up.sum(axis=1), looked_up, least, greatest)
    rows_moved = abs(touched - uses * distinct[:, None]).max(axis=1) > DRIFT * distinct + 2
    lookups_moved = abs(looked_up - accesses * lookups[:, None]).max(axis=1) > DRIFT * lookups + 2
    return touched, looked_up, rows_moved | lookups_moved | ~agree(touched, looked_up, distinct, lookups)


def largest_remainders(shares: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Whole numbers in proportion to shares (N, B) that sum to totals (N,), int64."""
    exact = shares / np.maximum(shares.sum(axis=1), 1e-9)[:, None] * totals[:, None]
    whole = np.floor(exact).astype(np.int64)
    rank = np.argsort(np.argsort(whole - exact, axis=1, kind="stable"), axis=1)
    whole += rank < (totals - whole.sum(axis=1))[:, None]
    whole[np.arange(len(whole)), exact.argmax(axis=1)] += totals - whole.sum(axis=1)  # beyond float64's 53 bits
    return whole


def share_out(gap: np.ndarray, value: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Changes to `value` (N, B) that close `gap` (N,) as far as low and high allow, in proportion to the room."""
    room = np.where(gap[:, None] > 0, high - value, value - low)
    wanted = np.minimum(abs(gap), room.sum(axis=1))
    change = np.floor(room * (wanted / np.maximum(room.sum(axis=1), 1))[:, None]).astype(np.int64)
    left = wanted - change.sum(axis=1)
    for b in range(value.shape[1]):
        more = np.minimum(left, room[:, b] - change[:, b])
        change[:, b] += more
        left -= more
    return np.sign(gap)[:, None] * change


def _within_reach(touched: np.ndarray, lookups: np.ndarray) -> np.ndarray:
    """Rows moved between neighbouring bins until these can make `lookups` (N,) in all, and no fewer or more.

    Those used most go first, as it takes fewer of them. There is an answer unless there are more rows than lookups.
    """
    least, _ = lookup_bounds(touched, lookups)
    touched = _moved(touched, -1, np.maximum(least.sum(axis=1) - lookups, 0), DOWNWARD)
    _, greatest = lookup_bounds(touched, lookups)
    return _moved(touched, 1, np.maximum(lookups - greatest.sum(axis=1), 0), (*DOWNWARD, *UPWARD))


def _moved(touched: np.ndarray, way: int, missing: np.ndarray, order: Sequence[int]) -> np.ndarray:
    """Rows moved one bin down (-1) or up (1), bin after bin, until that makes up for the `missing` (N,) lookups."""
    touched = touched.copy()
    start, step = (1, np.diff(LOW, prepend=0)) if way < 0 else (0, np.diff(HIGH, append=HIGH[-1]))
    for b in (b for b in order if 0 <= b + way < NUM_BINS):
        moved = np.minimum(touched[:, b], missing // step[b])
        touched[:, b] -= moved
        touched[:, b + way] += moved
        missing = missing - moved * step[b]
    rest = np.flatnonzero(missing)  # less than one row makes: of those used least one more goes, others make up for it
    first = start + (touched[rest, start:] > 0).argmax(axis=1)
    touched[rest, first] -= 1
    touched[rest, first + way] += 1
    return touched
