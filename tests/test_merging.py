"""Parts of a campaign and what `shard-gym merge` makes of them; times are made up, so nothing has to be measured."""

import json

import numpy as np
import pytest

from shard_gym.errors import CorruptFile, SimulatorError
from shard_gym.measuring.campaign import Campaign
from shard_gym.measuring.fbgemm import Settings
from shard_gym.measuring.host import kind_name, kind_of
from shard_gym.measuring.measurements import Measurements
from shard_gym.measuring.merging import merge
from shard_gym.measuring.shards import LIST, Drawn, Listed, Mixed
from shard_gym.records import ledger
from shard_gym.work.parts import WHOLE, Part
from shard_gym_agents.cli import main as cli

MACHINE = {"hardware": {"device": "A GPU", "l3_bytes": 5, "count": 8, "memory_bytes": 9}, "versions": {"torch": "2"}}
SETTINGS = Settings(batch=64)


def row(index, factor=1.0):
    ms = factor * (1.0 + index)
    times = dict.fromkeys(("forward_ms", "backward_ms"), ms) | dict.fromkeys(("forward_spread", "backward_spread"), 0.1)
    return {"index": index, **times, "at": 1000.0 + index, "run_ms": [[ms, ms]] * 2}


def measured(folder, source, part=WHOLE, machine=MACHINE, factor=1.0):
    """A packed campaign, every shard of the part measured, by two workers."""
    campaign = Campaign(folder, source, SETTINGS, part=part)
    campaign.begin(machine)
    for index in campaign.indices():
        path = folder / f"rows-{index % 2}.jsonl"
        ledger.append(path, {"index": index, "begun": 1.0})
        ledger.append(path, row(index, factor))
    return campaign.pack()


@pytest.fixture(params=["drawn", "mixed", "listed"])
def source(request, tmp_path):
    if request.param == "drawn":
        return Drawn(40, seed=2)
    if request.param == "mixed":
        return Mixed((Drawn(20), Drawn(20, "metasyn_1_856", seed=1)))
    Measurements.unmeasured("metasyn_0_856", [([i], [4]) for i in range(20)]).save(tmp_path / "list.npz")
    return Listed(tmp_path / "list.npz", repeats=2, seed=3)


def columns(m):
    apart = {"worker", "at"}
    return {name: np.asarray(getattr(m, name)).tolist() for name in m.columns if name not in apart} | {"of": m.pools}


def test_parts_united_are_the_whole(tmp_path, source):
    whole = measured(tmp_path / "whole", source)
    parts = [measured(tmp_path / f"{n}", source, Part(n, 3)) for n in (1, 2, 3)]
    assert sum(map(len, parts)) == len(whole) == 40 and all(4 < len(part) < 26 for part in parts)
    told = merge([tmp_path / "3", tmp_path / "1", tmp_path / "2"], tmp_path / "all")
    united = Measurements.load(tmp_path / "all" / "measurements.npz")
    assert columns(united) == columns(whole) and told == [f"40 shards of 3 folders united in {tmp_path / 'all'}"]
    assert len(set(united.worker.tolist())) == 6 and united.card["parts"] == ["1/3", "2/3", "3/3"]
    assert united.card["noise"] == whole.card["noise"] and united.card["settings"] == whole.card["settings"]
    merge([tmp_path / "1", tmp_path / "2", tmp_path / "3"], tmp_path / "all")
    assert columns(Measurements.load(tmp_path / "all" / "measurements.npz")) == columns(united)


def test_what_was_united_goes_on_as_a_whole(tmp_path):
    source = Drawn(40, seed=2)
    measured(tmp_path / "1", source, Part(1, 2))
    told = merge([tmp_path / "1"], tmp_path / "all")
    assert told[1] == "parts that are missing: 2/2"
    campaign = Campaign(tmp_path / "all", source, SETTINGS)
    campaign.begin(MACHINE)
    done = campaign.rows()
    left = [piece.payload[0] for piece in campaign.pieces(done)]
    assert sorted([*done, *left]) == list(range(40)) and 0 < len(left) < 40


def test_a_folder_of_a_part_belongs_to_that_part(tmp_path):
    measured(tmp_path / "1", Drawn(40), Part(1, 2))
    for other in (Part(2, 2), WHOLE):
        with pytest.raises(SimulatorError, match=f"holds another campaign, .*part 1/2 there, {other} here"):
            Campaign(tmp_path / "1", Drawn(40), SETTINGS, part=other).begin(MACHINE)
    measured(tmp_path / "whole", Drawn(4))
    assert "part" not in json.loads((tmp_path / "whole" / "campaign.json").read_text())


def test_the_same_kind_of_device_in_another_machine_goes_on(tmp_path):
    measured(tmp_path / "1", Drawn(4))
    more = MACHINE["hardware"] | {"count": 1, "memory_bytes": 10}
    Campaign(tmp_path / "1", Drawn(4), SETTINGS).begin({"hardware": more})
    other = more | {"l3_bytes": 6}
    with pytest.raises(SimulatorError, match="holds another campaign"):
        Campaign(tmp_path / "1", Drawn(4), SETTINGS).begin({"hardware": other})
    assert kind_of(more) == kind_of(MACHINE["hardware"]) != kind_of(other)
    assert kind_name(more) == kind_name(MACHINE["hardware"]) != kind_name(other)
    assert kind_name(more).startswith("a-gpu-")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": Drawn(40, seed=9)}, "are not of one campaign: shards .*'seed': 0.* and .*'seed': 9"),
        ({"machine": MACHINE | {"versions": {"torch": "3"}}}, "are not of one campaign: versions"),
        ({"machine": MACHINE | {"hardware": {"device": "B"}}}, "are not of one campaign: hardware"),
    ],
)
def test_parts_of_different_campaigns_are_refused(tmp_path, change, message):
    measured(tmp_path / "1", Drawn(40), Part(1, 2))
    measured(tmp_path / "2", **{"source": Drawn(40), "part": Part(2, 2)} | change)
    with pytest.raises(SimulatorError, match=message):
        merge([tmp_path / "1", tmp_path / "2"], tmp_path / "all")


def test_two_times_of_one_shard_are_refused_and_the_same_row_counts_once(tmp_path):
    for name, factor in (("1", 1.0), ("copy", 1.0), ("again", 2.0)):
        measured(tmp_path / name, Drawn(40), Part(1, 2), factor=factor)
    merge([tmp_path / "1", tmp_path / "copy"], tmp_path / "all")
    with pytest.raises(CorruptFile, match=r"shard \d+ was measured in .*1 and in .*again, with different times"):
        merge([tmp_path / "1", tmp_path / "again"], tmp_path / "all")


def test_folders_that_are_not_fit_to_be_written_to_are_refused(tmp_path):
    for n in (1, 2):
        measured(tmp_path / f"{n}", Drawn(4), Part(n, 2))
    with pytest.raises(SimulatorError, match="is one of the folders to unite"):
        merge([tmp_path / "1", tmp_path / "2"], tmp_path / "1")
    with pytest.raises(SimulatorError, match="holds a campaign that was measured there"):
        merge([tmp_path / "1"], tmp_path / "2")


def test_a_list_that_was_changed_is_refused(tmp_path):
    for name, tables in (("list", 20), ("other", 19)):
        Measurements.unmeasured("metasyn_0_856", [([i], [4]) for i in range(tables)]).save(tmp_path / f"{name}.npz")
    measured(tmp_path / "1", Listed(tmp_path / "list.npz"), Part(1, 2))
    (tmp_path / "1" / LIST).write_bytes((tmp_path / "other.npz").read_bytes())
    with pytest.raises(CorruptFile, match="holds other shards than the campaign"):
        merge([tmp_path / "1"], tmp_path / "all")


def test_the_command_unites_folders_and_says_what_it_cannot(tmp_path, capsys):
    paths = [tmp_path / "1", tmp_path / "2"]
    for n, path in enumerate(paths, start=1):
        measured(path, Drawn(40), Part(n, 2))
    assert cli.main(["merge", *map(str, paths), "--out", str(tmp_path / "all")]) == 0
    assert "40 shards of 2 folders united" in capsys.readouterr().out
    assert cli.main(["merge", str(tmp_path / "3"), "--out", str(tmp_path / "x")]) == 2
    assert "3 is not there" in capsys.readouterr().err
    (tmp_path / "3").mkdir()
    assert cli.main(["merge", str(paths[0]), str(tmp_path / "3"), "--out", str(tmp_path / "x")]) == 2
    assert "3 holds no campaign.json, but other parts are folders" in capsys.readouterr().err
