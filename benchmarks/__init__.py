"""Measurements that this repository makes of itself, and what it ships: `python -m benchmarks.NAME`. Not installed.

`pages` says which pages there are and how one is made; `make` has what freezes, draws and ships.
"""

from pathlib import Path

RESULTS = Path(__file__).parent / "results"

# benchmarks.NAME is looked for in these folders too: commands and imports need not say in which of them it lies.
__path__ += [str(RESULTS.with_name(folder)) for folder in ("pages", "make")]
