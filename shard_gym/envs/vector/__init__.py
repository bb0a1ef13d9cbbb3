"""The parts of `ShardingVectorEnv`: many episodes as arrays, stepped together."""
