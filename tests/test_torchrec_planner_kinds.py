"""TorchRec's planner over all kinds and residences: its plans as ours, worth and as large as it says itself."""

from dataclasses import replace

import numpy as np
import pytest

from shard_gym import Constraints, Task, make_pool
from shard_gym.errors import InvalidTask
from shard_gym.memory.usage import bytes_used
from shard_gym.plan.shards import shards
from shard_gym.plan.violations import violations
from shard_gym.results.evaluate import score
from shard_gym.simulators.torchrec import TorchRecPerf
from shard_gym.task.constraints import KINDS
from shard_gym.task.links import Links
from shard_gym.torchrec.topology import topology as topology_of
from shard_gym_agents import make
from shard_gym_agents.solvers import torchrec_words
from tests.storage_helpers import optimizer_class

planner = pytest.importorskip("torchrec.distributed.planner")
pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning")]
PERF = TorchRecPerf()
OPTIMIZERS = {"rowwise_adagrad": "RowWiseAdagrad", "adam": "Adam"}
WAYS = [  # and the share of all bytes that a device needs for them to find a plan
    ("default", "greedy", 0.5),
    ("default", "greedy-perf", 0.5),
    ("greedy-total", "greedy-perf", 0.5),
    ("dynamic-programming", "greedy-perf", 10.0),
    ("uniform", "memory-balanced", 10.0),
]


def drawn_task(seed, memory=0.5, **told):
    """Ten tables on two hosts of two devices, each with that share of the bytes of all: one fits on none whole."""
    rng = np.random.default_rng([19, seed])
    rows = np.exp(rng.uniform(np.log(1e2), np.log(1e5), 10)).astype(np.int64)
    rows[:2] = 400_000, 1_000_000
    dim = rng.choice([4, 64, 256, 384], 10)
    dim[:2] = 256
    tables = make_pool(rows=rows, dim=dim, pooling=rng.integers(1, 80, 10) / 4, dtype="fp32")
    weights = int((tables.rows * tables.dim * 4).sum())
    settings = {"objective": "iteration", "batch": 400, "links": Links(port=6e8, group=2), "kinds": KINDS}
    settings |= {"accounting": "torchrec", "optimizer": "rowwise_adagrad", "name": f"drawn {seed}"}
    return Task(tables, (int(weights * memory),) * 4, **settings | told)


@pytest.fixture
def planners(monkeypatch):
    """The library's planners that ran, with the options that they chose."""
    ran, whole = [], planner.EmbeddingShardingPlanner.plan

    def plan(self, *arguments, **named):
        ran.append(self)
        return whole(self, *arguments, **named)

    monkeypatch.setattr(planner.EmbeddingShardingPlanner, "plan", plan)
    return ran


def check_rating_and_bytes(task, plan, ran):
    """The library's own estimators say of the options it chose what we say of the plan."""
    from torchrec.distributed.planner.perf_models import NoopPerfModel
    from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator
    from torchrec.optim import apply_optimizer_in_backward

    options, topology = ran._best_plan, ran._topology
    result = score(task, plan, PERF)
    assert result.feasible and violations(task, plan) == []
    assert result.makespan == pytest.approx(NoopPerfModel(topology).rate(options), rel=1e-6, abs=1e-6)
    for option in options:
        apply_optimizer_in_backward(optimizer_class(OPTIMIZERS[task.optimizer]), [option.tensor], {"lr": 0.1})
    EmbeddingStorageEstimator(topology, ran._constraints).estimate(options, ran._enumerator._sharder_data_map)
    theirs = np.zeros((2, task.num_devices), np.int64)
    for shard in (shard for option in options for shard in option.shards):
        theirs[:, shard.rank] += shard.storage.hbm, shard.storage.ddr
    np.testing.assert_array_equal(bytes_used(task, shards(task, plan)), theirs)


@pytest.mark.parametrize(("proposers", "partitioner", "memory"), WAYS)
def test_a_plan_is_worth_and_as_large_as_torchrec_says(proposers, partitioner, memory, planners):
    kinds = set()
    for seed in range(2):
        task = drawn_task(seed, memory)
        plan = make("torchrec-planner", proposers=proposers, partitioner=partitioner)(task, PERF)
        check_rating_and_bytes(task, plan, planners[-1])
        kinds |= set(plan.kind)
    assert len(kinds) > 1 or memory > 1


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_comes_back(kind, planners):
    """Tables of one kind only, which TorchRec then has to choose."""
    task = drawn_task(0, memory=10, kinds=(kind,), optimizer="adam")
    plan = make("torchrec-planner", proposers="greedy-total", columns=64)(task, PERF)
    same = {"cw": {"tw", "cw"}, "grid": {"grid", "twrw"}}.get(kind, {kind})  # tables of 4 columns are one shard
    assert set(plan.kind) <= same
    check_rating_and_bytes(task, plan, planners[-1])


@pytest.mark.parametrize(("residence", "share"), [("uvm", 0.0), ("cached", 0.4)])
def test_rows_live_in_the_hosts_memory_where_there_is_no_other_room(residence, share, planners):
    task = drawn_task(1, memory=0.2, residences=("hbm", residence), host_memory=2**34)
    plan = make("torchrec-planner", share=0.4)(task, PERF)
    outside = [s for r, s in zip(plan.residence, plan.share, strict=True) if r == residence]
    assert outside and set(outside) == {share}
    check_rating_and_bytes(task, plan, planners[-1])


def test_the_kinds_of_single_tables_are_kept():
    only = Constraints(kinds=((2, ("rw",)), (3, ("twrw", "grid"))))
    plan = make("torchrec-planner")(drawn_task(2, memory=1.0, constraints=only), PERF)
    assert plan.kind[2] == "rw" and plan.kind[3] in ("twrw", "grid")


def test_options_of_equal_worth_come_in_one_order(planners):
    """TorchRec takes them from a set of words, whose order is drawn anew in each process."""
    task = drawn_task(0)
    make("torchrec-planner")(task, PERF)
    options = planners[-1]._enumerator.last_stored_search_space
    for name in {option.name for option in options}:
        types = [torchrec_words.TIES.index(o.sharding_type) for o in options if o.name == name]
        assert types == sorted(types) and len(types) > 4


def test_default_proposers_are_those_of_the_library():
    topology = topology_of(drawn_task(0))
    theirs = planner.EmbeddingShardingPlanner(topology=topology, batch_size=1)._proposers
    ours = torchrec_words.proposers("default")
    assert [type(p) for p in ours] == [type(p) for p in theirs]
    assert [vars(p) for p in ours] == [vars(p) for p in theirs]


def test_at_the_time_limit_the_best_plan_so_far_is_returned(monkeypatch, planners):
    """The clock stands still for one proposal of each proposer, then it is late."""
    task, looked = drawn_task(0, memory=1.0), iter([0.0] * 4 + [0.0] * 3 + [100.0] * 1000)
    whole = make("torchrec-planner", proposers="greedy-total")(task, PERF)
    monkeypatch.setattr(torchrec_words.time, "thread_time", lambda: next(looked))
    cut_short = make("torchrec-planner")(task, PERF)
    assert planners[0]._num_proposals > 10 > planners[1]._num_proposals > 0
    assert score(task, cut_short, PERF).feasible and score(task, whole, PERF).feasible


def test_odd_shares_and_columns_are_refused():
    with pytest.raises(InvalidTask, match="share is above 0"):
        make("torchrec-planner", share=0.0)
    with pytest.raises(InvalidTask, match="columns is a whole number"):
        make("torchrec-planner", columns=0)
    with pytest.raises(InvalidTask, match="constraints"):
        task = drawn_task(0)
        make("torchrec-planner")(replace(task, constraints=Constraints(apart=((0, 2),))), PERF)
