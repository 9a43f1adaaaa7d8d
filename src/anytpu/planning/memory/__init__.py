"""What a program needs of a device's memory."""

from anytpu.planning.memory.need import memory_of, need_bytes

__all__ = ["memory_of", "need_bytes"]
