"""Pools of 2-byte weights: the bytes and times that tests work out by hand are theirs."""

from functools import partial

from shard_gym.tables.pool import make_pool

fp16_pool = partial(make_pool, dtype="fp16")
