"""Mixed-integer linear programs, solved by HiGHS, the extra `exact`.

HiGHS, as measured against OR-tools' CP-SAT on the tasks of four suites, 10 s and one thread each: bounds at least as
high on all, better plans on six of eight; costs stay real numbers, and it needs numpy only.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shard_gym.errors import MissingDependency
from shard_gym.records.installing import install

INFINITY = np.inf
MEGABYTE = 1e6  # the solver allows rows to be off by a millionth: of this, a byte
LARGE = 20_000  # variables: a larger program spends its time on its first linear relaxation
PACE = 5_000  # variables of a large program, that the solver begins with in a second; it looks up no sooner
GLANCE = 0.05  # seconds between two looks at what the solver has found

Improved = Callable[[np.ndarray], bool | None]  # told of better values; True stops the solver


class OutOfTime(Exception):
    """The program is too large to be built, or begun with, in the time there is."""


@dataclass(frozen=True, eq=False)
class Solution:
    """Result of a solver in its time: values of the variables, if any, and what no other values are below."""

    values: np.ndarray | None
    value: float  # of what was minimised; infinite without values
    bound: float


class Linear:
    """min cost.v, subject to low <= A v <= high and 0 <= v <= upper, some of v whole numbers.

    `end` is when building stops with OutOfTime.
    """

    def __init__(self, end: float = INFINITY) -> None:
        self.end = end
        self.cost: list[float] = []
        self.upper: list[float] = []
        self.whole: list[bool] = []  # variables that are whole numbers
        self.rows: list[tuple[float, np.ndarray, np.ndarray, float]] = []

    def variable(self, cost: float = 0.0, upper: float = INFINITY, whole: bool = False) -> int:
        """Add a variable, any number from 0 to `upper`."""
        self.cost.append(cost)
        self.upper.append(upper)
        self.whole.append(whole)
        return len(self.cost) - 1

    def row(self, low: float, variables: Sequence[int] | np.ndarray, values: Any, high: float) -> None:
        """low <= values.variables <= high."""
        if time.perf_counter() > self.end:
            raise OutOfTime
        self.rows.append((low, np.asarray(variables, np.int32), np.asarray(values, np.float64), high))

    def solved(
        self,
        seconds: float,
        gap: float,
        seed: int = 0,
        start: tuple[np.ndarray, np.ndarray] | None = None,
        improved: Improved | None = None,
    ) -> Solution:
        """Branch and cut on one thread until the relative gap is closed or the time is up.

        `start` is variables and their values to begin with, the solver finds the others. With `improved`, Ctrl-C ends
        the search with what there is.
        """
        highs = _highs()
        solver = highs.Highs()
        options = {"output_flag": False, "threads": 1, "time_limit": max(seconds, 0.0), "mip_rel_gap": gap}
        for name, value in {**options, "random_seed": seed % 2**31}.items():
            solver.setOptionValue(name, value)
        solver.passModel(self._as_highs(highs))
        if start is not None:
            solver.setSolution(len(start[0]), start[0].astype(np.int32), start[1].astype(np.float64))
        _watch(solver, improved)
        status, info = solver.getModelStatus(), solver.getInfo()
        if status == highs.HighsModelStatus.kInfeasible:
            return Solution(None, INFINITY, INFINITY)
        if info.primal_solution_status != highs.SolutionStatus.kSolutionStatusFeasible:
            return Solution(None, INFINITY, info.mip_dual_bound)
        return Solution(np.array(solver.getSolution().col_value), info.objective_function_value, info.mip_dual_bound)

    def _as_highs(self, highs: Any) -> Any:
        lp = highs.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.cost), len(self.rows)
        lp.col_cost_, lp.col_upper_ = np.array(self.cost), np.array(self.upper, np.float64)
        lp.col_lower_ = np.zeros(len(self.cost))
        low, variables, values, high = zip(*self.rows, strict=True)
        lp.row_lower_, lp.row_upper_ = np.array(low), np.array(high)
        lp.a_matrix_.format_ = highs.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.cumsum([0, *map(len, variables)]).astype(np.int32)
        lp.a_matrix_.index_, lp.a_matrix_.value_ = np.concatenate(variables), np.concatenate(values)
        kinds = highs.HighsVarType
        lp.integrality_ = [kinds.kInteger if whole else kinds.kContinuous for whole in self.whole]
        return lp


def _watch(solver: Any, improved: Improved | None) -> None:
    """Run the solver beside this thread, which Ctrl-C reaches."""
    stop, found = threading.Event(), deque[Any](maxlen=1)
    for asked in (solver.cbMipInterrupt, solver.cbSimplexInterrupt):
        asked += lambda event: event.interrupt(stop.is_set())
    if improved is not None:
        solver.cbMipImprovingSolution += lambda event: found.append(np.array(event.data_out.mip_solution))
    running = threading.Thread(target=solver.run, daemon=True)
    running.start()
    try:
        while running.is_alive():
            running.join(GLANCE)
            if improved is not None and found and improved(found.pop()):
                break
    except KeyboardInterrupt:
        if improved is None:
            raise
    finally:
        stop.set()
        running.join()


def _highs() -> Any:
    try:
        import highspy
    except ModuleNotFoundError as error:
        raise MissingDependency(f"exact solving needs HiGHS: {install('exact')}") from error
    return highspy
