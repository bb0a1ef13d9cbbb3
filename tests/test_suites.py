import hashlib

import numpy as np
import pytest

from shard_gym import suites
from shard_gym.errors import InfeasibleTask, UnknownName
from shard_gym.memory import device_bytes, table_bytes
from shard_gym.random_plans import first_fit_decreasing, random_placements
from shard_gym.simulators import make
from shard_gym.suites import SPLITS, SUITES
from shard_gym.tables import GB

# Content of every task of every split, in order: a published suite is the same on any machine, for ever.
FROZEN = {
    "metasyn-80x8": "12cae0805909658c",
    "metasyn-160x16": "9b9db30d11d0caf2",
    "metasyn-240x24": "e0540cb82317a2d6",
    "metasyn-320x32": "174e8c17308e76c3",
    "metasyn-400x40": "5bb0790642b778e0",
    "metasyn-480x48": "135388fd627bd0c1",
    "metasyn-560x56": "178b8a6fef10c379",
    "metasyn-640x64": "2274c15a6d143d8c",
    "metasyn-720x72": "79d83a97db45a94b",
    "metasyn-800x80": "391c3fc4469703dc",
    "metasyn-80x8-unseen0": "fc9b9ba24ff114d8",
    "metasyn-80x8-unseen20": "b94bc0606e9ba918",
    "metasyn-80x8-unseen40": "8cc26b36072b0172",
    "metasyn-80x8-unseen60": "341b4093c991405d",
    "metasyn-80x8-unseen80": "a4f7fcf858a15e5a",
    "metasyn-80x8-unseen100": "22b4b4f4c1a4f005",
    "dlrm-10x4": "c676bc66acf9373c",
    "dlrm-20x4": "4d501963f68b4fc7",
    "dlrm-30x4": "333a5f70bcaa1d64",
    "dlrm-40x4": "e8423378ec8d6734",
    "dlrm-50x4": "6cbff11a95aa722a",
    "dlrm-60x4": "51bf95a454b43481",
    "dlrm-70x4": "33f9bb6f481ab4d6",
    "dlrm-80x4": "838b14d4c9fc63f3",
    "dlrm-90x4": "137005b7f1d76107",
    "dlrm-100x4": "9eab6502254e18d2",
    "dlrm-10x2": "3f4d9f38b11119cc",
    "dlrm-20x2": "28dab0fe7a119e0d",
    "dlrm-30x2": "af72248cbdb2bdeb",
    "dlrm-40x2": "b637ec175edd7b92",
    "dlrm-50x2": "140e1129207c1b6f",
    "mixed-10to59x4": "d23a3797f65a6974",
    "mixed-20to119x8": "fc4cf05ae979f844",
    "core-60x4": "c9e9c85f047afc52",
    "core-80x8": "75c3fb59e7c91e8e",
    "tight-80x8": "ae3f44eace4f7763",
    "tightmix-80x8": "88af5677c8508ee9",
    "hetero-80x8": "692ea8912450ebce",
    "prod-1000x128": "07ec70f49ab376c4",
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


@pytest.mark.parametrize("key", [k for k in SUITES if k.startswith(("core", "tight", "hetero", "prod"))])
def test_core_suites_test_on_tables_never_trained_on(key):
    suite = SUITES[key]
    assert suite.num_tasks("test") >= 100
    rows = [np.concatenate([np.stack([t.tables.rows, t.tables.lookups], 1) for t in suite.tasks(s)]) for s in SPLITS]
    train, val, test = ({tuple(row) for row in part.tolist() if row[0] > 1_000} for part in rows)
    assert not train & test and not train & val and not val & test


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


@pytest.mark.parametrize(("key", "factor"), [("tight-80x8", 1.05), ("tightmix-80x8", 1.02)])
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
