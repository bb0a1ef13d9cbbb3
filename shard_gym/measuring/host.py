"""The machine under the measurements: its clocks, cores, caches and memory, and what a card says of it."""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from shard_gym.errors import SimulatorError
from shard_gym.records.files import json_sha256

CLOCKS = {"wall": time.perf_counter, "thread": time.thread_time}
HOLD_FACTOR = 3.0  # a GPU's queue is held for so many times what the host took to fill it
LONGEST_NAME = 40  # characters
FIRST_HOLD_MS, LONGEST_HOLD_MS = 1.0, 200.0
CPU_LINE, GPU_SECTOR = 64, 32  # bytes that memory hands out at once
LEAST_CACHE = 64 * 2**20  # bytes, where the host does not say
CPU_ARENA_GB = 4.0  # a table of 12.5 M rows and 128 columns has 3.2 GB
GPU_ARENA_SHARE, GPU_ARENA_STEP = 0.7, 8.0  # large: tables that share memory would share the caches too
COUNTED = ("count", "memory_bytes")  # may differ between machines of one kind
TRIAL_CYCLES = 10_000_000  # of a GPU asleep, some milliseconds, to learn how long a cycle is


class Hold:
    """Keeps a GPU's queue waiting until the host has enqueued a whole run, so that launches cost no time.

    A run is `late` if the device began before the host was done: its time holds the host's work too. The next run
    waits for three times what this one took to enqueue. A CPU has no queue, and its runs are never late.
    """

    def __init__(self, device: str) -> None:
        self.device, self.ms, self._begun = device, FIRST_HOLD_MS, 0.0
        self._cycles_per_ms = 0.0 if device == "cpu" else self._learned()

    def begin(self) -> None:
        """Hold the queue from here on."""
        if self._cycles_per_ms:
            import torch

            torch.cuda.synchronize(self.device)  # ids and caches are ready
            torch.cuda._sleep(int(self.ms * self._cycles_per_ms))
        self._begun = time.perf_counter()

    def late(self, start: Any) -> bool:
        """True if the device has passed `start`, the first mark after the hold, before its queue is filled: now."""
        if not self._cycles_per_ms:
            return False
        late, took = bool(start.query()), (time.perf_counter() - self._begun) * 1e3
        self.ms = min(max(HOLD_FACTOR * took, FIRST_HOLD_MS), LONGEST_HOLD_MS)  # shorter again after a slow first run
        return late

    def _learned(self) -> float:
        """Cycles a millisecond, of a device that is awake and has the kernel loaded."""
        import torch

        torch.cuda._sleep(TRIAL_CYCLES)
        start = mark(self.device)
        torch.cuda._sleep(TRIAL_CYCLES)
        return TRIAL_CYCLES / elapsed_ms(start, mark(self.device))


def mark(device: str, clock: str = "wall") -> Any:
    """A point in time: of the clock on a CPU, of the device's queue on a GPU."""
    if device == "cpu":
        return CLOCKS[clock]()
    import torch

    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def elapsed_ms(start: Any, end: Any) -> float:
    """Time between two marks; waits until the device has passed the second."""
    if isinstance(start, float):
        return float(end - start) * 1e3
    end.synchronize()
    return float(start.elapsed_time(end))


def places(device: str, workers: int) -> list[tuple[str, int | None]]:
    """Device and core of each worker: every GPU, or every core, unless fewer are asked for."""
    if workers < 0:
        raise SimulatorError(f"workers must be 0 (one a core or GPU) or more, got {workers}")
    found: list[tuple[str, int | None]]
    if device == "cpu":
        found = [("cpu", core) for core in sorted(os.sched_getaffinity(0))]
    elif device == "cuda":
        import torch

        found = [(f"cuda:{i}", None) for i in range(torch.cuda.device_count())]
    else:
        found = [(device, None)]
    if workers > len(found):
        raise SimulatorError(f"{workers} workers need as many cores or GPUs of their own, there are {len(found)}")
    return found[: workers or len(found)]


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread of torch's: sums have one order, and small networks are faster."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def pinned(device: str, core: int | None = None) -> Iterator[None]:
    """One thread on one core while a CPU is measured; a GPU's host threads are left alone."""
    if device != "cpu":
        yield
        return
    cores = os.sched_getaffinity(0)
    with one_thread():
        os.sched_setaffinity(0, {min(cores) if core is None else core})
        try:
            yield
        finally:
            os.sched_setaffinity(0, cores)


def caches(device: str) -> dict[str, int]:
    """Bytes that memory hands out at once, and of the last two caches before it, of all cores together on a GPU."""
    if device != "cpu":
        import torch

        found = torch.cuda.get_device_properties(device)
        near = found.multi_processor_count * found.shared_memory_per_multiprocessor
        return {"line_bytes": GPU_SECTOR, "l2_bytes": int(near), "l3_bytes": int(found.L2_cache_size)}
    levels = [size for _, size in sorted(_cpu_caches().items())] or [LEAST_CACHE]
    return {"line_bytes": CPU_LINE, "l2_bytes": levels[-2:][0], "l3_bytes": levels[-1]}


def _cpu_caches() -> dict[int, int]:
    """Bytes of the data cache of each level that core 0 sees."""
    units, found = {"K": 2**10, "M": 2**20, "G": 2**30}, {}
    for folder in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        level, kind, size = ((folder / name).read_text().strip() for name in ("level", "type", "size"))
        if kind != "Instruction" and re.fullmatch(r"\d+[KMG]", size):
            found[int(level)] = int(size[:-1]) * units[size[-1]]
    return found


def default_arena_gb(device: str) -> float:
    """Memory for tables where nobody says how much: of a GPU seven tenths, in steps of 8."""
    if device == "cpu":
        return CPU_ARENA_GB
    import torch

    share = GPU_ARENA_SHARE * torch.cuda.get_device_properties(device).total_memory / 2**30
    return max(share // GPU_ARENA_STEP * GPU_ARENA_STEP, min(share, GPU_ARENA_STEP))


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


def hardware(device: str) -> dict[str, Any]:
    """The device that is measured: its name, caches and memory."""
    if device != "cpu":
        import torch

        found = torch.cuda.get_device_properties(device)
        return {
            "device": found.name,
            "memory_bytes": found.total_memory,
            **caches(device),
            "multiprocessors": found.multi_processor_count,
            "capability": f"{found.major}.{found.minor}",
            "count": torch.cuda.device_count(),
        }
    cpuinfo = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = re.search(r"model name\s*:\s*(.+)", cpuinfo)
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "device": model[1].strip() if model else platform.processor() or platform.machine(),
        "memory_bytes": pages,
        **caches(device),
        "count": os.cpu_count(),
    }


def kind_of(found: dict[str, Any]) -> dict[str, Any]:
    """The part of `hardware` that is the same for a device of this kind in any machine."""
    return {name: value for name, value in found.items() if name not in COUNTED}


def kind_name(found: dict[str, Any]) -> str:
    """A short name of the kind of a device, fit for a folder."""
    plain = "-".join(re.findall(r"[a-z0-9]+", str(found["device"]).lower()))[:LONGEST_NAME]
    return f"{plain or 'device'}-{json_sha256(kind_of(found))[:6]}"


def machine(device: str) -> dict[str, Any]:
    """Hardware and versions, as the card of a campaign tells them."""
    return {"hardware": hardware(device), "versions": versions()}


def versions() -> dict[str, str]:
    """Versions of everything that has a say in the times."""
    import torch

    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for name in ("numpy", "fbgemm-gpu-cpu", "fbgemm-gpu"):
        for distribution in metadata.distributions(name=name):
            found[name] = distribution.version
    unpacked = sys.modules.get("fbgemm_gpu")  # loaded, though nothing says that it is installed
    if unpacked and not {"fbgemm-gpu", "fbgemm-gpu-cpu"} & found.keys():
        found["fbgemm-gpu"] = getattr(unpacked, "__version__", "unknown")
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    return found
