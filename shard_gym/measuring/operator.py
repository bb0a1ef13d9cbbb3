"""FBGEMM's table-batched embedding: found, made from memory that all operators share, and checked against torch."""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import numpy as np

from shard_gym.errors import MissingDependency, SimulatorError, UnknownName
from shard_gym.measuring.host import free_bytes
from shard_gym.measuring.shards import Ids
from shard_gym.records.processes import end_with_parent
from shard_gym.tables.pool import TablePool, make_pool

if TYPE_CHECKING:
    import torch

OPTIMIZERS = {"sgd": "EXACT_SGD", "rowwise_adagrad": "EXACT_ROWWISE_ADAGRAD"}
DTYPES = {"fp16": "float16", "fp32": "float32"}
TORCH, FBGEMM = "==2.13.0", "==1.8.0"  # where neither is installed
DISTRIBUTIONS = ("fbgemm-gpu-cpu", "fbgemm-gpu")  # one import name for both: the later one overwrites the earlier
LINE = 128  # bytes; every table starts on such a boundary, as tensors of their own would
FILL = 0.01  # of fresh memory: neither zero nor close to the smallest fp16
CHECKED_BATCH, CHECKED_BYTES = 64, 2**26
LEARNING_RATE = 0.01  # FBGEMM's default
TOLERANCE = 5e-3  # of the largest value; fp16 has 11 bits, and stochastic rounding may take the next number
OP_FAILURES = (RuntimeError, MemoryError, AssertionError)  # what torch and FBGEMM raise when they cannot


class Arena:
    """One flat buffer on the device, every page touched, that all tables of all operators take their memory from.

    A shard larger than the arena wraps around: its tables overlap, which costs nothing as fresh ids are cold anyway.
    """

    def __init__(self, device: str, dtype: str, bytes: int) -> None:
        import torch

        self.device, self.dtype = device, getattr(torch, dtype)
        self.item = self.dtype.itemsize
        self.bytes = bytes
        self._buffer: torch.Tensor | None = None

    @property
    def buffer(self) -> torch.Tensor:
        """The memory, taken at the first use."""
        if self._buffer is None:
            self._buffer = _touched(self.bytes // self.item, self.dtype, self.device)
        return self._buffer

    def place(self, sizes: list[int]) -> list[int]:
        """Offsets at which tables of so many elements begin; the arena grows if one table alone exceeds it."""
        if max(sizes) * self.item > self.bytes:
            self._grow(max(sizes) * self.item)
        offsets, end, line = [], 0, LINE // self.item
        for size in sizes:
            start = -(-end // line) * line
            if (start + size) * self.item > self.bytes:
                start = 0
            offsets.append(start)
            end = start + size
        return offsets

    def _grow(self, asked: int) -> None:
        own = 0 if self._buffer is None else self.bytes
        if asked > (free := free_bytes(self.device) + own):
            raise SimulatorError(_no_room(asked, free, self.device))
        self.bytes, self._buffer = asked, None


def _touched(elements: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    import torch

    asked, free = elements * dtype.itemsize, free_bytes(device)
    if asked > free:  # the kernel hands out more than it has, and kills whoever touches it
        raise SimulatorError(_no_room(asked, free, device))
    try:
        return torch.full((elements,), FILL, dtype=dtype, device=device)
    except OP_FAILURES as error:
        raise SimulatorError(_no_room(asked, free, device)) from error


def _no_room(asked: int, free: int, device: str) -> str:
    return (
        f"{asked} bytes asked, {free} free on {device}: lower --arena-gb so that it fits beside what else is there, "
        "or measure smaller tables or a smaller batch"
    )


def make_operator(
    rows: np.ndarray, dims: np.ndarray, optimizer: str, weights: Arena, state: Arena, production: bool = False
) -> Any:
    """One fused operator over tables of these rows and dims, on the arenas' device.

    `production` leaves stochastic rounding and the check of ids as the library has them: on.
    """
    fbgemm = require(weights.device)
    if (dims % 4).any():
        raise SimulatorError(
            f"FBGEMM needs dims that are multiples of 4, got {sorted(set(dims[dims % 4 > 0].tolist()))}"
        )
    cpu = weights.device == "cpu"
    place = fbgemm.EmbeddingLocation.HOST if cpu else fbgemm.EmbeddingLocation.DEVICE
    compute = fbgemm.ComputeDevice.CPU if cpu else fbgemm.ComputeDevice.CUDA
    kind = fbgemm.SparseType.FP16 if weights.item == 2 else fbgemm.SparseType.FP32
    return _operator_class(fbgemm.SplitTableBatchedEmbeddingBagsCodegen)(
        weights,
        state,
        embedding_specs=[(int(r), int(d), place, compute) for r, d in zip(rows, dims, strict=True)],
        optimizer=getattr(fbgemm.OptimType, OPTIMIZERS[optimizer]),
        weights_precision=kind,
        output_dtype=fbgemm.SparseType.FP32,
        pooling_mode=fbgemm.PoolingMode.SUM,
        stochastic_rounding=production,
        # `check_trace` did, outside the timed region
        bounds_check_mode=fbgemm.BoundsCheckMode.WARNING if production else fbgemm.BoundsCheckMode.NONE,
        device="cpu" if cpu else weights.device,
    )


@cache
def _operator_class(base: Any) -> Any:
    """FBGEMM's operator, with the one step replaced that takes memory for its tables."""

    class ArenaOperator(base):  # type: ignore[misc]
        def __init__(self, weights: Arena, state: Arena, **config: Any) -> None:
            object.__setattr__(self, "arenas", {"weights": weights, "momentum1": state})
            super().__init__(**config)

        def _apply_split(self, split: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
            arena: Arena = self.arenas[prefix]
            rowwise = prefix != "weights"
            sizes = [rows * (1 if rowwise else dim) for rows, dim, *_ in self.embedding_specs]
            where = split._replace(dev_size=0, host_size=0, offsets=arena.place(sizes))
            super()._apply_split(where, prefix, *args, **kwargs)
            setattr(self, f"{prefix}_host" if arena.device == "cpu" else f"{prefix}_dev", arena.buffer)

    return ArenaOperator


def check_operator(device: str, optimizer: str, dtype: str, production: bool) -> dict[str, float]:
    """Largest errors of pooled rows and of updated weights, over the largest values; too large ones are refused."""
    require(device)
    tables = make_pool(rows=[50, 700, 3_000], dim=[4, 64, 768], pooling=[3, 2, 7], reference_batch=1_024)
    weights, state = Arena(device, DTYPES[dtype], CHECKED_BYTES), Arena(device, "float32", CHECKED_BYTES)
    operator = make_operator(tables.rows, tables.dim, optimizer, weights, state, production)
    state.buffer.zero_()
    forward, update = _errors(operator, tables, optimizer, device)
    if max(forward, update) > TOLERANCE:
        raise SimulatorError(
            f"FBGEMM on {device} is off by {forward:.1e} in pooled rows and {update:.1e} in updated weights against "
            f"torch's embedding bag (at most {TOLERANCE:.0e}): this build does not fit this device"
        )
    return {"forward_error": forward, "update_error": update}


def check_apart(*settings: Any) -> dict[str, float]:
    """Check the operator in a process of its own: this one takes no memory of a GPU, and outlives a crash."""
    try:
        with ProcessPoolExecutor(1, get_context("spawn"), end_with_parent) as apart:
            return apart.submit(check_operator, *settings).result()
    except BrokenProcessPool as error:
        raise SimulatorError(
            f"the process that checked FBGEMM on {settings[0]} died: this build does not fit this device"
        ) from error


def _errors(operator: Any, tables: TablePool, optimizer: str, device: str) -> tuple[float, float]:
    """Errors of one run with random weights and gradients."""
    import torch

    held, generator = operator.split_embedding_weights(), torch.Generator(device).manual_seed(0)
    for weights in held:
        weights.normal_(generator=generator)
    before = [weights.detach().float().clone().requires_grad_() for weights in held]
    ids = Ids(torch.device(device), CHECKED_BATCH, fresh=True, cache_bytes=0)
    indices, offsets = next(ids.sets(tables, np.random.default_rng(0)))
    bags = []
    for t, weights in enumerate(before):
        ends = offsets[t * CHECKED_BATCH : (t + 1) * CHECKED_BATCH + 1]
        mine = indices[int(ends[0]) : int(ends[-1])]
        bag = torch.nn.functional.embedding_bag
        bags.append(bag(mine, weights, ends - ends[0], mode="sum", include_last_offset=True))
    expected = torch.cat(bags, dim=1)
    gradient = torch.randn(expected.shape, generator=generator, device=device)
    expected.backward(gradient)
    pooled = operator(indices, offsets)
    pooled.backward(gradient)
    updates = [_error(now.float(), _updated(then, optimizer)) for now, then in zip(held, before, strict=True)]
    return _error(pooled.detach(), expected.detach()), max(updates)


def _updated(weights: torch.Tensor, optimizer: str) -> torch.Tensor:
    """Weights after one step from an empty state."""
    gradient = weights.grad
    assert gradient is not None
    if optimizer == "rowwise_adagrad":
        gradient = gradient / (gradient.pow(2).mean(dim=1, keepdim=True).sqrt() + 1e-8)
    return weights.detach() - LEARNING_RATE * gradient


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def require(device: str) -> Any:
    """The modules of FBGEMM, or how to get the build that goes with this torch and device."""
    wanted = "fbgemm-gpu-cpu" if device == "cpu" else "fbgemm-gpu"
    torch = imported("torch", f"pip install torch{TORCH}, then pip install {wanted}{FBGEMM}")
    if device != "cpu":
        require_cuda(torch, device)
    return _fbgemm(str(torch.__version__), device)


@cache
def _fbgemm(torch_version: str, device: str) -> Any:
    wanted = "fbgemm-gpu-cpu" if device == "cpu" else "fbgemm-gpu"
    command = f"pip install {wanted}{_version_for(torch_version)}"
    installed = {name: d.version for name in DISTRIBUTIONS for d in metadata.distributions(name=name)}
    if len(installed) > 1:
        raise MissingDependency(
            "fbgemm-gpu and fbgemm-gpu-cpu are both installed and overwrite each other; run "
            f"pip uninstall -y fbgemm-gpu fbgemm-gpu-cpu && {command}"
        )
    for name, version in installed.items():
        _refuse_other(name, version, torch_version, command)
    package = imported("fbgemm_gpu", command)
    if not installed:  # unpacked, not installed
        _refuse_other("FBGEMM", getattr(package, "__version__", ""), torch_version, command)
    if device != "cpu" and getattr(package, "__variant__", "") == "cpu":
        raise MissingDependency(f"this FBGEMM runs on CPUs only; run pip uninstall -y fbgemm-gpu-cpu && {command}")
    return _Modules(command)


def _refuse_other(name: str, version: str, torch_version: str, command: str) -> None:
    """Refuse a release that was built for another torch; builds without a release's number are believed."""
    fit = _version_for(torch_version).strip("=*")
    if fit and re.match(r"\d", version) and not version.startswith(fit):
        raise MissingDependency(f"{name} {version} was not built for torch {torch_version}; run {command}")


class _Modules:
    """Names of FBGEMM that we use, under the names it has there."""

    def __init__(self, command: str) -> None:
        common = imported("fbgemm_gpu.split_table_batched_embeddings_ops_common", command)
        training = imported("fbgemm_gpu.split_table_batched_embeddings_ops_training", command)
        configs = imported("fbgemm_gpu.split_embedding_configs", command)
        self.EmbeddingLocation, self.ComputeDevice = common.EmbeddingLocation, common.ComputeDevice
        self.BoundsCheckMode, self.PoolingMode = common.BoundsCheckMode, common.PoolingMode
        self.SparseType, self.OptimType = configs.SparseType, configs.EmbOptimType
        self.SplitTableBatchedEmbeddingBagsCodegen = training.SplitTableBatchedEmbeddingBagsCodegen


def imported(name: str, command: str) -> Any:
    """The module of that name, or the command that installs it."""
    try:
        with _quiet():
            return importlib.import_module(name)
    except (ImportError, OSError, RuntimeError, AttributeError) as error:  # OSError: its libraries do not load
        raise MissingDependency(f"{name} cannot be imported ({error.__cause__ or error}); run {command}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """No warnings while a package loads: FBGEMM 1.6 logs 26 times that it does not know itself; `_fbgemm` looks."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def require_cuda(torch: Any, device: str) -> None:
    """Refuse a GPU that is not there."""
    if not re.fullmatch(r"cuda(:\d+)?", device):
        raise UnknownName("device", device, ("cpu", "cuda", "cuda:1"))
    if not torch.cuda.is_available():
        release = str(torch.__version__).partition("+")[0]
        raise MissingDependency(
            f"torch {torch.__version__} sees no CUDA device; measure with --device cpu, or on a host with a GPU run "
            f"pip install torch=={release} fbgemm-gpu{_version_for(str(torch.__version__)) or FBGEMM}"
        )
    count = torch.cuda.device_count()
    if int(device.partition(":")[2] or 0) >= count:
        raise MissingDependency(f"there is no {device}: torch sees {count} CUDA devices, cuda:0 to cuda:{count - 1}")


def _version_for(torch_version: str) -> str:
    """FBGEMM 1.6 goes with torch 2.11, 1.7 with 2.12, and so on."""
    found = re.match(r"2\.(\d+)\.", torch_version)
    return f"==1.{int(found[1]) - 5}.*" if found and int(found[1]) >= 5 else ""
