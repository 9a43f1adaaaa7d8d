import pytest

from anytpu.planning import hlo
from anytpu.planning.memory.liveness import Peak, peak_of
from planning.hlo.saved import module

KIB = 1024


def peak(body: str, more: str = "", header: str = "") -> Peak:
    """Return the peak of an entry whose arrays are f32[256], 1 KiB."""
    text = f"HloModule m, is_scheduled=true{header}\n{more}\nENTRY %main (x: f32[256]) -> f32[256] {{\n{body}\n}}\n"
    return peak_of(hlo.parse(text))


def held(peak: Peak) -> list[str]:
    return [buffer.instruction.name for buffer in peak.held]


A = "f32[256]{0}"
X = f"  %x = {A} parameter(0)\n"


def test_an_array_is_there_until_it_is_read_for_the_last_time():
    found = peak(
        X + f"  %a = {A} negate(%x)\n  %b = {A} negate(%a)\n  %c = {A} negate(%b)\n  ROOT %d = {A} add(%c, %x)"
    )
    assert (found.bytes, found.at, held(found)) == (3 * KIB, "b", ["x", "a", "b"])
    longer = peak(
        X + f"  %a = {A} negate(%x)\n  %b = {A} negate(%x)\n  %c = {A} negate(%b)\n  ROOT %d = {A} add(%c, %a)"
    )
    assert (longer.bytes, longer.at) == (4 * KIB, "c")


def test_what_makes_no_array_takes_no_room():
    found = peak(
        X + f"  %a = {A} negate(%x)\n  %t = ({A}, {A}) tuple(%a, %a)\n"
        f"  %g = {A} get-tuple-element(%t), index=1\n  ROOT %b = {A} bitcast(%g)"
    )
    assert (found.bytes, held(found)) == (2 * KIB, ["x", "a"])
    assert [(buffer.argument, buffer.result) for buffer in found.held] == [(0, None), (None, 0)]


def test_padding_counts_and_other_memories_do_not():
    found = peak(
        X + "  %a = f32[256]{0:S(1)} negate(%x)\n  %b = f32[1,1]{1,0:T(8,128)} slice(%a)\n"
        "  ROOT %c = f32[]{:T(128)} f(%b)"
    )
    assert (found.bytes, held(found)) == (KIB + 4096 + 512, ["x", "b", "c"])


def test_an_update_in_place():
    config = ', backend_config={"aliasing_operands":{"lists":[{"indices":["0","1"]}]}}'
    found = peak(X + f"  %a = {A} negate(%x)\n  ROOT %b = {A} fusion(%a), kind=kLoop, calls=%f{config}")
    assert found.bytes == 2 * KIB


def test_a_donated_argument_takes_the_result():
    body = X + f"  %a = {A} negate(%x)\n  ROOT %b = {A} negate(%a)"
    donated = ", input_output_alias={ {}: (0, {}, may-alias) }, entry_computation_layout={()}"
    assert (peak(body).bytes, peak(body, header=donated).bytes) == (3 * KIB, 2 * KIB)


LOOP = f"""
%condition (c: (s32[], {A})) -> pred[] {{
  %c = (s32[], {A}) parameter(0)
  ROOT %p = pred[] custom-call(%c)
}}

%body (b: (s32[], {A})) -> (s32[], {A}) {{
  %b = (s32[], {A}) parameter(0)
  %i = s32[] get-tuple-element(%b), index=0
  %y = {A} get-tuple-element(%b), index=1
  %u = {A} negate(%y)
  %v = {A} negate(%u), metadata={{op_name="jit(f)/while/body/dense/neg"}}
  ROOT %t = (s32[], {A}) tuple(%i, %v)
}}
"""


def test_a_loop_keeps_what_it_carries_in_place():
    found = peak(
        X + f"  %zero = s32[] constant(0)\n  %a = {A} negate(%x)\n  %init = (s32[], {A}) tuple(%zero, %a)\n"
        f"  %loop = (s32[], {A}) while(%init), condition=%condition, body=%body\n"
        f"  ROOT %r = {A} get-tuple-element(%loop), index=1",
        LOOP,
    )
    # The argument, what is carried, what a turn makes before it fills what is carried, and the counter.
    assert (found.bytes, found.at, held(found)) == (3 * KIB + 4, "u", ["x", "zero", "a", "u"])
    (carried,) = (buffer for buffer in found.held if buffer.instruction.name == "a")
    assert carried.writer is not None and carried.writer.name == "v"


def test_of_a_conditional_the_branch_that_needs_most():
    branches = f"""
%small (s: {A}) -> {A} {{
  %s = {A} parameter(0)
  ROOT %s1 = {A} negate(%s)
}}

%large (l: {A}) -> {A} {{
  %l = {A} parameter(0)
  %l1 = f32[2560]{{0}} broadcast(%l)
  ROOT %l2 = {A} reduce(%l1)
}}
"""
    body = (
        X
        + f"  %p = pred[] constant(1)\n  ROOT %c = {A} conditional(%p, %x, %x), branch_computations={{%small, %large}}"
    )
    found = peak(body, branches)
    assert (found.bytes, found.at) == (12 * KIB + 1, "l1")


def test_slices_that_lie_side_by_side_are_one_array():
    call = 'custom_call_target="ConcatBitcast"'
    found = peak(
        X + f"  %a = {A} negate(%x)\n  %b = {A} negate(%x)\n  %c = f32[512]{{0}} custom-call(%a, %b), {call}\n"
        "  ROOT %d = f32[1]{0} reduce(%c)"
    )
    assert (found.bytes, held(found)) == (3 * KIB + 4, ["x", "a", "b", "d"])


@pytest.mark.parametrize(
    ("name", "peak_bytes", "sum_bytes"),
    [
        # As the compiler gave them for the whole program; the text is its ENTRY.
        ("cnn_v3_entry", 220966912, 221254656),
        ("cnn_v4_entry", 142075904, 117238784),
        ("reduce_scatter_v5e", 10485760, 5242880),
        ("nested_loops_v5e", 2937856, 1950208),
        ("flash_attention_v5e", 29360640, 8388608),
        ("precisions_v5e", 11076096, 7406080),
    ],
)
def test_the_peak_is_the_compilers(name: str, peak_bytes: int, sum_bytes: int):
    assert 0.95 <= peak_of(module(name)).bytes / min(peak_bytes, sum_bytes) <= 1.0
