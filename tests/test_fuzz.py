"""Malformed input is read or refused, never more: two thousand spoiled inputs, and what was found before."""

import gzip
import io
import json
import os
import resource
import zipfile
from pathlib import Path

import numpy as np
import pytest
from benchmarks.fuzz import able, found_by, run

from benchmarks.fuzzing.targets import TARGETS
from shard_gym.errors import CorruptFile, InvalidTask, ShardGymError
from shard_gym.measuring.measurements import Measurements
from shard_gym.plan.plan import Plan
from shard_gym.records import guard
from shard_gym.records.guard import MOST_BYTES, MOST_DEPTH, content_of, expect, guarded, parsed_json
from shard_gym.simulators.learned import Learned, shipped
from shard_gym.simulators.networks import Weights
from shard_gym.tables.files import load_pool
from shard_gym.task.machines import read_machine

INPUTS = 2_000
CORPUS = Path(__file__).parent / "corpus"
BY_NAME = {target.name: target for target in able()}
FILES = sorted(path for path in CORPUS.glob("*/*") if path.parent.name in BY_NAME)
CALLS = (CORPUS / "calls.txt").read_text(encoding="utf-8").splitlines()


def test_spoiled_inputs_are_read_or_refused():
    outcomes, findings = run([t for t in able() if not t.heavy], INPUTS, seed=0)
    assert not findings, "\n".join(f"{f.what}: {f.target}: {f.told}: {f.content[:200]!r}" for f in findings)
    total = sum(sum(counts.values()) for counts in outcomes.values())
    assert total == INPUTS
    assert all(counts["read"] for counts in outcomes.values())  # the good ones, so that what spoils them is told


@pytest.mark.slow
def test_spoiled_inputs_of_heavy_targets_are_read_or_refused():
    _, findings = run([t for t in able() if t.heavy], INPUTS, seed=0)
    assert not findings, "\n".join(f"{f.what}: {f.target}: {f.told}" for f in findings)


def test_there_are_targets_enough():
    assert len(TARGETS) >= 25
    assert len({target.name for target in TARGETS}) == len(TARGETS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_was_found_stays_refused(path, tmp_path):
    outcome, finding = found_by(BY_NAME[path.parent.name], path.read_bytes(), tmp_path)
    assert finding is None, finding
    assert outcome in ("read", "refused")


@pytest.mark.parametrize("source", CALLS)
def test_calls_that_were_found_stay_refused(source, tmp_path):
    _, finding = found_by(BY_NAME["calls"], source.encode(), tmp_path)
    assert finding is None, finding


def cheap(read, *given):
    """Check that what is given is refused in five seconds of CPU and a gigabyte."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    with pytest.raises(CorruptFile) as refused:
        read(*given)
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_utime - before.ru_utime < 5
    assert after.ru_maxrss - before.ru_maxrss < 2**20  # KiB
    return str(refused.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ("[" * (MOST_DEPTH + 1) + "]" * (MOST_DEPTH + 1), "inside each other"),
        ("[" + "[]," * 20_000_000 + "1]", "more values than fit"),
        ("9" * 5_000, "5000 digits"),
        ("[" + "9" * 30 + "]", "too large: 30 digits"),
        ("9" * 400 + ".0", "too large"),
        ("[1e999]", "1e999 is too large"),
        ("NaN", "NaN is no number"),
        ("-Infinity", "-Infinity is no number"),
        (b"\xff", "can't decode"),
    ],
    ids=lambda value: str(value)[:12],
)
def test_json_that_is_too_much(text, why):
    assert why in cheap(parsed_json, text)


def test_json_that_is_not_too_much():
    deep = "[" * MOST_DEPTH + "]" * MOST_DEPTH
    for text in (deep, "1e308", "-1e-400", str(2**63), '"1e999"', '{"e000": "' + "9" * 99 + '"}', '"\\ud800"'):
        assert parsed_json(text) == json.loads(text)


def npz(**members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return buffer.getvalue()


def header(shape):
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def test_bombs(tmp_path, monkeypatch):
    (tmp_path / "zip.npz").write_bytes(npz(a=bytes(2**24), b=bytes(2**24)))
    with monkeypatch.context() as patch:
        patch.setattr(guard, "MOST_BYTES", 2**24)
        assert "unpacks to more than 16,777,216 bytes" in cheap(Measurements.load, tmp_path / "zip.npz")
    (tmp_path / "shape.npz").write_bytes(npz(card=header((2**33,))))
    cheap(Measurements.load, tmp_path / "shape.npz")
    (tmp_path / "pool.json").write_bytes(b"[" * 100_000)
    cheap(load_pool, tmp_path / "pool.json")
    (tmp_path / "deep.toml").write_text("a = " + "[" * 100_000)
    cheap(read_machine, tmp_path / "deep.toml")
    with (tmp_path / "long.csv").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    cheap(load_pool, tmp_path / "long.csv")
    cheap(content_of, "/dev/zero")


def test_a_gzip_bomb(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from shard_gym.tables import dlrm_datasets

    monkeypatch.setattr(dlrm_datasets, "MOST_BYTES", 2**24)
    (tmp_path / "bomb.pt.gz").write_bytes(gzip.compress(bytes(2**25), 1))
    assert "unpacks to more than" in cheap(dlrm_datasets.read_pool, tmp_path / "bomb.pt.gz")


def test_a_parquet_bomb(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    column = pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(20_000_000, np.int8)), pyarrow.array([1]))
    parquet.write_table(pyarrow.table({"rows": column}), tmp_path / "bomb.parquet")
    assert "more than are read" in cheap(load_pool, tmp_path / "bomb.parquet")


@pytest.mark.parametrize("content", ["stretched", "sparse"])
def test_tensors_that_are_larger_than_their_file(tmp_path, content):
    torch = pytest.importorskip("torch")
    from shard_gym.tables.dlrm_datasets import read_pool

    odd = {
        "stretched": lambda: torch.zeros(1, dtype=torch.int64).expand(10**12),
        "sparse": lambda: torch.sparse_coo_tensor(torch.zeros((1, 1), dtype=torch.int64), torch.ones(1), (10**12,)),
    }[content]()
    torch.save((odd, torch.tensor([0, 0]), torch.zeros((1, 1), dtype=torch.int64)), tmp_path / "f.pt")
    cheap(read_pool, tmp_path / "f.pt")


def test_damaged_archives_are_refused_whatever_bit_flips(tmp_path):
    shards = [(range(i, i + 5), [16] * 5) for i in range(0, 100, 5)]
    Measurements.unmeasured("metasyn_0_856", shards).save(tmp_path / "m.npz")
    good, rng = (tmp_path / "m.npz").read_bytes(), np.random.default_rng(0)
    refused = 0
    for _ in range(400):
        data = bytearray(good)
        data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
        (tmp_path / "m.npz").write_bytes(data)
        try:
            Measurements.load(tmp_path / "m.npz")
        except CorruptFile:
            refused += 1
    assert refused > 250  # of names and dates in the archive nobody asks


ODD_WEIGHTS = {
    "no number": ("sigma", lambda a: np.array(np.nan)),
    "infinite": ("fixed", lambda a: a * np.inf),
    "negative": ("factor/1/weight", lambda a: -a),
    "huge": ("table/0/weight", lambda a: a * 1e300),
    "fewer inputs": ("mean", lambda a: a[:-1]),
    "another member": ("fixed", lambda a: np.concatenate([a, a[:1]])),
    "more dimensions": ("totals_scale", lambda a: a[:, None]),
    "no deviation": ("ranges", lambda a: a * [[1], [1], [0]]),
}


@pytest.mark.parametrize("name", ODD_WEIGHTS)
def test_weights_that_would_give_no_costs_are_refused_though_their_hash_fits(tmp_path, name):
    tensor, change = ODD_WEIGHTS[name]
    weights = shipped("cpu-v1")
    Weights(weights.tensors | {tensor: change(weights.tensors[tensor])}, weights.card).save(tmp_path / "w.safetensors")
    with pytest.raises(CorruptFile, match=tensor if name != "no deviation" else "deviation"):
        Learned(tmp_path / "w.safetensors")


@pytest.mark.parametrize(
    "card", [{"batch": 0}, {"batch": "2048"}, {"links": [1]}, {"caches": 3}, {"host_link": -1.0}, {"measured": []}]
)
def test_cards_that_say_nothing_are_refused(card):
    weights = shipped("cpu-v1")
    with pytest.raises(CorruptFile):
        Learned(Weights(weights.tensors, weights.card | card))


def test_the_guard_names_what_and_why():
    with pytest.raises(CorruptFile, match="the file: 'rows' is missing"), guarded("the file"):
        {}["rows"]
    with pytest.raises(CorruptFile, match=r"^already told$"), guarded("the file"):
        raise CorruptFile("already told")
    with pytest.raises(InvalidTask, match="a task: unsupported"), guarded("a task", InvalidTask):
        [].append(None + 1)
    with pytest.raises(FileNotFoundError), guarded("the file"):
        raise FileNotFoundError
    with pytest.raises(InvalidTask, match="expected a Plan, got a list"):
        expect([], Plan, InvalidTask)
    assert issubclass(CorruptFile, ShardGymError)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs POSIX")
def test_devices_are_no_files():
    with pytest.raises(CorruptFile, match="no file"):
        content_of("/dev/null")
