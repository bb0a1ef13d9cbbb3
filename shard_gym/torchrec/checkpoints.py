"""Checkpoints of a model that trains, to go on under another plan. Needs torch.

    from shard_gym.torchrec.checkpoints import restore, save

    save(folder, model, *optimizers)  # every rank; KeyedOptimizers of what no fused kernel trains
    restore(folder, model, *optimizers)  # the same model under another plan, and new optimizers

`torch.distributed.checkpoint` reads the rows and columns that a rank wants, whoever wrote them. What is left to do here
are states of optimizers, which depend on how a table is sharded:

| state | under the other plan |
|---|---|
| a number for each weight | is where the weight is |
| a number for each row of a piece of columns | pieces that become one have their mean, parts of one its number |
| `sum` of copies (dp), by a dense Adagrad | is `momentum1` of fused kernels, and back |

The mean is what row-wise Adagrad would keep of a row that was never cut, the gradients being the same. Tables that
become copies count their steps anew, which matters with `lr_decay` only. What is not found again is refused before
anything is changed. The index of a checkpoint is a pickle, as torch writes it: read those you trust.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed
from torch.distributed import checkpoint
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader, LoadPlan
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from shard_gym.errors import CorruptFile, InvalidPlan

if TYPE_CHECKING:
    from torchrec.distributed import DistributedModelParallel
    from torchrec.optim.keyed import KeyedOptimizer

WEIGHTS, STATES = "model", "optimizer"  # first words of names in a checkpoint
SAME = {"momentum1": "sum", "sum": "momentum1"}  # what fused kernels call Adagrad's state, and what dense ones do
ANEW = "step"  # a state that fused kernels do not have

Part = tuple[tuple[int, ...], Tensor]  # of a whole tensor: where it begins, and its numbers


def save(folder: str | Path, model: DistributedModelParallel, *optimizers: KeyedOptimizer) -> None:
    """Write weights and states of optimizers, those of the model's fused kernels included; every rank calls it."""
    states = {key: state for key, _, state in _states(model, optimizers)}
    checkpoint.save({WEIGHTS: model.state_dict(), STATES: states}, checkpoint_id=str(folder))


def restore(folder: str | Path, model: DistributedModelParallel, *optimizers: KeyedOptimizer) -> None:
    """Read what `save` wrote into a model that may be sharded otherwise, and into new optimizers; every rank calls it.

    Optimizers that make their states in the first step, as Adam, have to have them: see TorchRec's `init_state`.
    """
    reading, refused = Reading(_saved(folder)), ""
    try:
        for key, tensor in model.state_dict().items():
            reading.add(f"{WEIGHTS}.{key}", tensor)
        for key, weight, state in _states(model, optimizers):
            reading.add_states(key, weight, state)
    except (CorruptFile, InvalidPlan) as error:
        refused = f"{folder}: {error}"
    _check_ranks(refused, reading)
    checkpoint.load({}, checkpoint_id=str(folder), planner=_Reader(reading.parts))
    with torch.no_grad():
        for target, pieces in reading.means:
            target.zero_()
            for share, piece in pieces:
                target.add_(piece, alpha=share)


def _saved(folder: str | Path) -> Mapping[str, Any]:
    try:
        return FileSystemReader(str(folder)).read_metadata().state_dict_metadata
    except OSError as error:
        raise CorruptFile(f"{folder} has no checkpoint: {error}") from error


def _states(model: Any, optimizers: Any) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Name, parameter and tensors of the state of each parameter that an optimizer trains."""
    for optimizer in (model.fused_optimizer, *optimizers):
        for key, state in optimizer.state_dict()["state"].items():
            yield key, optimizer.params[key], {name: of for name, of in state.items() if isinstance(of, Tensor)}


@dataclass(frozen=True)
class Reading:
    """Parts of a checkpoint that a rank reads, and the states that are means of them."""

    saved: Mapping[str, Any]  # of each name, size and chunks
    parts: dict[str, list[Part]] = field(default_factory=dict)
    means: list[tuple[Tensor, list[tuple[float, Tensor]]]] = field(default_factory=list)  # of pieces, by their shares

    def add(self, name: str, tensor: Any, source: str = "") -> None:
        """Read a tensor, or this rank's shards of one, as they are."""
        source = source or name
        if source not in self.saved:
            raise InvalidPlan(f"the checkpoint has no {name}: is it of another model?")
        size = tuple(getattr(self.saved[source], "size", ()))
        if size != tuple(tensor.size()):
            raise InvalidPlan(f"{name} is of {size} in the checkpoint, of {tuple(tensor.size())} in the model")
        self.parts.setdefault(source, []).extend(_parts(name, tensor))

    def add_states(self, key: str, weight: Any, state: Mapping[str, Any]) -> None:
        """Read the states of a parameter."""
        if f"{WEIGHTS}.{key}" not in self.saved:
            raise InvalidPlan(f"an optimizer trains {key}, and the checkpoint has no such weights")
        first = f"{STATES}.{key}."
        theirs = {name.removeprefix(first).split(".")[-1]: name for name in self.saved if name.startswith(first)}
        for name, tensor in state.items():
            short = name.split(".")[-1]
            source = theirs.get(short) or theirs.get(SAME.get(short, ""))
            if source is None and name.endswith(ANEW) and "momentum1" in theirs:
                continue
            if source is None:
                kept = ", ".join(theirs) or "nothing"
                raise InvalidPlan(f"the optimizer of {key} keeps {short}, that of the checkpoint {kept}")
            if tensor.dim() == 0 or not _by_row(tensor, weight):
                self.add(f"{first}{name}", tensor, source)
            else:
                self._add_rows(key, weight, tensor, source)

    def _add_rows(self, key: str, weight: Any, state: Any, source: str) -> None:
        """Read a number for each row of each of this rank's shards, of pieces of columns cut otherwise perhaps."""
        rows, pieces = weight.size()[0], self._pieces(key)
        size = tuple(self.saved[source].size)
        copied = size == (rows, 1)
        if not copied and size != (rows * len(pieces),):
            raise InvalidPlan(f"the state of {key} is of {size} in the checkpoint, which is no number for each row")
        for row, column, columns, target in _rows(weight, state):
            read = []
            for number, (begin, width) in enumerate(pieces):
                both = min(begin + width, column + columns) - max(begin, column)
                if both > 0:
                    piece = target if both == columns else torch.empty_like(target)
                    at, part = ((row, 0), piece.view(-1, 1)) if copied else ((number * rows + row,), piece.view(-1))
                    self.parts.setdefault(source, []).append((at, part))
                    read.append((both / columns, piece))
            if len(read) > 1:
                self.means.append((target, read))

    def _pieces(self, key: str) -> list[tuple[int, int]]:
        """First column and columns of the pieces that a table was cut into."""
        chunks = self.saved[f"{WEIGHTS}.{key}"].chunks
        return sorted({(chunk.offsets[1], chunk.sizes[1]) for chunk in chunks})


def _by_row(state: Any, weight: Any) -> bool:
    """True if a state of a table has a number for each row, and not one for each weight."""
    return len(weight.size()) == 2 and tuple(state.size()) != tuple(weight.size())


def _parts(name: str, tensor: Any) -> list[Part]:
    """Parts of a tensor that this rank has."""
    if isinstance(tensor, ShardedTensor):
        return [(tuple(shard.metadata.shard_offsets), shard.tensor) for shard in tensor.local_shards()]
    if type(tensor) not in (Tensor, torch.nn.Parameter):
        raise InvalidPlan(f"{name} is a {type(tensor).__name__}: ShardedTensors and plain ones are restored")
    return [((0,) * tensor.dim(), tensor.detach())]


def _rows(weight: Any, state: Any) -> Iterator[tuple[int, int, int, Tensor]]:
    """First row, first column and columns of each of this rank's shards of a table, and its state."""
    if not isinstance(weight, ShardedTensor):
        yield 0, 0, weight.size()[1], state
        return
    for shard, own in zip(weight.local_shards(), state.local_shards(), strict=True):
        (row, column), (_, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
        yield row, column, columns, own.tensor


class _Reader(DefaultLoadPlanner):
    """A planner that reads parts of tensors, wherever they were kept."""

    def __init__(self, parts: Mapping[str, list[Part]]) -> None:
        super().__init__()
        self.parts = parts

    def create_local_plan(self) -> LoadPlan:
        saved: Any = self.metadata
        items = []
        for name, parts in self.parts.items():
            chunks = [ChunkStorageMetadata(torch.Size(at), part.size()) for at, part in parts]
            items += create_read_items_for_chunk_list(name, saved.state_dict_metadata[name], chunks)
        return LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        return self.parts[index.fqn][index.index or 0][1]


def _check_ranks(refused: str, reading: Reading) -> None:
    """Refuse on every rank what one of them refuses, as the others would wait for it, and what none of them reads."""
    told: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(told, (refused, set(reading.parts)))
    reasons = [reason for reason, _ in told if reason]
    left = {name for name in reading.saved if not name.endswith(ANEW)}.difference(*(names for _, names in told))
    if left and not reasons:
        what = "another model, too few optimizers, or one without states yet?"
        reasons = [f"{min(left)} is in the checkpoint, and nobody reads it: {what}"]
    if reasons:
        raise InvalidPlan(reasons[0])
