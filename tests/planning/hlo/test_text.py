import re

import pytest

from anytpu.errors import PlanError
from anytpu.planning import hlo
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
    assert read.is_scheduled
    # HLO leaves out the number of partitions of a module that has one.
    said = re.search(r"^HloModule .*\bnum_partitions=(\d+)", wanted)
    assert read.num_partitions == (int(said[1]) if said else 1)
    for computation in read.computations.values():
        for one in computation.instructions.values():
            assert one.shapes or one.opcode == "tuple", one
            assert set(one.operands) <= set(computation.instructions), one
            assert name.endswith("_entry") or set(one.called) <= set(read.computations), one


def test_an_instruction():
    one = module("nested_loops_v5e").entry.instructions["convert.3"]
    assert (one.opcode, one.operands, one.called, one.cycles, one.frame) == ("convert", ("param.5",), (), 9614, None)
    assert (str(one.shapes[0]), one.shapes[0].memory_space, one.op_name) == ("bf16[7,256,256]", 1, "")
    assert one.text.startswith("bf16[7,256,256]{2,1,0:T(8,128)(2,1)S(1)} convert(%param.5)")


def test_a_loop_calls_its_condition_and_its_body():
    one = module("nested_loops_v5e").entry.instructions["while.23"]
    assert one.called == ("wide.region_3.4_spmd", "wide.region_0.3_spmd.sunk")
    assert (len(one.shapes), one.cycles, one.op_name) == (6, None, "jit(f)/while")


def test_a_conditional_calls_its_branches():
    entry = module("conditional_v5e").entry
    (one,) = (one for one in entry.instructions.values() if one.opcode == "conditional")
    assert len(one.called) == 3


def test_the_root_is_the_one_that_says_so():
    assert module("nested_loops_v5e").entry.root == "all-reduce"


def test_a_module():
    read = hlo.parse(TWO)
    assert (read.name, read.num_partitions, read.is_scheduled) == ("twice", 4, True)
    assert (list(read.computations), read.entry.name) == (["inner", "main"], "main")
    one = read.entry.instructions["fusion.1"]
    assert (one.called, one.cycles, one.op_name) == (("inner",), 96, "jit(f)/neg")
    assert read.home_of(one) is read.entry
    inner = read.computations["inner"].instructions["neg"]
    assert read.home_of(inner) is read.computations["inner"]


def test_a_computation_is_read_once():
    read = hlo.parse(TWO)
    assert read.computations["inner"] is read.computations["inner"]


def test_operands_may_have_their_shapes_and_names_no_percent_signs():
    read = hlo.parse(TWO.replace("negate(%p)", "negate(f32[8,128]{1,0:T(8,128)} %p)"))
    assert read.computations["inner"].instructions["neg"].operands == ("p",)


def test_an_unscheduled_module():
    assert not hlo.parse(TWO.replace("is_scheduled=true, ", "")).is_scheduled


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


def test_an_instruction_of_another_module():
    other = module("nested_loops_v5e").entry.instructions["while.23"]
    with pytest.raises(PlanError) as caught:
        hlo.parse(TWO).home_of(other)
    assert str(caught.value) == "'while.23' is not an instruction of the module 'twice'"


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
