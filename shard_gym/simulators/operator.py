"""FBGEMM's table-batched embedding, made from memory that all operators of a process share."""

from __future__ import annotations

import importlib
import re
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shard_gym.errors import MissingDependency, SimulatorError, UnknownName

if TYPE_CHECKING:
    import torch

OPTIMIZERS = {"sgd": "EXACT_SGD", "rowwise_adagrad": "EXACT_ROWWISE_ADAGRAD"}
DTYPES = {"fp16": "float16", "fp32": "float32"}
DISTRIBUTIONS = ("fbgemm-gpu-cpu", "fbgemm-gpu")  # one import name for both: the later one overwrites the earlier
LINE = 128  # bytes; every table starts on such a boundary, as tensors of their own would
FILL = 0.01  # of fresh memory: neither zero nor close to the smallest fp16
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
        """Where tables of so many elements begin; the arena grows if one table alone exceeds it."""
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


def free_bytes(device: str) -> int:
    """Memory that a process can still take on the device: of the host and of its control group, or of the GPU."""
    import torch

    if device != "cpu":
        return int(torch.cuda.mem_get_info(device)[0])
    meminfo = Path("/proc/meminfo").read_text() if Path("/proc/meminfo").exists() else ""
    found = re.search(r"MemAvailable:\s+(\d+) kB", meminfo)
    free = int(found[1]) * 1024 if found else 2**63 - 1
    limit, used = (Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory.current"))
    if limit.exists() and used.exists() and (text := limit.read_text().strip()) != "max":
        free = min(free, int(text) - int(used.read_text()))
    return free


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
        f"{asked} bytes asked, {free} free on {device}: measure smaller tables or a smaller batch, "
        "or lower arena_gb so that processes fit beside each other"
    )


def make_operator(rows: np.ndarray, dims: np.ndarray, optimizer: str, weights: Arena, state: Arena) -> Any:
    """One fused operator over tables of these rows and dims, on the arenas' device."""
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
        stochastic_rounding=False,
        bounds_check_mode=fbgemm.BoundsCheckMode.NONE,  # `check_trace` did, outside the timed region
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


def check_trace(rows: torch.Tensor, batch: int, indices: torch.Tensor, offsets: torch.Tensor) -> None:
    """Refuse what would make the operator read outside a table or a bag; FBGEMM itself is not asked to look.

    Table t's sample s looks up indices[offsets[t * batch + s]:offsets[t * batch + s + 1]].
    """
    import torch

    if len(offsets) != len(rows) * batch + 1:
        raise SimulatorError(f"{len(rows)} tables and {batch} samples need {len(rows) * batch + 1} offsets")
    if offsets[0] != 0 or offsets[-1] != len(indices) or (offsets.diff() < 0).any():
        raise SimulatorError(f"offsets must rise from 0 to {len(indices)}, the number of indices")
    starts = offsets[::batch].contiguous()  # of each table's lookups
    outside = (indices < 0) | (indices >= torch.repeat_interleave(rows, starts.diff()))
    if outside.any():
        first = int(outside.nonzero()[0])
        t = int(torch.searchsorted(starts, first, right=True)) - 1
        raise SimulatorError(f"table {t} has {int(rows[t])} rows, but its trace looks up row {int(indices[first])}")


def require(device: str) -> Any:
    """The modules of FBGEMM, or how to get the build that goes with this torch and device."""
    torch = imported("torch", "pip install torch==2.13.0, then pip install fbgemm-gpu-cpu==1.8.0 (CPU)")
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
        if (fit := _version_for(torch_version)) and not f"=={version}".startswith(fit.removesuffix(".*") + "."):
            raise MissingDependency(f"{name} {version} was not built for torch {torch_version}; run {command}")
    package = imported("fbgemm_gpu", command)
    if device != "cpu" and getattr(package, "__variant__", "") == "cpu":
        raise MissingDependency(f"this FBGEMM runs on CPUs only; run pip uninstall -y fbgemm-gpu-cpu && {command}")
    return _Modules(command)


class _Modules:
    """What we use of FBGEMM, under the names it has there."""

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
        return importlib.import_module(name)
    except (ImportError, OSError, RuntimeError, AttributeError) as error:  # OSError: its libraries do not load
        raise MissingDependency(f"{name} cannot be imported ({error}); run {command}") from error


def require_cuda(torch: Any, device: str) -> None:
    """Refuse a GPU that is not there."""
    if not re.fullmatch(r"cuda(:\d+)?", device):
        raise UnknownName("device", device, ("cpu", "cuda", "cuda:1"))
    if not torch.cuda.is_available():
        raise MissingDependency(
            f"torch {torch.__version__} sees no CUDA device; measure with --device cpu, or on a host with a GPU "
            "run pip install torch==2.13.0 fbgemm-gpu==1.8.0"
        )
    count = torch.cuda.device_count()
    if int(device.partition(":")[2] or 0) >= count:
        raise MissingDependency(f"there is no {device}: torch sees {count} CUDA devices, cuda:0 to cuda:{count - 1}")


def _version_for(torch_version: str) -> str:
    """FBGEMM 1.6 goes with torch 2.11, 1.7 with 2.12, and so on."""
    found = re.match(r"2\.(\d+)\.", torch_version)
    return f"==1.{int(found[1]) - 5}.*" if found and int(found[1]) >= 5 else ""
