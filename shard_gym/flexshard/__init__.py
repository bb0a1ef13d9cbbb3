"""FlexShard (MLSys 2024): rows of sequence tables in tiers, and their costs in memory and on networks."""

NAMES = ("4x8", "RM")  # banks of tasks; their ids are ShardGym-Flex-<name>
