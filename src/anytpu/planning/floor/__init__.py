"""The least that a step takes, from the FLOPs and bytes of its jaxpr, without the TPU's compiler."""

from anytpu.planning.floor.floor import by_floor

__all__ = ["by_floor"]
