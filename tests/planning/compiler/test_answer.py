from __future__ import annotations

import pytest

from anytpu.planning.compiler.answer import OutOfMemory, answer_of

GIB, MIB = 2**30, 2**20

# As libtpu has written it on TPUs, shortened: a header, totals, and the largest allocations.
LISTED = """RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. \
Used 63.80G of 30.75G hbm. Exceeded hbm capacity by 33.05G.

Total hbm usage >= 65.05G:
    reserved          1.25G
    program          63.80G
    arguments            0B

Program hbm requirement 63.80G:
    HLO temp         63.79G (100.0% utilization: Unpadded (63.58G) Padded (63.58G), 0.3% fragmentation (210.89M))

  Largest program allocations in hbm:

  1. Size: 2.00G
     Operator: op_name="jit(step)/jvp(model)/h/0/dot_general[precision=None]" source_file="model.py" source_line=10
     Shape: f32[32,4096,4096]{1,2,0:T(8,128)}
     Unpadded size: 2.00G
     XLA label: fusion.1265.remat3 = fusion(custom-call.224), kind=kOutput, calls=fused_computation.957
     Allocation type: HLO temp
     ==========================

  2. Size: 124.00M
     Shape: f32[512,245,256]{2,1,0:T(8,128)}
     Unpadded size: 122.50M
     Extra memory due to padding: 1.50M (1.0x expansion)
     Allocation type: HLO temp
     ==========================
"""


def shortage(said: str) -> OutOfMemory | None:
    answer = answer_of({"said": said, "compiler": "libtpu 0.0.51", "compile_s": 1.5}, b"")
    assert answer is None or isinstance(answer, OutOfMemory)
    return answer


def test_totals_and_the_largest_allocations():
    found = shortage(LISTED)
    assert found is not None
    assert (found.needed_bytes, found.limit_bytes) == (round(63.8 * GIB), round(30.75 * GIB))
    assert found.allocations == (
        (2 * GIB, "f32[32,4096,4096]{1,2,0:T(8,128)}", "jit(step)/jvp(model)/h/0/dot_general[precision=None]"),
        (124 * MIB, "f32[512,245,256]{2,1,0:T(8,128)}", ""),
    )
    assert found.said.startswith("RESOURCE_EXHAUSTED: XLA:TPU compile permanent error.")
    assert found.said.endswith("  Largest program allocations in hbm:\n")


@pytest.mark.parametrize(
    ("said", "needed_bytes", "limit_bytes"),
    [
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (32.00G) "
            "exceeds available HBM (15.75G).",
            32 * GIB,
            round(15.75 * GIB),
        ),
        ("CompileTimeHbmOom: Used 215.17G of 31.25G hbm. Exceeded", round(215.17 * GIB), round(31.25 * GIB)),
        ("Requires 3.47E, has 14.49G available.", round(3.47 * 2**60), round(14.49 * GIB)),
        ("Ran out. Used 8.5M of 512B hbm.", round(8.5 * MIB), 512),
    ],
)
def test_each_form(said: str, needed_bytes: int, limit_bytes: int):
    found = shortage(said)
    assert found is not None
    assert (found.needed_bytes, found.limit_bytes, found.allocations) == (needed_bytes, limit_bytes, ())


@pytest.mark.parametrize(
    "said",
    [
        "INVALID_ARGUMENT: Custom emitter for lapack_sgesdd_ffi not found",
        "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem. Used 17.00M of 16.00M vmem.",
        "RESOURCE_EXHAUSTED: Ran out of memory in memory space smem. Used 1.00M of 1.00M smem.",
    ],
)
def test_what_is_not_about_the_main_memory(said: str):
    assert shortage(said) is None
