"""What a program needs of a device's memory."""

from anytpu.planning.memory.need import memory_of, need_bytes
from anytpu.planning.memory.next_batch import with_next_batch

__all__ = ["memory_of", "need_bytes", "with_next_batch"]
