"""The Python of README and docs runs, page by page in the order of its blocks, with files that the text speaks of."""

import os
import re
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
TWO_PROCESSES = "torchrec.md"


def program(page: Path) -> str:
    """A page's blocks as one program, each on the lines where the page has it."""
    text, parts, written = page.read_text(encoding="utf-8"), [], 0
    for found in FENCE.finditer(text):
        first = text.count("\n", 0, found.start(1))
        parts += ["\n" * (first - written), found[1]]
        written = first + found[1].count("\n")
    return "".join(parts)


def write_logs(folder: Path) -> None:
    """Two days of clicks: a sample a row."""
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    rng = np.random.default_rng(0)
    for day in range(2):
        columns = {name: rng.integers(0, 500, 5_000) for name in ("C1", "C2")}
        columns["history"] = [row.tolist() for row in rng.zipf(1.5, (5_000, 4)).clip(max=999)]
        parquet.write_table(pyarrow.table(columns), folder / f"day_{day}.parquet")


@pytest.fixture(scope="module")
def readers_folder(tmp_path_factory):
    """A reader's own files: tables, logs, and fits of measurements."""
    folder = tmp_path_factory.mktemp("reader")
    shutil.copytree(ROOT / "examples", folder, dirs_exist_ok=True)
    write_logs(folder)
    (folder / "survey").mkdir()
    fits = files("shard_gym.simulators") / "fits"
    for source, name in {"cpu-v1": "planner", "cpu-judge-v1": "judge"}.items():
        shutil.copy(fits / f"{source}.safetensors", folder / "survey" / f"my-gpu-{name}.safetensors")
    shutil.copy(fits / "cpu-v1.safetensors", folder / "my.safetensors")
    return folder


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != TWO_PROCESSES], ids=lambda page: page.name)
@pytest.mark.filterwarnings("ignore")
def test_a_page_runs(page, readers_folder, monkeypatch):
    monkeypatch.chdir(readers_folder)
    monkeypatch.syspath_prepend(readers_folder)
    exec(compile(program(page), str(page), "exec"), {"__name__": "__main__"})


@pytest.mark.slow
def test_a_page_runs_in_two_processes(readers_folder):
    pytest.importorskip("torchrec")
    (readers_folder / "program.py").write_text(program(ROOT / "docs" / TWO_PROCESSES))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "program.py"]
    packages = os.pathsep.join([str(ROOT), str(ROOT / "agents")])
    told = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": packages}
    done = subprocess.run(command, cwd=readers_folder, env=os.environ | told, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
