"""TorchRec's formulas with its faults corrected; functions as in `storage_torchrec`.

Each correction says what TorchRec counts, what there is, and why. FBGEMM is the operator that holds the tables
(`SplitTableBatchedEmbeddingBagsCodegen`, version 1.8). What no correction names is counted as TorchRec counts it.
"""

from __future__ import annotations

import numpy as np

from shard_gym.bridge import storage_torchrec
from shard_gym.bridge.storage_shards import IN_UVM, QUANTISED, Setup, Shards
from shard_gym.bridge.storage_torchrec import (
    ID_BYTES,
    Pair,
    asking_ranks,
    cache_bytes,
    inputs,
    located,
    sharing_ranks,
    whole_bytes,
)

__all__ = ["buffer_bytes", "cache_bytes", "gradient_bytes", "io_bytes", "optimizer_bytes", "tensor_bytes"]

STATE_BYTES = 4  # FBGEMM's states are fp32
INT8_ROW_BYTES = 8  # scale and bias of a row of int8 weights, fp32 each
OFFSET_BYTES = 8  # where a bag begins
ID_WEIGHT_BYTES = 4
OUTPUT_BYTES = 4  # FBGEMM returns fp32 unless told
STATES = {  # of each optimizer: numbers a row, and numbers a weight
    "none": (0, 0),
    "sgd": (0, 0),
    "rowwise_adagrad": (1, 0),
    "adagrad": (0, 1),
    "lars_sgd": (0, 1),
    "partial_rowwise_adam": (1, 1),
    "partial_rowwise_lamb": (1, 1),
    "adam": (0, 2),
    "lamb": (0, 2),
}


def tensor_bytes(shards: Shards, setup: Setup) -> Pair:
    """The weights that the shard has.

    - TorchRec counts int8 weights at a byte each; while they train, each row has its scale and bias beside it.
    - It adds 4 bytes a row to quantised tables for these, but their parameter holds them already.
    """
    table, row_bytes = shards.of, shards.dim * shards.of.element_bytes
    trained = (table.element_bytes == 1) & ~np.isin(table.kernel, QUANTISED)
    return located(shards, setup, shards.rows * (row_bytes + INT8_ROW_BYTES * trained))


def optimizer_bytes(shards: Shards, setup: Setup, tensor: Pair) -> Pair:
    """Numbers of the optimizer's state, 4 bytes each.

    - TorchRec counts multiples of the weights' bytes, so half of the state of fp16 tables: states are fp32.
    - It counts a row-wise state by the columns of the whole table, so only a part of it for column-wise shards: each
      shard keeps a number for each of its rows.
    - It counts a number a weight for LAMB and for the partly row-wise Adam and LAMB, which keep 2, or 1 and 1 a row.
    - Of tables in host memory it puts the state beside the weights, and part of it beside the cache again: FBGEMM keeps
      row-wise states on the device, all others in host memory, and caches neither.

    Copies (dp) are trained by an optimizer of PyTorch's, and counted as TorchRec counts them.
    """
    rows, copied = shards.rows, shards.of.kernel == "dense"
    a_row, a_weight = (_numbers(shards.of.optimizer, i) * STATE_BYTES for i in (0, 1))
    in_rows, in_weights = rows * a_row, rows * shards.dim * a_weight
    none, in_uvm = np.zeros_like(rows), np.isin(shards.of.kernel, IN_UVM)
    hbm, ddr = in_rows + np.where(in_uvm, 0, in_weights), np.where(in_uvm, in_weights, 0)
    if setup.device == "cpu":
        hbm, ddr = none, in_rows + in_weights
    of_copies = storage_torchrec.optimizer_bytes(shards, setup, tensor)
    return np.where(copied, of_copies[0], hbm), np.where(copied, of_copies[1], ddr)


def gradient_bytes(shards: Shards, setup: Setup, tensor: Pair) -> Pair:
    """Copies (dp) have a gradient of all their weights, which ranks add up; TorchRec counts none.

    The others' gradients are applied row by row and never held.
    """
    copied = shards.of.kernel == "dense"
    return np.where(copied, tensor[0], 0), np.where(copied, tensor[1], 0)


def io_bytes(shards: Shards, setup: Setup) -> Pair:
    """Input and output of one batch.

    - TorchRec counts the ids of the input, not where each bag begins, nor the weights of weighted ids.
    - It counts the output in the type of the weights: FBGEMM returns fp32 unless told otherwise.
    - It counts a row of output for each bag that has ids, by guess min(1, pooling): empty bags have a row too.
    """
    table, asking = shards.of, asking_ranks(shards, setup)
    ids, bags = table.ids / sharing_ranks(shards, setup) * asking, table.bags * asking
    rows_out = np.where(table.pooled, bags, ids)
    size = np.where(np.isnan(table.output_bytes), OUTPUT_BYTES, table.output_bytes)
    held = ids * (ID_BYTES + ID_WEIGHT_BYTES * table.weighted) + bags * OFFSET_BYTES
    return whole_bytes(held, shards.rows > 0), whole_bytes(rows_out * shards.dim * size, shards.rows > 0)


def buffer_bytes(shards: Shards, setup: Setup, ids: np.ndarray, output: np.ndarray) -> np.ndarray:
    """Inputs of the batches under way, and the output, whatever the pipeline.

    - TorchRec leaves the output out when there is a pipeline, since it lives only until ranks have exchanged it and the
      peak is taken to come later. A device must hold it all the same, beside its tables, and the same again as the
      gradient that comes back: it can only share its room with what the dense part takes later. We count it once.
    - It counts neither input nor output at inference, where both are there while a batch is looked up.
    """
    return (ids if setup.device == "cpu" else inputs(shards, setup, ids)) + output


def _numbers(optimizer: np.ndarray, which: int) -> np.ndarray:
    return np.select([optimizer == name for name in STATES], [numbers[which] for numbers in STATES.values()])
