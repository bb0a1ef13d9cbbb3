import hashlib
from dataclasses import replace

import numpy as np
import pytest

from shard_gym import suites
from shard_gym.errors import InfeasibleTask, UnknownName
from shard_gym.memory.usage import device_bytes, table_bytes
from shard_gym.plan.feasibility import first_fit_decreasing
from shard_gym.plan.random_plans import random_placements
from shard_gym.simulators import make
from shard_gym.tables.pool import GB
from shard_gym.task.suite import FROZEN_PLAN
from shard_gym.task.suites import SPLITS, SUITES

# Content of every task of every split, in order: a published suite is the same on any machine, for ever.
FROZEN = {
    "metasyn-80x8": "caa6f60ae64a52f2",
    "metasyn-160x16": "7201fe4cc849a457",
    "metasyn-240x24": "ee55f9a883737708",
    "metasyn-320x32": "3b08cb96ccf3091e",
    "metasyn-400x40": "279578d330635bb7",
    "metasyn-480x48": "f4ec6f155660d991",
    "metasyn-560x56": "893cf0cbf451460d",
    "metasyn-640x64": "57a01d277d6c9d0e",
    "metasyn-720x72": "da71dc2143cba1b8",
    "metasyn-800x80": "deaba6f98871e5a5",
    "metasyn-80x8-unseen0": "e7cd789333362183",
    "metasyn-80x8-unseen20": "3b14686473f69284",
    "metasyn-80x8-unseen40": "f3f25a9ef1941f87",
    "metasyn-80x8-unseen60": "81c416f3c3daf01b",
    "metasyn-80x8-unseen80": "0de94e22c9580699",
    "metasyn-80x8-unseen100": "1cb27886f10f5ef0",
    "dlrm-10x4": "d289f08c7c73774c",
    "dlrm-20x4": "76f974150e90a596",
    "dlrm-30x4": "cabf215b3b97b95b",
    "dlrm-40x4": "5da8cbc3b60f7435",
    "dlrm-50x4": "a3762836b973c5f7",
    "dlrm-60x4": "e40689e7549c46ad",
    "dlrm-70x4": "151388bbf3e4bf33",
    "dlrm-80x4": "419a439468136162",
    "dlrm-90x4": "10e5bcea77a75975",
    "dlrm-100x4": "3dbf353cd0c2472d",
    "dlrm-10x2": "fac2cac0309f4ba6",
    "dlrm-20x2": "479952624ceaad56",
    "dlrm-30x2": "f080aaf5e8991db2",
    "dlrm-40x2": "739451a1da097694",
    "dlrm-50x2": "4227359228fb19aa",
    "mixed-10to59x4": "ad751f18d83a6ad7",
    "mixed-20to119x8": "996474fc0ad09881",
    "core-60x4": "0021cadbf6393cfb",
    "core-80x8": "6ab7546547b39ef7",
    "tight-80x8": "85069d526f80cbab",
    "tightmix-80x8": "c67f322ce2e85398",
    "hetero-80x8": "4c99276ee398fff3",
    "prod-1000x128": "0cc3922a71a02edb",
    "mixed-10to59x4-split": "81e7244e1c24a407",
    "mixed-20to119x8-split": "ec243a22882e4fe9",
    "tightmix-80x8-split": "e02a24d9b3b4c4b9",
    "prod-1000x128-split": "8ec590a11d66fa29",
    "core-80x8-allkinds": "127a448d5ae9a946",
    "tight-80x8-allkinds": "371e45dbed83c4ef",
    "tightmix-80x8-allkinds": "e11625ae817df76d",
    "wide-300x16-allkinds": "da0df8eb9f1e853e",
    "prod-1000x128-allkinds": "24d7eac561f8a0d2",
    "fitsplit-24x8": "db8bf9a8868279ff",
    "fitsplit-40x8": "45e45bf1dc012cc0",
    "fittightmix-80x8": "4abe8dcb74d79bda",
}


def content(suite: suites.Suite) -> str:
    digest = hashlib.sha256()
    for split in SPLITS:
        for task in suite.tasks(split):
            digest.update(task.hash.encode())
    return digest.hexdigest()[:16]


@pytest.mark.parametrize("key", SUITES)
def test_banks_are_frozen(key):
    assert content(SUITES[key]) == FROZEN[key]


@pytest.mark.parametrize("key", SUITES)
def test_tasks_are_what_the_suite_says(key):
    suite = SUITES[key]
    for split in SPLITS:
        tasks = suite.tasks(split)
        assert len(tasks) == suite.num_tasks(split) == len(suite.random_makespans(split)) > 0
        assert {task.num_devices for task in tasks} == {suite.num_devices}
        assert max(task.num_tables for task in tasks) <= suite.num_tables
        assert {task.objective for task in tasks} == {suite.objective}
        assert (suite.random_makespans(split) > 0).all()
    assert 0 <= suite.bound_share() <= 1


@pytest.mark.parametrize("key", [k for k in SUITES if k.startswith(("core", "tight", "hetero", "wide", "prod", "fit"))])
def test_core_suites_test_on_tables_never_trained_on(key):
    suite = SUITES[key]
    assert suite.num_tasks("test") >= 100
    rows = [np.concatenate([np.stack([t.tables.rows, t.tables.lookups], 1) for t in suite.tasks(s)]) for s in SPLITS]
    train, val, test = ({tuple(row) for row in part.tolist() if row[0] > 1_000} for part in rows)
    assert not train & test and not train & val and not val & test


@pytest.mark.parametrize("key", [k for k in SUITES if k.startswith("fit")])
def test_suites_on_fitted_costs_are_settled_as_they_were_measured(key):
    suite = SUITES[key]
    task = suite.tasks("test")[0]
    assert (task.objective, task.batch, set(task.tables.dtype)) == ("kernel", 2_048, {"fp16"})
    assert task.splits_allowed == suite.split_action == ("split" in key) and suite.reward == "latency"
    assert set(task.tables.dim.tolist()) <= {4, 8, 16, 32, 64, 128}
    worth = suite.reference_makespans()
    assert suite.gap_to == FROZEN_PLAN and np.isfinite(worth).all()
    assert (worth < suite.random_makespans()).all()


def test_dreamshards_halves_do_not_meet():
    suite = SUITES["dlrm-50x4"]
    names = {split: {n for t in suite.tasks(split) for n in t.tables.name} for split in SPLITS}
    assert not (names["train"] | names["val"]) & names["test"]


@pytest.mark.parametrize(("percent", "share"), [(0, 0.0), (40, 0.4), (100, 1.0)])
def test_unseen_ratios_are_exact(percent, share):
    suite = SUITES[f"metasyn-80x8-unseen{percent}"]
    seen = {n for task in SUITES["metasyn-80x8-unseen0"].tasks("train") for n in task.tables.name}
    for task in suite.tasks("test"):
        assert np.mean([n not in seen for n in task.tables.name]) == pytest.approx(share, abs=0.02)


def test_autoshards_setting():
    task = SUITES["metasyn-80x8"].tasks("test")[0]
    assert (task.num_tables, task.num_devices, task.batch, task.memory[0]) == (80, 8, 65_536, 7 * GB)
    assert set(task.tables.dim.tolist()) == {16, 32} and set(task.tables.dtype) == {"fp16"}
    assert (table_bytes(task) == task.tables.weight_bytes).all()


@pytest.mark.parametrize("key", [k for k in SUITES if k.endswith("-split")])
def test_split_suites_show_the_tasks_of_their_base(key):
    suite, base = SUITES[key], SUITES[key.removesuffix("-split")]
    assert suite.env_id == f"{base.env_id}-Split" and (suite.split_action, base.split_action) == (True, False)
    for split in SPLITS:
        assert suite.num_tasks(split) == base.num_tasks(split)
        np.testing.assert_array_equal(suite.random_makespans(split), base.random_makespans(split))
    np.testing.assert_array_equal(suite.feature_scaling(), base.feature_scaling())
    assert suite.bound_share() == base.bound_share()
    for ours, theirs in zip(suite.tasks("val"), base.tasks("val"), strict=True):
        assert ours == replace(theirs, splits_allowed=True, name=theirs.name.replace(base.key, key))
        assert ours != theirs
    with pytest.raises(UnknownName, match=f"{key} 'roofline:h200-v1'; choose one of: roofline:"):
        suite.random_makespans("test", "roofline:h200-v1")


@pytest.mark.parametrize(("key", "factor"), [("tight-80x8", 1.05), ("tightmix-80x8", 1.02), ("fittightmix-80x8", 1.02)])
def test_tight_suites_are_tight_and_feasible(key, factor):
    for task in SUITES[key].tasks("test"):
        assert task.memory[0] == int(factor * table_bytes(task).sum() / task.num_devices)
        assert (device_bytes(task, first_fit_decreasing(task)) <= task.capacity).all()


@pytest.mark.parametrize("key", ["mixed-10to59x4", "mixed-20to119x8"])
def test_neuroshards_setting(key):
    suite = SUITES[key]
    counts = [task.num_tables for task in suite.tasks("test")]
    assert min(counts) < max(counts)
    for task in suite.tasks("test"):
        assert table_bytes(task).sum() <= 15 / 16 * sum(task.memory)
        assert set(task.tables.dim.tolist()) <= {4, 8, 16, 32, 64, 128} and task.splits_allowed


@pytest.mark.parametrize("key", ["metasyn-80x8", "dlrm-10x2", "core-60x4"])
def test_random_references_are_means_of_random_plans(key):
    suite = SUITES[key]
    for task, frozen in zip(suite.tasks("test")[:3], suite.random_makespans("test"), strict=False):
        placements = random_placements(task, 400, np.random.default_rng(5))
        makespans = make(suite.judge).latency(task, placements).makespan(task.objective)
        assert frozen == pytest.approx(makespans.mean(), abs=4 * makespans.std() / np.sqrt(400))


def test_names_are_forgiving_and_typos_are_not():
    assert suites.get("MetaSyn-80x8") is suites.get("ShardGym-MetaSyn-80x8") is suites.get("metasyn-80x8")
    with pytest.raises(UnknownName, match="metasyn-80x8"):
        suites.get("metasyn-81x8")
    with pytest.raises(UnknownName, match="train"):
        suites.get("metasyn-80x8").tasks("exam")
    with pytest.raises(UnknownName, match="rtx2080ti"):
        suites.get("metasyn-80x8").random_makespans("test", "roofline:h200-v1")


@pytest.mark.parametrize("key", ["metasyn-80x8", "tight-80x8", "tightmix-80x8", "hetero-80x8"])
def test_random_placements_are_feasible(key, rng):
    for task in SUITES[key].tasks("val")[:3]:
        placements = random_placements(task, 50, rng)
        assert placements.shape == (50, task.num_tables)
        assert (device_bytes(task, placements) <= task.capacity).all()
        assert len(np.unique(placements, axis=0)) > 1


def test_a_table_that_fits_nowhere_is_told(rng):
    tasks = (task for split in SPLITS for task in SUITES["mixed-10to59x4"].tasks(split))
    too_big = next(task for task in tasks if table_bytes(task).max() > max(task.memory))
    with pytest.raises(InfeasibleTask, match="too few"):
        random_placements(too_big, 3, rng)
