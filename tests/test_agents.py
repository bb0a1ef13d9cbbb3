import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shard_gym_agents
from shard_gym import Constraints, Plan, Task, simulators, suites
from shard_gym.errors import InfeasibleTask, InvalidTask, MissingDependency, SimulatorError, UnknownName
from shard_gym.memory.usage import device_bytes, table_bytes
from shard_gym.plan import random_plans
from shard_gym.plan.random_plans import random_placements
from shard_gym.results.evaluate import TRACKS, Unseen, score
from shard_gym_agents import make
from shard_gym_agents.learners import LEARNERS
from shard_gym_agents.solvers.greedy import COSTS
from tests.pool_helpers import fp16_pool as make_pool

SIMULATOR = simulators.make("roofline:rtx2080ti-x4-v1")
FAST = {key: {"budget": 0.02} for key in ("local-search", "beam", "auto", "milp", "reshard")}
FAST["random-search"] = {"samples": 50}
NAMES = [name for name in shard_gym_agents.names() if name not in LEARNERS]  # for those, see test_trained
GREEDY = [name for name in NAMES if name.endswith("-greedy")]


def solver(name):
    return make(name, **FAST.get(name, {}))


def draw_task(seed: int, objective: str, room: float, devices: int | None = None) -> Task:
    rng = np.random.default_rng(seed)
    n, k = int(rng.integers(1, 25)), devices or int(rng.integers(1, 6))
    tables = make_pool(rows=rng.integers(1, 10**6, n), dim=rng.choice([4, 16, 64], n), pooling=rng.exponential(9, n))
    even = tables.weight_bytes.sum() / k
    capacity = int(max(room * even, tables.weight_bytes.max()))
    return Task(tables, (capacity,) * k, objective=objective)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("key", ["metasyn-80x8", "dlrm-30x4", "hetero-80x8"])
def test_every_agent_plans_every_kind_of_task(name, key):
    task = suites.get(key).tasks("val")[0]
    plan = solver(name)(task, SIMULATOR)
    assert isinstance(plan, Plan)
    assert score(task, plan, SIMULATOR).feasible


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["kernel", "iteration"]), st.sampled_from([1.05, 1.3, 9.0]))
@pytest.mark.parametrize("name", NAMES)
def test_an_agent_plans_or_says_what_does_not_fit(name, seed, objective, room):
    task = draw_task(seed, objective, room)
    try:
        plan = solver(name)(task, SIMULATOR)
    except InfeasibleTask as error:
        assert "bytes" in str(error) and "too few" in str(error)
    else:
        assert (device_bytes(task, np.array(plan.device)) <= task.capacity).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_table_too_large_for_any_device_is_named(name):
    tables = make_pool(rows=[10, 10_000, 10], dim=16, name=("a", "giant", "c"))
    task = Task(tables, memory=(100_000, 90_000))
    with pytest.raises(InfeasibleTask, match=r"giant.*320,000 bytes.* too few"):
        solver(name)(task, SIMULATOR)


@pytest.mark.parametrize("name", NAMES)
def test_agents_say_what_they_are(name):
    agent = solver(name)
    assert agent.track in TRACKS and isinstance(agent.deterministic, bool)
    task = suites.get("metasyn-80x8").tasks("val")[1]
    if agent.track == "blind":
        agent(task, Unseen(SIMULATOR))  # refuses every question
    if agent.deterministic:
        assert agent(task, SIMULATOR) == agent(task, SIMULATOR)


class OnlyLatency:
    """A planner that measures: it has no embeddings to keep sums of."""

    id = "only-latency"

    def latency(self, task, placements):
        return SIMULATOR.latency(task, placements)


@pytest.mark.parametrize("name", NAMES)
def test_a_planner_without_embeddings_is_used_or_refused(name):
    task = suites.get("metasyn-80x8").tasks("val")[0]
    try:
        plan = solver(name)(task, OnlyLatency())
    except SimulatorError as error:
        assert "only-latency" in str(error)
    else:
        assert score(task, plan, SIMULATOR).feasible


class NeverANumber(simulators.FastSimulator):
    """A millisecond a table, and NaN from so many tables a device on."""

    id = "never-a-number"

    def __init__(self, from_tables):
        self.from_tables = from_tables

    def embed(self, task):
        return np.ones((task.num_tables, 1))

    def decode(self, task, sums):
        tables = sums[..., 0]
        return simulators.Latency(*[np.where(tables < self.from_tables, tables, np.nan)] * 4)


@pytest.mark.parametrize("name", ["random-search", "cost-greedy", "local-search"])
@pytest.mark.parametrize("from_tables", [1, 4])
def test_nan_costs_are_told_not_searched(name, from_tables, tiny_task):
    one_device = Task(tiny_task.tables, memory=tiny_task.memory[:1])
    with pytest.raises(SimulatorError, match="NaN"):
        make(name)(one_device, NeverANumber(from_tables))


@pytest.mark.parametrize("name", ["random", "random-search", "local-search"])
def test_a_negative_seed_is_refused(name, tiny_task):
    with pytest.raises(InvalidTask, match="seed"):
        make(name, seed=-1)(tiny_task, SIMULATOR)


def test_a_search_without_samples_is_refused():
    with pytest.raises(InvalidTask, match="samples"):
        make("random-search", samples=0)


def test_a_round_of_local_search_is_bounded(monkeypatch):
    """2,000 tables on two devices have a million swaps; a round scores 20,000 of them at most."""
    tables = make_pool(rows=1_000, dim=16, pooling=np.linspace(0.1, 9, 2_000))
    task = Task(tables, memory=(10**9,) * 2)
    asked = []
    cost = simulators.Roofline.cost
    monkeypatch.setattr(simulators.Roofline, "cost", lambda s, t, sums: asked.append(sums.shape) or cost(s, t, sums))
    make("local-search", calls=50_000)(task, SIMULATOR)
    assert max(shape[0] for shape in asked if len(shape) == 3) <= 25_000


@pytest.mark.parametrize("name", ["random", "random-search"])
def test_seeds_decide(name):
    task = suites.get("metasyn-80x8").tasks("val")[1]
    one, same, other = (make(name, seed=s, **FAST.get(name, {}))(task, SIMULATOR) for s in (1, 1, 2))
    assert one == same != other


@pytest.mark.parametrize("name", NAMES)
def test_constraints_are_kept_or_refused_not_ignored(name, tiny_task):
    for device in range(tiny_task.num_devices):
        pinned = dataclasses.replace(tiny_task, constraints=Constraints(pin=((0, device),)))
        try:
            plan = solver(name)(pinned, SIMULATOR)
        except InvalidTask as error:
            assert "constraints" in str(error)
        else:
            assert plan.device[0] == device


def test_greedy_by_hand():
    """Costs 8, 7, 6, 5, 4 on two devices: 8 | 7, 8 | 13, 13 | 13, 17 | 13 by least loaded."""
    task = Task(make_pool(rows=10, dim=[8, 7, 6, 5, 4]), memory=(10**6,) * 2)
    assert make("dim-greedy")(task, SIMULATOR).device == (0, 1, 1, 0, 0)


def test_of_equals_the_larger_table_and_the_emptier_device_come_first():
    """Equal columns, rows 40, 30, 20, 10: 40 | 30, then 40 | 50 where less is, then 50 | 50. By size it is the same."""
    task = Task(make_pool(rows=[10, 30, 20, 40], dim=4), memory=(10**6,) * 2)
    assert make("dim-greedy")(task, SIMULATOR).device == (0, 1, 1, 0) == make("size-greedy")(task, SIMULATOR).device


def test_greedy_passes_over_a_full_device():
    tables = make_pool(rows=[100, 100, 10], dim=4, pooling=[9, 5, 3])
    task = Task(tables, memory=(2_000, 850))
    assert make("lookup-greedy")(task, SIMULATOR).device == (0, 1, 0)
    assert table_bytes(task).tolist() == [800, 800, 80]


def test_round_robin_deals_in_turn(tiny_task):
    assert make("round-robin")(tiny_task, SIMULATOR).device == (0, 1, 2, 0, 1, 2)


def test_named_costs_follow_their_papers():
    pool = make_pool(rows=1_000, dim=16, pooling=3)
    by_hand = {"size": 32_000, "dim": 16, "lookup": 48, "size-lookup": 48 * 32_000, "size-lookup-log": 48 * 3}
    assert {name: float(cost(pool)[0]) for name, cost in COSTS.items()} == pytest.approx(by_hand)


class CostByLookups(simulators.FastSimulator):
    """One millisecond per lookup of a sample, and one for each pair of tables that share a device."""

    id = "toy"

    def embed(self, task):
        return np.stack([task.tables.pooling, np.ones(task.num_tables)], axis=1).astype(float)

    def decode(self, task, sums):
        pairs = sums[..., 1] * (sums[..., 1] - 1) / 2
        zero = np.zeros(sums.shape[:-1])
        return simulators.Latency(sums[..., 0] + pairs, zero, zero, zero)


def test_cost_greedy_sees_what_tables_cost_together():
    """Lookups 5, 2, 2, 2: by lookups alone the last table joins the first; with the pairs' cost too, it does not."""
    task = Task(make_pool(rows=10, pooling=[5, 3, 1, 1, 1]), memory=(10**6,) * 2)
    plan = make("cost-greedy")(task, CostByLookups())
    makespan = CostByLookups().latency(task, np.array(plan.device)).makespan("kernel")
    assert plan.device == (0, 1, 1, 0, 1)
    assert makespan == 8  # device 0: 5 + 1 + one pair = 7; device 1: 3 + 1 + 1 + three pairs = 8


@pytest.mark.parametrize("key", ["metasyn-80x8", "dlrm-50x4"])
def test_lookup_beats_dim_and_size_as_in_both_papers(key):
    suite = suites.get(key)
    judge = simulators.make(suite.judge)
    mean = {
        name: np.mean([score(t, make(name)(t, judge), judge).makespan for t in suite.tasks("test")])
        for name in (*GREEDY, "random")
    }
    assert mean["cost-greedy"] < mean["lookup-greedy"] < min(mean["dim-greedy"], mean["size-greedy"])
    assert mean["lookup-greedy"] < mean["random"]


@pytest.mark.parametrize("key", ["metasyn-80x8", "core-60x4", "tight-80x8"])
def test_local_search_is_never_worse_than_where_it_starts(key):
    suite = suites.get(key)
    judge = simulators.make(suite.judge)
    for task in suite.tasks("val")[:3]:
        found = score(task, make("local-search", calls=1_000)(task, judge), judge)
        assert found.feasible
        try:
            start = score(task, make("cost-greedy")(task, judge), judge).makespan
        except InfeasibleTask:
            continue
        assert found.makespan <= start


def test_more_samples_are_never_worse():
    task = suites.get("metasyn-80x8").tasks("val")[0]
    makespans = [
        score(task, make("random-search", samples=n)(task, SIMULATOR), SIMULATOR).makespan for n in (1, 10, 1_000)
    ]
    assert makespans[0] >= makespans[1] >= makespans[2]


def test_drawing_in_parts_changes_nothing(monkeypatch):
    task = draw_task(3, "kernel", 9.0)
    whole = random_placements(task, 50, np.random.default_rng(0))
    sizes = []
    drawn = random_plans._drawn
    monkeypatch.setattr(random_plans, "CHUNK", 7 * task.num_tables)
    monkeypatch.setattr(random_plans, "_drawn", lambda t, count, *how: sizes.append(count) or drawn(t, count, *how))
    assert (random_placements(task, 50, np.random.default_rng(0)) == whole).all()
    assert sizes == [7] * 7 + [1]
    assert random_placements(task, 0, np.random.default_rng(0)).shape == (0, task.num_tables)


@pytest.mark.parametrize("how", ["stop", "ctrl-c"])
def test_a_stopped_random_search_returns_its_best(how):
    task, told = suites.get("core-80x8").tasks("val")[0], []

    def progress(makespan, seconds):
        told.append(makespan)
        if len(told) == 2 and how == "ctrl-c":
            raise KeyboardInterrupt
        return len(told) == 2

    plan = make("random-search", budget=30.0, progress=progress)(task, SIMULATOR)
    assert len(told) == 2 and told[1] < told[0]
    assert score(task, plan, SIMULATOR).makespan == told[1]


def test_third_parties_by_module_and_class():
    assert make("tests.odd_agents:Heap")(suites.get("dlrm-10x4").tasks("val")[0], SIMULATOR)


def test_unknown_agents_and_options_list_the_valid_ones():
    with pytest.raises(UnknownName, match="cost-greedy"):
        make("best-greedy")
    with pytest.raises(UnknownName, match="module:Class"):
        make("no_such_module:Solver")
    with pytest.raises(UnknownName, match="NoSuch"):
        make("tests.odd_agents:NoSuch")
    for malformed in (":Foo", ".a:B", "..:B", "json:", "a..b:C"):
        with pytest.raises(UnknownName, match="module:Class"):
            make(malformed)
    with pytest.raises(UnknownName, match="str cannot be called"):
        make("os:getcwd")
    for no_solver in ("json:loads", "json:codecs"):
        with pytest.raises(InvalidTask, match="cannot be made"):
            make(no_solver)
    with pytest.raises(InvalidTask, match="it has"):
        make("random", luck=1)
    with pytest.raises(UnknownName, match="size-lookup-log"):
        make("size-greedy", cost="weight")


def test_options_are_those_that_make_takes():
    assert shard_gym_agents.options("random-search") == {"seed", "samples", "budget", "progress"}
    assert shard_gym_agents.options("size-greedy") == set()
    assert shard_gym_agents.options("rnn") == {"suite", "checkpoint", "weights"}
    assert shard_gym_agents.options("tests.odd_agents:Diary") == {"seed"}
    assert shard_gym_agents.options("json:codecs") == set()
    with pytest.raises(UnknownName, match="cost-greedy"):
        shard_gym_agents.options("best-greedy")


def test_an_absent_extra_is_named(monkeypatch, tmp_path):
    (tmp_path / "needs_more.py").write_text("import package_nobody_has\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingDependency, match="pip install package_nobody_has"):
        make("needs_more:Solver")


def test_the_registry_is_lazy():
    assert all(isinstance(path, str) for path, _ in shard_gym_agents.AGENTS.values())
