"""Split actions by example: queue, masks, observations, rewards and plans checked by hand."""

import gymnasium as gym
import numpy as np
import pytest

from shard_gym.envs.bank import Bank
from shard_gym.envs.env import BadAction, ShardingEnv
from shard_gym.envs.episodes import FIXED_ORDERS
from shard_gym.envs.observations import SPLIT_OBSERVATIONS
from shard_gym.errors import InvalidTask
from shard_gym.plan.nodes import Nodes
from shard_gym.plan.plan import Plan
from shard_gym.results.evaluate import score
from shard_gym.simulators import FastSimulator, Latency
from shard_gym.task.task import Constraints, Task
from tests.env_helpers import PoolingMs, Slow, play, play_where_it_fits, split_env
from tests.pool_helpers import fp16_pool as make_pool

SPLIT = 2  # on two devices
HALF = 100 * 8 * 2  # bytes


class ColumnsMs(FastSimulator):
    """A table costs as many milliseconds as it has columns, or a hundredth of that upside down."""

    def __init__(self, upside_down=False):
        self.id, self.upside_down = "columns-ms", upside_down

    def embed(self, task):
        dim = task.tables.dim[:, None].astype(np.float64)
        return 64 / dim if self.upside_down else dim

    def decode(self, task, sums):
        ms = sums[..., 0]
        return Latency(ms, np.zeros_like(ms), np.zeros_like(ms), np.zeros_like(ms))


def one_table(**settings):
    """16 columns, 4 ms whole or halved; a device has room for one half."""
    return Task(
        make_pool(rows=[100], dim=16, pooling=[4]), **{"memory": (HALF,) * 2, "splits_allowed": True, **settings}
    )


def columns(*dims, **settings):
    """Tables of 1 ms with these columns, on two roomy devices."""
    pool = make_pool(rows=[100] * len(dims), dim=dims, pooling=1)
    return Task(pool, **{"memory": (10**6,) * 2, "splits_allowed": True, **settings})


def masks(env, actions):
    """The masks of an episode as far as these actions go."""
    first = env.reset(seed=0)[1]["action_mask"]
    return [first.tolist(), *(env.step(action)[4]["action_mask"].tolist() for action in actions)]


def test_one_table_on_two_devices_by_hand():
    env = split_env(one_table())
    assert env.action_space == gym.spaces.Discrete(3)
    assert masks(env, [SPLIT, 0, 1]) == [[0, 0, 1], [1, 1, 1], [0, 1, 1], [1, 1, 0]]
    seen, rewards, info = play(env, [SPLIT, 0, 1])
    assert [shown[0] for shown in seen] == [16, 8, 8, 0]
    assert [shown[21] for shown in seen] == [0, 0, 0.5, 1]
    assert rewards == [0.0, 0.0, 1.0]
    assert info["plan"] == Plan((0, 1), splits=(0,))
    assert (info["makespan"], info["balance"], info["feasible"]) == (4.0, 1.0, True)
    assert score(one_table(), info["plan"], PoolingMs()).makespan == 4.0


def test_the_first_half_keeps_the_number_and_the_second_takes_the_next():
    # halves 0 and 1 wait; 0 becomes two quarters, 0 and 2, which wait behind 1
    assert play(split_env(one_table()), [SPLIT, SPLIT, 0, 1, 1])[2]["plan"] == Plan((1, 0, 1), splits=(0, 0))
    # 0 becomes 0 and 2, these become 0, 3, 2, 4; then table 1
    plan = play(split_env(columns(16, 16)), [SPLIT, SPLIT, SPLIT, 0, 0, 1, 0, 1])[2]["plan"]
    assert plan == Plan((0, 1, 1, 0, 0), splits=(0, 0, 2))


def test_rewards_by_hand():
    assert play(split_env(one_table(), reward="latency"), [SPLIT, 0, 1])[1] == [0.0, 0.0, -1.0]
    assert play(split_env(one_table(), reward="dense"), [SPLIT, 0, 1])[1] == [0.0, -1.0, 0.0]
    # both halves on one device take 8 ms, held to be no worse than the whole table there
    roomy = one_table(memory=(2 * HALF,) * 2)
    _, rewards, info = play(split_env(roomy, reward="latency"), [SPLIT, 0, 0])
    assert (rewards[-1], info["makespan"], info["feasible"]) == (-1.0, 8.0, True)
    pinned = one_table(memory=(10**6,) * 2, constraints=Constraints(pin=((0, 1),)))
    for task, actions in ((one_table(), [SPLIT, 0, 0]), (pinned, [0])):
        _, rewards, info = play(split_env(task, reward="latency"), actions)
        assert (rewards[-1], info["feasible"]) == (-2.0, False)  # twice the bytes there are; not where it is pinned


def test_three_halvings_at_most_and_columns_stay_a_multiple_of_4():
    for dim, most in [(4, 0), (12, 0), (8, 1), (24, 1), (16, 2), (32, 3), (64, 3), (768, 3)]:
        nodes = Nodes.of(columns(dim), split_action=True)
        assert nodes.pieces.tables.dim.tolist() == [dim >> level for level in range(most + 1)]


def test_what_must_not_be_split_has_no_halves():
    task = columns(32, 32, constraints=Constraints(no_split=(0,)))
    assert Nodes.of(task, split_action=True).table.tolist() == [0, 1, 1, 1, 1]
    assert Nodes.of(task, split_action=False).pieces is task
    assert masks(split_env(task), [0]) == [[1, 1, 0], [1, 1, 1]]
    assert masks(split_env(columns(32, splits_allowed=False)), [SPLIT]) == [[1, 1, 0], [1, 1, 0]]


def test_an_illegal_split_goes_to_the_device_with_the_most_room():
    roomier = columns(4, 4, 4, memory=(1000, 2000))  # 800 bytes each
    assert play(split_env(roomier), [SPLIT] * 3)[2]["plan"] == Plan((1, 1, 0))
    alike = columns(4, 4, memory=(1600, 1600))
    assert play(split_env(alike), [SPLIT] * 2)[2]["plan"] == Plan((0, 1))


def test_where_a_table_fits_nowhere_only_the_split_is_legal_if_it_is():
    env = split_env(columns(16, 4, memory=(100, 100)))
    assert masks(env, [SPLIT, SPLIT, SPLIT]) == [[0, 0, 1]] * 3 + [[1, 1, 0]]  # 16, 8, 8, then quarters
    assert env.action_masks().tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("cost", [(100, 80), (300, 40), (100, 40), (100, 40)]),
        ("size", [(300, 40), (100, 80), (300, 20), (300, 20)]),
        ("given", [(300, 40), (300, 20), (300, 20), (100, 80)]),
    ],
)
def test_halves_wait_their_turn(order, expected):
    task = Task(make_pool(rows=[300, 100], dim=[40, 80]), memory=(10**6,) * 2, splits_allowed=True)
    seen, _, _ = play(split_env(task, order=order, simulator=ColumnsMs()), [SPLIT, 0, 0, 0])
    assert [(int(shown[1]), int(shown[0])) for shown in seen[:-1]] == expected


def test_a_half_that_costs_more_still_comes_after_what_it_is_half_of():
    bank = Bank((columns(8, 16),), split_action=True)
    dear_halves = bank.prepared(bank.tasks[0], ColumnsMs(upside_down=True))
    assert dear_halves.alone.tolist() == [8, 16, 4, 8, 16]
    assert FIXED_ORDERS["cost"](dear_halves).tolist() == [0, 1, 2, 3, 4]


def test_full_observation_by_hand():
    env = split_env(one_table(), observation="full")
    shown, _ = env.reset(seed=0)
    assert shown["remaining"].tolist() == [1, 1, 1, 1, 1]
    shown, *_ = env.step(SPLIT)
    assert shown["remaining"].tolist() == [2, 2, 1, 1, 1]  # two pieces of 4 ms
    assert not shown["devices"][:, [0, 2, 4]].any()
    shown, *_ = env.step(0)
    assert shown["remaining"].tolist() == [1, 1, 0.5, 0.5, 1]
    assert shown["devices"].tolist() == [[1, 0, 2, 1, 2], [0, 1, 0, 1, 0]]
    assert shown["action_mask"].tolist() == [0, 1, 1]
    shown, *_ = env.step(1)
    assert not shown["remaining"].any()


def test_the_dearest_left_is_the_next_or_a_whole_table():
    pool = make_pool(rows=[100] * 3, dim=16, pooling=[2, 8, 4])
    env = split_env(Task(pool, memory=(10**6,) * 2, splits_allowed=True), observation="full", order="given")
    seen, _, _ = play(env, [SPLIT, 0, 0, SPLIT, 0, 0, 0])
    assert [shown["remaining"][4] for shown in seen] == [1, 1, 1, 1, 1, 1, 0.5, 0]


def test_set_observation_by_hand():
    short, long = one_table(), columns(8, 4, 4, 4, memory=(HALF,) * 2)
    bank = Bank((short, long), split_action=True)
    env = ShardingEnv(bank, observation="set", simulator=PoolingMs())
    env.reset(options={"task": short})
    env.step(SPLIT)
    shown, *_ = env.step(1)
    assert shown in env.observation_space
    assert shown["tables"][:, 0].tolist() == [16, 8, 4, 0, 0]
    assert shown["sizes"].tolist() == [2, 1, 0.5, 0, 0]
    assert shown["left"].tolist() == [0, 1, 0, 0, 0]
    assert shown["placed"].tolist() == [[0, 0], [0, 1], [0, 0], [0, 0], [0, 0]]
    assert shown["order"].tolist() == [0, 1, 2, -1, -1]
    assert shown["position"].tolist() == [1]
    shown, *_ = env.step(1)
    assert (shown["left"].sum(), shown["placed"].tolist()[1], shown["position"].tolist()) == (0, [0, 2], [3])
    with pytest.raises(InvalidTask, match="5 tables and halves at most, not 6"):
        env.reset(options={"task": columns(16, 16)})


def test_every_half_keeps_its_optimizer_state():
    task = one_table(optimizer="rowwise_adagrad", accounting="training", memory=(HALF + 400,) * 2)
    assert masks(split_env(task), [SPLIT, 0]) == [[0, 0, 1], [1, 1, 1], [0, 1, 1]]
    assert play(split_env(task), [SPLIT, 0, 1])[2]["feasible"]
    one_less = one_table(optimizer="rowwise_adagrad", accounting="training", memory=(HALF + 399,) * 2)
    assert not play(split_env(one_less), [SPLIT, 0, 1])[2]["feasible"]


@pytest.mark.parametrize("reward", ["balance", "latency", "dense"])
@pytest.mark.parametrize("observation", ["table", "set"])
def test_a_simulator_that_is_not_fast_gives_the_same(observation, reward):
    settings = {"observation": observation, "reward": reward}
    fast, slow = (play(split_env(one_table(), simulator=s, **settings), [SPLIT, 0, 1]) for s in (PoolingMs(), Slow()))
    assert (str(fast[0]), fast[1], fast[2]["plan"]) == (str(slow[0]), slow[1], slow[2]["plan"])


def test_actions_that_are_none_are_refused_and_change_nothing():
    env = split_env(one_table())
    env.reset(seed=0)
    for action in (3, -1, "split", 2.0):
        with pytest.raises(BadAction, match=r"choose a device, 0\.\.1, or 2 to split the table"):
            env.step(action)
    assert [env.step(a)[1] for a in (np.int64(SPLIT), 0, 1)] == [0.0, 0.0, 1.0]


def test_rendering_tells_the_half():
    env = split_env(one_table(), render_mode="ansi")
    env.reset(seed=0)
    env.step(SPLIT)
    env.step(1)
    assert "next: '1/2 of table_0' (100 rows of 8, pooling 4.0" in env.render()
    assert env.render().endswith("2 of 2")


@pytest.mark.parametrize("observation", SPLIT_OBSERVATIONS)
def test_what_is_returned_belongs_to_the_caller(observation):
    env = ShardingEnv("mixed-10to59x4-split", observation=observation)
    untouched = str(env.reset(seed=0))
    shown, info = env.reset(seed=0)
    for array in (*(shown.values() if isinstance(shown, dict) else [shown]), info["action_mask"]):
        array[...] = 0
    assert str((shown, info)) != untouched
    assert str(env.reset(seed=0)) == untouched


def test_a_table_larger_than_every_device_is_placed_in_pieces():
    split, plain = (gym.make(f"ShardGym-Mixed-20to119x8{end}", info="full").unwrapped for end in ("-Split", ""))
    index = next(i for i, t in enumerate(split.bank.tasks) if t.tables.weight_bytes.max() > max(t.memory))
    _, info = play_where_it_fits(split, options={"task": split.bank.tasks[index]})
    assert info["plan"].splits and info["task"] == split.bank.tasks[index].hash
    assert info["feasible"]
    assert not play_where_it_fits(plain, options={"task": plain.bank.tasks[index]})[1]["feasible"]
