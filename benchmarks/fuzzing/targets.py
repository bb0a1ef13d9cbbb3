"""Targets of fuzzing: whatever reads a file or takes arguments, with good inputs to spoil and what to do with bad ones.

An input is bytes, as a file of the target's suffix holds them. What is read is used, and its numbers must be numbers.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fuzzing import calls
from benchmarks.fuzzing.mutations import spoiled_arrays, spoiled_bytes, spoiled_call, spoiled_json, spoiled_text
from shard_gym import Constraints, Plan, Task, make_pool, simulators, suites
from shard_gym.measuring import fitting
from shard_gym.measuring import rows as campaign_rows
from shard_gym.measuring.measurements import COLUMNS, Measurements
from shard_gym.memory.usage import table_bytes
from shard_gym.plan.random_plans import random_placements
from shard_gym.records import ledger
from shard_gym.records import tensors as card_files
from shard_gym.records.files import json_sha256, read_json
from shard_gym.results import SCHEMA as RESULT
from shard_gym.results import Result, write_results
from shard_gym.results.evaluate import evaluate
from shard_gym.results.replay import Replay
from shard_gym.simulators.learned import Learned, shipped
from shard_gym.simulators.networks import SCHEMA as WEIGHTS
from shard_gym.simulators.networks import Weights
from shard_gym.tables.files import load_pool, save_pool
from shard_gym.task import suite as banks
from shard_gym.task.machines import read_machine
from shard_gym.task.packed import packed
from shard_gym.task.task import SCHEMA_3
from shard_gym_agents.leaderboard.kept import Watched, kept_runs
from shard_gym_agents.leaderboard.references import keep_best, load_best

Spoil = Callable[[bytes, np.random.Generator], bytes]


class Unsound(Exception):
    """Input was taken, and gives numbers that are none."""


@dataclass(frozen=True)
class Target:
    """A reader: good files, a way to spoil one, and a use of what is read."""

    name: str
    suffix: str
    seeds: Callable[[], Sequence[bytes]]
    use: Callable[[Path], Any]
    spoil: Spoil = spoiled_bytes
    needs: str = ""  # a module without which it cannot be tried

    @property
    def heavy(self) -> bool:
        """True if its import takes seconds."""
        return self.needs in ("torch", "torchrec")


def sound(*values: Any) -> None:
    """Refuse numbers that are NaN or infinite."""
    for value in values:
        if not np.isfinite(np.asarray(value, np.float64)).all():
            raise Unsound(f"{value!r:.80}")


# --- good inputs ---


@cache
def _tables() -> Any:
    pool = make_pool([1_000, 50_000, 700, 20_000], dim=[8, 16, 32, 64], pooling=[1.5, 20.0, 3.25, 0.5])
    return pool.with_(dtype=("fp32", "fp16", "bf16", "int8"), name=("user", "clicks", "geo", "age"))


@cache
def _task() -> Task:
    return Task(_tables(), (2**28, 2**29), objective="iteration", splits_allowed=True, batch=4_096)


def written(write: Callable[[Path], Any], suffix: str) -> bytes:
    """The bytes of a file that a function writes."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"file{suffix}"
        write(path)
        return path.read_bytes()


def _pools(suffix: str) -> Sequence[bytes]:
    return [written(partial(save_pool, pool), suffix) for pool in (_tables(), make_pool([10], dim=4))]


def _texts(*data: Any) -> Callable[[], Sequence[bytes]]:
    return lambda: [json.dumps(one).encode() for one in data]


def _plans() -> Sequence[bytes]:
    kinds = Plan((0, 1, 0, 1), kind=("tw", "cw", "rw", "dp"), devices=((0,), (1, 0), (0, 1), (1, 0)))
    kept = Plan((0, 1, 0, 1), residence=("hbm", "uvm", "cached", "hbm"), share=(1.0, 0.0, 0.25, 1.0))
    return [json.dumps(plan.to_dict()).encode() for plan in (Plan((0, 1, 0, 1)), Plan((0,) * 5, (1,)), kinds, kept)]


def _tasks() -> Sequence[bytes]:
    mixed = replace(_task(), kinds=("tw", "rw", "dp"), residences=("hbm", "uvm"), host_memory=2**30, host_link=1e6)
    told = replace(_task(), constraints=Constraints(pin=((0, 1),), apart=((1, 2),), no_split=(3,)))
    return [*(one.to_json().encode() for one in (_task(), mixed, told)), _packed(_task())]


def _packed(one: Task) -> bytes:
    """A task as those of many tables are written."""
    data = json.loads(one.to_json()) | {"schema": SCHEMA_3}
    columns = {name: np.asarray(getattr(one.tables, name)) for name in data["tables"] if name != "reference_batch"}
    data["tables"] |= {name: packed(values) for name, values in columns.items() if values.dtype.kind in "iufb"}
    return json.dumps(data).encode()


@cache
def _results() -> Sequence[Result]:
    from shard_gym_agents import make

    judge = simulators.make("roofline:h100-v2")
    return evaluate(make("lookup-greedy"), suites.get("dlrm-10x4").tasks("test")[:2], judge, judge, suite="dlrm-10x4")


def _runs_kept() -> Sequence[bytes]:
    lines = [{"task": r.task, "result": r.to_json(), "watched": asdict(Watched("full", runs=1))} for r in _results()]
    return ["".join(json.dumps(line) + "\n" for line in lines).encode()]


def _dlrm(zipped: bool) -> Sequence[bytes]:
    import torch

    def saved(*content: Any, **options: Any) -> bytes:
        buffer = io.BytesIO()
        torch.save(content, buffer, **options)
        return gzip.compress(buffer.getvalue(), 1) if zipped else buffer.getvalue()

    lengths = torch.tensor([[2, 0, 1], [1, 1, 2]])
    ids, offsets = torch.tensor([5, 5, 7, 120, 3, 3, 0]), torch.tensor([0, 2, 2, 3, 4, 5, 7])
    stretched = torch.zeros(1, dtype=torch.int64).expand(10**12)
    sparse = torch.sparse_coo_tensor(torch.zeros((1, 1), dtype=torch.int64), torch.ones(1), (10**9,))
    odd = [(stretched, offsets, lengths), (sparse, offsets, lengths), (ids.float(), offsets, lengths)]
    old = saved(ids, offsets, lengths, _use_new_zipfile_serialization=False)
    return [saved(ids, offsets, lengths), old, *(saved(*one) for one in odd)]


@cache
def _measurements() -> Measurements:
    found = Measurements.unmeasured("metasyn_0_856", [([0, 1], [16, 32]), ([5], [64]), ([7, 8, 9], [4, 8, 128])])
    return replace(found, forward_ms=[1.0, 2.0, 3.0], backward_ms=[1.0, 2.0, 3.0], card={"settings": {"batch": 64}})


def _rows() -> Sequence[bytes]:
    good = {"index": 0, "forward_ms": 1.0, "backward_ms": 2.0, "forward_spread": 0.1, "backward_spread": 0.1}
    lines = [{"index": 0, "begun": 1.0}, {**good, "at": 2.0}, {"index": 1, "error": "no"}, good | {"index": 2}]
    return ["".join(json.dumps(line) + "\n" for line in lines).encode()]


# --- ways to spoil what has a checksum ---


def resummed(content: bytes, rng: np.random.Generator) -> bytes:
    """A line of a result spoiled, with a checksum that fits."""
    data = json.loads(content)
    data.pop("sha256")
    data = spoiled_json(data, rng)
    if isinstance(data, dict):
        data["schema"] = RESULT
        data["sha256"] = json_sha256(data)
    return json.dumps(data).encode() + b"\n"


def reweighted(content: bytes, rng: np.random.Generator) -> bytes:
    """Weights with other tensors or another card, and a hash that fits; now and then other bytes."""
    if rng.random() < 0.2:
        return spoiled_bytes(content, rng)
    weights = shipped("cpu-v1")
    tensors, card = dict(weights.tensors), weights.card
    if rng.random() < 0.5:
        tensors = spoiled_arrays(tensors, rng)
    else:
        card = spoiled_json(card, rng)
    try:
        return written(lambda path: card_files.write(path, WEIGHTS, tensors, card), ".safetensors")
    except Exception:  # what safetensors itself does not write
        return spoiled_bytes(content, rng)


def repacked(content: bytes, rng: np.random.Generator) -> bytes:
    """An .npz with other arrays; now and then other bytes."""
    if rng.random() < 0.5:
        return spoiled_bytes(content, rng)
    buffer = io.BytesIO()
    with np.load(io.BytesIO(content)) as data:
        np.savez_compressed(buffer, **spoiled_arrays(dict(data), rng))  # type: ignore[arg-type]
    return buffer.getvalue()


def spoiled_line(content: bytes, rng: np.random.Generator) -> bytes:
    """JSON lines of which one is spoiled."""
    lines = content.splitlines(keepends=True)
    at = int(rng.integers(len(lines)))
    lines[at] = spoiled_text(lines[at], rng) + b"\n"
    return b"".join(lines)


def _spoiled_source(content: bytes, rng: np.random.Generator) -> bytes:
    return spoiled_call(content.decode(), rng).encode()


# --- uses ---


def _use_pool(path: Path) -> None:
    pool = load_pool(path)
    sound(pool.features(), *pool.use_counts())
    if len(pool) < 10_000 and pool.weight_bytes.sum() < 2**50:
        _use_task(Task(pool, (2**60, 2**60), objective="iteration"))


def _use_task(found: Task) -> None:
    judge = simulators.make("roofline:h100-v2")
    plan = random_placements(found, 1, np.random.default_rng(0))
    sound(table_bytes(found), judge.latency(found, plan).makespan(found.objective))
    if Task.from_json(found.to_json()) != found:
        raise Unsound("the task comes back otherwise")


def _use_plan(path: Path) -> None:
    plan = Plan.load(path)
    if Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) != plan:
        raise Unsound("the plan comes back otherwise")


def _use_weights(path: Path) -> None:
    learned = Learned(Weights.load(path))
    for objective in ("kernel", "iteration"):
        latency = learned.latency(replace(_task(), objective=objective), np.array([[0, 1, 0, 1], [0, 0, 0, -1]]))
        sound(latency.makespan(objective), latency.compute)
        if (latency.compute < 0).any():
            raise Unsound("costs below 0")


def _use_dlrm(path: Path) -> None:
    from shard_gym.tables.dlrm_datasets import read_pool, read_traces

    sound(read_pool(path).features(), *(indices for indices, _ in read_traces(path)))


def _use_measurements(path: Path) -> None:
    found = Measurements.load(path)
    sound(found.offsets)
    found.take(range(len(found)))


def _use_measurements_unhashed(path: Path) -> None:
    """Columns as they are, whatever the hash says: what an honest tool of others would write."""
    from shard_gym.records.guard import arrays_of

    data = arrays_of(path)
    columns = {name: data[name] for name in COLUMNS if name in data}
    if len(columns) == len(COLUMNS):
        found = Measurements(**columns, pools=("metasyn_0_856",))
        sound([found.tables_per_shard])


def _use_rows(path: Path) -> None:
    for row in ledger.read(path, campaign_rows.parsed_row, "measurement"):
        sound(*(row[t] for t in campaign_rows.TIMES if t in row))


def _use_best(path: Path) -> None:
    used = suites.get("dlrm-10x4").tasks("test")[:1]
    for entry in load_best(path, "roofline:h100-v2", used).values():
        sound(entry["makespan"])


def _best() -> Sequence[bytes]:
    def write(path: Path) -> None:
        entries = [(r.task, {"makespan": r.makespan, "plan": r.plan.to_dict(), "solver": "x"}) for r in _results()]
        keep_best(path, "roofline:h100-v2", entries)

    return [written(write, ".json")]


def _use_machine(path: Path) -> None:
    machine = read_machine(path)
    found = machine.task(_tables())
    sound(simulators.make("roofline:h100-v2").latency(found, np.zeros((1, 4), int)).makespan(found.objective))


def _use_constraints(path: Path) -> None:
    from shard_gym_agents.cli.constraints import add_constraints, constrained

    parser = argparse.ArgumentParser()
    add_constraints(parser)
    sound(table_bytes(constrained(_task(), parser.parse_args(["--constraints", str(path)]))))


def _use_tiers(path: Path) -> None:
    from shard_gym.flexshard.tiers import TieredPlan, worth

    sound(asdict(worth(calls.ROWS, TieredPlan.load(path, calls.ROWS)))["comm_ms"])


def _use_log(path: Path) -> None:
    from shard_gym.torchrec.logs import Log, profile_log

    for ids in ("auto", "hash"):
        sound(profile_log(Log([path], ["a", "b"], ids), 2, progress=False).pool(dim=8, dtype="fp32").features())


def _log_parquet() -> Sequence[bytes]:
    import pyarrow.parquet

    made = [{"a": [1, 2, 3], "b": [4, 5, 6]}, {"a": [[1, 2], [], [3]], "b": ["x", "y", None]}]
    return [written(partial(pyarrow.parquet.write_table, pyarrow.table(one)), ".parquet") for one in made]


def _use_curve(path: Path) -> None:
    from shard_gym.flexshard.curves import Curve

    curve = Curve.load(path)
    sound(curve.covered(1), curve.length)


def _curves() -> Sequence[bytes]:
    from shard_gym.flexshard.curves import power_law

    return [written(power_law(1_000, 5.0, 1.0).save, ".safetensors")]


def _use_stored(path: Path) -> None:
    from shard_gym.torchrec.stored import from_named_json, to_named_json

    to_named_json(from_named_json(path.read_text(errors="surrogateescape")))


STORED = {
    "plan": {
        "m": {
            "t0": {
                "sharding_type": "table_wise",
                "compute_kernel": "fused",
                "ranks": [0],
                "shards": [{"shard_offsets": [0, 0], "shard_sizes": [10, 4], "placement": "rank:0/cuda:0"}],
            },
            "t1": {"sharding_type": "data_parallel", "compute_kernel": "dense", "ranks": [0, 1]},
        }
    }
}


def _use_call(path: Path) -> None:
    calls.called(path.read_text(encoding="utf-8", errors="surrogatepass"))


def _use_command(path: Path) -> None:
    """A command line: it ends with 0 or 2, whatever it is told."""
    from shard_gym_agents.cli.main import main

    words = path.read_bytes().decode(errors="surrogateescape").replace("\0", "").splitlines()
    if {"-h", "--help"} & set(words) or not set(words[:1]) <= {"score", "suites", "replay", "diff"}:
        return
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            code: Any = main([word.replace("FOLDER", str(path.parent)) for word in words])
        except SystemExit as end:
            code = end.code
    if code not in (0, 2):
        raise Unsound(f"exit code {code}")


@cache
def _bank() -> bytes:
    """A suite's data: two tasks of a split, with doubled rows and memory of their own."""
    columns = {
        "tables": [[3, 5, 8, 65535], [1, 2, 4, 9]],
        "dims": [[4, 8, 16, 0], [64] * 4],
        "doublings": [[1] * 4] * 2,
    }
    held = {f"own/test/{name}": np.array(column, np.uint16) for name, column in columns.items()}
    memory, scaling = np.full((2, 2), 1e12), np.stack([np.zeros(21), np.ones(21)])
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **held, **{"own/test/memory": memory, "own/scaling": scaling})  # type: ignore[arg-type]
    return buffer.getvalue()


def _use_bank(path: Path) -> None:
    (folder := path.with_suffix("")).mkdir(exist_ok=True)
    path.rename(folder / "banks.npz")
    banks._archive.cache_clear()
    banks._tasks.cache_clear()
    suite = banks.Suite("Own", 4, 2, "iteration", "roofline:h100-v2", "roofline:h100-v2", (1.0,), folder=str(folder))
    for task in suite.tasks("test")[:2]:
        _use_task(task)


def _use_kept(path: Path) -> None:
    for result, seen in kept_runs(path).values():
        sound(result.wall_seconds, seen.wall, seen.cpu, seen.idle)


def _sound_result(path: Path) -> None:
    found = Result.from_json(path.read_bytes())
    sound(found.wall_seconds, found.makespan or 0.0, math.log1p(found.simulator_calls))
    if Result.from_json(found.to_json()) != found:
        raise Unsound("the result comes back otherwise")


def _use_replayed(path: Path) -> None:
    """A file of one line, written as anybody can write one."""
    found = Result.from_json(path.read_bytes())
    write_results(path.with_suffix(".jsonl"), [found])
    for _, worth in Replay(path.with_suffix(".jsonl")):
        sound(worth.makespan if worth else 0.0)


COMMANDS = (
    "score\n--suite\ndlrm-10x4\n--index\n0\n--plan\nFOLDER/none.json\n--batch\n64",
    "score\n--tables\nFOLDER/none.csv\n--devices\n2\n--memory-gb\n1\n--kinds\ntw,rw\n--plan\np.json",
    "replay\nFOLDER/none.jsonl",
    "diff\na.json\nb.json\n--suite\ndlrm-10x4\n--pin\n0=1\n--together\n0,1",
)
LOG = b"a,b\n1,4\n2,5\n,6\n7,8\n"
TOML = (
    b"devices = 4\nmemory_gb = [80, 80, 40, 40]\nhosts = 2\nlink_gb_s = 240\nhost_gb_s = 50\nspeed = 1.5\nprice = 4.0\n"
)
ALL_TO_ALL = {"fit": {"all": {"links": {"port": 1e6, "latency_ms": 0.1, "fabric": None, "peer_to_peer": True}}}}
CONSTRAINTS = {"pin": {"user": 1}, "together": [["geo", 3]], "no_split": ["clicks"], "kinds": [["age", ["tw", "cw"]]]}
TIERS = {"schema": "shard-gym/tiered-plan/1", "tables": {"h": {"rows": 1000, "dp": 10, "flex": 5}}}
CHOSEN = {"schema": "shard-gym/chosen-plans/1", "planner": "x", "suite": "metasyn-80x8", "plans": []}
DEEP = [b"[" * 100_000, b'{"a":' * 100_000]

TARGETS = (
    Target("pool-json", ".json", lambda: _pools(".json"), _use_pool, spoiled_text),
    Target("pool-csv", ".csv", lambda: _pools(".csv"), _use_pool),
    Target("pool-parquet", ".parquet", lambda: _pools(".parquet"), _use_pool, needs="pyarrow"),
    Target("dlrm", ".pt", lambda: _dlrm(False), _use_dlrm, needs="torch"),
    Target("dlrm-gz", ".pt.gz", lambda: _dlrm(True), _use_dlrm, needs="torch"),
    Target("measurements", ".npz", lambda: [written(_measurements().save, ".npz")], _use_measurements, repacked),
    Target("columns", ".npz", lambda: [written(_measurements().save, ".npz")], _use_measurements_unhashed, repacked),
    Target("campaign-rows", ".jsonl", _rows, _use_rows, spoiled_line),
    Target(
        "weights", ".safetensors", lambda: [written(shipped("cpu-v1").save, ".safetensors")], _use_weights, reweighted
    ),
    Target("plan", ".json", _plans, _use_plan, spoiled_text),
    Target("task", ".json", _tasks, lambda path: _use_task(Task.from_json(path.read_bytes().decode(errors="replace")))),
    Target(
        "task-json",
        ".json",
        _tasks,
        lambda path: _use_task(Task.from_json(path.read_bytes().decode(errors="replace"))),
        spoiled_text,
    ),
    Target("result", ".json", lambda: [r.to_json().encode() for r in _results()], _sound_result, resummed),
    Target(
        "results",
        ".jsonl",
        lambda: [written(partial(write_results, results=_results()), ".jsonl")],
        lambda p: list(Replay(p)),
    ),
    Target("replayed", ".json", lambda: [r.to_json().encode() for r in _results()], _use_replayed, resummed),
    Target("suite", ".npz", lambda: [_bank()], _use_bank, repacked),
    Target("kept-runs", ".jsonl", _runs_kept, _use_kept, spoiled_line),
    Target("best-known", ".json", _best, _use_best, spoiled_text),
    Target("machine", ".toml", lambda: [TOML], _use_machine),
    Target("constraints", ".json", _texts(CONSTRAINTS), _use_constraints, spoiled_text),
    Target("all-to-all", ".json", _texts(ALL_TO_ALL), lambda path: fitting._links(path), spoiled_text),
    Target("tiers", ".json", _texts(TIERS), _use_tiers, spoiled_text),
    Target("curve", ".safetensors", _curves, _use_curve),
    Target("log-csv", ".csv", lambda: [LOG], _use_log, needs="pyarrow"),
    Target("log-parquet", ".parquet", _log_parquet, _use_log, needs="pyarrow"),
    Target("json", ".json", lambda: [*_texts(CHOSEN, TIERS)(), *DEEP], read_json),
    Target("calls", ".py", lambda: [c.encode() for c in calls.GOOD], _use_call, _spoiled_source),
    Target("commands", ".txt", lambda: [c.encode() for c in COMMANDS], _use_command),
    Target("torchrec-plan", ".json", _texts(STORED), _use_stored, spoiled_text, needs="torchrec"),
)
