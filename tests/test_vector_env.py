"""The vector environment does what scalar ones do, to the bit; and how it is used."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shard_gym import Constraints, Task, simulators, suites
from shard_gym.envs.bank import Bank
from shard_gym.envs.env import ShardingEnv
from shard_gym.envs.episodes import ORDERS
from shard_gym.envs.observations import OBSERVATIONS
from shard_gym.envs.rewards import REWARDS
from shard_gym.envs.vector_env import ShardingVectorEnv
from shard_gym.simulators.learned import Learned
from shard_gym.task.links import Links
from tests.env_helpers import PoolingMs, Slow, tiny_task
from tests.pool_helpers import fp16_pool as make_pool
from tests.vector_helpers import MODES, assert_same, pair, play_alike, reset_alike

SUITES = {  # of each kind one: its longest episodes
    "metasyn-80x8": 80,
    "core-60x4": 60,
    "hetero-80x8": 80,
    "tight-80x8": 80,
    "dlrm-10x2": 10,
    "mixed-10to59x4": 59,
    "mixed-10to59x4-split": 200,
}
LARGER = [("table", False), *((shown, split) for shown in ("full", "ahead", "flat") for split in (False, True))]
COMBINATIONS = [(o, r, q) for o in OBSERVATIONS for r in REWARDS for q in ORDERS]
lenient = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def learned():
    pytest.importorskip("torch")
    from shard_gym.measuring.fit import Fitting, fit
    from tests.cost_model_helpers import made_up

    return Learned(fit(made_up(100), "ours", settings=Fitting(epochs=1)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("suite", SUITES)
def test_every_kind_of_suite_to_the_bit(suite, mode):
    at = list(SUITES).index(suite) * len(MODES) + MODES.index(mode)
    observation, reward, order = COMBINATIONS[at * 5 % len(COMBINATIONS)]  # a different one each time
    scalar, ours = pair(suite, 3, mode, observation=observation, reward=reward, order=order)
    reset_alike(scalar, ours, seed=at)
    assert play_alike(scalar, ours, SUITES[suite] + 20) >= 3


def drawn_rules(rng: np.random.Generator, n: int, k: int) -> Constraints:
    """Constraints of every kind, that masks keep and policies unaware of them break."""
    base = tuple(rng.integers(k, size=n).tolist())
    kinds = {
        "pin": ((0, int(rng.integers(k))),),
        "together": ((0, n - 1),),
        "apart": ((1, 2),),
        "no_split": (int(rng.integers(n)),),
    }
    chosen = {name: value for name, value in kinds.items() if rng.random() < 0.5}
    moves = {"base": base, "max_moves": int(rng.integers(n))} if rng.random() < 0.5 else {}
    return Constraints(**chosen, **moves)


@st.composite
def banks(draw):
    """Tasks of 1..6 tables on 1..4 devices, roomy to hopeless, that differ in all that a task can."""
    k, kinds = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    rng, split_action = np.random.default_rng(draw(st.integers(0, 2**32))), draw(st.booleans())
    tasks = []
    for i in range(kinds):
        n = int(rng.integers(1, 7))
        rows, dim = rng.integers(1, 10_000_000, n), rng.choice([4, 8, 12, 16, 64], n)
        pool = make_pool(rows=rows, dim=dim, pooling=rng.exponential(20, n) * rng.integers(0, 2, n))
        memory = np.maximum(1, rng.uniform(0.5, 1.5, k) * rng.choice([0.3, 1.0, 1.3, 20]) * pool.weight_bytes.sum() / k)
        rules = drawn_rules(rng, n, k) if i % 2 == 0 and n > 2 and k > 1 else Constraints()
        tasks.append(
            Task(
                pool,
                memory=tuple(memory.astype(int).tolist()),
                objective=str(rng.choice(["kernel", "iteration"])) if i else "kernel",
                speed=tuple(rng.uniform(0.5, 2, k)) if i % 2 else (),
                links=Links(1e7, 0.1, 1, 2e6, 5e6, peer_to_peer=False) if i == 3 else None,
                accounting=str(rng.choice(["weights", "training"])),
                optimizer="adam",
                splits_allowed=split_action,
                constraints=rules,
            )
        )
    return Bank(tuple(tasks), split_action=split_action)


@lenient
@given(
    bank=banks(),
    combination=st.sampled_from(COMBINATIONS),
    mode=st.sampled_from(MODES),
    simulator=st.sampled_from(["roofline", "learned", "slow"]),
    seed=st.integers(0, 2**65),
)
def test_any_tasks_to_the_bit(learned, bank, combination, mode, simulator, seed):
    observation, reward, order = combination
    if simulator == "slow" and observation in ("full", "ahead", "flat"):
        observation = "set"
    made = {"roofline": simulators.make(simulators.DEFAULT), "learned": learned, "slow": Slow()}[simulator]
    scalar, ours = pair(bank, 3, mode, observation=observation, reward=reward, order=order, simulator=made)
    rng = np.random.default_rng(seed)
    reset_alike(scalar, ours, seed=seed)
    play_alike(scalar, ours, 9, rng)
    reset_alike(scalar, ours, seed=[7, None, 2**64 + 1], mask=np.array([True, True, False]))
    play_alike(scalar, ours, 5, rng)
    reset_alike(scalar, ours)
    play_alike(scalar, ours, 12, rng)


@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize("simulator", ["planner", "learned"])
def test_a_kernel_suite_with_either_simulator(learned, simulator, observation):
    simulator = learned if simulator == "learned" else None
    scalar, ours = pair("metasyn-80x8", 5, "SameStep", observation=observation, simulator=simulator)
    reset_alike(scalar, ours, seed=0)
    assert play_alike(scalar, ours, 90) == 5


def larger_task(tables: int, **settings) -> Task:
    return Task(tiny_task().tables.take(np.arange(tables) % 3), memory=(10**6,) * 2, **settings)


@pytest.mark.parametrize("order", ["cost", "random"])
@pytest.mark.parametrize(("observation", "split_action"), LARGER)
def test_a_given_task_larger_than_any_of_the_bank(observation, split_action, order):
    bank = Bank((tiny_task(splits_allowed=split_action),), split_action=split_action)
    scalar, ours = pair(bank, 3, observation=observation, order=order, reward="dense", simulator=PoolingMs())
    reset_alike(scalar, ours, seed=1)
    play_alike(scalar, ours, 2)
    for tables, envs in ((8, [0, 1]), (9, [0, 1]), (20, [1, 2]), (5, [0]), (8, [2])):
        task = larger_task(tables, objective="iteration", splits_allowed=split_action)
        reset_alike(scalar, ours, mask=np.isin(range(3), envs), task=task)
        play_alike(scalar, ours, 4)  # others are still at the tasks before
        reset_alike(scalar, ours, mask=np.isin(range(3), 1), task=tiny_task(splits_allowed=split_action))
    play_alike(scalar, ours, 40)


def test_given_tasks_are_forgotten_when_nobody_plays_them():
    env = ShardingVectorEnv(ShardingEnv([tiny_task()], simulator=PoolingMs()), 2)
    env.reset(seed=0)
    for i in range(50):
        env.reset(options={"task": larger_task(8 - i % 4, name=str(i)), "reset_mask": np.array([True, i % 2 == 0])})
    assert env._shelf.num_slots <= 4 and len(env._shelf.rows.node) < 100


def test_make_vec_takes_every_id_and_the_arguments():
    for suite in suites.SUITES.values():
        assert gym.spec(suite.env_id).vector_entry_point == "shard_gym.envs.vector_env:make_vector_env"
    env = gym.make_vec("ShardGym-Core-60x4", num_envs=6, split="test", observation="full", autoreset_mode="SameStep")
    assert isinstance(env, ShardingVectorEnv)
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP and env.spec.id == "ShardGym-Core-60x4"
    assert env.action_space == gym.spaces.MultiDiscrete([4] * 6) and env.single_action_space.n == 4
    shown, info = env.reset(seed=1)
    assert shown in env.observation_space and info["action_mask"].shape == (6, 4)
    assert all({k: v[i] for k, v in shown.items()} in env.single_observation_space for i in range(6))
    sync = gym.make_vec("ShardGym-Core-60x4", num_envs=6, vectorization_mode="sync", split="test", observation="full")
    assert sync.single_observation_space == env.single_observation_space


def ends(env):
    """The infos of the step in which three tables are placed by three environments."""
    env.reset(seed=0)
    for actions in ([0, 0, 0], [1, 1, 0], [1, 0, 0]):
        result = env.step(actions)
    return result


def tiny_vector(task=None, num_envs=3, mode="NextStep", copy=True, **settings):
    env = ShardingEnv([task or tiny_task()], **{"simulator": PoolingMs(), "info": "full", **settings})
    return ShardingVectorEnv(env, num_envs, mode, copy)


def test_ends_by_hand():
    _, rewards, terminated, truncated, info = ends(tiny_vector())
    assert rewards.tolist() == [0.75, 0.4, -0.5]  # 4 | 3 ms, 5 | 2 ms, and three tables where two fit
    assert terminated.all() and not truncated.any()
    assert info["makespan"].tolist() == [4, 5, 7] and info["feasible"].tolist() == [True, True, False]
    assert [plan.device for plan in info["plan"]] == [(1, 1, 0), (0, 1, 0), (0, 0, 0)]
    assert info["_plan"].all() and info["task"].tolist() == [tiny_task().hash] * 3
    assert info["latency"][0].compute.tolist() == [4, 3]


def test_one_call_of_the_simulator_however_many_end():
    class Counting(PoolingMs):
        calls = 0

        def decode(self, task, sums):
            self.calls += 1
            return super().decode(task, sums)

    # "full" asks in each step about the chosen devices, "ahead" about all of them too
    for observation, calls in (("table", 1), ("full", 4), ("flat", 4), ("ahead", 7)):
        env = tiny_vector(num_envs=500, simulator=Counting(), observation=observation)
        env.reset(seed=0)
        env.simulator.calls = 0
        for _ in range(3):
            env.step(np.zeros(500, int))
        assert env.simulator.calls == calls


def test_what_is_told_of_ends_stays_what_it_was():
    env = tiny_vector(mode="SameStep")
    _, _, _, _, info = ends(env)
    for _ in range(3):
        env.step([1, 1, 1])  # the next episode does not change what is told of the last one
    assert [plan.device for plan in info["final_info"]["plan"]] == [(1, 1, 0), (0, 1, 0), (0, 0, 0)]
    assert [shown[-1] for shown in info["final_obs"]] == [1, 1, 1]


def test_gymnasiums_wrappers_take_it():
    told = ends(DictInfoToList(tiny_vector()))[4]
    assert told[2]["plan"].device == (0, 0, 0) and told[2]["feasible"] == False  # noqa: E712  # not None
    for mode in MODES:
        env = RecordEpisodeStatistics(tiny_vector(mode=mode))
        assert ends(env)[4]["episode"]["r"].tolist() == pytest.approx([0.75, 0.4, -0.5])


@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_what_is_returned_belongs_to_the_caller_unless_told_otherwise(observation):
    def arrays(result):
        shown, *others, info = result
        return [*(shown.values() if isinstance(shown, dict) else [shown]), *others, *info.values()]

    env, other = (tiny_vector(observation=observation, mode="SameStep") for _ in range(2))
    for step in (lambda e: e.reset(seed=0), *(lambda e: e.step(np.array([0, 1, 1])) for _ in range(7))):
        result = step(env)
        assert_same(step(other), result)
        for array in arrays(result):
            if isinstance(array, np.ndarray) and array.dtype != object and array.flags.writeable:
                array[...] = 77


def test_what_stays_as_it_is_is_shown_by_the_same_arrays_until_an_episode_begins():
    env = tiny_vector(observation="set", mode="SameStep")
    first = env.reset(seed=0)[0]
    before = {name: values.copy() for name, values in first.items()}
    second = env.step(np.array([0, 1, 1]))[0]
    stays = {name for name in first if first[name] is second[name]}
    assert stays == {"tables", "sizes", "order", "capacity", "speed"}
    assert not any(first[name].flags.writeable for name in stays)
    for _ in range(9):
        last = env.step(np.array([0, 1, 1]))[0]
    assert_same(before, first)  # whatever follows
    assert not any(first[name] is last[name] for name in stays)


@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_without_copies_observations_are_written_over(observation):
    shared, other = (tiny_vector(observation=observation, copy=copy) for copy in (False, True))
    first, expected = shared.reset(seed=0)[0], other.reset(seed=0)[0]
    assert_same(expected, first)
    then = shared.step([0, 1, 0])[0]
    assert_same(other.step([0, 1, 0])[0], then)
    key = {"full": "devices", "ahead": "ahead", "set": "placement"}.get(observation)
    assert np.shares_memory(first[key], then[key]) if key else first is then


def test_environments_never_seeded_draw_seeds_and_seeds_count_up():
    env = ShardingVectorEnv(ShardingEnv("dlrm-10x2", reward="balance"), 40)
    env.reset()
    drawn = env._states.slot.copy()
    assert len(set(drawn.tolist())) > 5
    env.reset(seed=3)
    counted = env._states.slot.copy()
    env.reset(seed=[3 + i for i in range(40)])
    assert (env._states.slot == counted).all() and (counted != drawn).any()
    env.reset(seed=[None] * 39 + [3])  # the others go on to their second episode
    assert env._states.slot[39] == counted[0] and (env._states.slot[:39] != counted[:39]).any()


def test_rendering_shows_each_environment():
    scalar, ours = pair([tiny_task()], 2, simulator=PoolingMs(), render_mode="ansi")
    reset_alike(scalar, ours, seed=0)
    play_alike(scalar, ours, 2)
    assert ours.render() == scalar.render()
