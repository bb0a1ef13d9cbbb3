"""Ctrl-C for real: a command is sent SIGINT while it works, ends with 130, and says what is kept and how to go on."""

import io
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from shard_gym import Plan
from shard_gym.records.progress import Waiting

PROGRAM = (sys.executable, "-c", "import sys; from shard_gym_agents.cli.main import main; sys.exit(main())")
PATIENCE = 120.0  # seconds that a command may take until it works


def _heeds():
    """Heed SIGINT, also where the tests run in the background of a shell, which has it ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def interrupted(folder, words, works):
    """Exit code, stdout and stderr of a command that is sent SIGINT as soon as `works` of its stderr so far is true."""
    with (folder / "err").open("w+") as err, (folder / "out").open("w+") as out:
        process = subprocess.Popen(
            [*PROGRAM, *words], cwd=folder, stdout=out, stderr=err, start_new_session=True, preexec_fn=_heeds
        )
        try:
            end = time.monotonic() + PATIENCE
            while not works((folder / "err").read_text()):
                assert process.poll() is None and time.monotonic() < end, (folder / "err").read_text()
                time.sleep(0.02)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
            code = process.wait(PATIENCE)
        finally:
            process.kill()
    return code, (folder / "out").read_text(), (folder / "err").read_text()


def test_solve_keeps_the_best_plan_so_far(tmp_path):
    words = "solve --suite core-80x8 --agent local-search --budget 10m --progress --out plan.json"
    code, out, err = interrupted(tmp_path, words.split(), lambda err: ", best " in err)
    *_, last = err.splitlines()
    assert code == 130 and "\nmakespan " in out and "Traceback" not in err
    assert last.startswith("shard-gym solve: stopped; the best plan so far is kept in plan.json; `shard-gym reshard")
    assert len(Plan.load(tmp_path / "plan.json").device) == 80


@pytest.mark.slow
def test_a_sweep_tells_the_machines_that_are_done(tmp_path):
    (tmp_path / "tables.csv").write_text("rows,dim\n" + "50000,64\n" * 40)
    words = "sweep --tables tables.csv --hardware dgx-h100,dgx-h200 --agent local-search --budget 10m --progress --json"
    code, out, err = interrupted(tmp_path, words.split(), lambda err: "local-search: " in err)
    assert code == 130 and '"interrupted": true' in out and "of 2 machines" in err.splitlines()[-1]


@pytest.mark.slow
def test_training_goes_on(tmp_path):
    pytest.importorskip("torch")
    words = "train cloning --suite dlrm-10x2 --plans 1 --calls 20 --validate-every 1 --patience 9999 --iterations 9999"
    code, out, err = interrupted(tmp_path, [*words.split(), "--out", "run"], lambda err: "iteration 2/" in err)
    assert code == 130 and out == ""
    assert "stopped; the same command goes on from iteration" in err.splitlines()[-1]
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()


@pytest.mark.slow
def test_measuring_goes_on(tmp_path):
    pytest.importorskip("fbgemm_gpu")
    words = "measure --shards 9999 --warm --warmups 0 --runs 1 --drop 0 --batch 32 --arena-gb 1 --workers 1 --out c"

    def works(err):
        return any(path.read_bytes().count(b"\n") > 3 for path in (tmp_path / "c").glob("rows-*.jsonl"))

    code, _, err = interrupted(tmp_path, words.split(), works)
    assert code == 130 and "stopped; c keeps what was measured, the same command goes on" in err


@pytest.mark.slow
def test_a_leaderboard_goes_on(tmp_path):
    words = "leaderboard --suite core-60x4 --agents random,cost-greedy,auto --budget 1s --seeds 1 --out run"

    def works(err):
        return any(path.stat().st_size > 500 for path in (tmp_path / "run" / "partial").glob("*"))

    code, _, err = interrupted(tmp_path, words.split(), works)
    assert code == 130 and err.splitlines()[-1] == "stopped; what is finished is kept, the same command goes on"


@pytest.mark.slow
def test_others_say_that_nothing_is_kept(tmp_path):
    os.mkfifo(tmp_path / "tables.csv")
    words = ["score", "--task", "tables.csv", "--plan", "plan.json"]
    begun = time.monotonic()
    code, _, err = interrupted(tmp_path, words, lambda err: time.monotonic() > begun + 8)
    assert code == 130
    assert err == "shard-gym score: stopped; nothing is kept; the same command begins again\n"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_wait_is_told_on_a_terminal_and_wiped():
    with Waiting("auto", 60, stream=Terminal()) as line:
        line.news = "best 12.345 ms after 3.1 s"
        line.tell()
        shown = line.stream.getvalue().rstrip()
        assert re.fullmatch(r"\rauto: \d+\.\d of 60 s, best 12\.345 ms after 3\.1 s", shown)
    assert line.stream.getvalue().endswith(" \r")
    assert line.text(3.14159) == "auto: 3.1 of 60 s, best 12.345 ms after 3.1 s"


def test_a_wait_is_quiet_where_nobody_looks():
    with Waiting("auto", stream=io.StringIO()) as line:
        assert not line.clock.is_alive()
    assert line.stream.getvalue() == ""
    with Waiting("auto", shown=False, stream=Terminal()) as line:
        pass
    assert line.stream.getvalue() == ""
    with Waiting("auto", shown=True, stream=io.StringIO()) as line:
        pass
    assert re.fullmatch(r"auto: \d+\.\d s\n", line.stream.getvalue())
