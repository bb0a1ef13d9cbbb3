"""The report on the speed of the vector environment: what counts as a step, and what the page says."""

from benchmarks.vector_throughput import MANY, SMALL, Case, Cost, Player, cases, page, planner

from benchmarks import vector_throughput
from shard_gym.envs.env import ShardingEnv
from shard_gym.envs.vector_env import ShardingVectorEnv
from tests.env_helpers import PoolingMs, tiny_task


def test_steps_that_only_begin_an_episode_are_not_counted(monkeypatch):
    env = ShardingVectorEnv(ShardingEnv([tiny_task()], simulator=PoolingMs()), 5)
    env.reset(seed=0)
    clock = iter([1.0, 3.0])
    monkeypatch.setattr(vector_throughput.time, "thread_time", lambda: next(clock))
    assert Player(env, 10).rate() == 5 * (3 + 3 + 2) / 2  # in 2 seconds; the 4th and the 8th call begin


def test_the_page_has_every_case():
    costs = [Cost(case, 2.0, 2.5, 3000.0) for case in cases()]
    found = {"costs": costs, "grown": {"table": (300.0, 0.0004)}, "repeats": 15, "command": "run me"}
    text = page(found)
    assert "- `table`: 300 MB, then +0.04 %" in text
    assert f"| table | {planner(SMALL)} | 2 | 2.5 | 512 | 3,000 |" in text
    for case in cases():
        named = case.name if case.name != SMALL else case.simulator if case.num_envs == MANY else str(case.num_envs)
        assert f"| {named} |" in text
    assert len(set(cases())) == len(costs)


def test_cases_are_what_make_vec_takes():
    assert Case(SMALL, 4, "full", "x").settings == {"observation": "full", "simulator": "x"}
