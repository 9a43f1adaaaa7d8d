"""The engine: backends, the compiled training loop, and manual device placement."""

from anytpu.engine.backend import Backend, Executable, Loop, StepResults, backend_of, open
from anytpu.engine.placement import device

__all__ = ["Backend", "Executable", "Loop", "StepResults", "backend_of", "device", "open"]
