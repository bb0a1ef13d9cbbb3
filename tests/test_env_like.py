import warnings

import numpy as np
import pytest

from shard_gym import env_for, suites
from shard_gym.envs.env import ShardingEnv
from shard_gym.errors import FeaturesUnscaled


@pytest.mark.parametrize("key", ["core-60x4", "tight-80x8", "metasyn-80x8"])
def test_a_task_is_shown_and_paid_as_by_its_suite(key):
    suite = suites.get(key)
    task = suite.tasks("val")[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error", FeaturesUnscaled)
        own, known = env_for(task, key, observation="full"), ShardingEnv(suite, "val", observation="full")
    seen = [env.reset(seed=0, options={"task": task})[0] for env in (own, known)]
    for device in range(5):
        assert all(np.array_equal(seen[0][name], seen[1][name]) for name in seen[0])
        seen = [env.step(device % suite.num_devices)[0] for env in (own, known)]
    assert (own.reward, own.order, own.simulator.id) == (known.reward, known.order, known.simulator.id)


def test_unscaled_features_are_warned_of_where_the_environment_is_made():
    task = suites.get("core-60x4").tasks("val")[0]
    with pytest.warns(FeaturesUnscaled, match=r"env_for\(task, suite\)") as told:
        ShardingEnv([task])
    assert told[0].filename == __file__
