"""The page of clients: its programs, those of Stable-Baselines3 and Minari's data run for a moment."""

import ast
import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from benchmarks import RESULTS, clients, programs
from benchmarks.programs import minari
from shard_gym.envs.observations import STATE
from shard_gym.measuring.host import hardware

ROOT = Path(__file__).parents[1]
PROGRAMS = ROOT / "benchmarks" / "programs"
NOW = programs.Options(seconds=0.01)


def test_every_client_has_a_program_that_says_what_it_runs():
    found = {path.stem: ast.get_docstring(ast.parse(path.read_text())) for path in PROGRAMS.glob("[!_]*.py")}
    assert found.keys() == clients.CLIENTS.keys()
    assert all(found.values())


def test_the_page_that_is_kept_is_that_of_the_rows_that_are_kept():
    kept = json.loads((RESULTS / "clients.json").read_text())
    assert kept["clients"].keys() == clients.CLIENTS.keys()
    assert clients.page(kept) == (RESULTS / "clients.md").read_text()


def test_rows_of_a_client_join_those_of_others(tmp_path, monkeypatch, capsys):
    found = {"versions": {"torch": "2"}, "rows": [{"what": "PPO", "error": "ValueError: no"}]}
    monkeypatch.setattr(clients, "found_by", lambda name, options: found)
    for name in ("sb3", "gymnasium"):
        assert clients.main([name, "--seconds", "1s", "--out", str(tmp_path)]) == 0
    text = (tmp_path / "clients.md").read_text()
    machine = hardware("cpu")["device"]
    assert (
        f"| Gymnasium's own tests | torch 2 | {machine} | `python -m benchmarks.clients gymnasium --seconds 1s` |"
        in text
    )
    assert "- Stable-Baselines3, PPO: ValueError: no" in text
    assert list(json.loads((tmp_path / "clients.json").read_text())["clients"]) == ["gymnasium", "sb3"]
    capsys.readouterr()
    assert clients.main(["sb4", "--out", str(tmp_path)]) == 2
    assert "unknown client 'sb4'; choose one of: cleanrl" in capsys.readouterr().err


def test_what_is_on_no_index_is_asked_for(tmp_path, capsys):
    assert clients.main(["cleanrl", "--out", str(tmp_path)]) == 2
    assert "give --source FOLDER, a checkout of CleanRL" in capsys.readouterr().err


def test_a_program_tells_what_failed_and_what_random_and_greedy_have(tmp_path, monkeypatch, capsys):
    def broken(options):
        raise ValueError(f"no {options.seconds:g}\nof it")

    def least(options):
        return programs.trained(
            60, 2.0, lambda shown, masks: shown[:, STATE + 4 : STATE + 8].argmin(axis=1), "the least gap"
        )

    monkeypatch.setattr("sys.argv", ["", "--seconds", "3", "--out", str(tmp_path / "found.json")])
    programs.run((), {"broken": broken, "least": least})
    failed, row = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert failed == {"what": "broken", "error": "ValueError: no 3"}
    assert row["random"] == pytest.approx(-1, abs=0.05)
    assert row["greedy"] > row["random"] + 0.2
    assert row["return"] > row["random"] + 0.2
    capsys.readouterr()


@pytest.mark.parametrize("name", ["PPO", "A2C", "DQN", "MaskablePPO", "RecurrentPPO"])
def test_stable_baselines3_trains(name):
    pytest.importorskip("sb3_contrib")
    from benchmarks.programs import sb3

    row = sb3.train(name, NOW)
    assert row["steps"] >= 16 and row["return"] < 0


@pytest.mark.slow
def test_stable_baselines3_trains_on_all_kinds():
    pytest.importorskip("sb3_contrib")
    from benchmarks.programs import sb3

    row = sb3.train("MaskablePPO", NOW, programs.KINDS_ID)
    assert row["steps"] >= 16 and row["return"] < 0
    random, greedy = programs.levels(programs.KINDS_ID)
    assert random < greedy < 0


def test_episodes_of_a_policy_are_its_plans_with_devices_numbered_anew():
    env = gym.make(minari.ENV_ID, reward=minari.REWARD)
    played = minari.played("cost-greedy", 3, seed=5)
    assert played["observations"].shape == (3, 81, *env.observation_space.shape)
    assert (played["rewards"][:, :-1] == 0).all()
    for i in range(3):
        shown, _ = env.reset(seed=5 + i)
        for step, action in enumerate(played["actions"][i]):
            assert np.array_equal(shown, played["observations"][i, step])
            shown, reward, over, _, info = env.step(int(action))
        assert over and info["feasible"] and reward == played["rewards"][i, -1]
        task = env.unwrapped.task
        planned = minari.planned("cost-greedy")[[each.hash for each in env.unwrapped.bank.tasks].index(task.hash)]
        pairs = set(zip(planned.tolist(), played["actions"][i].tolist(), strict=True))
        assert len(pairs) == len({device for device, _ in pairs}) == 8  # one number for each device


def test_random_episodes_are_legal_and_differ():
    played = minari.played("random", 2, seed=0)
    masks = played["observations"][:, :-1, -8:]
    assert np.take_along_axis(masks, played["actions"][..., None], axis=2).all()
    assert (played["actions"][0] != played["actions"][1]).any()


def test_a_clone_does_what_it_was_shown():
    pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    shown = rng.normal(size=(2_000, 4)).astype(np.float32)
    act = minari.clone(shown, shown.argmax(axis=1), updates=300)
    assert (act(shown, np.ones((2_000, 4), np.int8)) == shown.argmax(axis=1)).mean() > 0.9
    assert (act(shown, np.eye(4, dtype=np.int8)[np.full(2_000, 2)]) == 2).all()
