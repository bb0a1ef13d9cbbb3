import time
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shard_gym import Constraints, Plan, Task, simulators, suites
from shard_gym.memory.usage import device_bytes, table_bytes
from shard_gym.plan.nodes import Nodes
from shard_gym.plan.violations import violations
from shard_gym.results.evaluate import score
from shard_gym_agents.search.exact import Milp, decide
from shard_gym_agents.search.milp import Model, OutOfTime
from tests.pool_helpers import fp16_pool as make_pool
from tests.test_bounds import WIRES
from tests.test_exact import sizes

pytest.importorskip("highspy")
ROOFLINE = simulators.make("roofline:rtx2080ti-x4-v1")


def ways(dim: int, devices: int) -> set[tuple[tuple[int, int], ...]]:
    """All that can become of a table: (columns, device) of each piece."""
    found = {((dim, d),) for d in range(devices)}
    if dim % 8 == 0:
        halves = ways(dim // 2, devices)
        found |= {tuple(sorted(a + b)) for a in halves for b in halves}
    return found


def every_split_plan(task: Task) -> list[tuple[Task, np.ndarray]]:
    """Pieces as tables, and their devices, where memory and constraints are kept."""
    c, found = task.constraints, []
    for tables in product(*(ways(int(dim), task.num_devices) for dim in task.tables.dim)):
        on = [{d for _, d in pieces} for pieces in tables]
        apart = all(len(set().union(*(on[t] for t in g))) == sum(len(on[t]) for t in g) for g in c.apart)
        together = all(len(set().union(*(on[t] for t in g))) == 1 for g in c.together)
        stay = sum(on[t] == {d} for t, d in enumerate(c.base))
        whole = all(len(tables[t]) == 1 for t in c.no_split)
        kept = apart and together and whole and all(on[t] == {d} for t, d in c.pin)
        if not kept or (c.max_moves is not None and stay < task.num_tables - c.max_moves):
            continue
        table, dim, device = np.array([(t, *piece) for t, pieces in enumerate(tables) for piece in pieces]).T
        pieces = task.tables.take(table).with_(dim=dim.astype(np.int32))
        pieces_task = replace(task, tables=pieces, constraints=Constraints())
        if (device_bytes(pieces_task, device) <= task.capacity).all():
            found.append((pieces_task, device))
    return found


SPLIT_CONSTRAINTS = [
    {},
    {"pin": ((0, 1),)},
    {"together": ((0, 2),)},
    {"apart": ((0, 1),)},
    {"base": (0, 0, 1), "max_moves": 1},
    {"no_split": (1,)},
]


@settings(max_examples=12, deadline=None)
@example(22, SPLIT_CONSTRAINTS[4], "weights")  # a half that moves makes room
@example(310, SPLIT_CONSTRAINTS[5], "weights")
@given(st.integers(0, 10**6), st.sampled_from(SPLIT_CONSTRAINTS), st.sampled_from(["weights", "training"]))
def test_feasibility_with_splits_is_decided_as_by_brute_force(seed, constraints, accounting):
    rng = np.random.default_rng(seed)
    tables = make_pool(rows=2_500 * rng.integers(1, 9, 3), dim=rng.permutation([4, 8, 16]))  # 10 kB steps
    shape = {"accounting": accounting, "optimizer": "rowwise_adagrad", "splits_allowed": True}
    task = Task(tables, (1,) * 2, constraints=Constraints(**constraints), **shape)
    memory = np.maximum(1, np.rint(table_bytes(task).sum() / 20_000 * rng.uniform(0.9, 1.2, 2))).astype(int) * 10_000
    task = replace(task, memory=tuple(memory.tolist()))
    exists, verdict = bool(every_split_plan(task)), decide(task, 60)
    assert verdict.feasible is exists, verdict.reason
    assert exists or "too few" in verdict.reason or "cannot be kept" in verdict.reason
    assert not exists or not violations(task, verdict.plan)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["kernel", "iteration"]), st.sampled_from(WIRES))
def test_tiny_tasks_with_splits_are_solved_as_well_as_by_brute_force(patient, seed, objective, links):
    rng = np.random.default_rng(seed)
    tables = make_pool(rows=200_000, dim=[16, 8, 4], pooling=rng.integers(1, 60, 3))
    task = Task(tables, (10**9,) * 2, objective, speed=rng.choice([1.0, 0.6], 2), links=links, splits_allowed=True)
    best = min(ROOFLINE.latency(pieces, d).makespan(objective) for pieces, d in every_split_plan(task))
    found = patient.solve(task, ROOFLINE)
    assert found.makespan == score(task, found.plan, ROOFLINE).makespan
    assert found.bound <= best <= found.makespan <= best * 1.0003
    assert "8 pieces" in found.program


def test_a_split_finds_room_where_whole_tables_do_not():
    task = sizes(7, 7, 3, 3, 3, memory=(9, 9, 6), splits_allowed=True)
    wide = replace(task, tables=task.tables.with_(dim=np.full(5, 8, np.int32)), memory=(18_000, 18_000, 12_000))
    verdict = decide(wide, 60)
    assert verdict.feasible and verdict.plan.splits and not violations(wide, verdict.plan)
    assert decide(replace(wide, constraints=Constraints(no_split=tuple(range(5)))), 60).feasible is False


def test_finer_pieces_than_the_program_makes_are_not_ruled_out():
    """Sixteenths of 4 columns fill devices that eighths do not: 3 tables of 16 parts on 7 devices of 7 parts."""
    task = Task(make_pool(rows=1_000, dim=[64] * 3), (7 * 8_000,) * 7, splits_allowed=True)
    verdict = decide(task, 60)
    assert verdict.feasible is None and "at most 8 pieces" in verdict.reason and "finer" in verdict.reason
    assert decide(replace(task, memory=(6 * 8_000,) * 7), 60).feasible is False


def test_programs_that_there_is_no_time_to_build_are_left_out():
    task = suites.get("mixed-20to119x8").tasks("test")[0]
    found = Milp(budget=1e-3).solve(task, simulators.make("roofline:rtx2080ti-x4-v1"))
    assert found.program == "none: 0.001 s are too little to begin with it" and 0 < found.bound <= found.makespan
    prod = suites.get("prod-1000x128").tasks("test")[0]
    with pytest.raises(OutOfTime):
        Model(Nodes.of(prod, split_action=False)).solve(1.0, gap=0.0)
    assert "too little to begin with a program" in decide(sizes(7, 7, 3, 3, 3, memory=(9, 9, 6)), 1e-6).reason


def stopping(answer):
    """Makespans that a search tells, and the `progress` that notes and stops it at the first."""
    told: list[float] = []

    def progress(makespan: float, seconds: float) -> bool:
        told.append(makespan)
        if answer is KeyboardInterrupt:
            raise KeyboardInterrupt
        return True

    return told, progress


@pytest.mark.parametrize("answer", [True, KeyboardInterrupt])
def test_a_stopped_search_returns_its_best_plan(answer, monkeypatch):
    """Begun with the worst plan of all, so that the program has something to tell."""
    task = replace(suites.get("dlrm-20x4").tasks("test")[0], name="stopped")
    told, progress = stopping(answer)
    monkeypatch.setattr(Milp, "_start", lambda *_: Plan((0,) * task.num_tables))
    begun = time.perf_counter()
    found = Milp(budget=300.0, gap=0.0, progress=progress).solve(task, ROOFLINE)
    assert len(told) == 1 and found.makespan <= told[0]
    assert time.perf_counter() - begun < 60


@pytest.mark.parametrize("answer", [True, KeyboardInterrupt])
def test_a_search_stopped_at_its_start_begins_no_program(answer):
    told, progress = stopping(answer)
    task = suites.get("mixed-10to59x4-split").tasks("val")[0]
    found = Milp(budget=60.0, progress=progress).solve(task, ROOFLINE)
    assert found.makespan == pytest.approx(told[-1], rel=1e-12) and len(told) == 1
    assert found.program == "none: stopped before it" and 0 < found.bound <= found.makespan
