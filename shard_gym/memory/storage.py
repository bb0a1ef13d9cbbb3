"""Bytes of each shard, as tasks, TorchRec 1.8 and the truth count them.

    from shard_gym.memory.storage import storage
    from shard_gym.memory.shards import Feature, Setup, Table, shards

    setup = Setup(world_size=8, batch=4096)
    table = Table(rows=1_000_000, dim=64, features=(Feature(pooling=20.0),), optimizer="rowwise_adagrad")
    storage(shards([table], ["rw"], setup), setup).hbm.bytes  # (8,), as TorchRec's planner has it
    storage(shards([table], ["rw"], setup), setup, "true").hbm.bytes

What a rank holds is the sum over its shards. Every formula is written once, as a `Term`: its value is computed for all
shards, and `Storage.steps` writes it out for one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shard_gym.errors import InvalidTask, UnknownName
from shard_gym.memory.shards import ID_BYTES, ID_WEIGHT_BYTES, QUANTISED, STATES, Setup, Shards
from shard_gym.memory.terms import Step, Term, bytes_of, ceil, rounded, truncated, where

INPUTS = {"train_sparse_dist": 2, "train_prefetch_sparse_dist": 3}  # batches whose ids are held at once; else 1
INT8_ROW_BYTES = 8  # scale and bias of a row of int8 weights, fp32 each
OFFSET_BYTES = 8  # where a bag begins
OUTPUT_BYTES = 4  # FBGEMM returns fp32 unless told
Pair = tuple[Term, Term]  # in HBM, in DDR


@dataclass(frozen=True, eq=False)
class Memory:
    """Bytes of each shard in one kind of memory, (S,) int64 each."""

    tensor: np.ndarray  # the weights; in HBM, of a table that is cached there, those in the cache
    optimizer: np.ndarray
    cache: np.ndarray  # what the cache keeps beside the weights
    gradient: np.ndarray  # of the whole shard; "torchrec" counts none
    buffers: np.ndarray  # inputs of the batches under way, and the output where it is counted
    bytes: np.ndarray  # all of it


@dataclass(frozen=True, eq=False)
class Storage:
    """Bytes of each shard in the device's memory and in the host's, and those of one batch's input and output."""

    hbm: Memory
    ddr: Memory
    input: np.ndarray  # (S,) int64
    output: np.ndarray
    terms: tuple[Term, ...]  # every number with its formula, from rows and columns to the sums

    def steps(self, shard: int = 0) -> list[Step]:
        """Steps by which the bytes of one shard come about; what comes to nothing is left out."""
        return [Step.of(term, shard) for term in self.terms if term.at(shard)]


def storage(shards: Shards, setup: Setup, accounting: str = "torchrec") -> Storage:
    """Bytes of these shards; input and output are told by every accounting, counted or not.

    "torchrec" is what its `EmbeddingStorageEstimator` says, "true" the same with its faults corrected; "weights" and
    "training" are weights alone, and weights with the optimizer's state.
    """
    if accounting not in FORMULAS:
        raise UnknownName("accounting", accounting, FORMULAS)
    if FORMULAS[accounting] is Training and (odd := set(shards.of.kernel.tolist()) & set(QUANTISED)):
        raise InvalidTask(f"accounting {accounting!r} knows no kernel {min(odd)!r}: take torchrec or true")
    count = FORMULAS[accounting](shards, setup)
    none = count.none, count.none
    tensor = count.told("tensor", count.tensor())
    optimizer = cache = gradient = none
    if not setup.inference and accounting != "weights":
        optimizer = count.told("optimizer", count.optimizer(tensor))
        cache = count.step("cache", count.cache()), count.none
        gradient = count.by_device(count.step("gradient", count.gradient(tensor)))
    some = shards.rows > 0
    ids = count.step("input", where(some, ceil(count.input()), count.none))
    output = count.step("output", where(some, ceil(count.output()), count.none))
    buffers = count.step("buffers", count.buffers(ids, output))
    parts = (tensor, optimizer, cache, gradient, count.by_device(buffers))
    memories = []
    for place, held in zip(("HBM", "DDR"), zip(*parts, strict=True), strict=True):
        size = count.step(f"{place} of the shard", held[0] + held[1] + held[2] + held[3] + held[4])
        memories.append(Memory(*[part.value for part in (*held, size)]))
    return Storage(memories[0], memories[1], ids.value, output.value, tuple(count.steps))


class TorchRec:
    """TorchRec 1.8's formulas. Floats are multiplied and rounded in its order: its bytes are those of that order."""

    two_states: tuple[str, ...] = ("adam",)  # optimizers that are charged twice the bytes of the weights

    def __init__(self, shards: Shards, setup: Setup) -> None:
        table, kind = shards.of, shards.kind
        self.shards, self.setup, self.table = shards, setup, table
        self.none = Term(np.zeros_like(shards.rows))
        self.rows, self.dim = Term(shards.rows, "rows"), Term(shards.dim, "columns")
        self.element = Term(table.element_bytes, "bytes of a weight")
        self.load = Term(table.cache_load_factor, "load factor")
        kernel = table.kernel
        self.cached, self.in_uvm, self.quantised = table.cached, table.in_host, np.isin(kernel, QUANTISED)
        by_host = np.isin(kind, ("twrw", "grid"))
        ranks = np.select([kind == "rw", by_host], [setup.world_size, setup.local_world_size], 1)
        self.asking = Term(np.where(kind == "dp", 1, setup.world_size), "ranks that ask")
        # a shard with all rows sees every id of its table; one of several row blocks its share of them
        self.ids = table.ids / Term(ranks, "ranks that share the rows")
        self.steps: list[Term] = []

    def step(self, name: str, term: Term) -> Term:
        """A number that is told, and that later ones refer to."""
        self.steps.append(term.as_step(name))
        return self.steps[-1]

    def told(self, name: str, pair: Pair) -> Pair:
        """A number that is told of HBM and of DDR."""
        return self.step(f"{name} in HBM", pair[0]), self.step(f"{name} in DDR", pair[1])

    def by_device(self, term: Term) -> Pair:
        """Put a number in the device's memory: HBM, or DDR of a CPU."""
        return (self.none, term) if self.setup.device == "cpu" else (term, self.none)

    def located(self, weights: Term) -> Pair:
        """Places of weights: in DDR what the device only reads, and in HBM its cache of some of them."""
        if self.setup.device == "cpu":
            return self.none, weights
        in_hbm = where(self.cached, rounded(weights * self.load), where(self.in_uvm, self.none, weights))
        return in_hbm, where(self.in_uvm, weights, self.none)

    def tensor(self) -> Pair:
        """The shard's part of the weights; 4 bytes a row more for a quantised table."""
        rows, dim = Term(self.table.rows, "rows of the table"), Term(self.table.dim, "columns of the table")
        whole = bytes_of(rows * dim * self.element) + where(self.quantised, rows * 4, self.none)
        in_hbm, in_ddr = self.located(self.step("weights of the table", whole))
        return self._part(in_hbm, rows, dim), self._part(in_ddr, rows, dim)

    def _part(self, whole: Term, rows: Term, dim: Term) -> Term:
        if whole is self.none:
            return whole
        part = whole.exact * self.rows.exact * self.dim.exact / (rows.exact * dim.exact)
        return where(self.shards.kind == "dp", whole, ceil(part))

    def optimizer(self, tensor: Pair) -> Pair:
        """A multiple of the weights' bytes, by the columns of the whole table: 1 for optimizers it does not know."""
        dim = Term(self.table.dim, "columns of the table")
        name, multiple = self.table.optimizer, where(np.isin(self.table.optimizer, self.two_states), Term(2), Term(1))
        multiple = where(name == "rowwise_adagrad", Term(1) / dim, multiple)
        multiple = where((name == "none") | (name == "sgd"), Term(0), multiple)
        return ceil(tensor[0] * multiple), ceil(tensor[1] * multiple)

    def states(self) -> Pair:
        """Bytes of FBGEMM's states: those kept a row, and those a weight."""
        a_row, a_weight = np.array([STATES[optimizer] for optimizer in self.table.optimizer.tolist()]).T
        of_rows = self.rows * Term(a_row, "bytes of state a row")
        return of_rows, self.rows * self.dim * Term(a_weight, "bytes of state a weight")

    def placed_states(self) -> Pair:
        """FBGEMM's states in HBM, which are row-wise ones and all of tables there, and in DDR, the others."""
        of_rows, of_weights = self.states()
        if self.setup.device == "cpu":
            return self.none, of_rows + of_weights
        return of_rows + where(self.in_uvm, self.none, of_weights), where(self.in_uvm, of_weights, self.none)

    def cache(self) -> Term:
        """4 bytes for each row that may be cached, 16 for each that is."""
        kept = where(self.cached, ceil(self.rows * (self.load * 16 + 4)), self.none)
        return self.none if self.setup.device == "cpu" else kept

    def gradient(self, tensor: Pair) -> Term:
        """None is counted."""
        return self.none

    def input(self) -> Term:
        """Ids of one batch: those that the samples of all ranks look up here; of its own rank's for a copy (dp)."""
        return self.ids * self.asking * Term(ID_BYTES, "bytes of an id")

    def output(self) -> Term:
        """The rows that they get for it: a row block has its share of the ids, yet a partial sum for every bag."""
        rows_out = where(self.table.pooled, self.table.filled, self.ids)
        element = where(self.table.element_bytes < 1, Term(1, "bytes of packed weights"), self.element)
        return rows_out * self.asking * self.dim * self.output_bytes(element)

    def output_bytes(self, untold: Term) -> Term:
        """Bytes of a number of the output: as told of the table, else those given."""
        told = self.table.output_bytes
        return where(np.isnan(told), untold, Term(np.nan_to_num(told), "bytes of a number"))

    def buffers(self, ids: Term, output: Term) -> Term:
        """Inputs of all batches under way, and the output; pipelines leave it out unless told that it is at peak."""
        if self.setup.inference:
            return self.none
        if self.setup.device == "cpu" or self.setup.pipeline not in INPUTS:
            return ids + output
        return self.inputs(ids) + (output if self.setup.output_at_peak else self.none)

    def inputs(self, ids: Term) -> Term:
        """Inputs that a pipeline holds at once; prefetching into a cache takes more of them, in parts if told so."""
        held = ids * Term(INPUTS.get(self.setup.pipeline, 1), "inputs held")
        if self.setup.pipeline != "train_prefetch_sparse_dist":
            return held
        more = Term(6) / Term(self.table.prefetch_passes, "passes") + 1
        return held + where(self.cached, truncated(more * ids), self.none)


class Corrected(TorchRec):
    """TorchRec's formulas with its faults corrected.

    Each correction says what TorchRec counts, what there is, and why. FBGEMM is the operator that holds the tables
    (`SplitTableBatchedEmbeddingBagsCodegen`, version 1.8). What no correction names is counted as TorchRec counts it.
    """

    two_states = ("adam", "adamw")

    def tensor(self) -> Pair:
        """The weights that the shard has.

        - TorchRec counts int8 weights at a byte each; while they train, each row has its scale and bias beside it.
        - It adds 4 bytes a row to quantised tables for these, but their parameter holds them already.
        """
        trained = (self.table.element_bytes == 1) & ~self.quantised
        beside = where(trained, Term(INT8_ROW_BYTES, "bytes of scale and bias"), self.none)
        return self.located(bytes_of(self.rows * (self.dim * self.element + beside)))

    def optimizer(self, tensor: Pair) -> Pair:
        """Numbers of the optimizer's state, 4 bytes each.

        - TorchRec counts multiples of the weights' bytes, so half of the state of fp16 tables: states are fp32.
        - It counts a row-wise state by the columns of the whole table, so only a part of it for column-wise shards:
          each shard keeps a number for each of its rows.
        - It counts a number a weight for LAMB and for the partly row-wise Adam and LAMB, which keep 2, or 1 and 1 a
          row.
        - Of tables in host memory it puts the state beside the weights, and part of it beside the cache again: FBGEMM
          keeps row-wise states on the device, all others in host memory, and caches neither.

        Copies (dp) are trained by an optimizer of PyTorch's, and counted as TorchRec counts them, but for AdamW, of
        which it counts 1 number a weight and PyTorch keeps 2.
        """
        kept, of_copies = self.placed_states(), super().optimizer(tensor)
        copied = self.table.kernel == "dense"
        return where(copied, of_copies[0], kept[0]), where(copied, of_copies[1], kept[1])

    def gradient(self, tensor: Pair) -> Term:
        """Copies (dp) have a gradient of all their weights, which ranks add up; TorchRec counts none.

        The others' gradients are applied row by row and never held.
        """
        return where(self.table.kernel == "dense", tensor[0] + tensor[1], self.none)

    def input(self) -> Term:
        """Ids of one batch. TorchRec counts neither where each bag begins, nor the weights of weighted ids."""
        weight = where(self.table.weighted, Term(ID_WEIGHT_BYTES, "bytes of its weight"), self.none)
        an_id, bags = Term(ID_BYTES, "bytes of an id") + weight, self.table.bags * self.asking
        return self.ids * self.asking * an_id + bags * Term(OFFSET_BYTES, "bytes of a bag's beginning")

    def output(self) -> Term:
        """The rows that they get for it.

        - TorchRec counts the output in the type of the weights: FBGEMM returns fp32 unless told otherwise.
        - It counts a row for each bag that has ids, by guess min(1, pooling): empty bags have a row too.
        """
        rows_out = where(self.table.pooled, self.table.bags, self.ids)
        fp32 = Term(OUTPUT_BYTES, "bytes of a number")
        return rows_out * self.asking * self.dim * self.output_bytes(fp32)

    def buffers(self, ids: Term, output: Term) -> Term:
        """Inputs of the batches under way, and the output, whatever the pipeline.

        - TorchRec leaves the output out when there is a pipeline, since it lives only until ranks have exchanged it and
          the peak is taken to come later. A device must hold it all the same, beside its tables, and the same again as
          the gradient that comes back: it can only share memory with what the dense part takes later. We count it once.
        - It counts neither input nor output at inference, where both are there while a batch is looked up.
        """
        return (ids if self.setup.device == "cpu" else self.inputs(ids)) + output


class Training(TorchRec):
    """Weights and the optimizer's state: what a task counts unless told."""

    def tensor(self) -> Pair:
        """The weights of the shard, where they are kept; of a cached table those in the cache too."""
        return self.located(bytes_of(self.rows * self.dim * self.element))

    def optimizer(self, tensor: Pair) -> Pair:
        """Numbers of the optimizer's state, 4 bytes each, where FBGEMM keeps them."""
        return self.placed_states()

    def cache(self) -> Term:
        """None is counted, nor are buffers."""
        return self.none

    def buffers(self, ids: Term, output: Term) -> Term:
        """None is counted."""
        return self.none


FORMULAS = {"weights": Training, "training": Training, "torchrec": TorchRec, "true": Corrected}
