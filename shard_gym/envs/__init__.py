"""Environments: one episode as `ShardingEnv`, many at once as `ShardingVectorEnv`."""
