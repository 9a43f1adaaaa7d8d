"""The real TPU compiler, in a process of its own."""
