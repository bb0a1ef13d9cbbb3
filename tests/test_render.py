"""Pictures: bars of the right height and colour, steady scales, windows, videos; and the text beside them."""

import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import RecordVideo
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_gym import Task
from shard_gym.envs.drawing import DARK_BLUE, EDGE, GREEN, HEIGHT, LEFT, ORANGE, RED, picture
from shard_gym.envs.env import ShardingEnv
from shard_gym.errors import MissingDependency, ShardGymError
from shard_gym.pictures.phases import WAIT
from shard_gym.pictures.scales import in_units, round_numbers
from shard_gym.tables.pool import GB
from tests.env_helpers import TABLE_BYTES, PoolingMs, Slow, play, play_where_it_fits, split_env, tiny_env, tiny_task
from tests.pool_helpers import fp16_pool as make_pool

pygame = pytest.importorskip("pygame")
COSTS, MEMORY = slice(136, 297), slice(346, 417)  # rows of the two panels


def height_of(colour, frame, device, devices, rows):
    """Pixels of a colour in the tallest column of a device's bar (a dashed line crosses the others)."""
    width = frame.shape[1] - LEFT - EDGE
    start, end = LEFT + width * device // devices, LEFT + width * (device + 1) // devices
    return int((frame[rows, start:end] == colour).all(axis=-1).sum(axis=0).max())


def drawn(env, actions, **reset):
    """The frame after each action, the first one after reset."""
    env.reset(**reset)
    frames = [env.render()]
    for action in actions:
        env.step(action)
        frames.append(env.render())
    return frames


def equal_tables(tables, devices, **settings):
    """Tables of 4 ms each; a device has room for two."""
    pool = make_pool(rows=[100] * tables, dim=16, pooling=[4.0] * tables)
    return Task(pool, **{"memory": (2 * TABLE_BYTES,) * devices, **settings})


def test_costs_and_memory_by_hand():
    frame = drawn(tiny_env(render_mode="rgb_array"), [0, 1])[-1]  # 4 ms and 2 ms; an even share is 3.5 ms
    assert (frame.dtype, frame.shape) == (np.uint8, (HEIGHT, 640, 3))
    # 160 pixels are twice the dearest table, 8 ms; 70 are 1.3 capacities, and a device is half full
    assert [height_of(DARK_BLUE, frame, d, 2, COSTS) for d in range(2)] == [80, 40]
    assert [height_of(GREEN, frame, d, 2, MEMORY) for d in range(2)] == [27, 27]
    assert height_of(RED, frame, 0, 2, MEMORY) == 0


def test_an_iteration_shows_the_wait_for_the_slowest():
    task = tiny_task(objective="iteration")
    frame = drawn(tiny_env(task, render_mode="rgb_array"), [0, 1])[-1]
    bars = slice(COSTS.stop - 81, COSTS.stop)  # letters over them have the same grey in them
    assert [height_of(WAIT, frame, d, 2, bars) for d in range(2)] == [0, 40]  # 2 of 8 ms


def test_what_is_too_much_is_marked():
    task = equal_tables(4, 4)  # an even share is 4 ms, so the scale ends at 8 ms
    for device, frame in enumerate(drawn(tiny_env(task, render_mode="rgb_array"), [3, 3, 3, 3])[1:]):
        assert height_of(DARK_BLUE, frame, 3, 4, COSTS) >= min(160, 80 * (device + 1)) - 18  # with a label in it
        assert (height_of(RED, frame, 3, 4, MEMORY) > 0) == (device >= 2)
        arrow = (frame[127:136, LEFT:] == (20, 20, 20)).all(axis=-1).any()
        assert arrow == (device >= 1)  # from 8 ms on a label is there, from 12 ms on an arrow
        assert height_of(RED, frame, 0, 4, MEMORY) == 0


@settings(max_examples=8, deadline=None)
@given(devices=st.sampled_from([1, 2, 7, 8, 40, 128, 300]), data=st.data())
def test_a_device_is_red_exactly_when_it_is_over(devices, data):
    actions = data.draw(st.lists(st.integers(0, min(devices - 1, 5)), min_size=12, max_size=12))
    env = tiny_env(equal_tables(12, devices), render_mode="rgb_array")
    frames = drawn(env, actions)
    assert len({frame.shape for frame in frames}) == 1
    assert frames[0].shape[1] % 2 == 0
    for device in range(min(devices, 6)):
        red = [height_of(RED, frame, device, devices, slice(340, 417)) > 0 for frame in frames]
        assert red == [actions[:i].count(device) > 2 for i in range(len(frames))]


@pytest.mark.parametrize("suite", ["metasyn-80x8", "core-60x4", "hetero-80x8"])
def test_scales_do_not_move_during_an_episode(suite):
    frames = drawn(ShardingEnv(suite, render_mode="rgb_array"), [0, 1, 2, 3] * 5 + [0] * 20, seed=1)
    numbers = {frame[100:425, EDGE : LEFT - 4].tobytes() for frame in frames}
    assert len(numbers) == 1
    assert len({frame.tobytes() for frame in frames}) == len(frames)


def test_the_same_state_gives_the_same_pixels_whatever_others_do():
    first = drawn(ShardingEnv("core-60x4", render_mode="rgb_array"), range(4), seed=3)
    pygame.quit()  # as a CartPole's close does
    again = drawn(ShardingEnv("core-60x4", render_mode="rgb_array"), range(4), seed=3)
    np.testing.assert_array_equal(first, again)
    first[0][:] = 0  # frames belong to the caller
    assert again[0].any()


def test_many_devices_have_thin_bars_without_labels():
    env = ShardingEnv("prod-1000x128", render_mode="rgb_array")
    env.reset(seed=0)
    for step in range(512):
        env.step(step % 128)
    frame = env.render()
    bars = (frame[COSTS, LEFT:-EDGE] == ORANGE).all(axis=-1).any(axis=0)
    assert np.count_nonzero(np.diff(bars.astype(int)) == 1) + bars[0] == 128
    words = (frame[MEMORY, LEFT:-EDGE] == (20, 20, 20)).all(axis=-1).sum(axis=0)
    assert words.max() == 1  # the line at capacity alone


def test_the_end_says_whether_the_plan_can_be_used():
    good, bad = (drawn(tiny_env(render_mode="rgb_array"), actions)[-1] for actions in ([0, 1, 1], [0, 0, 0]))
    assert not (good[480:500] == RED).all(axis=-1).any()
    assert (bad[480:500] == RED).all(axis=-1).any()


def test_what_waits_by_hand():
    env = split_env(tiny_task(splits_allowed=True), render_mode="rgb_array")
    (whole, half) = drawn(env, [2])  # the 4 ms table, in halves
    assert (whole != half).any()
    coming = env._state.coming()
    assert (coming.name, coming.rows, coming.dim, coming.pooling) == ("1/2 of table_2", 100, 8, 4.0)
    assert (coming.size, coming.count, coming.total, coming.alone) == (TABLE_BYTES // 2, 4, 3 * TABLE_BYTES, 4.0)
    assert coming.shares.shape == (2, 17)
    for _ in range(4):
        env.step(0)
    assert env._state.coming() is None
    assert env.render().shape == half.shape


@pytest.mark.parametrize("suite", ["tightmix-80x8-split", "prod-1000x128-split"])
def test_split_suites_are_drawn(suite):
    env = ShardingEnv(suite, render_mode="rgb_array")
    frames = drawn(env, [env.num_devices] * 3 + [0, 1])
    assert len({frame.tobytes() for frame in frames}) == len(frames)


class Counting(Slow):
    """A simulator that is not fast, and counts the placements it is asked about."""

    asked = 0

    def latency(self, task, placements):
        self.asked += int(np.prod(np.shape(placements)[:-1]))
        return super().latency(task, placements)


def test_a_simulator_that_is_not_fast_is_not_asked_about_single_tables():
    simulator = Counting()
    env = tiny_env(equal_tables(40, 2), simulator=simulator, order="size", render_mode="rgb_array")
    drawn(env, [0, 1])
    assert simulator.asked == 3 + 2  # each frame's plan, and all tables on either device for the scale


def test_a_window_shows_the_same_picture():
    env = tiny_env(render_mode="human")
    env.metadata = {**env.metadata, "render_fps": 1000}
    expected = drawn(tiny_env(render_mode="rgb_array"), [0, 1])
    env.reset(seed=0)
    for action, frame in zip((0, 1, None), expected, strict=True):
        shown = pygame.surfarray.array3d(pygame.display.get_surface()).transpose(1, 0, 2)
        np.testing.assert_array_equal(shown, frame)
        if action is not None:
            env.step(action)
    assert env.render() is None
    env.close()
    assert not pygame.display.get_init()
    env.close()  # again does no harm
    env.reset()  # and opens it anew
    assert pygame.display.get_surface().get_size() == (640, HEIGHT)
    env.close()


def test_a_window_without_a_display_says_what_to_do(monkeypatch):
    pygame.display.quit()
    monkeypatch.setenv("SDL_VIDEODRIVER", "nonsense")
    with pytest.raises(ShardGymError, match='take render_mode="rgb_array", or set SDL_VIDEODRIVER=dummy'):
        tiny_env(render_mode="human").reset(seed=0)


@pytest.mark.parametrize("mode", ["rgb_array", "human"])
def test_without_pygame_the_command_is_told(monkeypatch, mode):
    monkeypatch.setitem(sys.modules, "pygame", None)
    env = tiny_env(render_mode=mode)
    with pytest.raises(MissingDependency, match=r'pip install -e ".*\[render\]"'):
        drawn(env, [])
    assert "next: 'table_2'" in drawn(tiny_env(render_mode="ansi"), [])[0]


def test_a_video_of_an_episode(tmp_path):
    pytest.importorskip("moviepy")
    from imageio_ffmpeg import count_frames_and_secs

    env = RecordVideo(tiny_env(render_mode="rgb_array"), str(tmp_path / "videos"), episode_trigger=lambda episode: True)
    play(env, [0, 1, 1], seed=0)
    env.close()
    (video,) = tmp_path.glob("videos/*.mp4")
    count, seconds = count_frames_and_secs(str(video))
    assert (count, seconds) == (4, pytest.approx(4 / env.metadata["render_fps"], abs=0.01))


@pytest.mark.filterwarnings("ignore:.*(Box observation space|unconventional shape)")
@pytest.mark.parametrize("suite", ["MetaSyn-80x8", "DLRM-20x4"])
def test_all_render_modes_pass_the_checker(suite):
    env = gym.make(f"ShardGym-{suite}", render_mode="rgb_array").unwrapped
    check_env(env)
    pygame.display.quit()


def test_own_tasks_are_drawn_to_the_end():
    env = ShardingEnv(tasks=[equal_tables(5, 3, memory=(GB, 2 * GB, 2**40))], render_mode="rgb_array")
    play_where_it_fits(env, seed=0)
    first = env.render()
    np.testing.assert_array_equal(first, picture(env._state, "ShardGym").pixels())


@given(top=st.floats(1e-9, 1e15), most=st.integers(2, 6))
def test_round_numbers_are_round_and_few(top, most):
    numbers = round_numbers(top, most)
    assert 1 <= len(numbers) <= most
    assert numbers[0] > 0 and numbers[-1] <= top * (1 + 1e-9)
    assert f"{numbers[0]:.15e}".replace(".", "").rstrip("0").split("e")[0].rstrip("0") in ("1", "2", "5")
    np.testing.assert_allclose(np.diff([0, *numbers]), numbers[0])


def test_bytes_for_people():
    told = [in_units(size) for size in (0, 1023, 1024, 3 * 2**20 + 2**19, 7.25 * GB)]
    assert told == ["0 bytes", "1.02e+03 bytes", "1 KiB", "3.5 MiB", "7.25 GiB"]


def test_pooling_ms_is_what_the_pictures_above_count_on():
    assert PoolingMs().latency(tiny_task(), np.array([0, 1, 0])).compute.tolist() == [5.0, 2.0]
