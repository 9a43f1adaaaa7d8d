"""Published measurements of TPUs as programs that the TPU's compiler compiles on a machine without one."""

from plan_cases import decode, guides, llamas, maxtext, micro_cases, mlperf, recipes, shmap_cases, tpuchat

CASES = (
    *micro_cases.CASES,
    *guides.CASES,
    *mlperf.CASES,
    *maxtext.CASES,
    *recipes.CASES,
    *llamas.CASES,
    *shmap_cases.CASES,
    *tpuchat.CASES,
    *decode.CASES,
)
"""Every case."""
