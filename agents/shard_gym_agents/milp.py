"""Mixed-integer programs over placements, solved by HiGHS: `pip install 'shard-gym[exact]'`.

HiGHS, as measured against OR-tools' CP-SAT on the tasks of four suites, 10 s and one thread each: bounds at least as
high on all, better plans on six of eight; costs stay real numbers, and it needs numpy only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from shard_gym.errors import MissingDependency
from shard_gym.tasks import Constraints, Task

INFINITY = np.inf


@dataclass(frozen=True, eq=False)
class Answer:
    """What a solver found in its time: the placement, if any, and a value that no placement is below."""

    placement: np.ndarray | None  # (N,)
    value: float  # of what was minimised; infinite without a placement
    bound: float
    done: bool  # solved, or proved to have no solution


@dataclass(eq=False)
class Model:
    """min cost.v, subject to low <= A v <= high; `place` holds the numbers of the variables x[t, k], 0 or 1."""

    task: Task
    cost: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    rows: list[tuple[float, np.ndarray, np.ndarray, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        n, devices = self.task.num_tables, self.task.num_devices
        self.cost, self.upper = [0.0] * (n * devices), [1.0] * (n * devices)
        self.place = np.arange(n * devices).reshape(n, devices)
        for variables in self.place:
            self.row(1.0, variables, np.ones(devices), 1.0)
        self._keep(self.task.constraints)

    def variable(self, cost: float = 0.0) -> int:
        """One more variable, any number from 0."""
        self.cost.append(cost)
        self.upper.append(INFINITY)
        return len(self.cost) - 1

    def row(self, low: float, variables: Sequence[int] | np.ndarray, values: Any, high: float) -> None:
        """low <= values.variables <= high."""
        self.rows.append((low, np.asarray(variables, np.int32), np.asarray(values, np.float64), high))

    def at_least(
        self, result: int, device: int, values: np.ndarray, constant: float, others: Sequence[tuple[int, float]] = ()
    ) -> None:
        """result >= values of the tables on a device, plus a constant, plus other variables times a factor."""
        variables = [*self.place[:, device], *(variable for variable, _ in others), result]
        self.row(-INFINITY, variables, [*values, *(factor for _, factor in others), -1.0], -constant)

    def break_symmetry(self, alike: Sequence[Sequence[int]], order: np.ndarray) -> None:
        """Of devices that are alike, number them by the first table in `order` that each holds.

        The j-th then starts with the j-th table or a later one, so none before may lie there.
        """
        for devices in alike:
            for j, device in enumerate(devices):
                for table in order[:j]:
                    self.upper[self.place[table, device]] = 0.0

    def solve(self, seconds: float, gap: float, seed: int = 0, start: np.ndarray | None = None) -> Answer:
        """Branch and cut on one thread until the relative gap is closed or the time is up."""
        highs = _highs()
        solver = highs.Highs()
        options = {"output_flag": False, "threads": 1, "time_limit": max(seconds, 0.0), "mip_rel_gap": gap}
        for name, value in {**options, "random_seed": seed % 2**31}.items():
            solver.setOptionValue(name, value)
        solver.passModel(self._as_highs(highs))
        if start is not None:
            chosen = (start[:, None] == np.arange(self.place.shape[1])).astype(np.float64)
            solver.setSolution(self.place.size, self.place.ravel().astype(np.int32), chosen.ravel())
        solver.run()
        status, info = solver.getModelStatus(), solver.getInfo()
        if status == highs.HighsModelStatus.kInfeasible:
            return Answer(None, INFINITY, INFINITY, True)
        found = info.primal_solution_status == highs.SolutionStatus.kSolutionStatusFeasible
        values = np.array(solver.getSolution().col_value)
        placement = values[self.place].argmax(axis=1) if found else None
        value = info.objective_function_value if found else INFINITY
        return Answer(placement, value, info.mip_dual_bound, status == highs.HighsModelStatus.kOptimal)

    def _keep(self, constraints: Constraints) -> None:
        for table, device in constraints.pin:
            self.row(1.0, [self.place[table, device]], [1.0], 1.0)
        for group in constraints.together:
            for a, b in pairwise(group):
                for one, other in zip(self.place[a], self.place[b], strict=True):
                    self.row(0.0, [one, other], [1.0, -1.0], 0.0)
        for group in constraints.apart:
            for variables in self.place[list(group)].T:
                self.row(-INFINITY, variables, np.ones(len(group)), 1.0)
        if constraints.max_moves is not None:
            stay = self.place[np.arange(len(self.place)), list(constraints.base)]
            self.row(len(stay) - constraints.max_moves, stay, np.ones(len(stay)), INFINITY)

    def _as_highs(self, highs: Any) -> Any:
        lp = highs.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.cost), len(self.rows)
        lp.col_cost_, lp.col_upper_ = np.array(self.cost), np.array(self.upper)
        lp.col_lower_ = np.zeros(len(self.cost))
        low, variables, values, high = zip(*self.rows, strict=True)
        lp.row_lower_, lp.row_upper_ = np.array(low), np.array(high)
        lp.a_matrix_.format_ = highs.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.cumsum([0, *map(len, variables)]).astype(np.int32)
        lp.a_matrix_.index_, lp.a_matrix_.value_ = np.concatenate(variables), np.concatenate(values)
        kinds = highs.HighsVarType
        whole = self.place.size
        lp.integrality_ = [kinds.kInteger] * whole + [kinds.kContinuous] * (len(self.cost) - whole)
        return lp


def _highs() -> Any:
    try:
        import highspy
    except ModuleNotFoundError as error:
        raise MissingDependency("exact solving needs HiGHS: pip install 'shard-gym[exact]'") from error
    return highspy
