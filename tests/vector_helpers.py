"""A vector environment beside scalar ones of the same seeds and actions: nothing may differ, to the last bit."""

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from shard_gym.envs.env import ShardingEnv
from shard_gym.envs.vector_env import ShardingVectorEnv
from shard_gym.simulators import Latency

MODES = tuple(mode.value for mode in AutoresetMode)


def pair(tasks, num_envs, mode="NextStep", **settings):
    """Scalar environments one after the other, and ours; infos tell all they can unless told otherwise."""
    settings = {"info": "full", **settings}
    scalar = SyncVectorEnv([lambda: ShardingEnv(tasks, **settings)] * num_envs, autoreset_mode=AutoresetMode(mode))
    return scalar, ShardingVectorEnv(ShardingEnv(tasks, **settings), num_envs, mode)


def parts(value):
    """Parts of a dict, a tuple, an array of objects or a Latency; None of anything else."""
    if isinstance(value, dict):
        return value
    if isinstance(value, Latency):
        return vars(value)
    several = isinstance(value, tuple) or (isinstance(value, np.ndarray) and value.dtype == object)
    return dict(enumerate(value)) if several else None


def assert_same(theirs, ours, where="result"):
    """Equal in kind, shape and every bit."""
    held, ours_held = parts(theirs), parts(ours)
    if held is not None:
        assert held.keys() == ours_held.keys(), where
        for key in held:
            assert_same(held[key], ours_held[key], f"{where} {key}")
    elif isinstance(theirs, np.ndarray):
        assert theirs.dtype == ours.dtype, where
        np.testing.assert_array_equal(theirs, ours, where)
    else:
        assert type(theirs) is type(ours) and theirs == ours, where


def reset_alike(scalar, ours, seed=None, mask=None, **options):
    """Reset both; where a mask leaves environments out, ours tells the masks of those too."""
    some = {} if mask is None else {"reset_mask": mask}
    theirs = scalar.reset(seed=seed, options=options | some)
    result = ours.reset(seed=seed, options=options | some)
    told = np.ones(ours.num_envs, bool) if mask is None else mask
    assert_same(theirs[0], result[0])
    assert_same(theirs[1]["_action_mask"], told)
    assert_same(theirs[1]["action_mask"][told], result[1]["action_mask"][told])
    assert_same(np.stack(scalar.call("action_masks")), ours.action_masks())


def chosen(ours, rng):
    """Actions that mostly keep to the masks."""
    masks = ours.action_masks()
    anything = rng.random((ours.num_envs, 1)) < 0.3
    return (rng.random(masks.shape) * (masks | anything)).argmax(axis=1)


def play_alike(scalar, ours, steps, rng=None):
    """Play the same in both, reset before; how many episodes ended."""
    rng, ended = rng or np.random.default_rng(0), 0
    for _ in range(steps):
        actions = chosen(ours, rng)
        theirs, result = scalar.step(actions), ours.step(actions)
        assert_same(theirs, result)
        assert_same(np.stack(scalar.call("action_masks")), ours.action_masks())
        over = result[2]
        ended += over.sum()
        if ours.metadata["autoreset_mode"] == AutoresetMode.DISABLED and over.any():
            reset_alike(scalar, ours, mask=over)
    return ended
