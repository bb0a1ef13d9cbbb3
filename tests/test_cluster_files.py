"""Batch files for SLURM, run with stand-ins for its commands."""

import os
import subprocess
from pathlib import Path

import pytest

FILES = Path(__file__).parents[1] / "examples" / "ray"
STANDINS = {
    "shard-gym": 'echo "shard-gym $*"',
    "ray": 'echo "ray $*" >> "$LOG"; [[ $1 != status ]] || (($(grep -c "^ray start" "$LOG") == 3))',  # all are up
    "sleep": ":",
    "scontrol": "printf 'a\\nb\\nc\\n'",
    "srun": "while [[ $1 == -* ]]; do [[ $1 == -w ]] && { shift; where=$1; }; shift; done; "
    'echo "on $where: $*" >> "$LOG"; exec "$@"',
}


@pytest.fixture
def batch(tmp_path):
    """Run a batch file; what it prints, and what was started where."""
    for name, script in STANDINS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{script}\n")
        (tmp_path / name).chmod(0o755)
    log = tmp_path / "log"

    def run(name, *words, **environment):
        told = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "LOG": str(log), **environment}
        found = subprocess.run(["bash", FILES / name, *words], env=told, capture_output=True, text=True)
        assert found.returncode == 0, found.stderr
        return found.stdout, log.read_text().splitlines() if log.exists() else []

    return run


def test_each_job_of_an_array_does_its_part(batch):
    given = {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_MAX": "16"}
    told, _ = batch("parts.sbatch", "measure", "--shards", "20", **given)
    assert told == "shard-gym measure --shards 20 --part 3/16 --out runs/parts/3\n"
    told, _ = batch("parts.sbatch", "measure", OUT="elsewhere", **given)
    assert told.endswith("--out elsewhere/3\n")


def test_a_job_starts_a_cluster_and_one_command_on_it(batch):
    given = {"SLURM_JOB_NODELIST": "a,b,c", "SLURM_JOB_ID": "20007", "SLURM_CPUS_PER_TASK": "16"}
    told, log = batch("cluster.sbatch", "train", "autoshard", **given)
    assert told == "shard-gym train autoshard --ray a:20007\n"
    assert "on a: ray start --head --port 20007 --num-cpus 15 --include-dashboard=false --block" in log
    assert sum("ray start --address" in line and line.startswith(("on b", "on c")) for line in log) == 2
    assert "on a: shard-gym train autoshard --ray a:20007" in log
