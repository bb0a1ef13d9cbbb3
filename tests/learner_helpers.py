"""A suite small enough that its optimum is known, and a learner small enough to watch."""

import os
import signal
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from shard_gym import Plan, simulators
from shard_gym.errors import CorruptFile
from shard_gym.task.suites import Suite
from shard_gym.task.task import Task
from shard_gym_agents.learners.learner import packed, unpack
from tests.env_helpers import PoolingMs
from tests.pool_helpers import fp16_pool as make_pool


@dataclass(frozen=True)
class ToySuite(Suite):
    """Tables that cost as many milliseconds as their pooling; its tasks are in no bank."""

    toys: tuple = ()

    def tasks(self, split="train"):
        return self.toys

    def feature_scaling(self):
        return np.zeros(21), np.array([10, 100, 3] + [1] * 18)

    def random_makespans(self, split="test", simulator_id=None):
        return np.full(len(self.toys), 7.5)


def toy_suite(poolings=(1, 2, 3, 4), objective="kernel", room=1e9, devices=2):
    """The same tables in three orders; with the default poolings the best makespan is 5 ms, balance 1."""
    rng, rows = np.random.default_rng(0), np.full(len(poolings), 100)
    orders = [rng.permutation(len(poolings)) for _ in range(3)]
    pools = [make_pool(rows=rows, dim=16, pooling=np.array(poolings)[order]) for order in orders]
    toys = tuple(Task(pool, (int(room),) * devices, objective=objective) for pool in pools)
    return ToySuite("Toy", len(poolings), devices, objective, PoolingMs.id, PoolingMs.id, (1,), toys=toys)


@pytest.fixture
def toy_planner(monkeypatch):
    register_planner(monkeypatch.setitem)


@pytest.fixture
def one_thread():
    """Small networks are faster on one, and runs can be repeated to the bit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def register_planner(setitem=dict.__setitem__):
    setitem(simulators.SIMULATORS, PoolingMs.id, PoolingMs)


@dataclass(frozen=True)
class FakeConfig:
    learning_rate: float = 0.1
    ends: str = ""  # how the third iteration ends: "nan", "nan weights", "nan draws", "ctrl-c", "kill"
    good: int = 2  # iteration whose policy is the best


@dataclass(frozen=True)
class FakePolicy:
    """Splits four tables of 1, 2, 3, 4 ms as 5 | 5 if it is good, else puts all on one device."""

    good: bool

    def __call__(self, task, planner):
        cost = task.tables.pooling
        return Plan(tuple(int(self.good and c in (1, 4)) for c in cost.tolist()))

    def save(self, path):
        path.write_text(f"{self.good}")


class FakeLearner:
    """Fits a line to random points."""

    def __init__(self, suite, config, seed, device="cpu"):
        self.suite, self.config, self.seed, self.iterations = suite, config, seed, 0
        self.net = torch.nn.Linear(2, 1)
        with torch.no_grad():
            self.net.weight.fill_(0.5)
            self.net.bias.fill_(0)
        self.optimizer = torch.optim.Adam(self.net.parameters(), config.learning_rate)
        self.generator = torch.Generator().manual_seed(seed)

    def iterate(self):
        points = torch.randn(8, 2, generator=self.generator)
        loss = (self.net(points)[:, 0] - points.sum(1)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.iterations += 1
        if self.iterations == 3 and self.config.ends == "ctrl-c":
            raise KeyboardInterrupt
        if self.iterations == 3 and self.config.ends == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.iterations == 3 and self.config.ends.startswith("nan "):
            torch.nn.init.constant_(self.net.weight, float("nan"))
            if self.config.ends == "nan draws":
                torch.multinomial(self.net.weight[0].softmax(0), 1)
        bad = self.iterations == 3 and self.config.ends == "nan"
        return {"loss": float("nan") if bad else float(loss.detach()), "steps": 8.0, "simulator_calls": 3.0}

    def state(self):
        return packed(net=self.net, optimizer=self.optimizer, generator=self.generator, iterations=self.iterations)

    def restore(self, state):
        unpack(state, net=self.net, optimizer=self.optimizer, generator=self.generator)
        self.iterations = int(state["iterations"])

    def solver(self):
        return FakePolicy(self.iterations == self.config.good)


def same(one, other):
    """True if two states are equal to the bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def assert_reproducible(make):
    """Learners of one seed tell the same, one that is restored goes on to the bit, another seed tells otherwise."""
    straight, broken, other = make(3), make(3), make(4)
    told = [straight.iterate() for _ in range(4)]
    assert [broken.iterate() for _ in range(2)] == told[:2]
    again = make(3)
    again.restore(broken.state())
    assert [again.iterate() for _ in range(2)] == told[2:]
    assert same(again.state(), straight.state())
    assert other.iterate() != told[0]


def refuses_broken(path, load):
    """Check that half of a file is refused, and a file with one bit changed."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(CorruptFile, match="not a whole file"):
        load(path)
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CorruptFile, match="changed or damaged"):
        load(path)


def fresh_net(new_net, scaling, seed=0, greedy=True, random=False):
    """A score network as training begins with; `random`: with its last layer drawn, too."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = new_net(scaling, greedy)
        if random:
            torch.nn.init.normal_(net.last)
        return net
