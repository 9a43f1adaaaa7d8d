"""The command `anytpu port`."""
