"""Workers that do what tests tell them, on nodes."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np


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
