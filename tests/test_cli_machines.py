"""The machine, the settings and what is assumed, on the command line."""

import pytest

from shard_gym import Plan, Task, make_pool
from shard_gym_agents.cli.main import main


@pytest.fixture
def tables(tmp_path):
    """Tables of 6.4 MB of weights together; headers in mixed case."""
    (tmp_path / "tables.csv").write_text(
        "Name,ROWS,Dim,Pooling\nuser,50000,16,1\nclicks,30000,16,24.5\nads,20000,16,3\n"
    )
    return ["--tables", str(tmp_path / "tables.csv")]


def first_line(capsys, *command):
    assert main(list(command)) == 0
    return capsys.readouterr().out.splitlines()[0]


def test_what_is_assumed_is_told(tables, capsys):
    solve = ["solve", *tables, "--agent", "cost-greedy"]
    assert first_line(capsys, *solve, "--devices", "2", "--memory-gb", "1") == (
        "assumes fp32; sgd; batch 65,536; 'training' bytes; 1 host of 2; 360 GB/s, 30 us; roofline:h100-v2"
    )
    told = ["--dtype", "fp16", "--optimizer", "adam", "--batch", "1024", "--accounting", "true"]
    assert first_line(capsys, *solve, "--hardware", "p4d.24xlarge", "--hosts", "2", *told) == (
        "assumes fp16; adam; batch 1,024; 'true' bytes; 2 hosts of 8; 240 GB/s, 40 GB/s a group of 8, 4130 us; "
        "roofline:a100-x32-roce-v2"
    )
    theirs = ["--hardware", "dgx-h100", "--simulator", "torchrec:cuda-v1"]
    assert first_line(capsys, *solve, *theirs).endswith("; 1 host of 8; the simulator's links; torchrec:cuda-v1")
    kernel = ["--objective", "kernel", "--simulator", "learned:cpu-v1"]
    assert first_line(capsys, *solve, "--devices", "2", "--memory-gb", "1", *kernel).endswith(
        "; no links (kernel); learned:cpu-v1, which answers for batch 2,048, optimizer rowwise_adagrad, fp16 weights"
    )


def test_the_machine_decides_devices_memory_and_simulator(tables, tmp_path, capsys):
    solve = ["solve", *tables, "--agent", "round-robin", "--hardware"]
    assert main([*solve, "dgx-h200"]) == 0
    *_, last = told = capsys.readouterr().out.splitlines()
    assert "by roofline:h200-v2" in told[1] and last.split()[0] == "7"
    assert last.split()[3] == f"{139 * 0.85:.2f}"
    assert main([*solve, "dgx-h200", "--devices", "2", "--memory-gb", "5"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[::3][:2] == ["1", "5.00"]
    (tmp_path / "m.toml").write_text("devices = 3\nmemory_gb = 10\nreserve = 0\n")
    assert main([*solve, str(tmp_path / "m.toml")]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[::3][:2] == ["2", "10.00"]


def test_dtype_decides_bytes(tables, capsys):
    """The 100,000 rows of 16 columns take 6.4 MB, 3.2 and 1.6."""
    solve = ["solve", *tables, "--agent", "cost-greedy", "--devices", "1", "--memory-gb"]
    fits = {"fp32": 6.4e6, "fp16": 3.2e6, "int8": 1.6e6}
    for dtype, size in fits.items():
        assert main([*solve, str(1.01 * size / 2**30), "--dtype", dtype]) == 0
        assert main([*solve, str(0.99 * size / 2**30), "--dtype", dtype]) == 2
    capsys.readouterr()


def test_settings_change_tasks_of_files_and_suites(tmp_path, capsys):
    task = Task(make_pool([1000, 2000], dtype="fp32"), memory=(2**20,) * 2, optimizer="adam", accounting="training")
    (tmp_path / "task.json").write_text(task.to_json())
    solve = ["solve", "--task", str(tmp_path / "task.json"), "--agent", "round-robin"]
    assert first_line(capsys, *solve).startswith("assumes fp32; adam; batch 65,536; 'training' bytes; ")
    changed = first_line(capsys, *solve, "--dtype", "bf16", "--optimizer", "sgd", "--accounting", "weights")
    assert changed.startswith("assumes bf16; sgd; batch 65,536; 'weights' bytes; ")
    suite = ["solve", "--suite", "core-80x8", "--agent", "round-robin", "--batch", "4096"]
    assert "; batch 4,096; " in first_line(capsys, *suite)


def test_a_sweep_compares_machines(tables, tmp_path, capsys):
    (tmp_path / "small.toml").write_text("devices = 1\nmemory_gb = 0.005\nreserve = 0\nprice = 2\n")
    (tmp_path / "priced.toml").write_text("devices = 2\nmemory_gb = 1\nreserve = 0\nprice = 36\n")
    machines = f"dgx-h100,{tmp_path / 'priced.toml'},{tmp_path / 'small.toml'}"
    assert main(["sweep", *tables, "--hardware", machines, "--agent", "cost-greedy"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("dgx-h100 assumes fp32; ")
    head, h100, priced, small, _, why, host, memory, devices = lines[3:]
    assert head.split()[:4] == ["hardware", "hosts", "devices", "GiB"]
    assert h100.split()[:4] == ["dgx-h100", "1", "8", "68.00"]
    makespan, price, of_steps = map(float, priced.split()[-3:])
    assert (price, of_steps) == (36, pytest.approx(36 * makespan * 1e6 / 3.6e6, abs=0.01))  # 10 a millisecond
    assert small.split()[-3:] == ["NO", "PLAN", "2.00"]
    assert why.startswith("small: table 0 ('user', 3,200,000 bytes) fits on no device") and "1,031,291 too few" in why
    assert "(1,280,000 bytes) a device are enough (--residences hbm,uvm" in host
    assert "(6,400,000 bytes) a device are enough" in memory and devices == "  what helps: devices: 2 are enough, now 1"


def test_no_plan_proposes_what_helps(tables, capsys):
    assert main(["solve", *tables, "--agent", "auto", "--devices", "1", "--memory-gb", "0.005"]) == 2
    told = capsys.readouterr().err
    assert "1,031,291 bytes too few" in told
    assert "\n  what helps: memory: 0.01 GiB (6,400,000 bytes) a device are enough" in told
    free = ["--devices", "1", "--memory-gb", "0.006", "--headroom", "0.5"]  # half of 6,442,450 bytes
    assert main(["solve", *tables, "--agent", "auto", *free]) == 2
    assert "(6,400,000 bytes) a device are enough, now 0.00 GiB (3,221,225 bytes)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["--devices", "100000000", "--memory-gb", "1"], "at most 100,000, got devices=100000000"),
        (["--devices", str(10**12), "--memory-gb", "1"], "at most 100,000, got devices=1000000000000"),
        (["--hardware", "dgx-h100", "--devices", str(10**12)], "at most 100,000, got devices=1000000000000"),
        (["--hardware", "dgx-h100", "--hosts", str(10**9)], "at most 100,000, got devices=8000000000"),
        (["--hardware", "dgx"], "unknown hardware 'dgx'; choose one of: dgx-a100-40, "),
        (["--hardware", "rtx2080ti-x4", "--hosts", "2"], "several hosts need link_gb_s and host_gb_s"),
        (["--devices", "4", "--memory-gb", "1", "--hosts", "2"], "--hosts 2 needs --hardware"),
        (["--devices", "4"], "or --hardware, one of rtx2080ti-x4, "),
        (["--hardware", "dgx-h100", "--batch", "0"], "batch must be positive"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(tables, capsys, command, told):
    assert main(["solve", *tables, "--agent", "cost-greedy", *command]) == 2
    err = capsys.readouterr().err
    assert told in err and err.count("\n") == 1


@pytest.mark.parametrize("devices", ["10**12", "0", "-1", "two"])
def test_devices_are_a_whole_number(tables, capsys, devices):
    with pytest.raises(SystemExit) as ended:
        main(["solve", *tables, "--agent", "cost-greedy", f"--devices={devices}"])
    assert ended.value.code == 2
    assert f"--devices: '{devices}' is not a whole number above 0" in capsys.readouterr().err


def test_what_is_for_tables_is_refused_elsewhere(tmp_path, capsys):
    Plan((0,)).save(tmp_path / "plan.json")
    for given in (["--devices", "4"], ["--hardware", "dgx-h100"], ["--memory-gb", "4"], ["--allow-splits"]):
        assert main(["solve", "--suite", "core-80x8", "--agent", "cost-greedy", *given]) == 2
        assert f"{given[0]} is for --tables" in capsys.readouterr().err
