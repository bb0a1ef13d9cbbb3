"""Describe the measurements in `measurements/` as a data set: `python -m benchmarks.dataset`.

Writes `measurements/croissant.json` (ML Commons' Croissant, JSON-LD) from the files themselves: what each holds, its
hash, the meaning of every column, and the card of the campaign that made it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from shard_gym.measuring.measurements import KINDS, Measurements
from shard_gym.records.files import write_whole

FOLDER = Path(__file__).parents[2] / "measurements"
MEANING = {
    "offsets": "shard i holds entries offsets[i] to offsets[i + 1] of `table` and `dim`",
    "table": "index of the table in its shard's pool",
    "dim": "columns of the table",
    "pool": "index into the file's `pools`, names of frozen MetaSyn pools of the shard_gym package",
    "forward_ms": "forward pass of the fused operator, mean of the runs kept, ms",
    "backward_ms": "backward pass with the optimizer's update, mean of the runs kept, ms",
    "forward_spread": "standard deviation of the forward runs kept, ms",
    "backward_spread": "standard deviation of the backward runs kept, ms",
    "kind": f"how the shard was drawn: an index into {', '.join(KINDS)}",
    "worker": "which process measured the shard; -1: unknown",
    "at": "when, seconds since the campaign's first; NaN: unknown",
    "run_ms": "forward and backward of each run, ms",
    "round": "0: drawn at random; 1, 2, ...: found by search on the fit of the round before",
}
CONTEXT = {
    "@vocab": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "sc": "https://schema.org/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "recordSet": "cr:recordSet",
    "field": "cr:field",
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "source": "cr:source",
    "fileObject": "cr:fileObject",
}


def describe(folder: Path) -> dict[str, Any]:
    """The Croissant description of every measurements file of a folder."""
    paths = sorted(folder.glob("*.npz"))
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": "shard-gym-measurements",
        "description": "Times of FBGEMM's table-batched embedding for shards of synthetic tables, both passes.",
        "license": "https://www.apache.org/licenses/LICENSE-2.0",
        "distribution": [_file(path) for path in paths],
        "recordSet": [_record_set(path) for path in paths],
    }


def _file(path: Path) -> dict[str, Any]:
    measured = Measurements.load(path)
    return {
        "@type": "cr:FileObject",
        "@id": path.name,
        "name": path.name,
        "contentUrl": path.name,
        "encodingFormat": "application/zip",  # numpy's npz; shard_gym.measuring.measurements.Measurements.load reads it
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "description": f"{len(measured)} shards of tables from {', '.join(measured.pools)}",
        "additionalProperty": {"@type": "sc:PropertyValue", "name": "card", "value": measured.card},
    }


def _record_set(path: Path) -> dict[str, Any]:
    columns = Measurements.load(path).columns
    fields = [
        {
            "@type": "cr:Field",
            "@id": f"{path.stem}/{column}",
            "name": column,
            "description": MEANING[column],
            "dataType": "sc:Float" if column.endswith(("_ms", "_spread", "at")) else "sc:Integer",
            "source": {"fileObject": {"@id": path.name}},
        }
        for column in columns
    ]
    return {"@type": "cr:RecordSet", "@id": path.stem, "name": path.stem, "field": fields}


if __name__ == "__main__":
    write_whole(FOLDER / "croissant.json", json.dumps(describe(FOLDER), indent=1) + "\n")
    print(f"{len(list(FOLDER.glob('*.npz')))} files described in measurements/croissant.json")
