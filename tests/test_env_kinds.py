"""Environments of all kinds of sharding: actions, masks and plans by hand, then what holds of every task."""

import copy
import re
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shard_gym import Constraints, Task, make_pool, simulators
from shard_gym.envs.bank import Bank
from shard_gym.envs.begun import replayed
from shard_gym.envs.env import BadAction, ShardingEnv
from shard_gym.envs.observations import OBSERVATIONS
from shard_gym.errors import InfeasibleTask, InvalidTask
from shard_gym.memory.usage import bytes_used
from shard_gym.plan.plan import Plan
from shard_gym.plan.shards import shards
from shard_gym.plan.violations import broken_constraints, violations
from shard_gym.plan.ways import MOST_STEPS
from shard_gym.results.evaluate import score
from shard_gym.simulators import FastSimulator, Latency
from shard_gym.task.constraints import KINDS
from shard_gym.task.links import Links
from tests.env_helpers import Slow, play

HOSTS = Links(port=6e8, uplink=1e8, group=2)
HOST, ROWS, COPY, HALVE, CACHE = 4, 6, 7, 8, 9  # on four devices of two hosts
SIMULATORS = {name: simulators.make(name) for name in ("torchrec:cuda-v1", "roofline:h100-v1")}
few = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
seeds = st.integers(0, 2**32 - 1)


class NumbersMs(FastSimulator):
    """A shard costs a millisecond for each number that it holds in the device's memory, or its host's."""

    id = "numbers-ms"

    def embed_shards(self, task, shards):
        return (shards.rows * shards.dim).astype(np.float64)[:, None]

    def decode(self, task, sums):
        ms = sums[..., 0]
        return Latency(ms, np.zeros_like(ms), np.zeros_like(ms), np.zeros_like(ms))


def one_table(**changes):
    """One table of 10 rows and 16 columns, 640 bytes, on devices of 400 bytes."""
    pool = make_pool(rows=[10], dim=16, pooling=2)
    told = {"links": HOSTS, "kinds": KINDS, "residences": ("hbm", "cached"), "host_memory": 10**4, **changes}
    return Task(pool, (400,) * 4, "iteration", 8, **told)


def env_of(task, **changes):
    return ShardingEnv([task], **{"simulator": NumbersMs(), "info": "full", **changes})


def masks(task, actions):
    """Legal actions at each step."""
    env = env_of(task)
    told = [env.reset()[1]["action_mask"], *(env.step(action)[4]["action_mask"] for action in actions)]
    return [np.flatnonzero(mask).tolist() for mask in told]


def test_actions_by_hand():
    assert env_of(one_table()).action_space.n == 10
    # whole it is too large; 5 rows a host's device or 3 of all are not; a copy is as large; halves are of 320 bytes
    assert masks(one_table(), [HALVE, 0, 3])[:3] == [[4, 5, ROWS, HALVE, CACHE], [0, 1, 2, 3, 4, 5, 8, 9], [1, 2, 3]]
    # the halves' rows over hosts are of 160 bytes: both may be on one host
    assert masks(one_table(), [HALVE, HOST, HOST])[2] == [4, 5]
    # a cache of a tenth, a fifth and two fifths of the rows fits anywhere; nothing is cached as a copy
    steps = masks(one_table(), [CACHE, CACHE, CACHE])
    assert steps[1:] == [[0, 1, 2, 3, 4, 5, ROWS, HALVE, CACHE]] * 2 + [[0, 1, 2, 3, 4, 5, ROWS]]


def test_plans_by_hand():
    def plan(*actions):
        return play(env_of(one_table()), actions)[2]["plan"]

    assert plan(5) == Plan((2,), (), ("twrw",), ((2, 3),))
    assert plan(ROWS) == Plan((0,), (), ("rw",), ((0, 1, 2, 3),))
    assert plan(COPY) == Plan((0,), (), ("dp",), ((0, 1, 2, 3),))
    assert plan(HALVE, 1, 3) == Plan((1, 3), (0,))
    assert plan(HALVE, HOST, 5) == Plan((0, 2), (0,), ("grid",) * 2, ((0, 1), (2, 3)))
    cached = plan(CACHE, CACHE, HALVE, 2, 1)
    assert (cached.residence, cached.share, cached.device) == (("cached",) * 2, (0.2,) * 2, (2, 1))


def test_what_cannot_be_done_goes_where_most_room_is():
    def plan(*actions, **changes):
        return play(env_of(one_table(**changes)), actions)[2]["plan"]

    assert plan(HALVE, 0, HALVE) == Plan((0, 1), (0,))  # a piece is placed: the next goes to the emptiest device
    assert plan(HALVE, HOST, 1) == plan(HALVE, HOST, 5)  # pieces after one on a host go to hosts
    assert plan(CACHE, CACHE, CACHE, HALVE).device == (0,)  # no fourth change
    assert plan(0, kinds=("rw", "dp")) == plan(ROWS)  # not table-wise: what comes first of the others
    only = {"kinds": ("tw", "cw"), "constraints": Constraints(kinds=[(0, ("cw",))])}
    assert plan(0, 0, 0, **only) == Plan((0, 0), (0,))  # to be placed it must be halved


def test_constraints_by_hand():
    pool, room = make_pool(rows=[10, 10], dim=16, pooling=2), {"links": HOSTS, "kinds": KINDS}
    told = room | {"residences": ("hbm", "cached"), "host_memory": 10**4}

    def masks_of(actions, memory=10**4, **rules):
        task = Task(pool, (memory,) * 4, "iteration", 8, constraints=Constraints(**rules), **told)
        env = env_of(task, order="given")
        found = [env.reset()[1]["action_mask"], *(env.step(action)[4]["action_mask"] for action in actions)]
        return [np.flatnonzero(mask).tolist() for mask in found]

    everything = list(range(10))
    # a pinned table is whole on its device, in its memory; its room is kept there
    assert masks_of([0], pin=[(1, 2)]) == [everything, [2]]
    assert masks_of([0], pin=[(1, 2)], memory=700)[0] == [0, 1, 3, HOST, HALVE, CACHE]
    assert masks_of([3], together=[(0, 1)]) == [[0, 1, 2, 3], [3]]
    assert masks_of([3], apart=[(0, 1)]) == [[0, 1, 2, 3], [0, 1, 2]]
    assert masks_of([3], base=[0, 1], max_moves=1) == [[0, 1, 2, 3], [1]]
    assert masks_of([0], no_split=[1])[1] == [0, 1, 2, 3, 4, 5, ROWS, COPY, CACHE]


def test_shows_how_the_table_is_sharded_by_now():
    seen, _, _ = play(env_of(one_table()), [HALVE, HALVE, CACHE, HOST, 5, 4, 5])
    width = [row[0] for row in seen]
    assert width == [16, 8, 4, 4, 4, 4, 4, 0]
    told = [row[21:].round(4).tolist() for row in seen]  # share placed, halvings, rows there, waiting, stage
    third = np.float32(1 / 3).round(4)
    assert told[0] == [0, 0, 1, 1 / 8, 0, 0]
    assert told[1] == [0, third, 1, 2 / 8, 0, 0]
    assert told[3] == [0, np.float32(2 / 3).round(4), np.float32(0.1), 4 / 8, 0, 0]
    assert [row[0] for row in told[4:]] == [0.25, 0.5, 0.75, 1]
    assert told[4][3:] == [3 / 8, 0, 1]
    assert told[-1] == [1, 0, 0, 0, 0, 0]


def test_rewards_by_hand():
    # 160 numbers; all on one device is the reference
    rewards = play(env_of(one_table(), reward="dense"), [HALVE, 0, 1])[1]
    assert rewards == [0, -0.5, 0]
    _, rewards, info = play(env_of(one_table(), reward="latency"), [COPY])
    assert rewards == [-1 - 240 / 400] and not info["feasible"]
    # ten rows in the host's memory, which has room for none
    small = one_table(host_memory=100, residences=("uvm",))
    _, rewards, info = play(env_of(small, reward="balance"), [0])
    assert rewards[0] < -1 and not info["feasible"]


@st.composite
def tasks(draw, binding=None):
    """Tasks of 1 to 6 tables on 1 to 8 devices of 1 to 3 hosts, roomy to hopeless, of some kinds and residences."""
    rng = np.random.default_rng(draw(seeds))
    n, hosts, group = draw(st.integers(1, 6)), draw(st.integers(0, 3)), draw(st.integers(1, 3))
    k = max(hosts, 1) * group
    pool = make_pool(
        rows=np.exp(rng.uniform(np.log(3), np.log(1e6), n)).astype(int),
        dim=rng.choice([4, 8, 12, 24, 64], n),
        pooling=rng.uniform(0.5, 40, n).round(1),
    )
    kinds = KINDS if hosts else ("tw", "cw", "rw", "dp")
    kept = {"rw", *rng.choice(kinds, rng.integers(1, len(kinds) + 1))}  # every table has a form by rows
    residences = tuple(rng.choice(["hbm", "uvm", "cached"], rng.integers(1, 4), replace=False))
    roomy = draw(st.booleans())
    memory = pool.weight_bytes.sum() * (20 if roomy else draw(st.sampled_from([0.3, 1, 2])))
    constraints = Constraints()
    if draw(st.booleans()) if binding is None else binding:
        pin, apart = ((0, int(rng.integers(k))),), ((0, n - 1),) if n > 1 and k > 1 else ()
        together = ((1, 2),) if n > 3 else ()
        constraints, kept = Constraints(pin, together, apart, no_split=(n - 1,)), kept | {"tw"}
    apart_from_hbm = {"cached", *residences}  # under "kernel" there are no kinds but columns: residences are the news
    objective = draw(st.sampled_from(["iteration", "iteration", "kernel"]))
    kernel = objective == "kernel"
    return Task(
        pool,
        tuple((memory * rng.uniform(0.8, 1.2, k) / k).astype(int).tolist()),
        objective,
        int(rng.integers(64, 4096)),
        speed=tuple(rng.uniform(0.5, 2, k)) if draw(st.booleans()) else (),
        links=Links(port=6e8, uplink=1e8, group=group) if hosts else None,
        kinds=("tw", "cw") if kernel else tuple(kept),
        residences=tuple(apart_from_hbm) if kernel else residences,
        host_memory=int(1e12 if roomy else memory / k),
        accounting=draw(st.sampled_from(["weights", "training", "torchrec", "true"])),
        constraints=constraints,
    )


def unaware(rng):
    return lambda mask: rng.integers(len(mask))


def masked(rng):
    return lambda mask: rng.choice(np.flatnonzero(mask))


def played(env, choose, **reset):
    """Observations, rewards, actions and the last info of an episode."""
    shown, info = env.reset(**reset)
    seen, rewards, actions, over = [shown], [], [], False
    while not over:
        actions.append(int(choose(info["action_mask"])))
        shown, reward, over, _, info = env.step(actions[-1])
        seen.append(shown)
        rewards.append(reward)
    return seen, rewards, actions, info


@pytest.mark.parametrize("observation", OBSERVATIONS)
@few
@given(task=tasks(), seed=seeds, order=st.sampled_from(["cost", "size", "given", "random"]))
def test_a_plan_is_worth_what_the_environment_says(observation, task, seed, order):
    rng, simulator = np.random.default_rng(seed), list(SIMULATORS.values())[seed % 2]
    env = ShardingEnv([task], observation=observation, order=order, info="full", simulator=simulator)
    for choose in (unaware(rng), masked(rng)):
        seen, _, actions, info = played(env, choose, seed=seed)
        state, plan, judged = env._state, info["plan"], score(task, info["plan"], simulator)
        assert (judged.makespan, judged.balance) == (info["makespan"], info["balance"])
        assert info["feasible"] == judged.feasible == (not violations(task, plan))
        assert Plan.from_dict(plan.to_dict()) == plan == replayed(state.episode, actions).plan()
        used, in_host = bytes_used(task, shards(task, plan))
        assert (task.capacity - state.free == used).all() and (task.host_memory - state.placing.host == in_host).all()
        assert state.num_placed == state.num_pieces == len(plan.device)
        assert len(actions) <= MOST_STEPS * task.num_tables
        for shown in seen:
            assert shown in env.observation_space
            assert all(np.isfinite(v).all() for v in (shown.values() if isinstance(shown, dict) else [shown]))


@few
@given(task=tasks(binding=False), seed=seeds)
def test_what_is_legal_is_what_leaves_no_memory_over(task, seed):
    rng = np.random.default_rng(seed)
    env = ShardingEnv([task], simulator=NumbersMs())
    _, info = env.reset()
    over, placing = False, env._state.placing
    while not over and placing.least >= 0:
        doable, fits, mask = [], [], info["action_mask"].astype(bool)
        for action in range(len(mask)):
            tried = copy.deepcopy(placing)
            doable.append(tried.settled(np.array([action]))[0] == action)
            tried.place(tried.settled(np.array([action])))
            fits.append(bool(tried.least >= 0))
        legal = np.logical_and(doable, fits)
        assert mask.tolist() == (legal.tolist() if legal.any() else doable)
        _, _, over, _, info = env.step(rng.integers(len(mask)))


@few
@given(task=tasks(binding=True), seed=seeds)
def test_who_keeps_to_masks_keeps_constraints_where_there_is_room(task, seed):
    env = ShardingEnv([replace(task, memory=(10**12,) * task.num_devices)], simulator=NumbersMs(), info="full")
    rng = np.random.default_rng(seed)
    for _ in range(3):
        *_, info = played(env, masked(rng), seed=seed)
        assert broken_constraints(env.task, info["plan"]) == []


@few
@given(task=tasks(), seed=seeds)
def test_infeasible_ends_score_below_feasible_ones_and_dense_sums_to_latency(task, seed):
    ends = {}
    for reward in ("latency", "dense", "balance"):
        rng = np.random.default_rng(seed)
        env = ShardingEnv([task], reward=reward, simulator=SIMULATORS["torchrec:cuda-v1"])
        ends[reward] = [played(env, choose(rng)) for choose in (unaware, masked) for _ in range(3)]
        feasible = [sum(rewards) for _, rewards, _, info in ends[reward] if info["feasible"]]
        infeasible = [sum(rewards) for _, rewards, _, info in ends[reward] if not info["feasible"]]
        assert max(infeasible, default=-np.inf) < min(feasible, default=np.inf)
    for (_, dense, actions, _), (_, latency, same, _) in zip(ends["dense"], ends["latency"], strict=True):
        assert actions == same
        assert sum(dense) == pytest.approx(latency[-1], abs=1e-9)
        assert not any(latency[:-1])


def ahead_of(shown, share=160 / 4):
    """Numbers that devices hold after each action; all wait for the slowest one."""
    cost, held = np.moveaxis(shown["ahead"] * share, 2, 0)
    assert (cost == held.max(axis=1, keepdims=True)).all()
    return held


def test_ahead_is_what_the_costs_become():
    task = replace(one_table(), memory=(10**6,) * 4)
    env = env_of(task, observation="ahead", reward="latency")
    shown, _ = env.reset()
    held = ahead_of(shown)
    assert held[:4].tolist() == np.diag([160] * 4).tolist()
    assert held[HOST:ROWS].tolist() == [[80, 80, 0, 0], [0, 0, 80, 80]]
    assert held[[ROWS, COPY]].tolist() == [[48, 48, 48, 16], [160] * 4]
    assert held[HALVE].tolist() == [40] * 4  # each half's rows over a host of its own
    assert held[CACHE].tolist() == [48, 48, 48, 16]  # one piece: rows over all are the least
    assert (shown["bytes"][[0, HOST, COPY, HALVE]] * 4e6).tolist() == pytest.approx([640, 640, 4 * 640, 640])
    shown, *_ = env.step(HALVE)
    assert (ahead_of(shown)[ROWS:HALVE] == 0).all()  # there are no rows of halves over all
    assert ahead_of(shown)[HALVE].tolist() == [40] * 4  # quarters: two on each host
    shown, *_ = env.step(1)
    assert ahead_of(shown)[:4].tolist() == (80 * (np.eye(4) + np.eye(4)[1])).tolist()
    assert ahead_of(shown)[HALVE:].tolist() == [[0, 80, 0, 0]] * 2  # no more changes


def test_pieces_after_a_change_go_where_there_is_room():
    """Halves of 320 bytes: two devices have room for one; their rows over hosts have none."""
    task = replace(one_table(residences=("hbm",)), memory=(350, 20, 350, 20))
    shown, info = env_of(task, observation="ahead", reward="latency").reset()
    assert np.flatnonzero(info["action_mask"]).tolist() == [HALVE]
    assert ahead_of(shown)[HALVE].tolist() == [80, 0, 80, 0]


@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_gymnasium_finds_nothing_wrong(observation):
    check_env(env_of(one_table(), observation=observation), skip_render_check=True)


def test_tables_of_ones_own(monkeypatch):
    pool = make_pool(rows=[10, 20_000, 30, 40, 50, 60], dim=16, pooling=2)
    told = {"tables": pool, "devices": 4, "memory_gb": 1e6 / 2**30, "tables_per_task": 3, "num_tasks": 6}
    told |= {"unseen": False, "links": HOSTS, "kinds": KINDS}
    envs = gym.make_vec("ShardGym-Own", num_envs=2, observation="flat", **told)
    assert envs.single_action_space.n == 10
    _, infos = envs.reset(seed=0)
    large = [task for task in envs.unwrapped.bank.tasks if task.tables.rows.max() == 20_000]
    assert large and infos["action_mask"].shape == (2, 10)  # 1,280,000 bytes: whole it fits nowhere
    monkeypatch.setattr("shard_gym.envs.own.TRIES", 20)
    with pytest.raises(InfeasibleTask, match="no task of 3 tables"):
        gym.make("ShardGym-Own", **told | {"memory_gb": 1e3 / 2**30})


def test_the_page_is_true():
    page = (Path(__file__).parents[1] / "docs" / "environment.md").read_text()
    block = next(b for b in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL) if "a cache of a tenth" in b)
    names: dict[str, object] = {}
    exec(block, names)
    plan = names["env"].plan
    assert (plan.kind, plan.residence, plan.share) == (("rw", "twrw", "dp"), ("cached", "hbm", "hbm"), (0.1, 1, 1))
    assert names["info"]["feasible"]


def test_what_cannot_be_played_is_refused():
    with pytest.raises(InvalidTask, match="same hosts"):
        Bank((one_table(), one_table(links=replace(HOSTS, group=4))))
    with pytest.raises(InvalidTask, match="or none"):
        Bank((one_table(), one_table(kinds=(), residences=("hbm",), host_memory=0)))
    with pytest.raises(InvalidTask, match="leave out split_action"):
        Bank((one_table(),), split_action=True)
    with pytest.raises(InvalidTask, match="costs whole tables only"):
        env_of(one_table(), simulator=Slow())
    lost = one_table(kinds=("cw",), constraints=Constraints(kinds=[(0, ("cw",))], no_split=()))
    narrow = replace(lost, tables=lost.tables.with_(dim=np.array([4], np.int32)))
    with pytest.raises(InvalidTask, match=r"table 0 .* has no form of these kinds"):
        env_of(narrow).reset()
    env = env_of(one_table())
    env.reset()
    with pytest.raises(BadAction, match=r"0..3 a device, 4..5 rows over a host, 6 rows over all, 7 a copy"):
        env.step(10)
    with pytest.raises(InvalidTask, match="same hosts"):
        env.reset(options={"task": one_table(links=replace(HOSTS, group=1))})
