"""The machine under the measurements: its clocks, caches and cores, and what a card says of it."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

CLOCKS = {"wall": time.perf_counter, "thread": time.thread_time}
HOLD_CYCLES = 2_000_000  # about a millisecond of GPU in which the host enqueues a run, so that launches queue up


def mark(device: str, clock: str = "wall", hold: bool = False) -> Any:
    """A point in time: of the clock on a CPU, of the device's queue on a GPU."""
    if device == "cpu":
        return CLOCKS[clock]()
    import torch

    if hold:
        torch.cuda._sleep(HOLD_CYCLES)
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def elapsed_ms(start: Any, end: Any) -> float:
    """Between two marks; waits until the device has passed the second."""
    if isinstance(start, float):
        return float(end - start) * 1e3
    end.synchronize()
    return float(start.elapsed_time(end))


@contextmanager
def pinned(device: str, core: int | None = None) -> Iterator[None]:
    """One thread on one core while a CPU is measured; a GPU's host threads are left alone."""
    import torch

    if device != "cpu":
        yield
        return
    threads, cores = torch.get_num_threads(), os.sched_getaffinity(0)
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {min(cores) if core is None else core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(threads)


def cache_bytes(device: str) -> int:
    """Size of the GPU's L2, or of the last-level cache that core 0 sees."""
    if device != "cpu":
        import torch

        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    sizes = [p.read_text().strip() for p in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    known = [int(s[:-1]) * units[s[-1]] for s in sizes if re.fullmatch(r"\d+[KMG]", s)]
    return max(known, default=0) or os.sysconf("SC_LEVEL3_CACHE_SIZE") or 64 * 2**20


def hardware(device: str) -> dict[str, Any]:
    """The device that is measured: its name, caches and memory."""
    if device != "cpu":
        import torch

        found = torch.cuda.get_device_properties(device)
        return {
            "device": found.name,
            "memory_bytes": found.total_memory,
            "cache_bytes": cache_bytes(device),
            "multiprocessors": found.multi_processor_count,
            "count": torch.cuda.device_count(),
        }
    cpuinfo = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    model = re.search(r"model name\s*:\s*(.+)", cpuinfo)
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "device": model[1].strip() if model else platform.processor() or platform.machine(),
        "memory_bytes": pages,
        "cache_bytes": cache_bytes(device),
        "count": os.cpu_count(),
    }


def versions() -> dict[str, str]:
    """Of everything that has a say in the times."""
    import torch

    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for name in ("numpy", "fbgemm-gpu-cpu", "fbgemm-gpu"):
        for distribution in metadata.distributions(name=name):
            found[name] = distribution.version
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    return found
