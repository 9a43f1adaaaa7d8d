"""The commands `anytpu plan`, `anytpu shard` and `anytpu kernel`."""
