"""The Python of README and docs runs, page by page in the order of its blocks, with files that the text speaks of."""

import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from shard_gym.task.machines import read_machine

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r'^```(python|bash)(?: title="([^"]+)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)
TWO_PROCESSES = "torchrec.md"
COMMANDS = {
    "flexshard.md",
    "start_engineer.md",
}  # pages whose commands run too; those of others take minutes, or need hardware
OURS = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "agents")])}
RUN = "import sys; from shard_gym_agents.cli.main import main; sys.exit(main())"
SHELL = f"python() {{ '{sys.executable}' \"$@\"; }}; shard-gym() {{ python -c '{RUN}' \"$@\"; }}\n"


def blocks(page: Path) -> Iterator[tuple[str, str, str]]:
    """Language, file name and code of a page's blocks, each on the lines where the page has it."""
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        yield found[1], found[2] or "", "\n" * text.count("\n", 0, found.start(3)) + found[3]


def program(page: Path) -> str:
    """A page's Python as one program."""
    return "".join(code for kind, file, code in blocks(page) if kind == "python" and not file)


def run_page(page: Path, folder: Path, commands: bool) -> None:
    """Run a page's blocks one after the other; those with a file name become that file."""
    known = {"__name__": "__main__"}
    for kind, file, code in blocks(page):
        if file:
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_text(code)
            importlib.invalidate_caches()
        elif kind == "python":
            exec(compile(code, str(page), "exec"), known)
        elif commands:
            subprocess.run(["bash", "-euc", SHELL + code], cwd=folder, env=os.environ | OURS, check=True)


def write_logs(folder: Path) -> None:
    """Two days of clicks: a sample a row."""
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    rng = np.random.default_rng(0)
    for day in range(2):
        columns = {name: rng.integers(0, 500, 5_000) for name in ("C1", "C2", "clicks")}
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
    if "from_named_json" in program(page):
        pytest.importorskip("torchrec")
    run_page(page, readers_folder, page.name in COMMANDS)


def test_fragments_of_python_are_python():
    for page in PAGES:
        for fragment in re.findall("^```py\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            compile(fragment, str(page), "exec")


def test_the_machine_of_the_planning_page_can_be_read(tmp_path):
    (told,) = re.findall("^```toml\n(.*?)^```", (ROOT / "docs/planning.md").read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "mine.toml").write_text(told)
    machine = read_machine(tmp_path / "mine.toml")
    assert machine.devices == 16 and machine.hosts == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "makes"),
    [("start_researcher.md", "run/leaderboard.html"), ("own_gpu.md", "survey/my-gpu-fidelity.md")],
)
def test_a_page_runs_with_its_long_commands(page, makes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    run_page(ROOT / "docs" / page, tmp_path, True)
    assert (tmp_path / makes).exists()


@pytest.mark.slow
def test_a_page_runs_in_two_processes(readers_folder):
    pytest.importorskip("torchrec")
    (readers_folder / "program.py").write_text(program(ROOT / "docs" / TWO_PROCESSES))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "program.py"]
    told = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", **OURS}
    done = subprocess.run(command, cwd=readers_folder, env=os.environ | told, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
