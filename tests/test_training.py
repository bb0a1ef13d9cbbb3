import dataclasses
import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
import torch

from shard_gym.errors import CorruptFile, InfeasibleTask, InvalidTask
from shard_gym_agents.cli import main as cli
from shard_gym_agents.learners import LEARNERS, training
from shard_gym_agents.learners import learner as learner_files
from shard_gym_agents.learners.learner import episode_seeds, load_tensors, packed, save_tensors, unpack
from shard_gym_agents.learners.training import Schedule, TrainingFailed, Validation, train
from tests.learner_helpers import (  # noqa: F401
    FakeConfig,
    FakeLearner,
    FakePolicy,
    ToySuite,
    one_thread,
    same,
    toy_planner,
    toy_suite,
)

pytestmark = pytest.mark.usefixtures("toy_planner", "one_thread")
OFTEN = Schedule(iterations=4, validate_every=1, checkpoint_seconds=0.0)


def fake(seed=0, **config):
    return FakeLearner(toy_suite(), FakeConfig(**config), seed)


def scalars(out):
    return [json.loads(line) for line in (out / "scalars.jsonl").read_text().splitlines()]


def test_a_run_leaves_a_checkpoint_the_best_policy_its_card_and_scalars(tmp_path):
    learner = fake()
    progress = train(learner, tmp_path, OFTEN, "the command")
    assert (progress.iteration, progress.steps, progress.simulator_calls) == (4, 32, 12)
    assert (progress.best, progress.best_at, progress.bad) == (1.0, 2, 2)  # 5 ms, as cost-greedy
    assert (tmp_path / "best.safetensors").read_text() == "True"
    card = json.loads((tmp_path / "card.json").read_text())
    assert card["command"] == "the command" and card["progress"]["best_at"] == 2 and card["seed"] == 0
    assert [row["iteration"] for row in scalars(tmp_path)] == [1, 2, 3, 4]
    assert [row["val/makespan"] for row in scalars(tmp_path)] == [2, 1, 2, 2]  # 10 ms over 5 ms
    assert same(load_tensors(tmp_path / "checkpoint.safetensors", "checkpoint")[0], learner.state())


def test_two_and_two_iterations_are_four(tmp_path):
    whole, first, second = fake(), fake(), fake()
    train(whole, tmp_path / "whole", OFTEN)
    train(first, tmp_path / "parts", replace(OFTEN, iterations=2))
    train(second, tmp_path / "parts", OFTEN)
    assert same(second.state(), whole.state()) and not same(first.state(), whole.state())
    assert scalars(tmp_path / "parts") == scalars(tmp_path / "whole")


@pytest.mark.parametrize("ends", ["ctrl-c", "nan", "nan weights", "nan draws"])
def test_what_ends_badly_keeps_the_last_whole_iteration(tmp_path, ends):
    error = KeyboardInterrupt if ends == "ctrl-c" else TrainingFailed
    with pytest.raises(error, match=None if ends == "ctrl-c" else "iteration 3"):
        train(fake(ends=ends), tmp_path, replace(OFTEN, checkpoint_seconds=1e9))
    two = fake(ends=ends)
    train(two, tmp_path / "two", replace(OFTEN, iterations=2))
    kept, card = load_tensors(tmp_path / "checkpoint.safetensors", "checkpoint")
    assert same(kept, two.state()) and card["progress"]["iteration"] == 2


KILLED = """
from pathlib import Path
from tests.learner_helpers import FakeConfig, FakeLearner, register_planner, toy_suite
from tests.test_training import OFTEN, train
register_planner()
train(FakeLearner(toy_suite(), FakeConfig(ends="kill"), 0), Path({out!r}), OFTEN)
"""


def test_a_killed_run_goes_on_to_the_same_end(tmp_path):
    killed = subprocess.run([sys.executable, "-c", KILLED.format(out=str(tmp_path / "killed"))], env=os.environ)
    assert killed.returncode == -9 and len(scalars(tmp_path / "killed")) == 2
    whole, after = fake(), fake(ends="kill")
    train(whole, tmp_path / "whole", OFTEN)
    after.restore(load_tensors(tmp_path / "killed" / "checkpoint.safetensors", "checkpoint")[0])
    after.config = FakeConfig()
    after.iterate()
    after.iterate()
    assert same(after.state(), whole.state())


def test_scalars_after_the_checkpoint_are_not_told_twice(tmp_path):
    train(fake(), tmp_path, replace(OFTEN, iterations=2))
    with (tmp_path / "scalars.jsonl").open("a") as file:
        file.write('{"iteration": 3, "of": "a crashed process"}\n{"iter')
    train(fake(), tmp_path, OFTEN)
    assert [row["iteration"] for row in scalars(tmp_path)] == [1, 2, 3, 4]
    assert all("loss" in row for row in scalars(tmp_path))


def test_training_stops_when_validation_gets_no_better(tmp_path):
    progress = train(fake(good=1), tmp_path, replace(OFTEN, iterations=50, patience=3))
    assert (progress.iteration, progress.best_at) == (4, 1)


@pytest.mark.parametrize(
    ("other", "named"), [({"seed": 1}, "seed 0, not 1"), ({"learning_rate": 0.2}, "learning_rate")]
)
def test_a_folder_of_another_run_is_refused(tmp_path, other, named):
    train(fake(), tmp_path, replace(OFTEN, iterations=1))
    with pytest.raises(InvalidTask, match=named):
        train(fake(**other), tmp_path, OFTEN)


def test_a_finished_run_does_nothing_more(tmp_path):
    train(fake(), tmp_path, OFTEN)
    before, card = load_tensors(tmp_path / "checkpoint.safetensors", "checkpoint")
    train(fake(), tmp_path, OFTEN)
    after, card_after = load_tensors(tmp_path / "checkpoint.safetensors", "checkpoint")
    assert same(before, after) and card == card_after


class Dead:
    """Finds room for no table."""

    def __call__(self, task, planner):
        raise InfeasibleTask("no room")


def test_a_plan_that_cannot_be_used_counts_as_the_mean_random_one():
    validation = Validation(toy_suite())
    assert validation(Dead()) == {"val/makespan": 1.5, "val/balance": 0.0}  # 7.5 over 5 ms
    full = Validation(toy_suite(room=2 * 100 * 16 * 2))
    assert full(FakePolicy(good=False))["val/makespan"] == 1.5  # four tables where two fit
    assert full(FakePolicy(good=True)) == {"val/makespan": 1.0, "val/balance": 1.0}


@pytest.mark.parametrize("where", [0.1, 0.5, 0.99])
def test_a_damaged_checkpoint_is_refused(tmp_path, where):
    train(fake(), tmp_path, replace(OFTEN, iterations=1))
    path = tmp_path / "checkpoint.safetensors"
    content = bytearray(path.read_bytes())
    path.write_bytes(content[: int(where * len(content))])
    with pytest.raises(CorruptFile, match="not a whole file"):
        train(fake(), tmp_path, OFTEN)
    content[-int((1 - where) * 100) - 1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptFile, match="changed or damaged"):
        train(fake(), tmp_path, OFTEN)


def test_files_of_other_kinds_and_features_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "file.safetensors"
    save_tensors(path, {"a": torch.ones(2)}, {"kind": "policy"})
    assert torch.equal(load_tensors(path, "policy")[0]["a"], torch.ones(2))
    with pytest.raises(CorruptFile, match="holds a policy, expected a checkpoint"):
        load_tensors(path, "checkpoint")
    monkeypatch.setattr(learner_files, "FEATURES", learner_files.FEATURES[::-1])
    with pytest.raises(CorruptFile, match="expects features"):
        load_tensors(path, "policy")


def test_a_state_of_another_network_is_refused():
    state = packed(net=torch.nn.Linear(2, 3))
    with pytest.raises(CorruptFile, match="another"):
        unpack(state, net=torch.nn.Linear(2, 4))
    with pytest.raises(CorruptFile, match="another"):
        unpack(state, optimizer=torch.optim.Adam(torch.nn.Linear(1, 1).parameters()))


@pytest.mark.parametrize("name", ["dreamshard", "rnn"])
def test_a_learner_whose_losses_explode_keeps_the_last_good_iteration(tmp_path, name):
    module = import_module(LEARNERS[name][0])
    learner = module.Learner(toy_suite(), module.Config(learning_rate=1e30), 0)
    with pytest.raises(TrainingFailed, match="iteration 1 gives"):
        train(learner, tmp_path, OFTEN)
    kept, card = load_tensors(tmp_path / "checkpoint.safetensors", "checkpoint")
    assert card["progress"]["iteration"] == 0 and all(value.isfinite().all() for value in kept.values())


@pytest.mark.parametrize("name", ["autoshard", "cloning", "dreamshard", "dreamshard-planner", "rnn"])
def test_a_run_with_features_of_another_scaling_is_not_continued(monkeypatch, name):
    module = import_module(LEARNERS[name][0])
    state = module.Learner(toy_suite(), module.Config(), 0).state()
    monkeypatch.setattr(ToySuite, "feature_scaling", lambda suite: (np.ones(21), np.full(21, 2.0)))
    with pytest.raises(CorruptFile, match="another scaling"):
        module.Learner(toy_suite(), module.Config(), 0).restore(state)


def test_every_episode_has_a_seed_of_its_own():
    seeds = [tuple(episode_seeds(seed, iteration, 50)) for seed in range(3) for iteration in range(20)]
    assert len({one for some in seeds for one in some}) == 3 * 20 * 50
    assert seeds[0] == tuple(episode_seeds(0, 0, 50))
    assert all(isinstance(one, int) and one >= 0 for one in seeds[0])


def test_tensorboard_reads_what_a_run_told(tmp_path):
    """A second call goes on: each iteration is there once."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for iterations in (2, 3):
        train(fake(), tmp_path, replace(OFTEN, iterations=iterations))
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    found = {name: {e.step: e.value for e in events.Scalars(name)} for name in events.Tags()["scalars"]}
    assert set(found["loss"]) == {1, 2, 3} and found["val/makespan"] == {1: 2.0, 2: 1.0, 3: 2.0}
    lines = [json.loads(line) for line in (tmp_path / "scalars.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in lines] == pytest.approx(list(found["loss"].values()))


def test_training_goes_on_without_tensorboard(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    train(fake(), tmp_path, replace(OFTEN, iterations=1))
    assert not list(tmp_path.glob("events*")) and len((tmp_path / "scalars.jsonl").read_text().splitlines()) == 1


def test_progress_tells_rate_time_left_and_validation(tmp_path, capsys):
    train(fake(), tmp_path, OFTEN)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4 and lines[1].startswith("iteration 2/4, ")
    assert "steps/s" in lines[1] and "min left" in lines[1]
    assert lines[3].endswith("2.0000 x cost-greedy, best 1.0000 at 2")


TRAIN = ["train", "autoshard", "--suite", "dlrm-10x2", "--num-envs", "4", "--batch", "2", "--validate-every", "1"]


def test_the_command_trains_and_goes_on(tmp_path, capsys):
    for iterations in ("1", "2"):
        arguments = [*TRAIN, "--out", str(tmp_path), "--iterations", iterations, "--learning-rate", "0.002"]
        assert cli.main(arguments) == 0
    assert "x cost-greedy on validation tasks" in capsys.readouterr().out
    card = json.loads((tmp_path / "card.json").read_text())
    assert card["config"]["learning_rate"] == 0.002 and card["config"]["num_envs"] == 4
    assert card["command"].startswith("shard-gym train autoshard --suite dlrm-10x2")
    assert np.isfinite([row["loss"] for row in scalars(tmp_path)]).all() and len(scalars(tmp_path)) == 2


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--seed", "-1"], "--seed is 0 or more"),
        (["--suite", "no-such"], "metasyn-80x8"),
        (["--num-envs", "5"], "multiple of batch"),
        (["--device", "cuda"], "no CUDA"),
        (["--patience", "0"], "--patience"),
        (["--learning-rate", "-1"], "above 0"),
        (["--planner", "roofline:h100-v1"], "predicts"),
        (["--suite", "mixed-10to59x4-split"], "mixed-10to59x4,"),
    ],
)
def test_bad_input_is_told_in_one_line(tmp_path, capsys, monkeypatch, more, named):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cli.main([*TRAIN, "--out", str(tmp_path), *more]) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1 and named in told[0]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nobody", "--suite", "dlrm-10x2", "--out", "x"], "choose from 'autoshard', "),
        (["--suite", "dlrm-10x2"], "required: LEARNER, --out; see shard-gym train --help"),
        (["autoshard", "--learnig-rate", "1"], "did you mean --learning-rate?"),
    ],
)
def test_unknown_learners_and_flags_list_the_known(capsys, arguments, told):
    with pytest.raises(SystemExit) as ended:
        cli.main(["train", *arguments])
    assert ended.value.code == 2 and told in capsys.readouterr().err


def test_a_folder_named_as_a_learner_is_not_taken_for_one(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["train", "--out", "rnn", "autoshard", "--suite", "dlrm-10x2"])
    assert ended.value.code == 2 and "name the learner first" in capsys.readouterr().err


@pytest.mark.parametrize("name", LEARNERS)
def test_flags_are_the_fields_of_the_learners_own_config(capsys, name):
    with pytest.raises(SystemExit) as ended:
        cli.main(["train", name, "--help"])
    told = capsys.readouterr().out
    assert ended.value.code == 0 and "--validate-every" in told
    for field in dataclasses.fields(import_module(LEARNERS[name][0]).Config):
        assert f"--{field.name.replace('_', '-')}" in told


def test_the_loop_knows_no_learner():
    assert not [name for name in vars(training) if "autoshard" in name.lower() or "dreamshard" in name.lower()]
