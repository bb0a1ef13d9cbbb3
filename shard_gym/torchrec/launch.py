"""Several processes on this host that train together, and end together when one of them fails.

    from shard_gym.torchrec.launch import launch

    losses = launch(train, 2, plan)  # train(plan) on two ranks, which form a process group

Under `torchrun`, which starts the processes itself, `launch` runs its function in this one.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from shard_gym.errors import MissingDependency, RankFailed
from shard_gym.records.installing import install
from shard_gym.records.processes import end_with_parent

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

PATIENCE = 30.0  # seconds that a rank waits for the others in one collective
LAST_WORDS = 5.0  # seconds that a process has to end when told to, before it is killed


@dataclass(frozen=True)
class Outcome:
    """End of a rank; `at` puts failures in order, as those of the others follow from the first."""

    rank: int
    at: float
    value: Any = None
    failure: str | None = None


def launch(
    work: Callable[..., Any], ranks: int, *args: Any, patience: float = PATIENCE, per_host: int | None = None
) -> list[Any]:
    """Run `work(*args)` on each rank and return the values. The first failure ends all ranks, told as RankFailed.

    `work` is a function of a module, and a script that calls this does so below `if __name__ == "__main__"`: the
    processes import it. Ranks talk by gloo, without a GPU. One that waits longer than `patience` seconds for the
    others fails. With `per_host` the ranks are told that they are on several hosts of so many.
    """
    if "RANK" in os.environ:
        return [_in_group(work, args, patience)]
    port, spawn = _free_port(), get_context("spawn")
    processes: list[SpawnProcess] = []
    pipes: dict[Connection, int] = {}
    try:
        for rank in range(ranks):
            ours, theirs = spawn.Pipe(duplex=False)
            local = per_host or ranks
            told: dict[str, Any] = {"RANK": rank, "WORLD_SIZE": ranks}
            told |= {"LOCAL_RANK": rank % local, "LOCAL_WORLD_SIZE": local}
            told |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            process = spawn.Process(target=_rank, args=(theirs, told, work, args, patience), daemon=True)
            with _alike():
                process.start()
            theirs.close()  # so that its death is an end of file
            processes.append(process)
            pipes[ours] = rank
        values = _collect(pipes)
        for process in processes:
            process.join(LAST_WORDS)
        return values
    finally:
        _end(processes)


@contextmanager
def _alike() -> Iterator[None]:
    """Processes that begin here hash words alike: TorchRec tells messages apart by `hash`, see `torchrec.moves`."""
    own = os.environ.get("PYTHONHASHSEED")
    os.environ.setdefault("PYTHONHASHSEED", "0")
    try:
        yield
    finally:
        if own is None:
            del os.environ["PYTHONHASHSEED"]


def _collect(pipes: dict[Connection, int]) -> list[Any]:
    """The values of all ranks; raises as soon as one fails."""
    values: dict[int, Any] = {}
    waiting = dict(pipes)
    while waiting:
        ready = connection.wait(waiting)
        ended = [_received(pipe, waiting.pop(pipe)) for pipe in list(waiting) if pipe in ready]
        failed = [outcome for outcome in ended if outcome.failure is not None]
        if failed:
            first = min(failed, key=lambda outcome: outcome.at)
            raise RankFailed(f"rank {first.rank} failed, all {len(pipes)} were ended: {first.failure}")
        values |= {outcome.rank: outcome.value for outcome in ended}
    return [values[rank] for rank in sorted(values)]


def _received(pipe: Connection, rank: int) -> Outcome:
    try:
        outcome: Outcome = pipe.recv()
        return outcome
    except EOFError:
        return Outcome(rank, time.monotonic(), failure="its process died without a word (out of memory, perhaps)")


def _rank(pipe: Connection, environment: dict[str, Any], work: Callable[..., Any], args: Any, patience: float) -> None:
    """One process: its failure is told before its sockets close, which makes the others fail."""
    end_with_parent()
    os.environ |= {name: str(value) for name, value in environment.items()}
    rank = environment["RANK"]
    try:
        value = _in_group(work, args, patience)
        pipe.send(Outcome(rank, time.monotonic(), value))
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
        pipe.send(Outcome(rank, time.monotonic(), failure=reason))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # without the exit handlers of libraries, whose threads may abort, or wait for the other ranks


def _in_group(work: Callable[..., Any], args: Any, patience: float) -> Any:
    """Run in the process group that the environment describes, as torchrun sets it."""
    try:
        import torch
        from torch import distributed
    except ImportError as error:
        raise MissingDependency(f"training needs torch ({error}): {install('torch')}") from error
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    torch.set_num_threads(max(1, torch.get_num_threads() // ranks_here))
    distributed.init_process_group("gloo", timeout=timedelta(seconds=patience))
    value = work(*args)
    # a model that waits in a cycle to be collected keeps threads of the group, which abort the interpreter as it ends
    gc.collect()
    distributed.destroy_process_group()
    return value


def _end(processes: list[SpawnProcess]) -> None:
    """Stop what still runs."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(LAST_WORDS)
        if process.is_alive():
            process.kill()
            process.join()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
