"""Published measurements of TPUs as programs that the TPU's compiler compiles on a machine without one."""

from plan_cases import guides, maxtext, micro_cases, mlperf

CASES = (*micro_cases.CASES, *guides.CASES, *mlperf.CASES, *maxtext.CASES)
"""Every case."""
