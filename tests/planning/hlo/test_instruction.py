from anytpu.planning import hlo
from anytpu.planning.hlo.instruction import element_span, result_aliases


def aliases(text: str) -> dict[int, int]:
    """Return the aliases of the last of some instructions."""
    read = hlo.parse(f"HloModule m\n\nENTRY %main (x: f32[8]) -> f32[8] {{\n{text}\n}}\n")
    *_, one = read.entry.instructions.values()
    return result_aliases(one)


X = "  %x = f32[8]{0} parameter(0)\n"


def test_what_makes_no_array():
    assert aliases(X + "  ROOT %b = f32[2,4]{1,0} bitcast(%x)") == {0: 0}
    assert aliases(X + "  ROOT %t = (f32[8]{0}, f32[8]{0}) tuple(%x, %x)") == {0: 0, 1: 1}
    assert aliases(X + "  ROOT %n = f32[8]{0} negate(%x)") == {}


def test_an_element_of_a_nested_tuple():
    made = X + "  %s = ((f32[8]{0}, f32[8]{0}), f32[4]{0}, u32[]) custom-call(%x)\n"
    assert aliases(made + "  ROOT %g = f32[4]{0} get-tuple-element(%s), index=1") == {0: 2}
    assert aliases(made + "  ROOT %g = (f32[8]{0}, f32[8]{0}) get-tuple-element(%s), index=0") == {0: 0, 1: 1}
    assert element_span("(f32[8]{0:T(8,128)}, s32[]) x(%y)", 1) == (1, 1)


def test_a_copy_and_its_done():
    start = X + "  %c = (f32[8]{0:S(1)}, f32[8]{0}, u32[]{:S(2)}) copy-start(%x)\n"
    assert aliases(start) == {1: 0}
    assert aliases(start + "  ROOT %d = f32[8]{0:S(1)} copy-done(%c)") == {0: 0}


def test_other_starts_have_what_they_took_first():
    start = X + "  %p = (f32[8]{0}, f32[8]{0}, u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%x)\n"
    assert aliases(start) == {0: 0}
    assert aliases(start + "  ROOT %d = f32[8]{0} collective-permute-done(%p)") == {0: 1}
    sliced = X + "  %s = ((f32[8]{0}), f32[4]{0:S(1)}, s32[]{:S(2)}) slice-start(%x)\n"
    assert aliases(sliced + "  ROOT %d = f32[4]{0:S(1)} slice-done(%s)") == {0: 1}
    assert aliases(X + "  ROOT %r = f32[8]{0} all-reduce-start(%x)") == {}


def test_what_the_compiler_placed():
    config = ', backend_config={"aliasing_operands":{"lists":[{"indices":["1","3"]},{"indices":["0","2"]}]}}'
    assert aliases(X + f"  ROOT %f = (f32[8]{{0}}, f32[8]{{0}}) fusion(%x, %x), calls=%body{config}") == {
        0: 0,
        1: 1,
    }
    pairs = ", output_to_operand_aliasing={{}: (1, {})}"
    assert aliases(X + f"  ROOT %f = f32[8]{{0}} fusion(%x, %x), calls=%body{pairs}") == {0: 1}
    inner = ", output_to_operand_aliasing={{1}: (0, {}), {2}: (1, {})}"
    assert aliases(X + f"  ROOT %f = (f32[8]{{0}}, f32[8]{{0}}, s32[]) fusion(%x, %x), calls=%body{inner}") == {
        1: 0,
        2: 1,
    }
