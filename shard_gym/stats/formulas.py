"""The formulas of `storage_torchrec` and `storage_true` for one shard, written out with their numbers.

`numbers` of a step is an expression: with commas left out and "x" read as "*", Python computes the step's value from
it. The value itself comes from the accounting; a test compares the two for every kind, kernel and optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from shard_gym.bridge.storage import Storage
from shard_gym.bridge.storage_shards import CACHED, IN_UVM, QUANTISED, Setup, Table
from shard_gym.bridge.storage_torchrec import ID_BYTES, INPUTS
from shard_gym.bridge.storage_true import (
    ID_WEIGHT_BYTES,
    INT8_ROW_BYTES,
    OFFSET_BYTES,
    OUTPUT_BYTES,
    STATE_BYTES,
    STATES,
)


@dataclass(frozen=True)
class Step:
    """One number of an explanation: what it is, how it is computed, and what comes out."""

    name: str
    formula: str  # in words; empty where the numbers speak for themselves
    numbers: str  # the same in numbers
    value: float
    unit: str = "bytes"


@dataclass(frozen=True)
class OneShard:
    """A shard, its table, and its bytes by one accounting."""

    table: Table
    kind: str
    rows: int
    dim: int
    setup: Setup
    accounting: str
    hbm: dict[str, int]  # parts of Memory
    ddr: dict[str, int]
    input: int
    output: int

    @property
    def sharing(self) -> int:
        """Ranks that share the table's rows out."""
        by_host = self.kind in ("twrw", "grid")
        return self.setup.world_size if self.kind == "rw" else self.setup.local_world_size if by_host else 1

    @property
    def asking(self) -> int:
        """Ranks whose samples the shard is asked about."""
        return 1 if self.kind == "dp" else self.setup.world_size


def first_shard(
    table: Table, kind: str, size: tuple[int, int], setup: Setup, accounting: str, storage: Storage
) -> OneShard:
    """The first shard of a storage, which is of this size."""
    hbm, ddr = ({name: int(part[0]) for name, part in vars(memory).items()} for memory in (storage.hbm, storage.ddr))
    ids, output = int(storage.input[0]), int(storage.output[0])
    return OneShard(table, kind, *size, setup, accounting, hbm, ddr, ids, output)


def steps(shard: OneShard) -> Iterator[Step]:
    """From rows and columns to the bytes that the shard takes."""
    yield from (_torchrec_weights if shard.accounting == "torchrec" else _own_weights)(shard)
    yield from _states(shard)
    yield from _cache_and_gradient(shard)
    yield from (_true_traffic if shard.accounting == "true" else _torchrec_traffic)(shard)
    if shard.accounting in ("torchrec", "true"):
        yield _buffers(shard)
    for where, memory in _memories(shard):
        counted = [f"{size:,}" for size in memory.values() if size] or ["0"]
        yield Step(f"{where} of the shard", "sum of its parts", " + ".join(counted), sum(memory.values()))


def number(value: float) -> str:
    """With commas, every digit that counts; 2.0 is 2."""
    return f"{int(value):,}" if value == int(value) else f"{value:,}"


def _memories(shard: OneShard) -> list[tuple[str, dict[str, int]]]:
    """HBM, and DDR where the shard takes some."""
    return [("HBM", shard.hbm), *([("DDR", shard.ddr)] if any(shard.ddr.values()) else [])]


def _torchrec_weights(shard: OneShard) -> Iterator[Step]:
    t = shard.table
    whole = t.rows * t.dim * t.element_bytes
    extra = f" + 4 x {t.rows:,}" if t.kernel in QUANTISED else ""
    whole += 4 * t.rows if extra else 0
    said = "rows x columns x bytes of a weight" + (" + 4 bytes a row, as it is quantised" if extra else "")
    yield Step("weights of the table", said, f"{t.rows:,} x {t.dim:,} x {t.element_bytes}{extra}", whole)
    cached = round(whole * t.cache_load_factor)
    if t.kernel in CACHED:
        numbers = f"round({whole:,} x {t.cache_load_factor})"
        yield Step("of them cached", "weights x load factor", numbers, cached)
    for where, memory in _memories(shard):
        of = whole if where == "DDR" or t.kernel not in IN_UVM else cached if t.kernel in CACHED else 0
        part = f"ceil({of:,} x {shard.rows:,} x {shard.dim:,} / ({t.rows:,} x {t.dim:,}))"
        said, part = ("a copy is all of them", f"{of:,}") if shard.kind == "dp" else ("weights x its share", part)
        if of:
            yield Step(f"tensor in {where}", said, part, memory["tensor"])


def _own_weights(shard: OneShard) -> Iterator[Step]:
    t, said = shard.table, "rows x columns x bytes of a weight, of the shard"
    a_row = f"{shard.dim:,} x {t.element_bytes}"
    if shard.accounting == "true" and t.element_bytes == 1 and t.kernel not in QUANTISED:
        a_row, said = f"({a_row} + {INT8_ROW_BYTES})", f"{said}, and a scale and bias a row"
    weights = f"{shard.rows:,} x {a_row}"
    for where, memory in _memories(shard):
        if where == "HBM" and t.kernel in CACHED:
            numbers = f"round({weights} x {t.cache_load_factor})"
            yield Step("tensor in HBM", "the share of the weights that is cached", numbers, memory["tensor"])
        elif where == "DDR" or t.kernel not in IN_UVM:
            yield Step(f"tensor in {where}", said, weights, memory["tensor"])


def _states(shard: OneShard) -> Iterator[Step]:
    t = shard.table
    if shard.accounting == "weights" or shard.setup.inference:
        return
    like_torchrec = shard.accounting == "torchrec" or (shard.accounting == "true" and t.kernel == "dense")
    for where, memory in _memories(shard):
        if like_torchrec and memory["tensor"]:
            known = {"none": "0", "sgd": "0", "adam": "2", "rowwise_adagrad": f"(1 / {t.dim:,})"}
            said = f"tensor x numbers a weight of {t.optimizer}"
            numbers = f"ceil({memory['tensor']:,} x {known.get(t.optimizer, '1')})"
            yield Step(f"optimizer in {where}", said, numbers, memory["optimizer"])
        elif not like_torchrec and (memory["optimizer"] or where == "HBM"):
            yield Step(f"optimizer in {where}", *_true_state(shard, where), memory["optimizer"])


def _true_state(shard: OneShard, where: str) -> tuple[str, str]:
    """Formula and numbers of the state kept there: numbers a row are in HBM, those a weight beside the weights."""
    a_row, a_weight = STATES[shard.table.optimizer]
    in_uvm = shard.table.kernel in IN_UVM and shard.accounting == "true"
    a_row, a_weight = (a_row if where == "HBM" else 0), (a_weight if (where == "DDR") == in_uvm else 0)
    parts = [f"{a_row} x {shard.rows:,}"] if a_row else []
    parts += [f"{a_weight} x {shard.rows:,} x {shard.dim:,}"] if a_weight else []
    said = f"{STATE_BYTES} bytes a number: {a_row} a row and {a_weight} a weight of {shard.table.optimizer}"
    return said, f"{STATE_BYTES} x ({' + '.join(parts)})" if parts else "0"


def _cache_and_gradient(shard: OneShard) -> Iterator[Step]:
    load = shard.table.cache_load_factor
    if shard.hbm["cache"]:
        said = "4 bytes a row that may be cached, 16 a row that is"
        yield Step("cache", said, f"ceil({shard.rows:,} x (4 + {load} x 16))", shard.hbm["cache"])
    if gradient := shard.hbm["gradient"]:
        yield Step("gradient", "a copy has one of all its weights", f"{shard.hbm['tensor']:,}", gradient)


def _torchrec_traffic(shard: OneShard) -> Iterator[Step]:
    t = shard.table
    ids = _ids(shard)
    yield Step("input", f"{_said_ids(shard)} x {ID_BYTES} bytes", f"ceil({ids} x {ID_BYTES})", shard.input)
    filled = f"({_features(shard, lambda f: f'min(1, {number(f.pooling)})')}) x {shard.asking}"
    rows = filled if t.pooled else ids
    said = "bags that are not empty, by guess," if t.pooled else "ids, as a sequence returns every row,"
    size = t.element_bytes if t.output_bytes is None else number(t.output_bytes)
    said = f"{said} x columns of the shard x bytes of a number"
    yield Step("output", said, f"ceil({rows} x {shard.dim:,} x {size})", shard.output)


def _true_traffic(shard: OneShard) -> Iterator[Step]:
    t = shard.table
    ids = _ids(shard)
    bags = f"({_features(shard, lambda f: None)}) x {shard.asking}"
    an_id = f"({ID_BYTES} + {ID_WEIGHT_BYTES})" if t.weighted else f"{ID_BYTES}"
    said = f"{_said_ids(shard)} x bytes of an id, and where each bag begins"
    yield Step("input", said, f"ceil({ids} x {an_id} + {bags} x {OFFSET_BYTES})", shard.input)
    size = OUTPUT_BYTES if t.output_bytes is None else number(t.output_bytes)
    rows, said = (bags, "bags") if t.pooled else (ids, "ids, as a sequence returns every row,")
    said = f"{said} x columns of the shard x bytes of a number"
    yield Step("output", said, f"ceil({rows} x {shard.dim:,} x {size})", shard.output)


def _ids(shard: OneShard) -> str:
    """Of all ranks that ask, those that the shard sees."""
    share = "" if shard.sharing == 1 else f" / {shard.sharing}"
    return f"({_features(shard, lambda feature: number(feature.pooling))}){share} x {shard.asking}"


def _said_ids(shard: OneShard) -> str:
    share = "" if shard.sharing == 1 else f" / {shard.sharing} ranks that share the rows"
    return f"ids of a rank{share} x {shard.asking} ranks that ask"


def _features(shard: OneShard, of_one: Callable[..., str | None]) -> str:
    """Sum over features: something a bag, times bags a sample, times samples."""
    parts = []
    for feature in shard.table.features:
        samples = shard.setup.batch if feature.batch is None else feature.batch
        poolings = None if feature.poolings == 1 else number(feature.poolings)
        parts.append(" x ".join(part for part in (of_one(feature), poolings, f"{samples:,}") if part))
    return " + ".join(parts)


def _buffers(shard: OneShard) -> Step:
    setup, true = shard.setup, shard.accounting == "true"
    if setup.inference and not true:
        return Step("buffers", "TorchRec counts none at inference", "0", 0)
    held = INPUTS.get(setup.pipeline, 1)
    numbers = f"{held} x {shard.input:,}" if held > 1 else f"{shard.input:,}"
    if setup.pipeline == "train_prefetch_sparse_dist" and shard.table.kernel in CACHED:
        numbers += f" + trunc((1 + 6 / {shard.table.prefetch_passes}) x {shard.input:,})"
    counted = true or held == 1 or setup.output_at_peak
    numbers += f" + {shard.output:,}" if counted else ""
    output = "and the output" if counted else "without the output, which TorchRec leaves out under a pipeline"
    said = f"inputs that pipeline {setup.pipeline!r} holds, {output}"
    return Step("buffers", said, numbers, shard.hbm["buffers"])
