"""Certificates: what is proved holds, whatever the proof says; what proves less than it claims is refused."""

import ast
import copy
import gzip
import json
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import certificates as published
from shard_gym import simulators, suites
from shard_gym.bounds import certificate
from shard_gym.bounds.certify import certified, proofs
from shard_gym.errors import CorruptFile, SimulatorError
from shard_gym.memory.usage import device_bytes
from shard_gym.proofs import FORMS, verify
from shard_gym.proofs.cases import LINKS, Pieces
from shard_gym.records.guard import opened
from shard_gym.results.evaluate import score
from shard_gym_agents.cli.main import main
from shard_gym_agents.search.duals import dual_proofs
from tests.env_helpers import PoolingMs
from tests.test_bounds import JUDGE, ROOFLINE, drawn_task, split_plans

FOLDER = Path(__file__).parents[1] / "shard_gym" / "proofs"
H100 = simulators.make("roofline:h100-v1")
SUITES = ("dlrm-20x4", "dlrm-10x2", "hetero-80x8", "tightmix-80x8-split", "core-80x8-allkinds", "metasyn-80x8")


@pytest.fixture(scope="module")
def certificates():
    """A certificate of the first test task of each suite, with task and judge; as files hold them."""
    found = {}
    for key in SUITES:
        suite = suites.get(key)
        task, judge = suite.tasks("test")[0], simulators.make(suite.judge)
        found[key] = (json.loads(json.dumps(certified(task, judge))), task, judge)
    task, judge = suites.get("dlrm-50x4").tasks("test")[0], ROOFLINE
    crowded = list(dual_proofs(task, judge))[-1] if find_spec("highspy") else {"form": "cases", "cases": []}
    found["crowded"] = (certified(task, judge, [crowded]), task, judge)
    told, task, judge = found["metasyn-80x8"]
    proof = {"form": "alone", "table": 4}
    found["alone"] = (told | {"proof": proof, "bound": FORMS["alone"](task, judge, proof)}, task, judge)
    return found


@pytest.mark.parametrize("key", SUITES)
def test_certificates_prove_what_bounds_say(certificates, key):
    told, task, judge = certificates[key]
    assert verify(told, task, judge) == told["bound"]
    assert told["bound"] >= certificate(task, judge, 0.0).makespan * (1 - 1e-7)


def test_prices_of_all_plans_prove_less_than_cases_of_waits(certificates):
    """The form that certificates had before; here the waits are 3 of 0.03 ms."""
    told, task, judge = certificates["core-80x8-allkinds"]
    case = told["proof"]["cases"][0]
    proof = {"form": "prices", "sum": case["sum"], **case["spans"][0]["all"]}
    proved = FORMS["prices"](task, judge, proof)
    assert verify(told | {"proof": proof, "bound": proved}, task, judge) == proved
    assert 0.9 * told["bound"] < proved < told["bound"] - 0.09


def best_of_all(task, simulator) -> float:
    """The makespan of the fastest plan of whole tables that fits."""
    everywhere = np.array(list(product(range(task.num_devices), repeat=task.num_tables)))
    fits = (device_bytes(task, everywhere) <= task.capacity).all(axis=1)
    return float(simulator.latency(task, everywhere[fits]).makespan(task.objective).min()) if fits.any() else np.inf


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["kernel", "iteration"]), st.sampled_from([ROOFLINE, JUDGE]))
def test_no_plan_is_faster_than_what_is_proved(seed, objective, simulator):
    task = drawn_task(seed, objective, most=6)
    best = best_of_all(task, simulator)
    bounds = [FORMS[proof["form"]](task, simulator, proof) for proof in proofs(task, simulator)]
    assert max(bounds, default=0.0) <= best


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["kernel", "iteration"]))
def test_weights_of_the_linear_program_prove_more_and_hold(seed, objective):
    pytest.importorskip("highspy")
    task = drawn_task(seed, objective, most=6)
    plain = certified(task, H100)["bound"]
    told = certified(task, H100, dual_proofs(task, H100))
    assert plain <= told["bound"] == verify(told, task, H100) <= best_of_all(task, H100)


def test_devices_of_two_speeds_need_the_linear_program():
    pytest.importorskip("highspy")
    task = suites.get("hetero-80x8").tasks("test")[0]
    assert certified(task, H100, dual_proofs(task, H100))["bound"] > 1.003 * certified(task, H100)["bound"]


@pytest.mark.parametrize("arguments", [["--suite", "dlrm-20x4", "--index", "1"], ["--task", "task.json"]])
def test_bounds_go_to_files_and_are_accepted_again(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("task.json").write_text(suites.get("dlrm-20x4").tasks("test")[1].to_json())
    assert main(["bound", *arguments, "--out", "bound.json"]) == 0
    also = arguments if arguments[0] == "--task" else []
    assert main(["verify", "bound.json", *also]) == 0
    told = json.loads(Path("bound.json").read_text())
    Path("bound.jsonl.gz").write_bytes(gzip.compress(json.dumps(changed(told, "bound", to=99.0)).encode()))
    assert main(["verify", "bound.json", "bound.jsonl.gz", *also]) == 1
    assert "line 1: a certificate claims 99.0 ms" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "code"),
    [("", 1), ("{", 2), ("5", 1), ('{"simulator": "/dev/zero"}', 1), ('{"simulator": "roofline:h100-v1"}', 1)],
)
def test_files_of_no_certificates_are_refused(text, code, tmp_path):
    (tmp_path / "x.json").write_text(text)
    assert main(["verify", str(tmp_path / "x.json")]) == code


@pytest.mark.parametrize("path", sorted(published.FOLDER.glob("*.gz"))[:2], ids=lambda path: path.name)
def test_the_first_published_certificates_are_accepted(path, tmp_path):
    with opened(path) as file:
        (tmp_path / "some.jsonl").write_bytes(b"".join(file.readlines()[:3]))
    assert main(["verify", str(tmp_path / "some.jsonl")]) == 0


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["kernel", "iteration"]), st.booleans())
def test_no_plan_is_faster_whatever_the_weights(seed, objective, splits):
    task, rng = drawn_task(seed, objective, splits, most=5), np.random.default_rng(seed)
    pieces, devices = Pieces(task, H100), range(task.num_devices)

    def weights():
        share = rng.dirichlet(np.ones(task.num_devices)) * 0.999
        numbers = [[k, int(rng.integers(2)), float(share[k])] for k in devices]
        part = rng.random((2, task.num_devices)) * share
        links = zip(LINKS, (part[0], share - part[0], part[1], share - part[1]), strict=True)
        told = {name: [[k, float(values[k])] for k in devices] for name, values in links}
        memory = [[k, float(rng.random() * rng.choice([0, 1e-12, 1e-9]))] for k in devices]
        forward = [
            [k, int(rng.integers(2)), float(w)] for k, w in enumerate(rng.dirichlet(np.ones(len(devices))) * 0.999)
        ]
        count = float(rng.random() * rng.choice([0, 0.1, 1]))
        return {"count": count, "both": numbers, "backward": numbers, "forward": forward, "memory": memory, **told}

    def proven(*where):
        return min(pieces.least(told, weights()) for told in where)

    most = -(-task.num_tables // task.num_devices)
    bound = max(
        proven("any"),
        proven(*(("empty", k) for k in devices), *(("many", k, most) for k in devices)),
        proven("busy", *(("empty", k) for k in devices)),
        *(proven(*(("holds", t, k) for k in devices)) for t in range(task.num_tables)),
    )
    best = best_of_all(task, H100)
    if splits:
        scores = [score(task, plan, H100) for plan in split_plans(task, seed)]
        best = min([best, *(found.makespan for found in scores if found.feasible)])
    assert bound <= best


def changed(told, *path, to):
    """The certificate with another value somewhere."""
    other = copy.deepcopy(told)
    inner = other
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = to(inner[path[-1]]) if callable(to) else to
    return other


def scaled(weights):
    return [[*named, 1.01 * weight] for *named, weight in weights]


def respanned(cases, **changes):
    """Cases with other numbers in the proofs of all plans of their spans."""
    cases = copy.deepcopy(cases)
    for span in (span for case in cases for span in case["spans"]):
        span["all"] |= {name: change(span["all"][name]) for name, change in changes.items()}
        span["rest"] |= {name: change(span["rest"][name]) for name, change in changes.items()}
    return cases


CASES, HALVES, KINDS = ("proof", "cases"), "tightmix-80x8-split", "core-80x8-allkinds"
TAMPERED = {
    "a higher bound": ("dlrm-20x4", ("bound",), lambda b: b * (1 + 1e-12), "claims"),
    "no number": ("dlrm-20x4", ("bound",), "1.0", "claims"),
    "another task": ("dlrm-20x4", ("task",), "0" * 16, "not of"),
    "another simulator": ("dlrm-20x4", ("simulator",), "roofline:h200-v1", "not of"),
    "another schema": ("dlrm-20x4", ("schema",), "x", "not of"),
    "an unknown form": ("dlrm-20x4", ("proof", "form"), "faith", "faith"),
    "a case left out": (HALVES, CASES, lambda cases: cases[:-1], "in none of the cases"),
    "no case": (HALVES, CASES, [], "in none of the cases"),
    "a case that is true for a number": (HALVES, (*CASES, 2, "where"), ["empty", True], "whole number"),
    "a case of half a device": (HALVES, (*CASES, 2, "where"), ["empty", 1.0], "float"),
    "a thousand cases": (HALVES, CASES, lambda cases: cases * 100, "these too many"),
    "weights above 1": (HALVES, (*CASES, 0, "forward"), scaled, "add up to more than 1"),
    "weights of links above 1": (HALVES, (*CASES, 0, "sent"), scaled, "add up to more than 1"),
    "a weight below 0": (HALVES, (*CASES, 0, "backward", 0, 2), -1.0, "no number from 0"),
    "a weight that is none": (HALVES, (*CASES, 0, "backward", 0, 2), float("nan"), "no number from 0"),
    "a weight without end": (HALVES, (*CASES, 0, "memory"), [[0, float("inf")]], "no number from 0"),
    "lower weights": (HALVES, (*CASES, 0, "forward"), lambda w: [[*n, x / 2] for *n, x in w], "claims"),
    "a price of memory": (HALVES, (*CASES, 0, "memory"), [[0, 1e-8]], "claims"),
    "a device too many": (HALVES, (*CASES, 0, "forward", 0, 0), 8, "out of bounds"),
    "no weights": (HALVES, (*CASES, 0), {"where": "busy"}, "missing"),
    "a lower guess": (KINDS, CASES, lambda cases: respanned(cases, guess=lambda g: g / 2), "claims"),
    "a guess below 0": (KINDS, (*CASES, 0, "spans", 0, "all", "guess"), -1.0, "no number from 0"),
    "other prices": (KINDS, CASES, lambda cases: respanned(cases, memory=lambda m: [0.0, 0.0]), "claims"),
    "another sum": (KINDS, (*CASES, 0, "sum"), 9, "range"),
    "plans that wait for more left out": (KINDS, CASES, lambda cases: cases[1:], "claims"),
    "plans that wait for less left out": (KINDS, CASES, lambda cases: cases[:1], "claims"),
    "a case of fewer plans": (KINDS, (*CASES, 0, "columns"), lambda columns: columns[:-1], "claims"),
    "a column that is none": (KINDS, (*CASES, 0, "columns"), [0.5], "whole number|float"),
    "no span": (KINDS, CASES, lambda cases: [c | {"spans": []} for c in cases], "claims"),
    "a thousand spans": (KINDS, (*CASES, 0, "spans"), lambda spans: spans * 500, "too many spans"),
    "a thousand cases of waits": (KINDS, CASES, lambda cases: cases * 500, "too many cases"),
    "another table": ("alone", ("proof", "table"), 3, "claims"),
    "fewer intervals": ("metasyn-80x8", ("proof", "edges"), lambda e: e[1:], "leave some devices out|broadcast"),
    "intervals without end": ("metasyn-80x8", ("proof", "edges"), lambda e: [e[0]] * 500, "other numbers"),
    "other weights": ("metasyn-80x8", ("proof", "weights", 0), lambda w: 50 * w, "claims|leave"),
    "weights below 0": ("metasyn-80x8", ("proof", "weights", 0), -1.0, "other numbers"),
    "other multipliers": (
        "metasyn-80x8",
        ("proof", "multipliers", 4),
        lambda m: [[5 * x + 1 for x in row] for row in m],
        "claims",
    ),
    "a device that holds more than some must": ("crowded", (*CASES, 0, "where", 2), lambda n: n + 1, "in none of the"),
    "tables worth more": ("crowded", (*CASES, 0, "count"), lambda n: n + 1.0, "claims"),
    "every plan of a large task": ("dlrm-20x4", ("proof", "form"), "every", "too many plans"),
    "a better plan than all": ("dlrm-10x2", ("bound",), lambda b: b * (1 + 1e-12), "claims"),
    "a proof of another form": ("metasyn-80x8", ("proof", "form"), "cases", "no longest of sums"),
    "a proof for other kinds": (KINDS, ("proof", "form"), "alone", "may fall"),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_a_tampered_certificate_is_refused(certificates, name):
    key, path, to, message = TAMPERED[name]
    if key == "crowded":
        pytest.importorskip("highspy")
    told, task, judge = certificates[key]
    with pytest.raises(CorruptFile, match=message):
        verify(changed(told, *path, to=to), task, judge)


@pytest.mark.parametrize("told", [None, [], {}, {"schema": 1}, 5, "x"])
def test_what_is_no_certificate_is_refused(told, certificates):
    _, task, judge = certificates["dlrm-20x4"]
    with pytest.raises(CorruptFile):
        verify(told, task, judge)


def test_a_certificate_does_not_serve_a_task_with_less_memory(certificates):
    told, task, judge = certificates["dlrm-20x4"]
    with pytest.raises(CorruptFile, match="not of"):
        verify(told, replace(task, memory=tuple(size - 1 for size in task.memory)), judge)


def test_a_simulator_that_tells_nothing_has_no_certificate(certificates):
    _, task, _ = certificates["dlrm-20x4"]
    with pytest.raises((SimulatorError, CorruptFile)):
        certified(task, PoolingMs())


def code_lines(path: Path) -> int:
    """Lines of a file that are neither empty nor a docstring."""
    text = path.read_text()
    may_have = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef))
    docs = [node.body[0] for node in may_have if ast.get_docstring(node)]
    lines = {n for doc in docs for n in range(doc.lineno, doc.end_lineno + 1)}
    return sum(bool(line.strip()) and n not in lines for n, line in enumerate(text.splitlines(), start=1))


@pytest.mark.parametrize("forms", [["cases"], ["prices"], ["prices", "waits"], ["factors"], ["every"]])
def test_what_verifies_a_certificate_is_short_and_imports_nothing_that_solves(forms):
    files = [FOLDER / f"{name}.py" for name in ("__init__", "common", *forms)]
    assert sum(map(code_lines, files)) <= 200
    allowed = ("errors", "records", "memory", "plan.forms", "plan.violations", "proofs", "simulators", "task")
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("shard_gym"):
                assert str(node.module).partition(".")[2].startswith(allowed), node.module
