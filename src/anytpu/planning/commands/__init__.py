"""The commands `anytpu plan`, `anytpu shard` and `anytpu check`."""
