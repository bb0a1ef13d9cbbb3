"""FlexShard's world (MLSys 2024): rows of sequence tables in tiers, and what memory and networks make of them."""

NAMES = ("4x8", "RM")  # banks of tasks; their ids are ShardGym-Flex-<name>
