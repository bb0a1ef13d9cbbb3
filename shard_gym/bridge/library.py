"""TorchRec itself, in the build that goes with what else is installed."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from shard_gym.errors import MissingDependency
from shard_gym.simulators.operator import DISTRIBUTIONS, imported, require


def require_torchrec() -> Any:
    """The package `torchrec`, or how to get the one that goes with this torch and FBGEMM.

    Planning needs no GPU: either build of FBGEMM will do, but not both, as they overwrite each other.
    """
    require("cpu")
    fbgemm = next((d.version for name in DISTRIBUTIONS for d in metadata.distributions(name=name)), "")
    minor = ".".join(fbgemm.split(".")[:2])
    # --no-deps: TorchRec asks for the CUDA build of FBGEMM, which would overwrite the CPU build
    command = f"pip install --no-deps torchrec=={minor}.*" if minor else "pip install --no-deps torchrec"
    found = next((d.version for d in metadata.distributions(name="torchrec")), "")
    if found and minor and found.split(".")[:2] != minor.split("."):
        raise MissingDependency(f"torchrec {found} does not go with FBGEMM {fbgemm}; run {command}")
    return imported("torchrec", command)


def require_pyarrow() -> Any:
    """The package `pyarrow`, which reads logs, or how to get it."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependency('logs need pyarrow: pip install "shard-gym[parquet]"') from error
    return pyarrow
