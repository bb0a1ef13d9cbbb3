"""Tasks made of a user's own tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np

from shard_gym.errors import InvalidPool, InvalidTask, UnknownName
from shard_gym.records.guard import guarded
from shard_gym.records.numbers import whole
from shard_gym.tables.configs import Pooling, check_empty_bags, pool_of_configs
from shard_gym.tables.files import HOW, load_pool
from shard_gym.tables.pool import GB, TablePool
from shard_gym.task.links import Links
from shard_gym.task.task import Constraints, Task

SUFFIXES = (".csv", ".json", ".parquet", ".pt", ".pt.gz")
MOST_DEVICES = 100_000  # more than any machine has, and few enough to plan for
Tables = str | Path | TablePool | Sequence[Any]  # a file, a pool, or TorchRec configs


class TaskSettings(TypedDict, total=False):
    """Settings of a user's own task, beside its tables and devices; see `Task`."""

    objective: str  # "iteration" unless told
    batch: int  # samples a step over all devices; those that the tables' statistics are of unless told
    optimizer: str  # "sgd" unless told
    accounting: str  # "training" unless told: optimizer state takes memory too; "torchrec" and "true" see `table_bytes`
    speed: Sequence[float]  # relative, one a device; all 1 unless told
    links: Links | None  # those of the simulator's preset unless told
    constraints: Constraints | Mapping[str, Any]  # of models also TorchRec's ParameterConstraints, by table
    splits_allowed: bool
    kinds: Sequence[str]  # of sharding: tw unless told, and cw where splits are allowed
    residences: Sequence[str]  # where rows may live: hbm unless told
    host_memory: int  # bytes of its host's memory that each device may fill with tables
    host_link: float | None  # bytes a millisecond to it
    name: str  # the file's unless told


@guarded("a task of these tables", InvalidTask)
def make_task(
    tables: Tables,
    devices: int,
    memory_gb: float | Sequence[float],
    *,
    pooling: Pooling | None = None,
    **settings: Unpack[TaskSettings],
) -> Task:
    """One step of training on your own tables: `make_task("tables.csv", devices=4, memory_gb=16)`.

    `tables` is a file (.csv, .json or .parquet, see `shard_gym.tables.files`; .pt or .pt.gz, see
    `shard_gym.tables.dlrm_datasets`), a `TablePool` (`make_pool` makes one), or a list of TorchRec's
    `EmbeddingBagConfig` or `EmbeddingConfig`. For configs, `pooling` is mean ids a sample by name of feature or table
    (see `shard_gym.tables.configs`; 1 a feature by default). `memory_gb` is the memory that each device has left for
    tables, in units of 2**30 bytes: one number, or one a device. Settings are those of `TaskSettings`.

    Communication ("iteration") counts one row for each bag of a sample (column `bags`); a config with several features
    has one bag for each. A config that does not pool sends every row that is looked up.
    """
    refuse_unknown(settings, TaskSettings.__annotations__)
    pool = read_tables(tables, pooling, settings)
    name = Path(tables).name if isinstance(tables, str | Path) else ""
    return task_of(pool, memory_of(devices, memory_gb), {"name": name, **settings})


def task_of(pool: TablePool, memory: tuple[float, ...], settings: TaskSettings) -> Task:
    """A task with the defaults of one's own."""
    told: TaskSettings = {"objective": "iteration", "accounting": "training", "batch": pool.reference_batch, **settings}
    for setting, kind in (("links", Links | None), ("constraints", Constraints)):
        if setting in told and not isinstance(told[setting], kind):  # type: ignore[literal-required]
            raise InvalidTask(f"{setting} are of type {kind}, got {told[setting]!r:.80}")  # type: ignore[literal-required]
    return Task(pool, memory, **told)  # type: ignore[arg-type]  # it makes tuples of floats of them


def read_tables(tables: Tables, pooling: Pooling | None, settings: Mapping[str, Any]) -> TablePool:
    """The tables of a file, a pool or configs, as `make_task` takes them for tasks of these settings."""
    if isinstance(tables, Sequence) and not isinstance(tables, str):
        pool = pool_of_configs(tables, pooling, settings.get("batch"))
        check_modelled(tables, pooling, settings)
        return pool
    if pooling is not None:
        raise InvalidPool("pooling is for TorchRec configs; files and pools say it in their column pooling")
    if isinstance(tables, TablePool):
        return tables
    if isinstance(tables, str | Path):
        return _read_file(Path(tables))
    raise InvalidPool(f"tables are a path, a shard_gym.TablePool or a list of TorchRec configs, got {tables!r:.80}")


def memory_of(devices: int, memory_gb: float | Sequence[float]) -> tuple[float, ...]:
    """Bytes of each device."""
    try:
        count = whole(devices)
        given = np.asarray(memory_gb)
    except (TypeError, ValueError) as error:
        raise InvalidTask(f"devices is a whole number, memory_gb one number or one a device: {error}") from error
    if not 1 <= count <= MOST_DEVICES:
        raise InvalidTask(f"a task needs at least one device and at most {MOST_DEVICES:,}, got devices={count}")
    if given.dtype.kind not in "iuf" or given.shape not in ((), (count,)):
        raise InvalidTask(f"memory_gb is one number, or {count}, one for each device; got {memory_gb!r:.80}")
    if not (given > 0).all():  # NaN is not
        raise InvalidTask(f"memory_gb is what each device has left for tables, more than 0; got {memory_gb!r:.80}")
    return tuple((np.broadcast_to(given, count) * float(GB)).tolist())


def refuse_unknown(settings: Iterable[str], known: Iterable[str]) -> None:
    """Refuse settings with unknown names."""
    for name in settings:
        if name not in known:
            raise UnknownName("setting", name, known)


def _read_file(path: Path) -> TablePool:
    name = path.name.lower()
    if not name.endswith(SUFFIXES):
        raise UnknownName("kind of file", path.name, SUFFIXES, HOW)
    if not name.endswith((".pt", ".pt.gz")):
        return load_pool(path)
    from shard_gym.tables.dlrm_datasets import read_pool  # what it imports is slow

    return read_pool(path)


def check_modelled(configs: Sequence[Any], pooling: Pooling | None, settings: Mapping[str, Any]) -> None:
    """Refuse configs of which the bytes that are asked for are not modelled."""
    if settings.get("accounting") == "torchrec":
        check_empty_bags(configs, pooling, settings.get("batch"))
