"""Calls of public constructors and functions as text, so that their arguments can be spoiled and kept."""

from __future__ import annotations

from dataclasses import dataclass, is_dataclass
from typing import Any

import numpy as np

import shard_gym_agents
from shard_gym import Constraints, Plan, TablePool, Task, make_pool, make_task, simulators, suites
from shard_gym.bounds import lower_bound
from shard_gym.flexshard.curves import power_law
from shard_gym.flexshard.network import Network, network
from shard_gym.flexshard.tiers import RowTask, SequenceTable, TieredPlan, worth
from shard_gym.measuring.measurements import Measurements
from shard_gym.plan.moves import delta
from shard_gym.plan.plan import check
from shard_gym.plan.violations import violations
from shard_gym.results import Result
from shard_gym.results.evaluate import evaluate, score
from shard_gym.simulators.learned import Learned
from shard_gym.tables.configs import Lookup, pool_of_configs
from shard_gym.tables.traces import trace
from shard_gym.task.links import Links
from shard_gym.task.machines import Machine, read_machine


class Loud:
    """A value that fails whatever is done with it."""

    def _fail(self, *given: Any) -> Any:
        raise ZeroDivisionError("loud")

    __len__ = __iter__ = __float__ = __index__ = __eq__ = __lt__ = __getitem__ = __contains__ = __bool__ = _fail
    __hash__ = None  # type: ignore[assignment]


@dataclass
class Config:
    """A config of a table, as TorchRec has them."""

    name: Any = "t"
    num_embeddings: Any = 1_000
    embedding_dim: Any = 16
    data_type: Any = "FP32"
    feature_names: Any = ("f",)


def deep() -> list[Any]:
    """A list that is nested 500 times."""
    found: list[Any] = []
    for _ in range(500):
        found = [found]
    return found


TABLES = make_pool([1_000, 50_000, 700, 20_000], dim=[8, 16, 32, 64], pooling=[1.5, 20.0, 3.25, 0.5])
TASK = Task(TABLES, (2**28, 2**28), objective="iteration", splits_allowed=True)
PLAN, JUDGE = Plan((0, 1, 0, 1)), simulators.make("roofline:h100-v2")
ROWS = RowTask((SequenceTable("h", power_law(1_000, 5.0, 1.0), 64),), network("a100-4x8"), 4_096)
SHARES = np.zeros((1, 17))
SHARES[0, 0] = 1.0

GOOD = (
    "make_pool([1000, 2000], dim=[16, 32], pooling=[1.5, 2.0], dtype=['fp32', 'fp16'], reference_batch=1024)",
    "make_pool([1000], dim=16, pooling=1.5, distinct=[1500], uses=SHARES, accesses=SHARES, name=['a'], bags=[2.0])",
    "make_pool(1000, pooled=[True], weighted=False, optimizer=['adam'], name=('a',))",
    "TablePool(array([1000]), array([16]), array([1.0]), array([9]), SHARES, SHARES, ('a',), ('fp32',))",
    "TABLES.take([0, 1])",
    "TABLES.with_(dim=[4, 8, 12, 16], name=('a', 'b', 'c', 'd'))",
    "Task(TABLES, (2**28, 2**28), objective='iteration', batch=64, speed=(1.0, 2.0), links=Links(1e6))",
    "Task(TABLES, (2**28, 2**28), accounting='training', splits_allowed=True, constraints=Constraints(), name='x')",
    "Task(TABLES, [2**28, 2**28], objective='iteration', kinds=('tw', 'rw'), residences=('hbm', 'uvm'), "
    "host_memory=2**30, host_link=1e6)",
    "TASK.split((0, 1))",
    "TASK.computation(2)",
    "Task.from_json('{}')",
    "Constraints(pin=((0, 1),), together=((0, 1),), apart=((2, 3),), no_split=(0,), base=(0, 0, 0, 0), max_moves=1)",
    "Constraints(kinds=((0, ('tw',)),), residences=((1, ('hbm',)),), shares=((0, 0.5),), least_columns=((0, 4),))",
    "Task(TABLES, (2**28, 2**28), splits_allowed=True, constraints=Constraints(kinds=((0, ('tw',)),), "
    "residences=((1, ('hbm',)),), shares=((0, 0.5),), least_columns=((0, 4),), together=((0, 1),)))",
    "Links(port=1e6, latency_ms=0.1, group=2, uplink=1e6, fabric=1e7, peer_to_peer=True)",
    "Plan((0, 1), splits=(0,), kind=('tw', 'tw'), devices=((0,), (1,)), residence=('hbm', 'uvm'), share=(1.0, 0.0))",
    "Plan.from_dict({'schema': 'shard-gym/plan/1', 'device': [0, 1]})",
    "PLAN.place(0, 1)",
    "Plan.empty(TASK, (0,))",
    "make_task(TABLES, 2, 1.0, objective='kernel', batch=64, splits_allowed=False, name='mine')",
    "make_task(TABLES, devices=2, memory_gb=[1.0, 2.0], links=Links(1e6), constraints=Constraints(), optimizer='adam')",
    "make_task([Config('a'), Config('b', feature_names=['g'])], 2, 1.0, pooling={'f': 2.0, 'g': Lookup(1.0, 2.0, 64)})",
    "pool_of_configs([Config('a', 1000, 16, 'FP32', ['f'])], pooling={'f': 2.0}, batch=64)",
    "Machine('m', 4, 16.0, hosts=2, link_gb_s=240.0, link_us=30.0, host_gb_s=50.0, speed=[1, 1, 2, 2], price=4.0)",
    "Machine('m', 4, [16.0, 16.0, 8.0, 8.0], reserve=0.1, reserve_gb=1.0, host_memory_gb=9.0, simulator='x')",
    "read_machine('dgx-h100').of_hosts(2).task(TABLES, batch=64)",
    "simulators.make('roofline:h100-v1').latency(TASK, array([[0, 1, 0, 1]])).makespan('iteration')",
    "JUDGE.latency(TASK, array([0, 1, 0, -1]))",
    "suites.get('core-80x8').num_tasks('test')",
    "suites.get('core-80x8').random_makespans('test', 'roofline:h100-v1')",
    "score(TASK, PLAN, JUDGE)",
    "check(TASK, PLAN)",
    "violations(TASK, PLAN)",
    "delta(TASK, PLAN, PLAN)",
    "lower_bound(TASK, JUDGE, budget=0.0)",
    "evaluate(lambda task, planner: PLAN, [TASK], JUDGE, JUDGE, suite='s', name='n')",
    "trace(TABLES, 0, 16, seed=0)",
    "shard_gym_agents.make('cost-greedy')(TASK, JUDGE)",
    "shard_gym_agents.make('random', seed=0)(TASK, JUDGE)",
    "shard_gym_agents.options('auto')",
    "Measurements.unmeasured('metasyn_0_856', [([0, 1], [16, 32])], kind='random', round=1).take([0])",
    "Learned('none.safetensors')",
    "Result(suite='', agent='a', config={}, seed=0, track='search', planner='p', judge='j', index=0, task='t', "
    "wall_seconds=0.1, simulator_calls=1, error='late').to_json()",
    "SequenceTable('h', power_law(1000, 5.0, 1.0), 64, element_bytes=4, pooled=False)",
    "power_law(1000, 5.0, 1.0)",
    "Network(1, 4, a2a_global=1e6, a2a_intra=2e6, ar_global=3e6, ar_cross=1e6)",
    "network('a100-4x8')",
    "RowTask((SequenceTable('h', power_law(1000, 5.0, 1.0), 64),), network('a100-4x8'), 4096, 0.0, copies=2.0)",
    "worth(ROWS, TieredPlan((10,), (5,)))",
)
NAMES = {
    **{"array": np.array, "nan": np.nan, "inf": np.inf, "deep": deep, "Loud": Loud, "TABLES": TABLES, "TASK": TASK},
    **{"PLAN": PLAN, "JUDGE": JUDGE, "ROWS": ROWS, "SHARES": SHARES, "Config": Config, "Constraints": Constraints},
    **{"Plan": Plan, "TablePool": TablePool, "Task": Task, "make_pool": make_pool, "make_task": make_task},
    **{"simulators": simulators, "suites": suites, "lower_bound": lower_bound, "power_law": power_law},
    **{"Network": Network, "network": network, "RowTask": RowTask, "SequenceTable": SequenceTable, "worth": worth},
    **{"TieredPlan": TieredPlan, "Measurements": Measurements, "delta": delta, "check": check, "score": score},
    **{"violations": violations, "Result": Result, "evaluate": evaluate, "Learned": Learned, "Lookup": Lookup},
    **{"pool_of_configs": pool_of_configs, "trace": trace, "Links": Links, "Machine": Machine},
    **{"read_machine": read_machine, "shard_gym_agents": shard_gym_agents},
}


def called(source: str) -> Any:
    """The value of a call; one of ours is told, compared and hashed, as users do with values."""
    found = eval(source, NAMES | {"once": iter([1])})  # of a corpus that is ours, or drawn from GOOD
    if is_dataclass(found):
        repr(found)
        _ = found == found
    if isinstance(found, Task):
        hash(found)
        found.to_json()
    return found
