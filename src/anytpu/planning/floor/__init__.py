"""The minimum time of a step, from the FLOPs and bytes of its jaxpr, without the TPU's compiler."""

from anytpu.planning.floor.floor import by_floor, least_step_s
from anytpu.planning.floor.work import work_of

__all__ = ["by_floor", "least_step_s", "work_of"]
