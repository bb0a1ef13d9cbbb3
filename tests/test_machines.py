"""Machines to plan for: presets, files, and what they leave for tables."""

import pytest

from shard_gym import make_pool, simulators
from shard_gym.errors import CorruptFile, InvalidTask, UnknownName
from shard_gym.tables.pool import GB
from shard_gym.task.links import Links
from shard_gym.task.machines import MACHINES, Machine, read_machine
from shard_gym.task.own import MOST_DEVICES, make_task

FILE = """
devices = 4
memory_gb = [10, 10, 20, 20]
hosts = 2
link_gb_s = 200
link_us = 20
host_gb_s = 50
host_us = 1000
speed = [1, 1, 0.5, 0.5]
reserve = 0.1
reserve_gb = 1
simulator = "roofline:h200-v1"
price = 12
"""


def test_a_file_by_hand(tmp_path):
    (tmp_path / "mine.toml").write_text(FILE)
    machine = read_machine(tmp_path / "mine.toml")
    assert (machine.name, machine.simulator, machine.price) == ("mine", "roofline:h200-v1", 12)
    assert machine.left_gb == [10 * 0.9 - 1] * 2 + [20 * 0.9 - 1] * 2
    assert machine.links == Links(port=200e6, latency_ms=1.02, group=2, uplink=50e6)  # bytes a millisecond
    task = machine.task(make_pool([1000, 2000]), batch=512)
    assert task.memory == (8 * GB, 8 * GB, 17 * GB, 17 * GB)
    assert (task.speed, task.links, task.batch) == ((1, 1, 0.5, 0.5), machine.links, 512)


def test_hosts_multiply_devices_and_price():
    machine = Machine("m", 8, 80, link_gb_s=100, link_us=10, host_gb_s=10, price=5.0)
    assert machine.links == Links(port=100e6, latency_ms=0.01)
    assert machine.of_hosts(1) == machine
    three = machine.of_hosts(3)
    assert (three.devices, three.hosts, three.price) == (24, 3, 15.0)
    assert three.links == Links(port=100e6, latency_ms=0.01, group=8, uplink=10e6)
    assert three.of_hosts(1) == machine


@pytest.mark.parametrize("name", MACHINES)
def test_presets_name_a_simulator_and_leave_room(name):
    machine = read_machine(name)
    assert machine.simulator in simulators.registered()
    assert all(0.8 * machine.memory_gb < left < machine.memory_gb for left in machine.left_gb)
    task = machine.task(make_pool([1000, 2000]))
    assert simulators.make(machine.simulator).latency(task, [0, 1]).makespan("iteration") > 0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"devices": 0}, "at least one device"),
        ({"devices": 10**12}, f"at most {MOST_DEVICES:,}, got devices=1000000000000"),
        ({"devices": 8.0}, "whole numbers"),
        ({"devices": 9, "hosts": 2}, "9 devices do not come in 2 hosts"),
        ({"hosts": 0}, "0 hosts"),
        ({"hosts": 2, "link_gb_s": None}, "several hosts need link_gb_s and host_gb_s"),
        ({"memory_gb": [80, 80]}, "memory_gb is one number, or 8, one for each device"),
        ({"memory_gb": "80"}, "memory_gb is one number"),
        ({"memory_gb": 0}, "leave nothing"),
        ({"reserve": 1.5}, "a reserve of 150%"),
        ({"reserve_gb": 70}, "leave nothing of memory_gb = 80"),
        ({"speed": [1, 2]}, "speed is one number"),
        ({"link_us": -1}, "link_us is a number from 0"),
        ({"price": True}, "price is a number from 0"),
        ({"host_gb_s": float("nan")}, "host_gb_s is a number from 0"),
        ({"simulator": 3}, "name and simulator are text, got 'm', 3"),
        ({"name": 5}, "name and simulator are text, got 5, None"),
    ],
)
def test_machines_that_are_refused(changed, message):
    with pytest.raises(InvalidTask, match=message):
        Machine(**{"name": "m", "devices": 8, "memory_gb": 80, "link_gb_s": 100, "host_gb_s": 10, **changed})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("devices = ", "is not TOML"),
        ("memory_gb = 80", "no devices; a machine is at least devices = 8 and memory_gb = 80"),
        ("devices = 8\nmemory_gb = 80\ngpus = 3", "unknown gpus; known are name, devices"),
        ("devices = 8\nmemory_gb = 80\nspeed = 'fast'", "speed is one number, or 8"),
    ],
)
def test_files_that_are_refused(tmp_path, text, message):
    (tmp_path / "m.toml").write_text(text)
    with pytest.raises(CorruptFile, match=f"m.toml.* {message}|m.toml: {message}"):
        read_machine(tmp_path / "m.toml")


def test_names_that_are_unknown_are_told_the_presets():
    with pytest.raises(UnknownName, match=r"unknown hardware 'dgx'; choose one of: dgx-a100-40.*ends in \.toml"):
        read_machine("dgx")
    with pytest.raises(FileNotFoundError):
        read_machine("nowhere.toml")
    with pytest.raises(InvalidTask, match="say what its 1 hosts hold in a file"):
        Machine("m", 2, [80, 40]).of_hosts(2)


def test_so_many_devices_are_refused_at_once():
    for devices in (100_000_000, 10**12):
        with pytest.raises(InvalidTask, match=f"at least one device and at most 100,000, got devices={devices}"):
            make_task(make_pool([5]), devices, 16)
