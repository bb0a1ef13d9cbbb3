"""A Ray cluster, and work on it: the one file that knows Ray. Needs the extra [ray] when a cluster is joined."""

from __future__ import annotations

import logging
import os
import socket
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from shard_gym.errors import ClusterError, MissingDependency, ShardGymError
from shard_gym.records.guard import reason
from shard_gym.work import facts
from shard_gym.work.crew import Crew
from shard_gym.work.parts import LOCAL
from shard_gym.work.pieces import Piece
from shard_gym.work.terms import Failed, Lane, Lost, Node, Row, Slot, Terms, Worker

__all__ = ["Cluster", "Lane", "Node", "Piece", "Slot", "Terms"]

# Of a Ray that is started here: tell nobody of it; give its workers no less of the cores than other processes have.
QUIET = ("RAY_USAGE_STATS_ENABLED", "RAY_worker_niceness", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO")
PACKAGES = ("shard_gym", "shard_gym_agents")  # of ours, whose files must be the same on all nodes
SECONDS, NODE_SECONDS = 30.0, 120.0  # that an address has to answer, and each node, which starts a process first
ANSWER_SECONDS = 10.0  # for what was told to be ready
SETTINGS = b"\x04"  # the type of HTTP/2's first frame
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0" + SETTINGS + b"\0" * 5
RAY = "pip install 'ray>=2.60,<3'"


@dataclass(frozen=True)
class Cluster:
    """A cluster that this process has joined."""

    ray: Any
    facts: dict[str, str]  # of this machine
    modules: tuple[str, ...]  # that every node needs

    @classmethod
    @contextmanager
    def joined(
        cls, address: str | None = None, seconds: float = SECONDS, modules: Sequence[str] = ()
    ) -> Iterator[Cluster]:
        """The cluster at an address, left at the end of the block; without an address one is started here.

        Nodes that differ from this machine, or lack one of the modules, are refused.
        """
        ray = _ray()
        guest = ray.is_initialized()  # of a program that has joined a cluster itself
        try:
            if not guest:
                _join(ray, address, seconds)
            cluster = cls(ray, facts.tell(PACKAGES, ()), tuple(modules))
            cluster._check()
            yield cluster
        finally:
            if not guest:
                ray.shutdown()

    def nodes(self) -> list[Node]:
        """Nodes that are alive."""
        return [
            Node(
                one["NodeID"],
                f"{one['NodeManagerHostname']}/{one['NodeID'][:6]}",
                one["NodeManagerHostname"],
                one["Resources"],
            )
            for one in self.ray.nodes()
            if one["Alive"]
        ]

    def work_off(
        self,
        pieces: Iterable[Piece | None],
        make_worker: Callable[[Slot], Worker],
        keep: Callable[[str, Row], None],
        terms: Terms | None = None,
    ) -> None:
        """Have all pieces done by workers on the nodes; `keep` is told each row here, once a key."""
        terms = terms or Terms()
        Crew(self, make_worker, terms, Lane.of(pieces, keep, terms.settle)).run()

    def work_off_by_kind(self, make_worker: Callable[[Slot], Worker], terms: Terms) -> None:
        """Have lists of work done, one for each kind of node: `terms.admit` says which is a worker's."""
        Crew(self, make_worker, terms, None).run()

    def checking(self, node: Node) -> Any:
        """Ask a node what is other there than here."""
        asked = self.ray.remote(num_cpus=0, max_retries=0)(facts.compared)
        return asked.options(scheduling_strategy=self._on(node)).remote(self.facts, PACKAGES, self.modules)

    def hired(self, node: Node, terms: Terms) -> Any:
        """A process on the node, with the share of it that the terms say."""
        actor = self.ray.remote(_Hand).options(
            num_cpus=terms.cpus, num_gpus=terms.gpus, max_restarts=0, scheduling_strategy=self._on(node)
        )
        return actor.remote()

    def call(self, worker: Any, method: str, *given: Any) -> Any:
        """Ask a worker; what is sent must fit in this node's object store."""
        try:
            return getattr(worker, method).remote(*given)
        except self._full as error:
            raise ClusterError(f"node {socket.gethostname()}, this one: {_full(error)}") from error

    def fire(self, worker: Any) -> None:
        """End a worker's process."""
        self.ray.kill(worker, no_restart=True)

    def ready(self, tickets: Sequence[Any], seconds: float) -> Sequence[Any]:
        """Tickets that have an answer; waits for the first one."""
        if not tickets:
            return []
        found, _ = self.ray.wait(list(tickets), num_returns=1, timeout=seconds)
        return self.ray.wait(list(tickets), num_returns=len(tickets), timeout=0)[0] if found else []

    def answer(self, ticket: Any) -> Any:
        """The answer, or Lost, or the words of what failed."""
        errors = self.ray.exceptions
        try:
            return self.ray.get(ticket, timeout=ANSWER_SECONDS)
        except self._full as error:
            return Failed(_full(error))
        except errors.ActorDiedError:
            return Lost(died=True)
        except errors.RayTaskError as error:
            cause = error.cause or error
            return Failed(_full(cause) if isinstance(cause, self._full) else reason(cause))
        except errors.RayError:  # it cannot be reached, or its node is gone
            return Lost(died=False)

    @property
    def _full(self) -> tuple[type[BaseException], ...]:
        return self.ray.exceptions.ObjectStoreFullError, self.ray.exceptions.OutOfDiskError

    def _on(self, node: Node) -> Any:
        return self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node.id, soft=False)

    def _check(self) -> None:
        """Refuse to work with nodes that differ."""
        asked = {self.checking(node): node for node in self.nodes()}
        answered, silent = self.ray.wait(list(asked), num_returns=len(asked), timeout=NODE_SECONDS)
        wrong = [f"node {asked[ticket].name} does not answer within {NODE_SECONDS:.0f} s" for ticket in silent]
        for ticket in answered:
            if isinstance(why := self.answer(ticket), Failed):
                wrong.append(f"node {asked[ticket].name} cannot be asked: {why.why}")
            elif why and not isinstance(why, Lost):
                wrong.append(f"node {asked[ticket].name} {why}")
        if wrong:
            raise ClusterError("; ".join(wrong))


class _Hand:
    """A worker in its process on a node."""

    def __init__(self) -> None:
        self.worker: Any = None

    def begin(self, make_worker: Callable[[Slot], Any], slot: Slot, asked: bool) -> Any:
        """Make the worker; what it says of itself, if it is asked."""
        try:
            self.worker = make_worker(slot)
            return self.worker.about() if asked else {}
        except Exception as error:  # of others' agents and libraries
            return _failed(error)

    def do(self, payloads: Sequence[Any]) -> Any:
        """The rows of a batch, and the seconds that it took."""
        start = time.perf_counter()
        try:
            return [self.worker.do(payload) for payload in payloads], time.perf_counter() - start
        except Exception as error:  # of others' agents and libraries
            return _failed(error)


def _failed(error: Exception) -> Failed:
    if isinstance(error, ShardGymError):
        return Failed(str(error))
    traceback.print_exc()  # to the log of the node
    return Failed(f"{type(error).__name__}: {reason(error)}")


def _full(error: BaseException) -> str:
    more = "start Ray there with more --object-store-memory, or end what else uses it"
    return f"the object store is full ({reason(error)}): {more}"


def _ray() -> Any:
    """Ray, quiet, or how to install it."""
    for name in QUIET:
        os.environ.setdefault(name, "0")
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise MissingDependency(f"Ray cannot be imported ({error}); run {RAY}") from error
    ray.cloudpickle.register_pickle_by_value(facts)  # a node without this package answers, too
    return ray


def _join(ray: Any, address: str | None, seconds: float) -> None:
    """Start Ray here, or connect to a cluster that answers in time."""
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
    if address in (None, LOCAL):
        ray.init(address="local", num_cpus=len(os.sched_getaffinity(0)), **quiet)
        return
    assert address is not None
    if "://" in address:
        raise ClusterError(
            f"{address}: a client's connection is not enough; run this on a node and give HOST:6379 or auto"
        )
    if address != "auto":
        _wait_for(address, seconds)
    del quiet["include_dashboard"]
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ClusterError(f"the Ray cluster at {address} cannot be joined: {reason(error)}") from error


def _wait_for(address: str, seconds: float) -> None:
    """Wait until Ray's server, or at least one that speaks as it does, answers at the address."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ClusterError(f"{address} is no address of a Ray cluster; give HOST:6379, or auto on one of its nodes")
    until = time.monotonic() + seconds
    while True:
        try:
            return _greet((host, int(port)), max(until - time.monotonic(), 0.1))
        except (OSError, OverflowError) as error:
            if time.monotonic() + 1 > until:
                told = f"nothing that is Ray answers at {address} within {seconds:.0f} s ({reason(error)})"
                raise ClusterError(f"{told}: start it there with `ray start --head`, or give another --ray") from error
        time.sleep(1)


def _greet(address: tuple[str, int], seconds: float) -> None:
    """Begin to speak HTTP/2, as gRPC does; Ray itself would try a server that says nothing for minutes."""
    with socket.create_connection(address, timeout=seconds) as server:
        if os.environ.get("RAY_USE_TLS", "0") == "1":
            return
        server.settimeout(seconds)
        server.sendall(GREETING)
        if server.recv(9, socket.MSG_WAITALL)[3:4] != SETTINGS:
            raise OSError("a server that is not Ray answers")
