"""Pictures of plans: bars of the right height, on one scale, and words of others as text."""

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from shard_gym import Plan, Task
from shard_gym.errors import MissingDependency
from shard_gym.pictures import svg as module
from shard_gym.pictures.bars import bars
from shard_gym.pictures.png import png
from shard_gym.pictures.svg import svg
from shard_gym.pictures.text import text
from shard_gym.simulators import FastSimulator, Latency
from shard_gym_agents.cli.main import main
from tests.pool_helpers import fp16_pool as make_pool

TABLES = make_pool(rows=[1000, 1000, 2000], dim=16, pooling=[2.0, 2.0, 4.0])  # 32, 32 and 64 kB
TASK = Task(TABLES, memory=(64_000, 64_000), objective="iteration", name="three tables")
HOSTILE = '<script>"&\x00\ud800\u202e</script>' + "x" * 10_000


class FourPhases(FastSimulator):
    """A sum of ids of n takes n, 1, 2 and 2n ms."""

    id = "four-phases"

    def embed(self, task):
        return np.array(task.tables.pooling, np.float64)[:, None]

    def decode(self, task, sums):
        n = sums[..., 0]
        return Latency(n, np.ones_like(n), np.full_like(n, 2.0), 2 * n)


def of(plan, **told):
    return bars(TASK, Plan(plan), FourPhases(), **told)


def parts(picture, name):
    """Heights of all bars of a class, in pixels; the legend's is left out."""
    tree = ET.fromstring(picture)
    rects = [r for r in tree.iter("{http://www.w3.org/2000/svg}rect") if r.get("class") == name]
    return [float(r.get("height")) for r in rects if r.get("height") != "12"]


def test_bars_add_up_to_costs():
    found = of((0, 0, 1), bound=10.0)
    assert [phase.ms.tolist() for phase in found.phases] == [[4, 4], [0, 0], [1, 1], [2, 2], [8, 8]]
    assert (found.makespan, found.cost.tolist()) == (15, [15, 15])
    assert found.used.tolist() == found.capacity.tolist() == [64_000, 64_000]
    assert found.headline == "makespan 15.00 ms (device 0), 50.0% above the bound"
    late = of((0, 1, 1))
    assert late.phases[1].ms.tolist() == [4, 0]  # device 0 waits for 6 ms of device 1
    assert np.array_equal(sum(phase.ms for phase in late.phases), late.cost)
    assert len(late.violations) == 1
    assert late.headline.endswith("cannot be used")


def test_two_plans_share_a_scale():
    even, late = of((0, 0, 1), title="even"), of((0, 1, 1), title="late")
    pixels = (module.COST_BELOW - module.COST_TOP) / (1.06 * late.makespan)  # of a millisecond
    picture = svg([even, late])
    assert parts(picture, "backward-compute") == pytest.approx(
        [8 * pixels, 8 * pixels, 4 * pixels, 12 * pixels], abs=0.1
    )
    assert parts(picture, "forward-wait") == pytest.approx([0, 0, 4 * pixels, 0], abs=0.1)
    assert len(parts(picture, "over")) == 1  # device 1 of the second holds half as much again as it may
    assert parts(picture, "over")[0] == pytest.approx(parts(picture, "memory")[3] / 2, abs=0.1)
    assert 'class="bound"' not in picture
    assert svg([even, late]) == picture


def test_titles_of_others_are_text():
    picture = svg([of((0, 0, 1), title=HOSTILE)], style="")
    told = "".join(ET.fromstring(picture).itertext())
    assert "<script>" not in picture
    assert r'<script>"&\x00\ud800\u202e' in told
    assert len(picture) < 10_000


def test_many_devices_stay_within_the_picture():
    many = Task(make_pool(rows=[100] * 300, dim=16), memory=(2**30,) * 300, objective="iteration")
    tree = ET.fromstring(svg([bars(many, Plan(tuple(range(300))), FourPhases(), bound=1.0)]))
    width = float(tree.get("width"))
    rights = [float(r.get("x", 0)) + float(r.get("width")) for r in tree.iter() if r.get("x") and r.get("width")]
    assert max(rights) <= width


def test_text_has_letters_for_phases():
    told = text([of((0, 1, 1), bound=15.0)]).splitlines()
    first, second = (line for line in told if line.strip().startswith(("0 ", "1 ")))
    # 56 letters for 21 ms; the bound lies at 40 of them
    assert "F" * 5 + "." * 11 + "f" * 3 + "b" * 5 + "B" * 11 + " " * 5 + "|" in first
    assert "F" * 16 + "f" * 3 + "b" * 5 + "B" * 16 + "|" + "B" * 15 in second
    assert second.endswith("150%  OVER")
    assert any(line.startswith("INFEASIBLE: ") for line in told)


def test_png_is_the_same_each_time_or_says_what_it_needs(monkeypatch):
    pytest.importorskip("matplotlib")
    plans = [of((0, 0, 1), title="$x$", bound=3.0)]
    assert png(plans).startswith(b"\x89PNG")
    assert png(plans) == png(plans)
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependency, match="plots"):
        png(plans)


def test_commands_draw_one_plan_and_two(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.json").write_text(TASK.to_json())
    Plan((0, 0, 1)).save("a.json")
    Plan((0, 1, 1)).save("b.json")
    which = ["--task", "task.json", "--simulator", "roofline:h100-v1"]
    assert main(["show", "a.json", *which]) == 0
    assert "above the bound" in capsys.readouterr().out
    assert main(["show", "a.json", *which, "--out", "a.svg"]) == 0
    assert ET.parse("a.svg").getroot().get("role") == "img"
    assert main(["diff", "a.json", "b.json", *which, "--picture"]) == 0
    assert capsys.readouterr().out.count("makespan") == 2
    assert main(["diff", "a.json", "b.json", *which, "--out", "two.svg"]) == 0
    assert len(parts((tmp_path / "two.svg").read_text(), "memory")) == 4
    with pytest.raises(SystemExit):
        main(["show", "a.json", *which, "--out", "a.gif"])
    assert "ends in none of .svg, .png, .txt" in capsys.readouterr().err
