"""The `shard-gym` command and its parts."""
