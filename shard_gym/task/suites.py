"""The suites: named, frozen banks of tasks. Their settings feed ids, command lines and leaderboards.

`shard_gym.task.suite` defines a suite. A published suite is never edited; a changed suite gets a new name.
docs/extending.md says how to add one, `register` adds one from outside the package.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from importlib.util import find_spec

from shard_gym.errors import InvalidTask, UnknownName
from shard_gym.records.files import DATA
from shard_gym.records.guard import expect
from shard_gym.task.constraints import KINDS
from shard_gym.task.links import Links
from shard_gym.task.suite import FROZEN_PLAN, SPLITS, Suite

__all__ = ["MEAN_LOAD", "SPLITS", "SUITES", "Suite", "get", "register"]

MEAN_LOAD = -1.0  # memory_gb of suites whose capacity is a multiple of each task's own mean load

RTX2080TI, A100, H100 = (f"roofline:{name}-v1" for name in ("rtx2080ti-x4", "a100-x32-roce", "h100"))
CPU, CPU_JUDGE = "learned:cpu-v1", "learned:cpu-judge-v1"
CPU_V2, CPU_JUDGE_V2 = "learned:cpu-v2", "learned:cpu-judge-v2"
FITTED_BATCH = 2_048  # samples that costs were measured at on CPUs
H100_V2, A100_V2 = "roofline:h100-v2", "roofline:a100-x32-roce-v2"
# Four GPUs a host, and hosts joined by NVLink as in a GB200 NVL72 rack, at the H100's rate; the wires of a100-x32-roce.
TWO_HOSTS = Links(port=3.6e8, latency_ms=0.03, group=4, uplink=4 * 3.6e8)
SATURATED = "saturated: true room about 2 %"
# Suites of which cost-greedy is within 0.5 % of the best known plan on every test task, by their headroom cards.
ALL_EASY = (
    *(f"metasyn-{10 * k}x{k}" for k in range(56, 81, 8)),
    *("dlrm-100x4", "dlrm-30x2", "dlrm-40x2", "dlrm-50x2"),
)
ROCE = Links(port=2.4e8, latency_ms=4.13, group=8, uplink=1.585e8)


def get(key: str) -> Suite:
    """Find a suite by its key, such as `metasyn-80x8`, by its name, or by an id of its environments."""
    expect(key, str, InvalidTask)
    found = SUITES.get(key.lower().removeprefix("shardgym-").removesuffix("-flat"))
    if found is None:
        raise UnknownName("suite", key, SUITES)
    return found


def register(suite: Suite) -> None:
    """Add a suite, and its environments where Gymnasium is installed; a key that another suite has is refused."""
    if SUITES.setdefault(suite.key, suite) != suite:
        raise InvalidTask(f"there is a suite {suite.key}, and suites are never edited: give this one a name of its own")
    if find_spec("gymnasium"):  # a bare host that only measures has none
        import gymnasium

        scalar, vector = "shard_gym.envs.env:ShardingEnv", "shard_gym.envs.vector_env:make_vector_env"
        for env_id, shown in ((suite.env_id, {}), (f"{suite.env_id}-Flat", {"observation": "flat"})):
            if env_id not in gymnasium.registry:
                gymnasium.register(
                    env_id,
                    scalar,
                    vector_entry_point=vector,
                    reward_threshold=thresholds().get(suite.key),
                    max_episode_steps=suite.most_steps + 1,  # one more: episodes end, they are not cut short
                    kwargs={"tasks": suite.key, **shown},
                )


@cache
def thresholds() -> dict[str, float]:
    """Mean return of a baseline on training tasks, by suite or bank; `python -m benchmarks.thresholds` made them."""
    told: dict[str, float] = json.loads((DATA / "thresholds.json").read_text())
    return told


def _parity_suites() -> list[Suite]:
    """AutoShard's, DreamShard's and NeuroShard's tasks, as their papers drew them."""
    synthetic = Suite("MetaSyn-80x8", 80, 8, "kernel", CPU, CPU_JUDGE, memory_gb=(7,), family="metasyn-80x8")
    drawn = Suite("DLRM-50x4", 50, 4, "iteration", RTX2080TI, RTX2080TI, memory_gb=(5,), family="dlrm-50x4")
    autoshard, dlrm = (replace(suite, group="parity") for suite in (synthetic, drawn))
    mixed = replace(dlrm, name="Mixed-10to59x4", num_tables=59, memory_gb=(4,), dtype="fp32", family="core-60x4")
    mixed = replace(mixed, splits_allowed=True)
    found = [
        replace(autoshard, remark=SATURATED),
        *(replace(autoshard, name=f"MetaSyn-{10 * k}x{k}", num_tables=10 * k, num_devices=k) for k in range(16, 81, 8)),
        *(replace(autoshard, name=f"MetaSyn-80x8-Unseen{percent}") for percent in range(0, 101, 20)),
        *(replace(dlrm, name=f"DLRM-{n}x4", num_tables=n) for n in range(10, 101, 10)),
        *(replace(dlrm, name=f"DLRM-{n}x2", num_tables=n, num_devices=2) for n in range(10, 51, 10)),
        mixed,
        replace(mixed, name="Mixed-20to119x8", num_tables=119, num_devices=8),
    ]
    return [replace(suite, group="scaling") if suite.key in ALL_EASY else suite for suite in found]


def _core_suites() -> list[Suite]:
    """Ours: train, validation and test tables come from pools of different seeds."""
    core = Suite(
        "Core-80x8",
        80,
        8,
        "iteration",
        H100,
        H100,
        memory_gb=(12,),
        pools=((1, 856), (2, 856), (3, 856)),
        dtype="fp32",
        optimizer="rowwise_adagrad",
        accounting="training",
        family="core-60x4",
    )
    tight = replace(core, name="Tight-80x8", memory_gb=(MEAN_LOAD,), order="size", family="tightmix-80x8")
    return [
        replace(core, name="Core-60x4", num_tables=60, num_devices=4, memory_gb=(24,)),
        core,
        tight,
        replace(tight, name="TightMix-80x8"),
        replace(core, name="Hetero-80x8", memory_gb=(8,) * 4 + (16,) * 4, speed=(1.0,) * 4 + (0.6,) * 4),
        replace(
            core,
            name="Prod-1000x128",
            num_tables=1000,
            num_devices=128,
            planner=A100,
            judge=A100,
            memory_gb=(32,),
            dtype="fp16",
            pools=((4, 1000), (5, 1000), (6, 1000)),
        ),
    ]


def _split_suites(bases: dict[str, Suite]) -> list[Suite]:
    """Tasks of other suites, with an action that halves the next table's columns."""
    return [
        replace(bases[key], name=f"{bases[key].name}-Split", bank=key, splits_allowed=True, split_action=True)
        for key in ("mixed-10to59x4", "mixed-20to119x8", "tightmix-80x8", "prod-1000x128")
    ]


def _all_kinds_suites(bases: dict[str, Suite]) -> list[Suite]:
    """Every way to shard a table that the links allow; in all but Tight some tables are larger than a device.

    In all but Prod they take more than all devices have, and some rows live in host memory. Tables are those of the
    suites that the names begin with; Wide has its own.
    """
    core = replace(
        bases["core-80x8"],
        name="Core-80x8-AllKinds",
        planner=H100_V2,
        judge=H100_V2,
        memory_gb=(4,),
        order="size",
        kinds=("tw", "cw", "rw", "dp"),
        residences=("hbm", "cached"),
        host_memory_gb=64.0,
        group="headline",
        tables="core-80x8",
        family="core-80x8-allkinds",
    )
    tight = replace(core, memory_gb=(MEAN_LOAD,), family="tightmix-80x8-allkinds")
    hosts = replace(tight, kinds=KINDS, links=TWO_HOSTS)
    servers = replace(hosts, planner=A100_V2, judge=A100_V2, links=ROCE, tables="")
    return [
        core,
        replace(tight, name="Tight-80x8-AllKinds", tables="tight-80x8"),
        replace(hosts, name="TightMix-80x8-AllKinds", tables="tightmix-80x8"),
        replace(servers, name="Wide-300x16-AllKinds", num_tables=300, num_devices=16, host_memory_gb=256.0),
        replace(
            bases["prod-1000x128"],
            name="Prod-1000x128-AllKinds",
            planner=A100_V2,
            judge=A100_V2,
            memory_gb=(12,),
            order="size",
            kinds=KINDS,
            links=ROCE,
            group="headline",
            tables="prod-1000x128",
            family="tightmix-80x8-allkinds",
        ),
    ]


def _fitted_suites() -> list[Suite]:
    """Costs fitted to measurements, where there is something to find: tables to split, or memory to fill."""
    roomy = Suite(
        "FitSplit-24x8",
        24,
        8,
        "kernel",
        CPU_V2,
        CPU_JUDGE_V2,
        memory_gb=(7,),
        pools=((1, 856), (2, 856), (3, 856)),
        optimizer="rowwise_adagrad",
        accounting="training",
        batch=FITTED_BATCH,
        splits_allowed=True,
        split_action=True,
        family="fitsplit-24x8",
        group="headline",
        gap_to=FROZEN_PLAN,
        pays="latency",
    )
    whole = replace(roomy, splits_allowed=False, split_action=False, family="fittightmix-80x8")
    return [
        roomy,
        replace(roomy, name="FitSplit-40x8", num_tables=40, group="core"),
        replace(whole, name="FitTightMix-80x8", num_tables=80, memory_gb=(MEAN_LOAD,), order="size"),
    ]


SUITES: dict[str, Suite] = {suite.key: suite for suite in (*_parity_suites(), *_core_suites())}
SUITES |= {suite.key: suite for suite in _split_suites(SUITES)}
SUITES |= {suite.key: suite for suite in _all_kinds_suites(SUITES)}
SUITES |= {suite.key: suite for suite in _fitted_suites()}
