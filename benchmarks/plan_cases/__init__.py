"""Published measurements of TPUs as programs that the TPU's compiler compiles on a machine without one."""

from plan_cases import micro_cases, mlperf

CASES = (*micro_cases.CASES, *mlperf.CASES)
"""Every case."""
