"""Machines to plan for: devices in hosts, their memory and wires. Presets of common servers, or a TOML file.

    machine = read_machine("dgx-h100").of_hosts(2)
    task = machine.task("tables.csv", batch=32_768)

A file says what is not as in `Machine`; `devices` and `memory_gb` it must say:

    devices = 16           # of all hosts together
    memory_gb = 80         # of each device, 2**30 bytes; or a list, one a device
    hosts = 2
    link_gb_s = 240        # of each device towards those of its host, 1e9 bytes a second, achieved and one way
    link_us = 30           # of one all-to-all
    host_gb_s = 160        # of each host towards the others
    host_us = 4100         # more of an all-to-all between hosts
    speed = 1              # of computing, relative; or a list
    reserve = 0.15         # share of memory to leave free
    reserve_gb = 4         # and what the dense part and all else takes on each device
    host_memory_gb = 100   # of its host's memory, for the tables of each device, 2**30 bytes
    host_link_gb_s = 25    # of each device to it
    simulator = "roofline:a100-x32-roce-v2"
    price = 40.0           # an hour, of all hosts together
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from shard_gym.errors import CorruptFile, InvalidTask, UnknownName
from shard_gym.records.guard import guarded, text_of
from shard_gym.records.numbers import whole
from shard_gym.tables.configs import Pooling
from shard_gym.tables.pool import GB
from shard_gym.task.links import Links
from shard_gym.task.own import Tables, TaskSettings, make_task, memory_of
from shard_gym.task.task import Task

RESERVE = 0.15  # of memory, for fragmentation: what TorchRec's users keep
MOST_TEXT = 2**20  # bytes of a file
_RATES = ("link_gb_s", "link_us", "host_gb_s", "host_us", "host_link_gb_s")
_NUMBERS = (*_RATES, "reserve", "reserve_gb", "host_memory_gb", "price")


@dataclass(frozen=True)
class Machine:
    """Devices of one or several hosts that train together; see the module for units."""

    name: str
    devices: int
    memory_gb: float | Sequence[float]
    hosts: int = 1
    link_gb_s: float | None = None  # None: the simulator's wires
    link_us: float = 0.0
    host_gb_s: float | None = None
    host_us: float = 0.0
    speed: float | Sequence[float] = 1.0
    reserve: float = RESERVE
    reserve_gb: float = 0.0
    host_memory_gb: float = 0.0
    host_link_gb_s: float | None = None  # None: the simulator's
    simulator: str | None = None  # that comes closest; None: that of tasks of no suite
    price: float | None = None

    @guarded("a machine", InvalidTask)
    def __post_init__(self) -> None:
        try:
            for count in ("devices", "hosts"):
                object.__setattr__(self, count, whole(getattr(self, count)))
        except TypeError as error:
            raise InvalidTask(f"{self.name}: devices and hosts are whole numbers: {error}") from error
        memory_of(self.devices, 1)  # refuses counts that no machine has
        for name in _NUMBERS:
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
            if value is not None and not number:
                raise InvalidTask(f"{self.name}: {name} is a number from 0, got {value!r:.60}")
        if not isinstance(self.name, str) or not isinstance(self.simulator, str | None):
            raise InvalidTask(
                f"{self.name}: name and simulator are text, got {self.name!r:.60}, {self.simulator!r:.60}"
            )
        self._check_hosts()
        memory_of(self.devices, self.left_gb)
        self._each("speed")

    def _check_hosts(self) -> None:
        if self.hosts < 1 or self.devices % self.hosts:
            raise InvalidTask(f"{self.name}: {self.devices} devices do not come in {self.hosts} hosts of as many each")
        if self.hosts > 1 and not (self.link_gb_s and self.host_gb_s):
            raise InvalidTask(f"{self.name}: several hosts need link_gb_s and host_gb_s, rates inside and between them")

    def _each(self, name: str) -> np.ndarray:
        """Numbers of the devices, (K,)."""
        given = getattr(self, name)
        try:
            numbers = np.array(given)
            if numbers.dtype.kind in "iuf":
                return np.broadcast_to(numbers.astype(float), (self.devices,))
        except ValueError:
            pass
        told = f"one number, or {self.devices}, one for each device"
        raise InvalidTask(f"{self.name}: {name} is {told}; got {given!r:.80}")

    @property
    def left_gb(self) -> list[float]:
        """Memory of each device that reserves leave for tables, 2**30 bytes."""
        left = self._each("memory_gb") * (1 - self.reserve) - self.reserve_gb
        if not (left > 0).all():  # NaN is not
            off = f"a reserve of {self.reserve:.0%} and {self.reserve_gb:g}"
            raise InvalidTask(f"{self.name}: {off} leave nothing of memory_gb = {self.memory_gb!r:.80}")
        return [float(gb) for gb in left]

    @property
    def links(self) -> Links | None:
        """Links between devices; None: those of the simulator."""
        if not self.link_gb_s:
            return None
        inside = Links(port=self.link_gb_s * 1e6, latency_ms=self.link_us / 1e3)
        if self.hosts == 1:
            return inside
        latency_ms, uplink = (self.link_us + self.host_us) / 1e3, (self.host_gb_s or 0) * 1e6
        return replace(inside, latency_ms=latency_ms, group=self.devices // self.hosts, uplink=uplink)

    def of_hosts(self, hosts: int) -> Machine:
        """The same with so many hosts; its price grows with them."""
        with guarded("a number of hosts", InvalidTask):
            hosts = whole(hosts)
        if hosts == self.hosts:
            return self
        if np.ndim(self.memory_gb) or np.ndim(self.speed):
            raise InvalidTask(f"{self.name} tells devices one by one: say what its {self.hosts} hosts hold in a file")
        devices = self.devices // self.hosts * hosts
        price = None if self.price is None else self.price / self.hosts * hosts
        return replace(self, hosts=hosts, devices=devices, price=price)

    def task(self, tables: Tables, *, pooling: Pooling | None = None, **settings: Unpack[TaskSettings]) -> Task:
        """One step of training on this machine; settings are those of `make_task`, and win."""
        told: TaskSettings = {"links": self.links, "speed": self._each("speed").tolist()}
        told["host_memory"] = int(self.host_memory_gb * GB)
        told["host_link"] = None if self.host_link_gb_s is None else self.host_link_gb_s * 1e6
        told |= settings
        return make_task(tables, self.devices, self.left_gb, pooling=pooling, **told)


# Devices, memory, NVLink and network cards: data sheets (GB of memory taken as 2**30; of an H200 what CUDA reports).
# That wires achieve 0.8 of them and an all-to-all on one host takes 30 us are our estimates; what one between hosts
# takes more is fitted to FlexShard's Table 6 (8 A100s a host, RoCE), as there is no other figure.
def _server(name: str, memory_gb: float, nvlink_gb_s: float, network_gbit_s: float, simulator: str) -> Machine:
    inside, between = 0.8 * nvlink_gb_s, 0.8 * network_gbit_s / 8
    return Machine(name, 8, memory_gb, 1, inside, 30.0, between, 4100.0, simulator=simulator)


_A100, _H100, _H200 = "roofline:a100-x32-roce-v2", "roofline:h100-v2", "roofline:h200-v2"
MACHINES = {
    machine.name: machine
    for machine in (
        Machine("rtx2080ti-x4", 4, 11.0, simulator="roofline:rtx2080ti-x4-v1"),
        _server("dgx-a100-40", 40, 300, 1600, _A100),
        _server("dgx-a100-80", 80, 300, 1600, _A100),
        _server("dgx-h100", 80, 450, 3200, _H100),
        _server("dgx-h200", 139, 450, 3200, _H200),
        _server("p4d.24xlarge", 40, 300, 400, _A100),
        _server("p4de.24xlarge", 80, 300, 400, _A100),
        _server("p5.48xlarge", 80, 450, 3200, _H100),
        _server("p5en.48xlarge", 139, 450, 3200, _H200),
    )
}


def read_machine(name: str | Path) -> Machine:
    """A preset by its name, or the machine of a TOML file."""
    if not isinstance(name, str | Path):
        raise InvalidTask(f"hardware is a name or a file, got a {type(name).__name__}")
    if str(name) in MACHINES:
        return MACHINES[str(name)]
    path = Path(name)
    if path.suffix.lower() != ".toml":
        raise UnknownName("hardware", str(name), MACHINES, "or a file that ends in .toml, see shard_gym.task.machines")
    text = text_of(path, MOST_TEXT)
    with guarded(f"{path} is not TOML"):
        told: dict[str, Any] = tomllib.loads(text)
    known = [field.name for field in fields(Machine)]
    if unknown := sorted(told.keys() - set(known)):
        raise CorruptFile(f"{path}: unknown {', '.join(unknown)}; known are {', '.join(known)}")
    if missing := [key for key in ("devices", "memory_gb") if key not in told]:
        raise CorruptFile(f"{path}: no {missing[0]}; a machine is at least devices = 8 and memory_gb = 80")
    with guarded(path):
        return Machine(**{"name": path.stem, **told})
