import dataclasses
import shlex
from importlib import import_module

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym import Constraints, Task, simulators, suites
from shard_gym.errors import CorruptFile, InfeasibleTask, InvalidTask, MissingDependency, UnknownName
from shard_gym.plan.violations import violations
from shard_gym.records import tensors as card_files
from shard_gym.results.evaluate import TRACKS, Unseen, config, score
from tests.pool_helpers import fp16_pool as make_pool

pytest.importorskip("torch")

import torch

from benchmarks import ship
from shard_gym_agents import make
from shard_gym_agents.cli import train as train_cli
from shard_gym_agents.leaderboard import retraining
from shard_gym_agents.learners import LEARNERS, trained
from shard_gym_agents.learners.trained import NotTrained, Trained
from tests.test_agents import draw_task
from tests.trained_helpers import CARD, no_weights, save_policy, save_run, ship_policy  # noqa: F401

SHIPPED = [(learner, path.stem) for learner in LEARNERS for path in trained.shipped(learner).values()]
shipped = pytest.mark.parametrize(("learner", "suite"), SHIPPED)
DLRM, CORE = (simulators.make(suites.get(key).planner) for key in ("dlrm-50x4", "core-60x4"))


def planner_of(suite):
    return simulators.make(suites.get(suite).planner)


def test_all_shipped_weights_together_are_small():
    assert sum(path.stat().st_size for path in ship.shipped_files()) < 2_000_000
    assert {path.parent.name for path in trained.WEIGHTS.glob("*/*")} <= LEARNERS.keys()


@shipped
def test_shipped_weights_say_what_they_took_and_how_to_train_them_again(learner, suite):
    tensors, card = card_files.read(trained.shipped(learner)[suite], trained.SCHEMA, "")
    assert card.keys() >= CARD
    assert (card["learner"], card["suite"], card["planner"]) == (learner, suite, suites.get(suite).planner)
    assert all(t.dtype == np.float16 or name.endswith("scaling") for name, t in tensors.items() if t.dtype.kind == "f")
    assert min(card["steps"], card["iterations"], card["minutes"]) > 0 and 0 < card["val"] < 2
    program, verb, *words = shlex.split(card["command"])
    assert (program, verb, words[0]) == ("shard-gym", "train", learner)
    module = import_module(LEARNERS[learner][0])
    options = train_cli._parser(module, LEARNERS[learner][1]).parse_args(words)
    assert (options.suite, options.seed) == (suite, card["seed"])
    assert all(getattr(options, name) == value for name, value in card["config"].items())
    assert retraining.folder_of(card["command"]) == trained.RETRAINED / learner / suite


@shipped
def test_shipped_weights_plan_their_suite_the_same_each_time(learner, suite):
    task, planner = suites.get(suite).tasks("test")[0], planner_of(suite)
    solver = make(learner, suite=suite)
    assert solver.track in TRACKS and solver.deterministic is True
    plan = solver(task, Unseen(planner) if solver.track == "blind" else planner)
    assert score(task, plan, planner).feasible
    trained._policy.cache_clear()
    assert make(learner, **{k: v for k, v in config(solver).items() if k != "learner"})(task, planner) == plan


@settings(max_examples=10)
@given(st.integers(0, 10**6), st.sampled_from([1.05, 1.3, 9.0]))
@shipped
def test_shipped_weights_plan_or_say_what_does_not_fit(learner, suite, seed, room):
    known = suites.get(suite)
    task = draw_task(seed, known.objective, room, known.num_devices)
    try:
        plan = make(learner, suite=suite)(task, planner_of(suite))
    except InfeasibleTask as error:
        assert "bytes" in str(error) and "too few" in str(error)
    else:
        assert score(task, plan, planner_of(suite)).feasible


@shipped
def test_shipped_weights_keep_constraints(learner, suite):
    task = draw_task(1, suites.get(suite).objective, 9.0, suites.get(suite).num_devices)
    rules = Constraints(pin=((0, 1), (1, 0)), together=((1, 2, 3),), apart=((0, 4),))
    task = dataclasses.replace(task, constraints=rules)
    assert not violations(task, make(learner, suite=suite)(task, planner_of(suite)))


def test_every_suite_has_a_family():
    untrained = {"fittightmix-80x8"}
    families = {suite.family for suite in suites.SUITES.values()} - untrained
    of_all_kinds = {"core-80x8-allkinds", "tightmix-80x8-allkinds"}
    others = {"metasyn-80x8", "dlrm-50x4", "core-60x4", "tightmix-80x8", "fitsplit-24x8"}
    assert families == others | of_all_kinds <= suites.SUITES.keys()
    assert set(trained.OF_NO_SUITE.values()) <= families


def serving(learner, suite):
    return Trained(learner, suite).card["suite"]


def test_a_suite_is_served_by_its_own_weights_else_by_its_familys(weights):
    def put(suite):
        card_files.write(weights / "ppo" / f"{suite}.safetensors", trained.SCHEMA, {}, {"suite": suite})

    for family in ("metasyn-80x8", "dlrm-50x4", "core-60x4", "tightmix-80x8"):
        put(family)
    for suite, family in {
        "metasyn-800x80": "metasyn-80x8",
        "metasyn-80x8-unseen40": "metasyn-80x8",
        "dlrm-10x2": "dlrm-50x4",
        "core-80x8": "core-60x4",
        "hetero-80x8": "core-60x4",
        "mixed-10to59x4-split": "core-60x4",
        "tight-80x8": "tightmix-80x8",
        "tightmix-80x8-split": "tightmix-80x8",
    }.items():
        assert serving("ppo", suite) == family
    put("prod-1000x128")
    put("core-80x8")
    assert serving("ppo", "prod-1000x128-split") == "prod-1000x128"
    assert serving("ppo", "core-80x8") == "core-80x8"


def test_without_weights_the_command_that_trains_them_is_told(weights):
    ship_policy("core-60x4")
    with pytest.raises(NotTrained, match=r"shard-gym train rnn --suite dlrm-10x2 --seed 0 --out runs/trained/rnn/dlrm"):
        make("rnn", suite="dlrm-10x2")
    with pytest.raises(NotTrained, match="serve 4 devices only: train with `shard-gym train rnn --suite core-80x8"):
        make("rnn", suite="core-80x8")
    with pytest.raises(NotTrained, match="train cloning"):
        make("cloning")
    with pytest.raises(UnknownName, match="core-60x4"):
        make("rnn", suite="nope")
    with pytest.raises(UnknownName, match="dreamshard-planner"):
        Trained("nope")


def test_a_suites_planner_has_to_be_the_one_of_training(weights):
    ship_policy("core-60x4")
    ship_policy("dlrm-50x4", planner="roofline:a100-x32-roce-v1")
    task = suites.get("dlrm-50x4").tasks("val")[0]
    with pytest.raises(NotTrained, match=r"a100-x32-roce-v1, not on roofline:rtx2080ti.*train rnn --suite dlrm-50x4"):
        make("rnn", suite="dlrm-50x4")(task, DLRM)
    with pytest.raises(NotTrained, match="plan with the former"):
        make("rnn", suite="dlrm-50x4")(task, CORE)
    assert score(task, make("rnn")(task, DLRM), DLRM)  # of no suite: any planner


def test_the_objective_decides_for_tasks_of_no_suite(weights):
    ship_policy("core-60x4")
    solver, task = make("rnn"), suites.get("dlrm-50x4").tasks("val")[0]
    assert solver(task, DLRM) == make("rnn", suite="core-60x4")(task, CORE)
    with pytest.raises(NotTrained, match="for objective 'kernel': train with `shard-gym train rnn --suite metasyn"):
        solver(dataclasses.replace(task, objective="kernel"), DLRM)


def test_a_checkpoint_of_ones_own(tmp_path, weights):
    path, task = save_policy(tmp_path / "mine.safetensors"), suites.get("dlrm-50x4").tasks("val")[0]
    solver = make("rnn", checkpoint=str(path))
    plan = solver(task, DLRM)
    assert solver.track == "blind" and score(task, plan, DLRM)
    run = save_run(tmp_path / "run", seed=0, suite="dlrm-50x4")
    assert make("rnn", checkpoint=str(run), suite="dlrm-50x4")(task, CORE) == plan  # the same weights; any planner
    with pytest.raises(InvalidTask, match="nothing is no file"):
        make("rnn", checkpoint=str(tmp_path / "nothing"))
    with pytest.raises(InvalidTask, match="cannot serve 8"):
        solver(suites.get("core-80x8").tasks("val")[0], CORE)


def test_results_tell_weights_apart(tmp_path):
    one, other = (save_policy(tmp_path / f"{seed}.safetensors", seed=seed) for seed in (0, 1))
    told = config(make("rnn", checkpoint=str(one)))
    assert told == {"learner": "rnn", "suite": "", "checkpoint": str(one), "weights": told["weights"]}
    assert Trained(**told).weights == told["weights"] != Trained("rnn", checkpoint=str(other)).weights
    with pytest.raises(InvalidTask, match=told["weights"]):
        Trained(**{**told, "checkpoint": str(other)})


def test_new_weights_in_a_file_are_read(tmp_path):
    path, task = save_policy(tmp_path / "w.safetensors", seed=0), suites.get("dlrm-50x4").tasks("val")[0]
    first = make("rnn", checkpoint=str(path))(task, DLRM)
    save_policy(path, seed=1)
    second = make("rnn", checkpoint=str(path))(task, DLRM)
    save_policy(path, seed=0)
    assert make("rnn", checkpoint=str(path))(task, DLRM) == first != second


@pytest.mark.parametrize("change", [lambda b: b[: len(b) // 2], lambda b: b[:-1] + bytes([b[-1] ^ 1]), lambda b: b""])
def test_damaged_weights_are_refused(weights, change):
    path = ship_policy("core-60x4")
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(CorruptFile, match=r"core-60x4\.safetensors"):
        make("rnn", suite="core-60x4")
    with pytest.raises(CorruptFile, match=r"core-60x4\.safetensors"):
        make("rnn", checkpoint=str(path)).track  # noqa: B018  # it loads


def test_weights_of_another_learner_or_other_features_are_refused(tmp_path):
    path = save_policy(tmp_path / "w.safetensors")
    with pytest.raises(CorruptFile, match="holds a rnn"):
        make("dreamshard", checkpoint=str(path)).track  # noqa: B018
    tensors, card = card_files.read(path, trained.SCHEMA, "")
    card_files.write(path, trained.SCHEMA, tensors, {**card, "features": card["features"][::-1]})
    with pytest.raises(CorruptFile, match="features"):
        make("rnn", checkpoint=str(path)).track  # noqa: B018


def test_without_torch_its_install_command_is_told(monkeypatch):
    monkeypatch.setattr(trained, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match="rnn needs torch: pip install torch"):
        make("rnn")


def test_planning_leaves_torchs_threads_alone(tmp_path):
    seen, before = [], torch.get_num_threads()
    solver = make("rnn", checkpoint=str(save_policy(tmp_path / "w.safetensors")))
    net = trained._policy("rnn", tmp_path / "w.safetensors", solver.weights).net
    net.table.register_forward_pre_hook(lambda *_: seen.append(torch.get_num_threads()))
    torch.set_num_threads(2)
    try:
        solver(suites.get("dlrm-50x4").tasks("val")[0], DLRM)
        assert (seen, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(before)


def test_a_table_too_large_for_any_device_is_named(tmp_path):
    tables = make_pool(rows=[10, 10_000, 10], dim=16, name=("a", "giant", "c"))
    task = Task(tables, memory=(100_000, 90_000, 10_000, 10_000), objective="iteration")
    with pytest.raises(InfeasibleTask, match=r"giant.*320,000 bytes.* too few"):
        make("rnn", checkpoint=str(save_policy(tmp_path / "w.safetensors")))(task, DLRM)
