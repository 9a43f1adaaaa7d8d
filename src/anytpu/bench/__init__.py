"""The same job on every system that a machine has, side by side."""

from anytpu.bench.compare import Job, Task, compare
from anytpu.bench.jobs import JOBS

__all__ = ["JOBS", "Job", "Task", "compare"]
