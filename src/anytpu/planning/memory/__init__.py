"""What a program needs of a device's memory."""

from anytpu.planning.memory.limits import limit_bytes
from anytpu.planning.memory.need import memory_of, need_bytes

__all__ = ["limit_bytes", "memory_of", "need_bytes"]
