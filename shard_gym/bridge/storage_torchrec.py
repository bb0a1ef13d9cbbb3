"""TorchRec 1.8's formulas. Each works on all shards, (S,), and gives int64 bytes; pairs are (in HBM, in DDR).

Floats are multiplied and rounded in TorchRec's order: its bytes are those of that order.
"""

from __future__ import annotations

import numpy as np

from shard_gym.bridge.storage_shards import CACHED, IN_UVM, QUANTISED, Setup, Shards

ID_BYTES = 8  # 32-bit ids are turned into 64-bit ones
INPUTS = {"train_sparse_dist": 2, "train_prefetch_sparse_dist": 3}  # batches whose ids are held at once; else 1
Pair = tuple[np.ndarray, np.ndarray]


def tensor_bytes(shards: Shards, setup: Setup) -> Pair:
    """The shard's part of the weights; 4 bytes a row more for a quantised table."""
    table = shards.of
    whole = table.rows * table.dim * table.element_bytes + 4 * table.rows * np.isin(table.kernel, QUANTISED)
    in_hbm, in_ddr = located(shards, setup, whole)
    return _part(shards, in_hbm), _part(shards, in_ddr)


def located(shards: Shards, setup: Setup, weights: np.ndarray) -> Pair:
    """Where weights are kept: in DDR what the device only reads, and in HBM its cache of some of them."""
    if setup.device == "cpu":
        return np.zeros_like(weights), weights
    kernel = shards.of.kernel
    in_ddr = np.where(np.isin(kernel, IN_UVM), weights, 0)
    cache = np.rint(weights * shards.of.cache_load_factor).astype(np.int64)
    return np.where(np.isin(kernel, CACHED), cache, weights - in_ddr), in_ddr


def _part(shards: Shards, whole: np.ndarray) -> np.ndarray:
    """ceil(whole * shard / table), by Python's numbers: the product may exceed 64 bits."""
    table = shards.of
    product = whole.astype(object) * shards.rows.astype(object) * shards.dim.astype(object)
    part = product / (table.rows.astype(object) * table.dim.astype(object))
    return np.where(shards.kind == "dp", whole, np.ceil(part.astype(np.float64)).astype(np.int64))


def optimizer_bytes(shards: Shards, setup: Setup, tensor: Pair) -> Pair:
    """A multiple of the weights' bytes, by the columns of the whole table: 1 for optimizers it does not know."""
    optimizer, known = shards.of.optimizer, ["none", "sgd", "adam", "rowwise_adagrad"]
    multiple = np.select([optimizer == name for name in known], [0, 0, 2, 1 / shards.of.dim], 1.0)
    in_hbm, in_ddr = (np.ceil(weights * multiple).astype(np.int64) for weights in tensor)
    return in_hbm, in_ddr


def cache_bytes(shards: Shards, setup: Setup, tensor: Pair) -> Pair:
    """4 bytes for each row that may be cached, 16 for each that is."""
    a_row = 4 + shards.of.cache_load_factor * 16
    kept = np.where(np.isin(shards.of.kernel, CACHED), np.ceil(shards.rows * a_row).astype(np.int64), 0)
    none = np.zeros_like(kept)
    return (none if setup.device == "cpu" else kept), none


def gradient_bytes(shards: Shards, setup: Setup, tensor: Pair) -> Pair:
    """It counts none."""
    return np.zeros_like(tensor[0]), np.zeros_like(tensor[1])


def io_bytes(shards: Shards, setup: Setup) -> Pair:
    """Input and output of one batch: what the samples of all ranks look up here, and the rows they get for it.

    A shard that holds all rows sees every id of its table; one of several row blocks sees its share of them, yet sends
    a partial sum for every bag. A copy (dp) sees its own rank's samples only.
    """
    table, element = shards.of, shards.of.element_bytes
    ids = table.ids / sharing_ranks(shards, setup)
    rows_out = np.where(table.pooled, table.filled, ids)
    ranks, some = asking_ranks(shards, setup), shards.rows > 0
    size = np.where(np.isnan(table.output_bytes), element, table.output_bytes)
    ids, output = ids * ranks * ID_BYTES, rows_out * ranks * shards.dim * size
    return whole_bytes(ids, some), whole_bytes(output, some)


def buffer_bytes(shards: Shards, setup: Setup, ids: np.ndarray, output: np.ndarray) -> np.ndarray:
    """Inputs of all batches under way, and the output: pipelines leave it out, unless told that it is at the peak."""
    if setup.inference:
        return np.zeros_like(ids)
    if setup.device == "cpu" or setup.pipeline not in INPUTS:
        return ids + output
    return inputs(shards, setup, ids) + (output if setup.output_at_peak else 0)


def inputs(shards: Shards, setup: Setup, ids: np.ndarray) -> np.ndarray:
    """Inputs that a pipeline holds at once; prefetching into a cache takes more of them, in parts if told so."""
    held = INPUTS.get(setup.pipeline, 1) * ids
    if setup.pipeline != "train_prefetch_sparse_dist":
        return held
    prefetched = np.where(np.isin(shards.of.kernel, CACHED), ids, 0)
    return held + np.trunc((1 + 6 / shards.of.prefetch_passes) * prefetched).astype(np.int64)


def sharing_ranks(shards: Shards, setup: Setup) -> np.ndarray:
    """Ranks that share a table's rows out."""
    by_host = np.isin(shards.kind, ("twrw", "grid"))
    return np.select([shards.kind == "rw", by_host], [setup.world_size, setup.local_world_size], 1)


def asking_ranks(shards: Shards, setup: Setup) -> np.ndarray:
    """Ranks whose samples a shard is asked about."""
    return np.where(shards.kind == "dp", 1, setup.world_size)


def whole_bytes(size: np.ndarray, some: np.ndarray) -> np.ndarray:
    """Rounded up; 0 for shards without rows."""
    return np.where(some, np.ceil(size), 0).astype(np.int64)
