import pytest

from anytpu.errors import PlanError
from anytpu.planning import hlo
from anytpu.planning.hlo.flops import flops_of
from anytpu.planning.hlo.instruction import result_aliases
from planning.hlo.saved import FOLDER, module, text

TWO = """HloModule twice, is_scheduled=true, num_partitions=4

%inner (p: f32[8,128]) -> f32[8,128] {
  %p = f32[8,128]{1,0:T(8,128)} parameter(0)
  ROOT %neg = f32[8,128]{1,0:T(8,128)} negate(%p)
}

ENTRY %main (x: f32[8,128]) -> f32[8,128] {
  %x = f32[8,128]{1,0:T(8,128)} parameter(0), metadata={op_name="x"}
  ROOT %fusion.1 = f32[8,128]{1,0:T(8,128)S(1)} fusion(%x), kind=kLoop, calls=%inner, metadata={op_name="jit(f)/neg"}, \
backend_config={"window_config":{"estimated_cycles":"96"}}
}
"""


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.hlo")))
def test_every_line_of_what_the_compiler_printed_is_read(name: str):
    read = module(name)
    wanted = text(name)
    count = sum(len(computation.instructions) for computation in read.computations.values())
    assert count == sum(line.startswith("  ") and " = " in line for line in wanted.split("\n"))
    for computation in read.computations.values():
        for instruction in computation.instructions.values():
            assert instruction.shapes or instruction.opcode == "tuple", instruction
            assert all(computation.instructions[operand.name] is operand for operand in instruction.operands), (
                instruction
            )
            assert name.endswith("_entry") or set(instruction.called) <= set(read.computations), instruction


PAIR = """HloModule pairs, is_scheduled=true

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0:T(128)} parameter(0)
  %pair = (f32[8]{0:T(128)}, (f32[4]{0:T(128)}, s32[]{:T(128)})) custom-call(%x), custom_call_target="Pair"
  ROOT %add = f32[8]{0:T(128)} add(%pair#0, %pair#0)
}
"""


def test_an_element_of_a_tuple_without_an_instruction_of_its_own():
    instructions = hlo.parse(PAIR).entry.instructions
    assert list(instructions) == ["x", "pair", "pair#0", "add"]
    element = instructions["pair#0"]
    assert (element.opcode, element.tuple_index, element.cycles) == ("get-tuple-element", 0, None)
    assert element.operands == (instructions["pair"],) and instructions["add"].operands == (element, element)
    assert [str(shape) for shape in element.shapes] == ["f32[8]"] and result_aliases(element) == {0: 0}
    inner = hlo.parse(PAIR.replace("#0", "#1")).entry.instructions["pair#1"]
    assert [str(shape) for shape in inner.shapes] == ["f32[4]", "s32[]"] and result_aliases(inner) == {0: 1, 1: 2}
    for name, why in (
        ("pair#2", "its operand 'pair#2' is not an element of 'pair'"),
        ("x#1", "its operand 'x#1' is not an element of 'x'"),
        ("none#0", "its operand 'none#0' is not defined before it is used"),
        ("pair#a", "its operand 'pair#a' is not defined before it is used"),
    ):
        with pytest.raises(PlanError) as caught:
            hlo.parse(PAIR.replace("%pair#0", f"%{name}")).entry.instructions  # noqa: B018
        assert f": {why}. Compile the program again" in str(caught.value)


def test_an_instruction():
    one = module("nested_loops_v5e").entry.instructions["convert.3"]
    assert (one.opcode, one.called, one.cycles, one.frame) == ("convert", (), 9614, None)
    assert [operand.name for operand in one.operands] == ["param.5"]
    assert (str(one.shapes[0]), one.shapes[0].memory_space, one.op_name) == ("bf16[7,256,256]", 1, "")
    assert one.text.startswith("bf16[7,256,256]{2,1,0:T(8,128)(2,1)S(1)} convert(%param.5)")


def test_a_loop_calls_its_condition_and_its_body():
    one = module("nested_loops_v5e").entry.instructions["while.23"]
    assert one.called == ("wide.region_3.4_spmd", "wide.region_0.3_spmd.sunk")
    assert (len(one.shapes), one.cycles, one.op_name) == (6, None, "jit(f)/while")


def test_a_conditional_calls_its_branches():
    entry = module("conditional_v5e").entry
    (conditional,) = (instruction for instruction in entry.instructions.values() if instruction.opcode == "conditional")
    assert len(conditional.called) == 3


def test_the_root_is_the_one_that_says_so():
    assert module("nested_loops_v5e").entry.root.name == "all-reduce"


def test_a_module():
    read = hlo.parse(TWO)
    assert (list(read.computations), read.entry.name) == (["inner", "main"], "main")
    one = read.entry.instructions["fusion.1"]
    assert (one.called, one.cycles, one.op_name) == (("inner",), 96, "jit(f)/neg")
    assert one.bodies == (read.computations["inner"],)


def test_a_computation_is_read_once():
    read = hlo.parse(TWO)
    assert read.computations["inner"] is read.computations["inner"]


def test_operands_may_have_their_shapes_and_names_no_percent_signs():
    read = hlo.parse(TWO.replace("negate(%p)", "negate(f32[8,128]{1,0:T(8,128)} %p)"))
    assert read.computations["inner"].instructions["neg"].operands[0].name == "p"


def test_what_is_no_module():
    with pytest.raises(PlanError) as caught:
        hlo.parse("module @jit_f {\n}")
    assert str(caught.value) == (
        "the compiler's text starts with 'module @jit_f {', not with 'HloModule'; compile the program again, and if "
        "that does not help install the compiler that anytpu was tested with, libtpu 0.0.51"
    )


def test_a_module_that_was_cut_off():
    with pytest.raises(PlanError) as caught:
        hlo.parse(TWO[: TWO.index("ENTRY")])
    assert str(caught.value) == (
        "the compiler's text has no ENTRY computation: it may have been cut off; compile the program again (libtpu "
        "0.0.51 was tested)"
    )
    with pytest.raises(PlanError) as caught:
        hlo.parse(TWO[:-3])
    assert str(caught.value) == (
        "line 8 of the compiler's text cannot be read: 'ENTRY %main (x: f32[8,128]) -> f32[8,128] {'; it should look "
        "like '%name (x: f32[8]) -> f32[8] {'. Install the compiler that anytpu was tested with, libtpu 0.0.51, or "
        "report the line"
    )


def test_a_line_that_cannot_be_read():
    read = hlo.parse(TWO.replace("  ROOT %neg = f32[8,128]{1,0:T(8,128)} negate(%p)", "  ROOT %neg gives up"))
    with pytest.raises(PlanError) as caught:
        list(read.computations["inner"].instructions)
    assert str(caught.value) == (
        "line 5 of the compiler's text cannot be read: 'ROOT %neg gives up'; it should look like '%name = f32[8]{0} "
        "opcode(%operand)'. Install the compiler that anytpu was tested with, libtpu 0.0.51, or report the line"
    )


def test_a_long_line_is_quoted_in_part():
    read = hlo.parse(TWO.replace("negate(%p)", "!" * 300))
    with pytest.raises(PlanError, match=r"!\.\.\.'; it should") as caught:
        list(read.computations["inner"].instructions)
    assert str(caught.value).count("!") == 160 - len("ROOT %neg = f32[8,128]{1,0:T(8,128)} ")


def test_a_computation_that_is_not_there():
    with pytest.raises(PlanError) as caught:
        hlo.parse(TWO).computations["outer"]
    assert str(caught.value) == "the compiler's text calls a computation 'outer', which is not in it"


def test_a_kernel_that_says_something_of_itself_on_lines_of_its_own():
    module = hlo.parse(
        "HloModule kernels, is_scheduled=true\n\n"
        "ENTRY %main (x: f32[8,128]) -> f32[8,128] {\n"
        "  %x = f32[8,128]{1,0:T(8,128)} parameter(0)\n"
        '  %kernel = f32[8,128]{1,0:T(8,128)} custom-call(%x), custom_call_target="tpu_custom_call", '
        "frontend_attributes={kernel_metadata={\n"
        '"xprof_metadata":"{\\"block_q\\": 512}"\n'
        '}}, metadata={op_name="jit(step)/attention"}\n'
        "  ROOT %copy = f32[8,128]{1,0:T(8,128)} copy(%kernel)\n"
        "}\n"
    )
    assert list(module.entry.instructions) == ["x", "kernel", "copy"]
    assert module.entry.instructions["kernel"].op_name == "jit(step)/attention"


def test_cycles_that_the_compiler_cannot_estimate_are_none():
    unknown = f'"estimated_cycles":"{2**63 - 1}"'
    read = hlo.parse(text("nested_loops_v5e").replace('"estimated_cycles":"9614"', unknown))
    assert read.entry.instructions["convert.3"].cycles is None


TEXT = """HloModule loops, is_scheduled=true, num_partitions=4

%body (p: f32[8,128]) -> f32[8,128] {
  %p = f32[8,128]{1,0} parameter(0)
  ROOT %neg = f32[8,128]{1,0} negate(%p)
}

ENTRY %main (x: f32[8,128]) -> f32[8,128] {
  %x = f32[8,128]{1,0} parameter(0)
  %pair = (f32[8,128]{1,0}, s32[]) custom-call(%x), custom_call_target="two"
  %one = f32[8,128]{1,0} get-tuple-element(%pair), index=0
  %dot = f32[8,8]{1,0} dot(%one, %x), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  ROOT %done = f32[8,128]{1,0} fusion(%one), kind=kLoop, calls=%body, backend_config={"estimated_cycles":"96"}
}
"""
AGAIN = "Compile the program again, without what was kept: use_cache=False (--no-cache)"


def fault_of(old: str, new: str) -> str:
    """Return what is said of the line that was damaged, without how it is told."""
    assert TEXT.count(old) == 1
    with pytest.raises(PlanError) as caught:
        module = hlo.parse(TEXT.replace(old, new))
        for computation in module.computations.values():
            for instruction in computation.instructions.values():
                flops_of(instruction)
    return str(caught.value)


def test_the_whole_sentence():
    assert fault_of("negate(%p)", "negate(%q)") == (
        "line 5 of the compiler's text is damaged: 'ROOT %neg = f32[8,128]{1,0} negate(%q)': its operand 'q' is not "
        f"defined before it is used. {AGAIN}"
    )


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("%one = ", "%x = ", "there is an instruction 'x' before it"),
        ("fusion(%one)", "fusion(%done)", "its operand 'done' is not defined before it is used"),
        ("negate(%p)", "negate()", "'negate' takes 1 operands at least, and it has 0"),
        ("dot(%one, %x)", "dot(%one)", "'dot' takes 2 operands at least, and it has 1"),
        ("dot(%one, %x)", "dot-done()", "'dot-done' takes 1 operands at least, and it has 0"),
        ("fusion(%one)", "while(%one)", "'while' calls 2 computations, and it names 1"),
        (", calls=%body", "", "'fusion' calls 1 computations, and it names 0"),
        ("f32[8,8]{1,0} dot", "() dot", "'dot' gives an array, and it gives none"),
        ("%one = f32[8,128]{1,0}", "%one = ()", "its operand 'one' is not an array"),
        ("index=0", "index=2", "'pair' has no element of its index"),
        ("index=0", "index=x", "'pair' has no element of its index"),
        ("%x = f32[8,128]{1,0} parameter(0)", "%x = f32[8,128]{1,0} parameter(a)", "a parameter has its number in "),
        ('"96"', f'"{2**63}"', f"its estimated_cycles are '{2**63}'"),
        ("calls=%body", "calls=%main", "the computation 'main' that it calls is not defined before it is used"),
        ("f32[8,8]{1,0} dot", "f32[8,a]{1,0} dot", "'f32[8,a]{1,0}' in the compiler's text is not the shape of an "),
        ("f32[8,8]{1,0} dot", "f32[8,8]{2,0} dot", "'f32[8,8]{2,0}' in the compiler's text is not the shape of an "),
        ("f32[8,8]{1,0} dot", "f32[8,8]{1,0:T(0)} dot", "'f32[8,8]{1,0:T(0)}' in the compiler's text is not the sha"),
        ("f32[8,8]{1,0} dot", f"f32[{2**33},{2**33}] dot", f"'f32[{2**33},{2**33}]' in the compiler's text is not t"),
    ],
)
def test_lines_that_do_not_fit_those_before_them(old: str, new: str, why: str):
    said = fault_of(old, new)
    line = TEXT[: TEXT.index(old)].count("\n") + 1
    number = next(int(part) for part in said.split() if part.isdigit())
    # An operand that is no longer an array is told at the line that reads it.
    assert number in (line, line + 1)
    assert why in said and said.endswith(AGAIN)


def test_computations_of_one_name_or_empty():
    assert fault_of("%body (p", "%main (p") == (
        "line 8 of the compiler's text is damaged: 'ENTRY %main (x: f32[8,128]) -> f32[8,128] {': there is a "
        f"computation of that name, or an ENTRY, before it. {AGAIN}"
    )
    empty = "  %p = f32[8,128]{1,0} parameter(0)\n  ROOT %neg = f32[8,128]{1,0} negate(%p)\n"
    assert fault_of(empty, "\n") == (
        "line 3 of the compiler's text is damaged: '%body (p: f32[8,128]) -> f32[8,128] {': a computation has an "
        f"instruction at least. {AGAIN}"
    )


def test_dimensions_that_are_not_there():
    assert fault_of("lhs_contracting_dims={1}", "lhs_contracting_dims={2}") == (
        "the dot 'dot' contracts dimensions [2] of an array that has 2"
    )


CONVOLUTION = (
    "%dot = f32[8,8]{1,0} convolution(%one, %x), window={size=1 pad=0_0}, dim_labels=",
    "%dot = f32[8,8]{1,0} dot(%one, %x), lhs_contracting_dims={1}, rhs_contracting_dims={1}",
)


@pytest.mark.parametrize("labels", ["b0f_0io->b0f", "bf_oi->bf", "bq_oi->bf"])
def test_labels_that_do_not_fit(labels: str):
    said = fault_of(CONVOLUTION[1], CONVOLUTION[0] + labels)
    assert said.startswith("the convolution 'dot' labels the dimensions of f32[8,128]") and said.endswith("not fit")


def test_a_window_of_another_size_than_the_kernel():
    text = CONVOLUTION[0].replace("f32[8,8]{1,0}", "f32[8,1,8]{2,1,0}") + "b0f_0oi->b0f"
    three = TEXT.replace("f32[8,128]{1,0}", "f32[8,1,128]{2,1,0}")
    module = hlo.parse(three.replace(CONVOLUTION[1], text.replace("size=1", "size=3")))
    with pytest.raises(PlanError) as caught:
        flops_of(module.entry.instructions["dot"])
    assert str(caught.value) == (
        "the convolution 'dot' has a window that is not of the size of its kernel f32[8,1,128]"
    )
