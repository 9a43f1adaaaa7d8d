"""The memory of a device that a program needs."""

from anytpu.planning.memory.batch_padding import batch_padding_of
from anytpu.planning.memory.need import memory_of, need_bytes, with_next_batch

__all__ = ["batch_padding_of", "memory_of", "need_bytes", "with_next_batch"]
