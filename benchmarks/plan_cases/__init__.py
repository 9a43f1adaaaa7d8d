"""Published measurements of TPUs as programs that the TPU's compiler compiles on a machine without one."""

from plan_cases import guides, maxtext, micro_cases, mlperf, shmap_cases

CASES = (*micro_cases.CASES, *guides.CASES, *mlperf.CASES, *maxtext.CASES, *shmap_cases.CASES)
"""Every case."""
