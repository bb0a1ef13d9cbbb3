import shlex
from contextlib import nullcontext

import numpy as np
import pytest

pytest.importorskip("torch")

from benchmarks import ship
from shard_gym import simulators, suites
from shard_gym.records import tensors as card_files
from shard_gym.results.evaluate import score
from shard_gym_agents import make
from shard_gym_agents.cli import train as train_cli
from shard_gym_agents.leaderboard import retraining
from shard_gym_agents.leaderboard.arena.job import Job
from shard_gym_agents.learners import trained
from tests.trained_helpers import CARD, no_weights, save_run, ship_policy  # noqa: F401

DLRM = simulators.make(suites.get("dlrm-10x4").planner)


def test_the_best_of_some_runs_is_shipped_in_half_precision(tmp_path, weights, capsys):
    runs = [save_run(tmp_path / f"{seed}", seed, best) for seed, best in ((3, 1.4), (1, 1.2), (2, 1.3))]
    assert ship.main([*map(str, runs), "--list"]) == 0
    tensors, card = card_files.read(weights / "rnn" / "dlrm-10x4.safetensors", trained.SCHEMA, "")
    exact, _ = card_files.read(runs[1] / "best.safetensors", trained.SCHEMA, "")
    assert np.array_equal(tensors["scaling"], exact["scaling"]) and tensors["scaling"].dtype == np.float64
    assert all(np.array_equal(tensors[name], t.astype(np.float16)) for name, t in exact.items() if name != "scaling")
    assert card.keys() >= CARD
    assert (card["seed"], card["minutes"], card["iterations"], card["best_at"]) == (1, 1.5, 7, 5)
    assert card["note"] == "best of seeds 1, 2, 3 by validation"
    out = "runs/trained/rnn/dlrm-10x4"
    assert card["command"] == f"shard-gym train rnn --suite dlrm-10x4 --seed 1 --updates 1 --out {out}"
    line = capsys.readouterr().out.splitlines()[-2].split()
    assert line[:2] == ["rnn", "dlrm-10x4"] and line[3:6] == ["1,000", "100", "1.5"]
    assert 1 < card["val"] < 3  # of the halved policy, measured; no policy of random weights is better than cost-greedy
    task = suites.get("dlrm-10x4").tasks("test")[0]
    assert score(task, make("rnn", suite="dlrm-10x4")(task, DLRM), DLRM).feasible


def test_what_cannot_be_shipped_leaves_the_weights_as_they_were(tmp_path, weights, capsys, monkeypatch):
    good, again = save_run(tmp_path / "0", 0), save_run(tmp_path / "again", 0)
    other = save_run(tmp_path / "1", 1, config={"updates": 2})
    huge, short = save_run(tmp_path / "huge", 2), save_run(tmp_path / "short", 3)
    tensors, card = card_files.read(huge / "best.safetensors", trained.SCHEMA, "")
    tensors["head.bias"] += 1e5
    card_files.write(huge / "best.safetensors", trained.SCHEMA, tensors, card)
    cut = (short / "best.safetensors").read_bytes()[:-9]
    (short / "best.safetensors").write_bytes(cut)
    nothing = save_run(tmp_path / "nothing", 4, progress={})
    for runs, told in {
        (good, again): "the same seed",
        (good, other): "different seeds: config is",
        (huge,): "head.bias has values beyond half precision",
        (short,): "is not a whole file",
        (nothing,): "is not the card of a run",
        (tmp_path,): "card.json",
    }.items():
        assert ship.main([*map(str, runs)]) == 2
        assert told in capsys.readouterr().err
    monkeypatch.setattr(ship, "BUDGET", 10_000)
    assert ship.main([str(good)]) == 2
    assert "more than 10,000" in capsys.readouterr().err
    assert not weights.exists()


def test_what_a_command_leaves_can_be_shipped(tmp_path, weights):
    words = ["rnn", "--suite", "dlrm-10x4", "--seed", "1", "--iterations", "1", "--updates", "1"]
    assert train_cli.main([*words, "--out", str(tmp_path / "run")]) == 0
    assert ship.main([str(tmp_path / "run")]) == 0
    assert make("rnn", suite="dlrm-10x4").card["command"] == shlex.join(
        ["shard-gym", "train", *words, "--out", "runs/trained/rnn/dlrm-10x4"]
    )


def job(agent, suite):
    return Job(suite, agent, 0, suites.get(suite).planner, suites.get(suite).judge)


def test_what_serves_a_suite_is_trained_again(weights):
    ship_policy("core-60x4", command="shard-gym train rnn --suite core-60x4 --seed 3 --out there")
    assert retraining.command_for(job("rnn", "core-60x4")).endswith("--seed 3 --out there")
    assert retraining.command_for(job("rnn", "mixed-10to59x4")) == trained.default_command("rnn", "mixed-10to59x4")
    assert retraining.command_for(job("rnn", "dlrm-10x4")) == trained.default_command("rnn", "dlrm-10x4")


@pytest.mark.parametrize(
    ("ends", "why"),
    [("0", None), ("'shard-gym train: no, never'", "no, never"), ("3", "one"), ("130", None)],
)
def test_why_training_failed(monkeypatch, tmp_path, ends, why, capsys):
    monkeypatch.setattr(retraining, "TRAIN", f"import sys; print('one', file=sys.stderr); sys.exit({ends})")
    with pytest.raises(KeyboardInterrupt) if ends == "130" else nullcontext():
        assert retraining._train(f"shard-gym train rnn --out {tmp_path / 'run'}", fresh=False) == why
    assert "one" in capsys.readouterr().err


def test_a_command_goes_on_unless_it_is_to_begin_afresh(monkeypatch, tmp_path):
    monkeypatch.setattr(retraining, "TRAIN", "import os, sys; sys.exit(os.path.exists(sys.argv[-1]))")
    command = f"shard-gym train rnn --out {tmp_path}"
    assert retraining._train(command, fresh=False) == "exit code 1"
    assert retraining._train(command, fresh=True) is None
