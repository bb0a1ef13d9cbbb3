"""Parts of a campaign, measured on machines that knew nothing of each other, made one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shard_gym.errors import CorruptFile, SimulatorError
from shard_gym.measuring.campaign import HEAD, Campaign, compared, head_of
from shard_gym.measuring.fbgemm import Settings
from shard_gym.measuring.rows import Row, rows_of
from shard_gym.measuring.shards import LIST, Drawn, Listed, Mixed, Source
from shard_gym.records.files import whole, write_whole
from shard_gym.records.locks import held

ROWS = "rows-merged.jsonl"
OWN = ("begun", "part", "parts")  # entries of a head that may differ


def merge(folders: Sequence[Path], out: Path) -> list[str]:
    """Unite the rows of campaign folders in a folder of their own, and pack it; lines that say what came of it."""
    heads = {folder: head_of(folder) for folder in folders}
    _check(heads, out)
    head, parts = heads[folders[0]], sorted({part for found in heads.values() for part in _parts(found)})
    with held(out):
        rows = _united(folders)
        write_whole(out / HEAD, json.dumps({**head, "part": "1/1", "parts": parts}, indent=1))
        with whole(out / ROWS) as file:
            file.writelines(json.dumps(row).encode() + b"\n" for _, row in sorted(rows.items()))
        source = _source(head["shards"], max(rows, default=-1) + 1, folders[0])
        source.leave_in(out)
        packed = Campaign(out, source, Settings(**head["settings"])).pack()
    told = f"{packed.card['measured']} shards of {len(folders)} folders united in {out}"
    return [told, *_missing(parts)]


def _check(heads: dict[Path, dict[str, Any]], out: Path) -> None:
    """Refuse folders of different campaigns, and a folder to write to that holds another one."""
    if out.resolve() in {folder.resolve() for folder in heads}:
        raise SimulatorError(f"{out} is one of the folders to unite: give --out another folder")
    if [path for path in out.glob("rows-*.jsonl") if path.name != ROWS]:
        raise SimulatorError(f"{out} holds a campaign that was measured there: give --out another folder")
    (first, head), *others = heads.items()
    for folder, found in others:
        other = [key for key in {**head, **found} if key not in OWN]
        other = [key for key in other if compared(key, head.get(key)) != compared(key, found.get(key))]
        if other:
            told = "; ".join(f"{key} {head.get(key)} and {found.get(key)}" for key in other)
            raise SimulatorError(f"{first} and {folder} are not of one campaign: {told}")


def _parts(head: dict[str, Any]) -> list[str]:
    return list(head.get("parts", [head.get("part", "1/1")]))


def _missing(parts: Sequence[str]) -> list[str]:
    """A line on the parts that were not given."""
    of = {part.partition("/")[2] for part in parts}
    asked = [f"{number}/{count}" for count in sorted(of, key=int) for number in range(1, int(count) + 1)]
    left = [part for part in asked if part not in parts]
    return [f"parts that are missing: {', '.join(left)}"] if left else []


def _united(folders: Sequence[Path]) -> dict[int, Row]:
    """Answers by index of the shard; a worker of a folder has a number of its own among all."""
    rows: dict[int, Row] = {}
    of: dict[int, Path] = {}
    workers: dict[tuple[Path, Any], int] = {}
    for folder in folders:
        for path in sorted(folder.glob("rows-*.jsonl")):
            for row in rows_of(path):
                if "begun" in row:
                    continue
                index, told = row["index"], path.stem.removeprefix("rows-")
                if index in rows and _content(rows[index]) != _content(row):
                    raise CorruptFile(
                        f"shard {index} was measured in {of[index]} and in {folder}, with different times: give one of "
                        "them, or measure with --part, each part in one folder"
                    )
                if index not in rows:
                    worker = int(told) if told.isdecimal() else row.get("worker", -1)
                    number = workers.setdefault((folder, worker), len(workers)) if worker >= 0 else -1
                    rows[index], of[index] = row | {"worker": number}, folder
    return rows


def _content(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "worker"}


def _source(described: dict[str, Any], count: int, folder: Path) -> Source:
    """The list of `count` shards or more that describes itself so, and left in the folder what it needed."""
    if "parts" in described:
        each = -(-count // len(described["parts"]))
        return Mixed(tuple(_drawn(part, each) for part in described["parts"]))
    if "shard_file" not in described:
        return _drawn(described, count)
    found = Listed(folder / LIST, described["repeats"], described["seed"])
    if found.describe() != described:
        raise CorruptFile(f"{folder / LIST} holds other shards than the campaign of {folder} measures")
    return found


def _drawn(described: dict[str, Any], count: int) -> Drawn:
    return Drawn(count, **described | {name: tuple(described[name]) for name in ("kinds", "dims")})
