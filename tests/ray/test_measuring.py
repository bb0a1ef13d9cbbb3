"""Campaigns on two Ray nodes: the same shards as measured here, each kind of device apart, noisy nodes left out."""

from collections import Counter
from importlib import util

import numpy as np
import pytest

from benchmarks import stand_in
from shard_gym.errors import ClusterError, NodeRefused
from shard_gym.measuring import measure
from shard_gym.measuring.fbgemm import Settings
from shard_gym.measuring.measurements import Measurements
from shard_gym.measuring.on_cluster import ClusterCampaign
from shard_gym.measuring.shards import Drawn
from shard_gym.records import ledger
from shard_gym.work.parts import Part
from tests.ray.conftest import PATHS

SETTINGS = Settings(batch=64)
needs_fbgemm = pytest.mark.skipif(util.find_spec("fbgemm_gpu") is None, reason="needs the extra [cpu] or [cuda]")


SLOW = stand_in.bench(0.02)


def campaign(folder, count=60, bench=SLOW, **given):
    return ClusterCampaign(folder, Drawn(count, seed=1), SETTINGS, bench=bench, modules=(), **given)


def packed(campaigns):
    return [Measurements.load(one.folder / "measurements.npz") for one in campaigns]


def shards(m):
    return [m.key(i) for i in range(len(m))]


def expected(count=60):
    """The times that the bench that stands in tells, by shard."""
    source, bench = Drawn(count, seed=1), stand_in.Bench(SETTINGS)
    return [3 * bench.measure(source.shard(i).tables).forward_ms for i in range(count)]


def test_a_campaign_on_two_nodes_has_the_shards_of_one_here(two_nodes, tmp_path):
    (found,) = packed(campaign(tmp_path).run(two_nodes.address))
    source = Drawn(60, seed=1)
    assert [key[1] for key in shards(found)] == [tuple(source.shard(i).table.tolist()) for i in range(60)]
    assert np.allclose(found.total_ms, expected()) and set(found.worker.tolist()) == {0, 1}
    assert found.card["hardware"] == {"device": "a device"} and found.card["failed"] == {}
    (again,) = packed(campaign(tmp_path).run(two_nodes.address))  # nothing is left
    assert again == found


def test_parts_on_clusters_unite_to_the_whole(two_nodes, tmp_path):
    (whole,) = campaign(tmp_path / "whole", bench=stand_in.Bench).run(two_nodes.address)
    parts = [
        campaign(tmp_path / f"{n}", bench=stand_in.Bench, part=Part(n, 2)).run(two_nodes.address)[0] for n in (1, 2)
    ]
    from shard_gym.measuring.merging import merge

    merge([part.folder for part in parts], tmp_path / "all")
    one, other = packed([whole])[0], Measurements.load(tmp_path / "all" / "measurements.npz")
    assert shards(one) == shards(other) and one.total_ms.tolist() == other.total_ms.tolist()
    assert one.run_ms.tolist() == other.run_ms.tolist()


def environment(**more):
    return {"PYTHONPATH": PATHS, **more}


def test_kinds_of_devices_have_campaigns_of_their_own(two_nodes, more_nodes, tmp_path):
    more_nodes(env_vars=environment(TEST_DEVICE="other device"))
    found = {m.card["hardware"]["device"]: m for m in packed(campaign(tmp_path).run(two_nodes.address))}
    assert set(found) == {"a device", "other device"}
    assert all(np.allclose(m.total_ms, expected()) for m in found.values())
    assert {folder.name.rpartition("-")[0] for folder in tmp_path.iterdir()} == {"a-device", "other-device"}


def test_a_noisy_node_and_one_with_other_libraries_are_left_out(two_nodes, more_nodes, tmp_path, capsys):
    more_nodes(env_vars=environment(TEST_NOISE="0.5"))
    more_nodes(env_vars=environment(TEST_TORCH="2"), num_cpus=1)
    (one,) = campaign(tmp_path, 200).run(two_nodes.address)
    told = capsys.readouterr().err
    assert "repeats differ by 40.0% in the median, more than 30%" in told and "it is left out" in told
    places = Counter(row["worker"] for row in ledger.read(one.folder / "rows-ray.jsonl"))
    assert set(places) <= {0, 1, 2}


def test_where_every_node_is_noisy_the_command_ends_with_the_figure(two_nodes, tmp_path):
    with pytest.raises(NodeRefused, match=r"node .* repeats differ by 0.0% in the median, more than -1%"):
        campaign(tmp_path, noise=-0.01).run(two_nodes.address)


def test_each_gpu_of_a_node_has_a_bench(two_nodes, more_nodes, tmp_path):
    more_nodes(num_gpus=2, num_cpus=2, env_vars=environment())  # Ray believes it
    cuda = ClusterCampaign(tmp_path, Drawn(120, seed=1), Settings("cuda"), bench=SLOW, modules=())
    (one,) = cuda.run(two_nodes.address)
    found = ledger.read(one.folder / "rows-ray.jsonl")
    assert len(found) == 120 and {row["place"].partition(" ")[2] for row in found} == {"GPU 0", "GPU 1"}
    assert one.settings.device == "cuda"


@needs_fbgemm
@pytest.mark.slow
def test_the_real_operator_is_measured_on_nodes(two_nodes, tmp_path, capsys):
    flags = ["--batch", "64", "--arena-gb", "0.1", "--warmups", "1", "--runs", "3", "--drop", "1", "--shards", "8"]
    flags += ["--noise", "10", "--out", str(tmp_path), "--ray", two_nodes.address]
    assert measure.main(flags) == 0
    assert "8 shards measured on" in capsys.readouterr().out
    (folder,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    found = Measurements.load(folder / "measurements.npz")
    assert len(found) == 8 and (found.total_ms > 0).all() and found.card["simulator"] == "fbgemm:cpu-b64"


def test_a_command_at_an_address_where_nobody_is_ends_with_2(tmp_path, capsys, monkeypatch):
    from shard_gym.work import cluster

    monkeypatch.setattr(cluster.Cluster.joined.__func__.__wrapped__, "__defaults__", (None, 1.0, ()))
    assert measure.main(["--out", str(tmp_path), "--ray", "127.0.0.1:9"]) == 2
    assert "nothing that is Ray answers at 127.0.0.1:9 within 1 s" in capsys.readouterr().err


def test_a_node_without_the_operator_is_named(two_nodes, tmp_path):
    asked = ClusterCampaign(tmp_path, Drawn(4), SETTINGS, modules=("no_fbgemm",))
    with pytest.raises(ClusterError, match=r"node .*/\w{6} lacks no_fbgemm: install there what the work needs"):
        asked.run(two_nodes.address)
