"""Fidelity of the second edition of predicted costs: `python -m benchmarks.fidelity_v2 [--check]`.

From committed data in less than a minute: shards of tables that no fit has seen, plans that were chosen before they
were measured, and how far the new planner and judge are to be believed, beside those of before. `--check` writes
nothing and says whether the page is what the data give.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import RESULTS, pages
from benchmarks.measured import Hardware
from shard_gym import simulators
from shard_gym.errors import CorruptFile, SettingsIgnored
from shard_gym.measuring import chosen
from shard_gym.measuring.drift import settled
from shard_gym.measuring.measurements import Measurements, groups, merged, repeat_noise
from shard_gym.measuring.predictors import (
    NORMAL_90,
    Shards,
    by_simulator,
    errors,
    of_pools,
    predicted_by,
    shards_of,
)
from shard_gym.records.files import read_json
from shard_gym.simulators import FastSimulator
from shard_gym.simulators.expected import expected_max

FITS = ("learned:cpu-v1", "learned:cpu-v2", "learned:cpu-judge-v1", "learned:cpu-judge-v2")
TREND = "learned:cpu-v1"  # sees the drift; it is none of those that are new
TEST_POOLS = ("metasyn_3_856", "metasyn_6_1000")
NARROW = ("cost-greedy", "local-search, 1 s", "ladder", "local-search")  # whose devices a planner has made equal
SORTS = ((1, 1), (2, 3), (4, 7), (8, 30))  # tables of a shard
FILE = "fidelity_v2.md"


def fits() -> dict[str, FastSimulator]:
    """The simulators that are compared."""
    found = {name: simulators.make(name) for name in FITS}
    assert all(isinstance(each, FastSimulator) for each in found.values())
    return found  # type: ignore[return-value]


def measure(options: argparse.Namespace) -> pages.Found:
    """All figures."""
    warnings.simplefilter("ignore", SettingsIgnored)
    hardware, known = Hardware(), fits()
    trend, reference = predicted_by(known[TREND]), Measurements.load(hardware.pace)
    old = [settled(Measurements.load(path), reference, trend) for path in hardware.files("test")]
    tests = {"2026-11-20": Measurements.concat(old)}
    for path in hardware.visits():
        tests[path.stem] = of_pools(settled(Measurements.load(path), reference, trend), TEST_POOLS)
    runs = [each for path in hardware.files("plans") for each in chosen.passes(Measurements.load(path))]
    runs = [settled(run, reference, trend) for run in runs]
    return {
        "shards": {name: shard_figures(m, known) for name, m in tests.items()},
        "plans": plan_figures(chosen.load(hardware.plans), runs, known),
        "again": [visited(path, tests, known) for path in hardware.visited_plans()],
    }


def shard_figures(measured: Measurements, known: dict[str, FastSimulator]) -> dict[str, Any]:
    """Errors of every fit on the means of the measurements of each shard; intervals hold the measurements' noise."""
    times = np.array([len(group) for group in groups(measured).values()])
    shards = shards_of(merged(measured))
    noise = shards.noise / np.sqrt(times)
    found = {name: _errors(simulator, shards, noise) for name, simulator in known.items()}
    return {"shards": len(shards), "noise": repeat_noise(measured), "fits": found}


def _errors(simulator: FastSimulator, shards: Shards, noise: np.ndarray) -> dict[str, Any]:
    predicted, ms = by_simulator(simulator)(shards), shards.times.sum(axis=1)
    assert predicted.spread is not None
    wide = NORMAL_90 * np.hypot(predicted.spread, noise * predicted.ms)
    tables = np.bincount(shards.shard)
    inside = {f"{a}-{b}": (tables >= a) & (tables <= b) for a, b in SORTS}
    by_size = {name: float(abs(predicted.ms / ms - 1)[held].mean()) for name, held in inside.items() if held.any()}
    held = float((abs(predicted.ms - ms) <= wide).mean())
    return errors(predicted.ms, ms) | {"coverage": held, "by_size": by_size}


def plan_figures(
    plans: dict[str, Any], runs: Sequence[Measurements], known: dict[str, FastSimulator]
) -> dict[str, dict[str, Any]]:
    """What each fit says of plans that v1 chose, against what they took."""
    found = {}
    for name, simulator in known.items():
        outcome = chosen.outcome(chosen.again(plans, simulator), runs, simulator)
        devices = np.median(outcome.devices, axis=0)
        found[name] = of_plans(outcome.solvers, outcome.expected, outcome.spread, devices)
    return found


def of_plans(solvers: Sequence[str], expected: np.ndarray, spread: np.ndarray, measured: np.ndarray) -> dict[str, Any]:
    """Optimism, speedup over random, and how far devices are told apart; all (T, S, K)."""
    makespan, claims = (
        measured.max(axis=-1),
        {"largest": expected.max(axis=-1), "E[max]": expected_max(expected, spread)},
    )
    random = list(solvers).index("random")
    rows = []
    for s, solver in enumerate(solvers):
        row: dict[str, Any] = {
            "solver": solver,
            "measured_speedup": float((makespan[:, random] / makespan[:, s]).mean()),
        }
        for claim, said in claims.items():
            off = makespan[:, s] / said[:, s] - 1
            row[claim] = {
                "optimism": float(off.mean()),
                "error": float(off.std() / np.sqrt(len(off))),
                "speedup": float((said[:, random] / said[:, s]).mean()),
            }
        rows.append(row)
    narrow = [s for s, solver in enumerate(solvers) if solver in NARROW]
    return {"rows": rows, "tasks": len(makespan)} | apart(expected[:, narrow], measured[:, narrow])


def apart(expected: np.ndarray, measured: np.ndarray) -> dict[str, float]:
    """Correlation of predicted and measured deviations of devices made equal, and how often the slowest is right."""
    used = (expected > 0).all(axis=-1)
    one, other = (np.log(times[used]) for times in (expected, measured))
    one, other = (deviations - deviations.mean(axis=-1, keepdims=True) for deviations in (one, other))
    return {
        "correlation": float(np.corrcoef(one.ravel(), other.ravel())[0, 1]),
        "slowest_right": float((one.argmax(axis=-1) == other.argmax(axis=-1)).mean()),
        "plans": int(used.sum()),
    }


def visited(path: Any, tests: dict[str, Measurements], known: dict[str, FastSimulator]) -> dict[str, Any]:
    """Plans of a mixture, by what planned them, against their visits."""
    told = read_json(path)
    measured = tests[path.stem.removesuffix("-plans")]
    times = {measured.key(i): float(ms) for i, ms in enumerate(measured.total_ms)}
    shapes: dict[str, Any] = {}
    planner = known[told["planner"]]
    for plan in told["plans"]:
        keys = [(plan["pool"], tuple(table), tuple(dim)) for table, dim in plan["shards"]]
        if all(key in times for key in keys):
            shape = f"{plan['tables']} tables, columns {min(plan['dims'])} to {max(plan['dims'])}"
            by_solver = shapes.setdefault(shape, {}).setdefault(plan["solver"], [])
            by_solver.append((keys, [times[key] for key in keys]))
    return {
        "planner": told["planner"],
        "name": path.stem,
        "shapes": {shape: _of_shape(by_solver, planner) for shape, by_solver in shapes.items()},
    }


def _of_shape(by_solver: dict[str, list[Any]], planner: FastSimulator) -> dict[str, Any]:
    count = min(map(len, by_solver.values()))
    shape = (count, len(by_solver), 8)
    expected, spread, measured = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for s, plans in enumerate(by_solver.values()):
        for t, (keys, ms) in enumerate(plans[:count]):
            predicted = by_simulator(planner)(shards_of(as_measured(keys)))
            assert predicted.spread is not None
            expected[t, s, : len(ms)], spread[t, s, : len(ms)] = predicted.ms, predicted.spread
            measured[t, s, : len(ms)] = ms
    return of_plans(list(by_solver), expected, spread, measured)


def as_measured(keys: Sequence[Any]) -> Measurements:
    """Shards of one pool, to be predicted."""
    from dataclasses import replace

    shards = Measurements.unmeasured(keys[0][0], [key[1:] for key in keys])
    ones = dict.fromkeys(("forward_ms", "backward_ms", "forward_spread", "backward_spread"), np.ones(len(keys)))
    return replace(shards, card={"settings": {"batch": 2048}}, **ones)


def page(found: pages.Found) -> str:
    """The page."""
    lines = ["# How true predicted costs are, second edition", "", "Made by `python -m benchmarks.fidelity_v2`.", ""]
    for name, told in found["shards"].items():
        noise = told["noise"].get("median_relative_difference")
        lines += [
            f"## {told['shards']} shards of unseen tables, campaign {name}",
            "",
            f"Two measurements differ by {noise:.1%} in the median." if noise else "Each shard: lowest runs of visits.",
            "",
            *pages.table(["", "MAPE", "bias", "in 90 %", "1 table", "2-3", "4-7", "8 and more"], _shard_rows(told)),
            "",
        ]
    lines += ["## Plans that v1 chose, 3 runs each", "", *_plan_lines(found["plans"]), ""]
    for told in found["again"]:
        lines += [f"## Plans by {told['planner']}, in visits ({told['name']})", ""]
        lines += [*_plan_lines(told["shapes"]), ""]
    return "\n".join(lines)


def _shard_rows(told: dict[str, Any]) -> list[list[str]]:
    return [
        [
            name,
            f"{f['mape']:.2%}",
            f"{f['bias']:+.1%}",
            f"{f['coverage']:.1%}",
            *(f"{x:.1%}" for x in f["by_size"].values()),
        ]
        for name, f in told["fits"].items()
    ]


def _plan_lines(told: dict[str, dict[str, Any]]) -> list[str]:
    head = ["", "plans by", "tasks", "optimism", "of E[max]", "speedup said", "of E[max]", "measured"]
    rows = [
        [
            name,
            row["solver"],
            str(found["tasks"]),
            *(f"{row[claim]['optimism']:+.1%} ± {row[claim]['error']:.1%}" for claim in ("largest", "E[max]")),
            *(f"{row[claim]['speedup']:.3f}" for claim in ("largest", "E[max]")),
            f"{row['measured_speedup']:.3f}",
        ]
        for name, found in told.items()
        for row in found["rows"]
    ]
    apart = [
        [name, f"{f['correlation']:.2f}", f"{f['slowest_right']:.0%}", str(f["plans"])] for name, f in told.items()
    ]
    return [
        *pages.table(head, rows),
        "",
        *pages.table(["devices made equal", "correlation of deviations", "slowest as predicted", "plans"], apart),
    ]


def check(text: str) -> None:
    """Refuse a page that is not what the data give."""
    if (RESULTS / FILE).read_text() != text:
        raise CorruptFile(f"{RESULTS / FILE} is not what the measurements give: run python -m benchmarks.fidelity_v2")


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page, or check it."""
    parser = pages.parser("fidelity_v2", __doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if the page is not what the data give"
    )
    options, _ = parser.parse_known_args(argv)
    if options.check:
        return pages.commands.run(parser, lambda options: check(page(measure(options))), argv)
    return pages.run(parser, measure, page, argv, file=FILE)


if __name__ == "__main__":
    raise SystemExit(main())
