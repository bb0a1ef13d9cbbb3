"""Campaigns: which shards, in which folder, and what is left after a crash."""

import fcntl
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from importlib import util
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from shard_gym.errors import CorruptFile, InUse, SimulatorError, UnknownName
from shard_gym.measuring import comm, measure
from shard_gym.measuring.campaign import Campaign
from shard_gym.measuring.fbgemm import Settings
from shard_gym.measuring.host import places
from shard_gym.measuring.measurements import Measurements
from shard_gym.measuring.merging import merge
from shard_gym.measuring.shards import ALL_DIMS, MAX_TABLES, MIN_POOLING, SHARES, SUITE_DIMS, Drawn, Listed, Mixed
from shard_gym.records.commands import seconds
from shard_gym.records.locks import LOCK
from shard_gym.tables.metasyn import load_metasyn
from shard_gym.task.links import Links

ROOT = Path(__file__).parents[1]
POOL = "metasyn_0_856"
SETTINGS = Settings(batch=64, arena_gb=0.1, warmups=1, runs=3, drop=1)
FLAGS = ["--batch", "64", "--arena-gb", "0.1", "--warmups", "1", "--runs", "3", "--drop", "1"]
needs_fbgemm = pytest.mark.skipif(util.find_spec("fbgemm_gpu") is None, reason="needs the extra [cpu] or [cuda]")
needs_torch = pytest.mark.skipif(util.find_spec("torch") is None, reason="needs the extra [torch]")


# --- which shards ---


@pytest.fixture(scope="module")
def drawn():
    return [Drawn(2_000, seed=3).shard(i) for i in range(2_000)]


def test_drawn_shards_cover_what_tasks_are_made_of(drawn):
    kinds = Counter(shard.kind for shard in drawn)
    assert all(kinds[kind] / 20 == pytest.approx(share, abs=3) for kind, share in SHARES.items())
    sizes = Counter(len(shard.table) for shard in drawn)
    assert set(sizes) == set(range(1, MAX_TABLES + 1)) and sizes[10] > 2 * sizes[9]
    suites = [set(shard.dim.tolist()) <= set(SUITE_DIMS) for shard in drawn if len(shard.dim) > 8]
    assert np.mean(suites) == pytest.approx(0.5, abs=0.06)
    assert {d for shard in drawn for d in shard.dim.tolist()} == set(ALL_DIMS)
    assert all(len(set(shard.table.tolist())) == len(shard.table) for shard in drawn)
    pooling = load_metasyn().pooling
    assert all(pooling[s.table].sum() >= MIN_POOLING for s in drawn if s.kind in ("random", "light", "heavy"))
    light, heavy = (np.mean([pooling[s.table].mean() for s in drawn if s.kind == k]) for k in ("light", "heavy"))
    assert light < 0.5 * pooling.mean() and heavy > 1.5 * pooling.mean()


def test_a_repeat_is_an_earlier_shard(drawn):
    seen = set()
    for shard in drawn:
        key = shard.table.tobytes(), shard.dim.tobytes()
        assert shard.kind != "repeat" or key in seen
        seen.add(key)


def test_a_longer_list_begins_like_a_shorter_one(drawn):
    other = Drawn(10, seed=3)
    assert all((other.shard(i).table == drawn[i].table).all() for i in range(10))
    assert any(len(Drawn(10, seed=4).shard(i).table) != len(drawn[i].table) for i in range(10))


def test_kinds_that_cannot_be_drawn_are_refused():
    with pytest.raises(UnknownName, match="searched"):
        Drawn(1, kinds=("searched",))
    with pytest.raises(SimulatorError, match="besides repeats"):
        Drawn(1, kinds=("repeat",))
    with pytest.raises(SimulatorError, match="reaches a pooling of 1000000"):
        Drawn(1, min_pooling=1e6, kinds=("random",)).shard(0)


def test_a_listed_shard_is_measured_once_a_pass(tmp_path):
    Measurements.unmeasured(POOL, [([i], [4]) for i in range(20)], "searched", 1).save(tmp_path / "list.npz")
    source = Listed(tmp_path / "list.npz", repeats=3, seed=5)
    order = source.order().reshape(3, 20)
    assert [sorted(part.tolist()) for part in order] == [list(range(p * 20, p * 20 + 20)) for p in range(3)]
    assert not np.array_equal(order[0], order[1] - 20)
    first, again = source.shard(7), source.shard(47)
    assert first.table.tolist() == again.table.tolist() == [7]
    assert (first.kind, again.kind, again.round) == ("searched", "repeat", 1)


# --- the folder ---


@pytest.fixture
def shard_file(tmp_path):
    small = np.flatnonzero(load_metasyn().rows < 3_000_000)[:40]
    Measurements.unmeasured(POOL, [([t], [4]) for t in small]).save(tmp_path / "list.npz")
    return tmp_path / "list.npz"


def rows_of(folder):
    lines = [line for path in folder.glob("rows-*.jsonl") for line in path.read_text().split("\n")[:-1]]
    rows = [json.loads(line) for line in lines]
    return [row for row in rows if "begun" not in row]


@needs_fbgemm
@pytest.mark.usefixtures("warm_workers")
def test_a_killed_campaign_resumes_with_nothing_lost_or_doubled(tmp_path, shard_file):
    folder = tmp_path / "out"
    command = [sys.executable, "-m", "shard_gym.measuring.measure", "--out", str(folder), *FLAGS]
    command += ["--shard-file", str(shard_file), "--repeats", "50", "--workers", "1"]
    run = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)  # its worker outlives it for one shard
    deadline = time.monotonic() + 300
    while len(rows_of(folder)) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()

    campaign = Campaign(folder, Listed(shard_file, 50), SETTINGS)
    before = campaign.rows()  # waits for the worker
    assert 5 <= len(before) < 2_000
    with (folder / "rows-0.jsonl").open("a") as file:
        file.write('{"index": 1999, "forward_ms": 0.')  # as a crash in the middle of a line leaves it
    assert campaign.rows() == before

    after, seconds = before, 1.0
    while len(after) == len(before):  # on a busy machine the budget may end before the first shard
        packed = replace(campaign, source=Listed(shard_file, 50)).run(workers=1, budget_seconds=seconds)
        after, seconds = rows_of(folder), 2 * seconds
    assert len(after) == len({row["index"] for row in after}) > len(before)
    assert {i: row | {"worker": 0} for row in after if (i := row["index"]) in before} == before
    done = packed.take(np.isfinite(packed.total_ms))
    assert set(done.worker) == {0} and done.at.min() == 0 and np.isfinite(done.at).all()
    assert len(packed) == 2_000 and np.isfinite(packed.total_ms).sum() == len(after) == packed.card["measured"]


@needs_fbgemm
@pytest.mark.usefixtures("warm_workers")
def test_a_campaign_runs_to_its_end_and_packs_a_card(tmp_path, shard_file, capsys):
    flags = [*FLAGS, "--shard-file", str(shard_file), "--repeats", "2", "--workers", "1", "--seed", "4"]
    assert measure.main(["--out", str(tmp_path / "out"), *flags]) == 0
    assert "80 shards measured" in capsys.readouterr().out
    packed = Measurements.load(tmp_path / "out" / "measurements.npz")
    assert len(packed) == 80 and (packed.total_ms > 0).all() and (packed.forward_spread >= 0).all()
    assert packed.table[:40].tolist() == packed.table[40:].tolist()
    card = packed.card
    assert card["simulator"] == "fbgemm:cpu-b64" and card["noise"]["pairs"] == 40 and card["failed"] == {}
    assert card["settings"]["optimizer"] == "rowwise_adagrad" and card["shards"]["seed"] == 4
    assert card["hardware"]["device"] and card["versions"]["torch"]
    assert measure.main(["--out", str(tmp_path / "out"), *flags, "--pack"]) == 0
    assert Measurements.load(tmp_path / "out" / "measurements.npz") == packed


@needs_fbgemm
@pytest.mark.usefixtures("warm_workers")
def test_two_parts_united_have_the_shards_of_the_whole(tmp_path, shard_file):
    parts = [tmp_path / "1", tmp_path / "2"]
    for n, folder in enumerate(parts, start=1):
        flags = [*FLAGS, "--shard-file", str(shard_file), "--workers", "1", "--part", f"{n}/2"]
        assert measure.main(["--out", str(folder), *flags]) == 0
    shares = [len(Measurements.load(folder / "measurements.npz")) for folder in parts]
    merge(parts, tmp_path / "all")
    united, listed = (Measurements.load(path) for path in (tmp_path / "all" / "measurements.npz", shard_file))
    assert sum(shares) == len(united) == 40 and min(shares) > 8 and united.card["measured"] == 40
    assert [united.key(i) for i in range(40)] == [listed.key(i) for i in range(40)]


@needs_fbgemm
@pytest.mark.usefixtures("warm_workers")
def test_shards_that_fail_are_told_and_do_not_end_the_campaign(tmp_path):
    Measurements.unmeasured(POOL, [([1], [4]), ([1], [6]), ([2], [4])]).save(tmp_path / "list.npz")
    packed = Campaign(tmp_path / "out", Listed(tmp_path / "list.npz"), SETTINGS).run(workers=1)
    assert np.isfinite(packed.total_ms).tolist() == [True, False, True]
    assert packed.card["failed"] == {"1": "FBGEMM needs dims that are multiples of 4, got [6]"}


@dataclass(frozen=True)
class Deadly:
    """A list of shards, some of which kill the process that asks for them, the first `times` times."""

    path: Path
    deadly: tuple[int, ...]
    times: int
    keeps_all: ClassVar[bool] = True

    def __len__(self):
        return len(Listed(self.path))

    def order(self):
        return np.arange(len(self))

    def describe(self):
        return {}

    def shard(self, index):
        deaths = self.path.with_name(f"deaths-{index}")
        if index in self.deadly and multiprocessing.parent_process():
            count = int(deaths.read_text()) if deaths.exists() else 0
            if count < self.times:
                deaths.write_text(str(count + 1))
                os.kill(os.getpid(), signal.SIGKILL)
        return Listed(self.path).shard(index)


@needs_fbgemm
@pytest.mark.usefixtures("warm_workers")
def test_a_shard_that_kills_its_worker_is_tried_once_more_and_last(tmp_path, shard_file):
    Measurements.load(shard_file).take(np.arange(4)).save(tmp_path / "four.npz")
    packed = Campaign(tmp_path / "once", Deadly(tmp_path / "four.npz", (1,), 1), SETTINGS).run(workers=1)
    assert np.isfinite(packed.total_ms).all() and packed.card["failed"] == {}
    lines = [json.loads(line) for line in (tmp_path / "once" / "rows-0.jsonl").read_text().splitlines()]
    assert [row["index"] for row in lines if "begun" in row] == [0, 1, 2, 3, 1]
    (tmp_path / "deaths-1").unlink()
    packed = Campaign(tmp_path / "twice", Deadly(tmp_path / "four.npz", (1,), 9), SETTINGS).run(workers=1)
    assert np.isfinite(packed.total_ms).tolist() == [True, False, True, True]
    assert packed.card["failed"] == {"1": "the process that measured it died, 2 times"}


@needs_fbgemm
@pytest.mark.usefixtures("warm_workers")
def test_workers_that_all_die_end_the_campaign_and_keep_what_there_is(tmp_path, shard_file):
    with pytest.raises(SimulatorError, match=r"ended with -9; what they measured is kept in .*start again"):
        Campaign(tmp_path / "out", Deadly(shard_file, tuple(range(40)), 9), SETTINGS).run(workers=1)


@needs_fbgemm
def test_memory_that_is_not_there_is_told_before_anything_is_measured(tmp_path, shard_file, capfd):
    with pytest.raises(SimulatorError, match="ended with 1"):
        Campaign(tmp_path / "out", Listed(shard_file), replace(SETTINGS, arena_gb=1e6)).run(workers=1)
    assert "bytes asked" in (told := capfd.readouterr().err) and "lower --arena-gb" in told
    assert rows_of(tmp_path / "out") == []


@needs_fbgemm
@pytest.mark.usefixtures("warm_workers")
def test_however_small_the_budget_some_shards_are_measured(tmp_path, shard_file):
    packed = Campaign(tmp_path / "out", Listed(shard_file), SETTINGS).run(1, budget_seconds=1e-9, at_least=3)
    assert np.isfinite(packed.total_ms).sum() == 3


def test_lists_are_mixed_in_turn_and_dims_are_as_told():
    parts = Drawn(6, "metasyn_0_856", dims=(512, 768)), Drawn(5, "metasyn_1_856")
    mixed = Mixed(parts)
    assert len(mixed) == 10 and [mixed.shard(i).pool[8] for i in range(4)] == ["0", "1", "0", "1"]
    assert (mixed.shard(3).table == parts[1].shard(1).table).all()
    drawn = {int(d) for i in range(60) for d in Drawn(60, dims=(512, 768)).shard(i).dim}
    assert drawn == {16, 32, 512, 768}
    with pytest.raises(SimulatorError, match=r"multiples of 4, got \(6,\)"):
        Drawn(1, dims=(6,))


@needs_fbgemm
@pytest.mark.usefixtures("warm_workers")
def test_a_folder_belongs_to_one_campaign(tmp_path, shard_file, capsys):
    campaign = Campaign(tmp_path / "out", Drawn(5), SETTINGS)
    assert len(campaign.run(budget_seconds=1e-9)) == 0
    with pytest.raises(SimulatorError, match="holds another campaign, give --out"):
        replace(campaign, settings=replace(SETTINGS, batch=32)).run()
    other = ["--out", str(tmp_path / "out"), "--seed", "1", *FLAGS, "--pack"]
    assert measure.main(other) == 2
    assert "give --out another folder" in capsys.readouterr().err
    with (tmp_path / "out" / LOCK).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(InUse, match="is in use"):
            campaign.run(budget_seconds=1e-9)


GOOD = '{"index": 0, "forward_ms": 1.0, "backward_ms": 2.0, "forward_spread": 0.1, "backward_spread": 0.1}'


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([GOOD, '{"index": 1, "forw', GOOD], "line 2 is no measurement"),
        ([GOOD.replace("1.0", "-1.0")], "line 1 is no measurement: a time is negative"),
        ([GOOD.replace("1.0", "NaN")], "NaN is no number"),
        ([GOOD.replace('"backward_ms"', '"back"')], "line 1 is no measurement: 'backward_ms'"),
        ([GOOD, GOOD], "measures shard 0 a second time"),
    ],
)
def test_rows_that_no_crash_explains_are_refused(tmp_path, lines, message):
    (tmp_path / "rows-0.jsonl").write_text("\n".join([*lines, ""]))
    with pytest.raises(CorruptFile, match=message):
        Campaign(tmp_path, Drawn(5), SETTINGS).rows()


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_last_line_cut_anywhere_is_dropped(tmp_path, cut):
    path = tmp_path / "rows-0.jsonl"
    path.write_text(GOOD + "\n" + GOOD.replace('"index": 0', '"index": 1')[: cut * 9])
    campaign = Campaign(tmp_path, Drawn(5), SETTINGS)
    assert list(campaign.rows()) == [0]
    assert path.read_text() == GOOD + "\n"


def test_each_worker_has_a_core_of_its_own():
    cores = sorted(os.sched_getaffinity(0))
    assert places("cpu", 0) == [("cpu", core) for core in cores]
    assert places("cpu", 1) == [("cpu", cores[0])]
    with pytest.raises(SimulatorError, match="workers need as many cores"):
        places("cpu", len(cores) + 1)


@pytest.mark.parametrize(("text", "expected"), [("90s", 90), ("8m", 480), ("1.5h", 5_400), ("7", 7)])
def test_budgets_have_units(text, expected):
    assert seconds(text, unit="s") == expected


@pytest.mark.parametrize("text", ["", "m", "-3m", "0", "soon", "nan"])
def test_budgets_that_are_none_are_refused(text, capsys):
    with pytest.raises(SystemExit):
        measure.main(["--out", "x", "--budget", text])
    assert "--budget" in capsys.readouterr().err


# --- all-to-alls ---


@pytest.mark.parametrize(
    "links", [Links(port=5e6, latency_ms=0.2), Links(port=3e6, latency_ms=0.1, fabric=8e6), Links(port=2e6)]
)
def test_the_fit_finds_the_links_that_made_the_times(links):
    rows = [
        {"batch": batch, "dims": dims, "ms": links.all_to_all_ms(np.array(dims, float), batch).tolist()}
        for world in (2, 4)
        for batch, dims in comm.cases(world, (512, 2_048), seed=0)
    ]
    found = comm.fit_links(rows)
    unbounded = {k: np.inf if v is None else v for k, v in found["links"].items()}
    assert unbounded["port"] == pytest.approx(links.port) and unbounded["fabric"] >= 0.999 * links.fabric
    assert unbounded["latency_ms"] == pytest.approx(links.latency_ms, abs=1e-9)
    assert found["max_relative_error"] < 1e-6 and found["measured"] == 36 * 6


@needs_torch
@pytest.mark.parametrize("world", [2])
def test_all_to_alls_between_processes_are_measured(tmp_path, world, monkeypatch):
    monkeypatch.setattr(comm, "COLUMNS", (16,))
    answer = comm.all_to_alls("cpu", (world,), (64,))
    assert answer["backend"] == "gloo" and len(answer["rows"]) == 6
    assert all(len(row["ms"]) == world and min(row["ms"]) > 0 for row in answer["rows"])
    assert answer["fit"]["2"]["measured"] == 12 and json.dumps(answer)


@needs_torch
def test_worlds_that_cannot_be_are_refused():
    with pytest.raises(SimulatorError, match="must divide the batches"):
        comm.all_to_alls("cpu", (3,), (64,))
    with pytest.raises(UnknownName, match="device"):
        comm.all_to_alls("tpu", (2,), (64,))
