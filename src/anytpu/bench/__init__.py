"""Time one job on every system of this machine, for comparison."""

from anytpu.bench.compare import Job, Task, compare
from anytpu.bench.jobs import JOBS

__all__ = ["JOBS", "Job", "Task", "compare"]
