"""Text that is damaged: each fault by its line, in words of ours."""

from __future__ import annotations

import pytest

from anytpu.errors import PlanError
from anytpu.planning import hlo
from anytpu.planning.hlo.flops import window_of
from anytpu.planning.hlo.groups import groups_of

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
            for one in computation.instructions.values():
                module.flops_of(one)
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


@pytest.mark.parametrize("count", ["0", "1048577", "9" * 5000])
def test_a_number_of_devices_that_cannot_be(count: str):
    assert fault_of("num_partitions=4", f"num_partitions={count}") == (
        f"line 1 of the compiler's text has {f'num_partitions={count}'[:60]!r}, which must be 1 to 1048576; compile "
        "the program again"
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
        module.flops_of(module.entry.instructions["dot"])
    assert str(caught.value) == (
        "the convolution 'dot' has a window that is not of the size of its kernel f32[8,1,128]"
    )


@pytest.mark.parametrize("window", ["size=0", "size=3x3 stride=2", "size=3 pad=1", "size=3 stride=x"])
def test_windows(window: str):
    with pytest.raises(PlanError) as caught:
        window_of(f"window={{{window}}}")
    assert str(caught.value) == (
        f"{f'window={{{window}}}'!r} in the compiler's text is not a window, such as 'window={{size=3x3 pad=1_1x1_1}}'"
    )


@pytest.mark.parametrize(
    "groups",
    [
        *("[2,3]<=[4]", "[2,2]<=[2,2]T(0,2)", "[1048576,2]<=[2097152]", "[0,4]<=[0]", "{{0,1},{a}}", "{{}}"),
        *("mesh['x'=0] {'x'}", "mesh['x'=4] {'y'}", "mesh['x'=4] {'x':(2)4}"),
        "mesh['x'=4,'y'=2], device_ids=([4]) {'x'}",
    ],
)
def test_groups_that_cannot_be(groups: str):
    with pytest.raises(PlanError, match=r"^the groups .replica_groups=") as caught:
        groups_of(f"replica_groups={groups}, channel_id=1", 8)
    assert str(caught.value).endswith("'replica_groups=[2,2]<=[4]'")
