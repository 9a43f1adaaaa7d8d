"""Time one job on every system of this machine, for comparison."""

from anytpu.bench.compare import compare
from anytpu.bench.jobs import JOBS, Job, Task

__all__ = ["JOBS", "Job", "Task", "compare"]
