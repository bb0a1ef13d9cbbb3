"""The survey of one piece of hardware: its stages, what a kill leaves, and the page of the docs that tells of it."""

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib import util
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from shard_gym.errors import SimulatorError
from shard_gym.measuring import __main__ as command
from shard_gym.measuring import chosen, operator, survey
from shard_gym.measuring.fbgemm import Settings
from shard_gym.measuring.measurements import Measurements, pool_named
from shard_gym.measuring.survey import LEAST, MINUTES, Survey

ROOT = Path(__file__).parents[1]
FILES = {
    *(f"my-gpu-{role}.npz" for role in ("planner", "judge", "plans", "test")),
    *(f"my-gpu-{role}.safetensors" for role in ("planner", "judge")),
    "my-gpu-plans.json",
    "my-gpu-fidelity.md",
}
TINY = [
    "--device",
    "cpu",
    "--batch",
    "32",
    "--warmups",
    "1",
    "--runs",
    "3",
    "--drop",
    "1",
    "--noise",
    "9",
    "--warm",
    "--workers",
    "1",
]
TINY += ["--minutes", "0.01", "--arena-gb", "0.2"]
needs_fbgemm = pytest.mark.skipif(util.find_spec("fbgemm_gpu") is None, reason="needs the extra [cpu] or [cuda]")


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of the fenced blocks of a page."""
    return re.findall(r"```(bash|python)\n(.*?)```", page.read_text(), flags=re.DOTALL)


def measurements() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (ROOT / "measurements").iterdir()}


@needs_fbgemm
@pytest.mark.slow
def test_the_page_on_your_own_gpu_runs_block_by_block(tmp_path):
    before = measurements()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "agents")])}
    python = ""
    for language, text in blocks(ROOT / "docs" / "own_gpu.md"):
        if language == "python":
            python += text
            continue
        run = subprocess.run(["bash", "-e", "-c", text], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
    assert {path.name for path in (tmp_path / "survey").iterdir()} == FILES | {"work"}
    assert all((tmp_path / "survey" / name).stat().st_size < 16 * 2**20 for name in FILES)
    run = subprocess.run([sys.executable, "-c", python], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("by the judge") == 3
    packed = Measurements.load(tmp_path / "survey" / "my-gpu-planner.npz")
    assert len(packed) >= LEAST["planner"] and packed.pools == ("metasyn_0_856", "metasyn_1_856")
    assert packed.card["shakedown"]["operator"]["forward_error"] < 0.01
    page = (tmp_path / "survey" / "my-gpu-fidelity.md").read_text()
    assert "| our network, planner |" in page and "| cost-greedy |" in page
    assert measurements() == before  # nothing of another hardware is written


@needs_fbgemm
@pytest.mark.slow
@pytest.mark.parametrize("stage", MINUTES)
def test_a_survey_killed_in_any_stage_goes_on(tmp_path, stage):
    line = [sys.executable, "-m", "shard_gym.measuring", "--plan", "my-gpu", *TINY, "--out", str(tmp_path)]
    log = tmp_path / "log"
    with log.open("wb") as told:
        run = subprocess.Popen(line, cwd=ROOT, stderr=told)
    deadline = time.monotonic() + 300
    while f", {stage}:" not in log.read_text() and time.monotonic() < deadline and run.poll() is None:
        time.sleep(0.02)
    time.sleep(3.0)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    before = {path.name: path.read_bytes() for path in tmp_path.glob("my-gpu-*")}
    again = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert {path.name for path in tmp_path.glob("my-gpu-*")} == FILES
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert "stage 1" not in again.stderr or stage == "shakedown"


@pytest.fixture
def tiny(tmp_path):
    settings = Settings(batch=32, warmups=1, runs=3, drop=1, arena_gb=0.2, clock="thread")
    return Survey("here", tmp_path, settings, minutes=0.01, workers=1, noise_limit=9.0)


@needs_fbgemm
@pytest.mark.usefixtures("warm_workers")
def test_noise_above_the_limit_ends_a_survey_and_the_next_call_looks_again(tiny):
    with pytest.raises(SimulatorError, match=r"repeats differ by .*something else uses cpu.*higher --noise"):
        replace(tiny, noise_limit=1e-9).run(print)
    (refused,) = (tiny.folder / "work").glob("shakedown-refused-*")
    assert (refused / "measurements.npz").exists() and not (tiny.folder / "work" / "shakedown").exists()


@needs_fbgemm
def test_an_operator_that_computes_something_else_is_refused(monkeypatch):
    found = operator.check_operator("cpu", "rowwise_adagrad", "fp16", False)
    assert 0 <= found["forward_error"] < 1e-3 and 0 < found["update_error"] < 1e-3
    monkeypatch.setattr(operator, "LEARNING_RATE", 0.1)  # ten times the operator's
    with pytest.raises(SimulatorError, match=r"FBGEMM on cpu is off by .* in pooled rows and .*e-0[12] in updated"):
        operator.check_operator("cpu", "rowwise_adagrad", "fp16", False)


def dies(*_):
    os.kill(os.getpid(), signal.SIGSEGV)


@pytest.mark.usefixtures("warm_workers")
def test_an_operator_that_crashes_is_told_by_the_process_that_outlives_it(monkeypatch):
    monkeypatch.setattr(operator, "check_operator", dies)
    with pytest.raises(SimulatorError, match="the process that checked FBGEMM on cuda died"):
        operator.check_apart("cuda", "sgd", "fp16", False)


def test_what_a_stage_can_afford_does_not_count_the_time_between_calls(tiny):
    shards = Measurements.unmeasured("metasyn_0_856", [([i], [4]) for i in range(100)])
    shards.save(tiny.file("planner.npz"))
    (tiny.folder / "work").mkdir()
    (tiny.folder / "work" / "planner.seconds").write_text("50.0")
    assert replace(tiny, minutes=21)._affordable("plans") == int(0.8 * 100 / 50 * 6 * 60)


def test_a_fit_that_a_killed_call_had_begun_is_begun_again_beside_the_next_stage(tiny, monkeypatch):
    begun = []
    monkeypatch.setattr(Survey, "_fit", lambda self, role: begun.append(role) or role)
    gpu = replace(tiny, settings=replace(tiny.settings, device="cuda"))
    gpu._fit_beside()
    assert begun == []
    for role in ("planner", "judge"):
        gpu.file(f"{role}.npz").touch()
    gpu.file("judge.safetensors").touch()  # done
    gpu._fit_beside()
    gpu._fit_beside()
    tiny._fit_beside()  # a CPU is not disturbed
    assert begun == ["planner"]


def test_a_call_that_is_over_stops_before_the_next_stage(tiny, monkeypatch):
    with pytest.raises(survey.Stopped):
        replace(tiny, stop_at=0.0).run(print)
    assert not any(tiny.folder.iterdir())


def test_time_spent_counts_over_calls(tiny, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(survey, "time", SimpleNamespace(monotonic=lambda: now[0]))
    longer = replace(tiny, minutes=21)
    assert longer._seconds_left("planner") == 7 * 60
    for seconds in (50, 70):
        with longer._timed("planner"):
            now[0] += seconds
        now[0] += 1_000  # between two calls
    assert longer._seconds_left("planner") == 7 * 60 - 120


@pytest.mark.parametrize("flags", [["--plan", "H 200"], ["--plan", "a", "--minutes", "x"], []])
def test_flags_that_make_no_sense_are_refused(flags, tmp_path, capsys):
    with pytest.raises(SystemExit):
        command.main([*flags, "--out", str(tmp_path)])
    assert "; see python -m shard_gym.measuring --help" in capsys.readouterr().err


def test_another_device_than_there_is_costs_nothing(tmp_path, capsys, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert command.main(["--plan", "h200", "--device", "cuda", "--out", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "sees no CUDA device" in told and "fbgemm-gpu==1." in told


def test_chosen_plans_are_of_tables_that_no_role_measures_to_fit():
    assert chosen.POOL in survey.POOLS["test"]
    assert len({pool for pools in survey.POOLS.values() for pool in pools}) == 5
    assert all(len(pool_named(pool)) for pools in survey.POOLS.values() for pool in pools)
    assert np.isclose(sum(MINUTES.values()), 21)
