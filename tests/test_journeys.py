"""The two journeys of examples/journeys, on a machine that has nothing but a wheel. Minutes, and a package index."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import release

JOURNEYS = Path(__file__).parents[1] / "examples" / "journeys"
TORCH = "torch==2.13.0"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this checkout, its changes included."""
    folder = tmp_path_factory.mktemp("built")
    release.build("--wheel", release.copied(folder / "source"), folder / "dist")
    (made,) = (folder / "dist").glob("*.whl")
    return made


def walked(journey, folder, *needs, given=()):
    """Folder and words of a journey that begins in an empty folder, in an empty environment with these packages."""
    programs = release.environment(sys.executable, folder / "env", *needs)
    place = folder / "place"
    place.mkdir()
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return place, release.said(["bash", JOURNEYS / journey, *given], cwd=place, env={**release.clean(), "PATH": path})


def test_an_engineer_has_a_plan_a_picture_and_a_file_for_torchrec(wheel, tmp_path):
    tables = JOURNEYS.parent / "tables.csv"
    place, told = walked("engineer.sh", tmp_path, wheel, given=[tables])
    assert {path.name for path in place.iterdir()} == {"plan.json", "plan.svg", "sharding_plan.json"}
    assert "makespan" in told and "200 tables on 8 ranks" in told
    assert (place / "plan.svg").read_text().startswith("<svg")
    pytest.importorskip("torchrec")
    from shard_gym.torchrec.stored import from_named_json

    plan = from_named_json((place / "sharding_plan.json").read_text())
    names = [line.split(",")[0] for line in tables.read_text().splitlines()[1:]]
    assert list(plan.plan[""]) == names
    assert {rank for sharding in plan.plan[""].values() for rank in sharding.ranks} == set(range(8))


def test_a_researchers_policy_is_trained_ranked_and_on_the_page(wheel, tmp_path):
    place, told = walked("researcher.sh", tmp_path, TORCH, f"{wheel}[sb3]", "pytest")
    assert "4 passed" in told and "trained for" in told
    table = (place / "my_agent" / "run" / "core-60x4.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")] for line in table.splitlines() if line.startswith("| ")]
    gaps = {row[2]: float(row[4].split("%")[0]) for row in rows if row[1].isdigit()}
    assert gaps.keys() == {"my_agent:Policy", "my_agent.ppo:Policy", "cost-greedy", "lookup-greedy", "random"}
    assert gaps["my_agent.ppo:Policy"] < gaps["lookup-greedy"] < gaps["random"]
    assert "my_agent.ppo:Policy" in (place / "my_agent" / "run" / "leaderboard.html").read_text()
    assert "100 plans scored again, 100 feasible" in told
    done = subprocess.run(["ls", place / "my_agent" / "entry"], capture_output=True, text=True)
    assert done.stdout.split() == ["card.toml", "entry.json", "plans.jsonl.gz"]
