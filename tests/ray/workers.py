"""Workers that do what tests tell them, on nodes."""

import os
import signal
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from shard_gym.measuring.fbgemm import Timing


@dataclass
class Told:
    """Does what a piece says: ("square", 3), ("sleep", seconds), ("die", file of deaths, how often), ("big", bytes)."""

    slot: object

    def do(self, payload):
        word, *given = payload
        return {"node": self.slot.node, "answer": getattr(self, word)(*given)}

    def square(self, number, seconds=0.0):
        time.sleep(seconds)
        return number**2

    def die(self, file, times):
        path = Path(file)
        deaths = int(path.read_text()) if path.exists() else 0
        if deaths < times:
            path.write_text(str(deaths + 1))
            os.kill(os.getpid(), signal.SIGKILL)
        return deaths

    def big(self, size):
        return np.ones(size, np.uint8)

    def odd(self):
        raise ZeroDivisionError("odd")


@dataclass
class StandIn:
    """A bench whose times follow from the shard alone; kind and noise by what the node's environment says."""

    settings: object
    seconds: float = 0.0

    def take_memory(self):
        pass

    def alive(self):
        return True

    def machine(self):
        device = os.environ.get("TEST_DEVICE", "a device")
        return {"hardware": {"device": device}, "versions": {"torch": os.environ.get("TEST_TORCH", "1")}}

    def measure(self, tables, seed=0):
        time.sleep(self.seconds)
        ms = float(tables.rows.sum() % 997 + tables.dim.sum())
        noisy = ms * (1 + float(os.environ.get("TEST_NOISE", "0")) * (seed % 2))
        return Timing(noisy, 2 * noisy, 0.1, 0.1, 0, ((noisy, 2 * noisy),))


slow = partial(StandIn, seconds=0.02)
