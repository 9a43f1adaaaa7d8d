import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anytpu.errors import PlanError
from anytpu.planning import hlo
from anytpu.planning.hlo.flops import WindowDimension, flops_of, useful_positions, window_of
from planning.hlo.saved import module


def total(one: hlo.HloInstruction) -> float:
    return sum(flops_of(one).values())


def flops_by_layer_dtype(read: hlo.Module) -> dict[str, float]:
    found: dict[str, float] = {}
    for instruction in read.entry.instructions.values():
        for dtype, flops in flops_of(instruction).items():
            found[dtype] = found.get(dtype, 0.0) + flops
    return found


def test_dots_and_convolutions_by_the_type_they_are_computed_in():
    # Per device: dot (1024, 256) x (256, 256) in float32 at default, high and highest, bfloat16 and int8 precision;
    # 4 x (256, 256) x (256, 64), which became a dilated convolution; and 16 x 3 x 3 in 8 groups of 32 on 8 x 8 with
    # stride 2, where the window's last place is padding on one side.
    dot, batched = 2 * 1024 * 256 * 256, 2 * 4 * 256 * 256 * 64
    grouped = 2 * 16 * (4 * 3 - 1) ** 2 * 8 * 32 * 32
    assert flops_by_layer_dtype(module("precisions_v5e")) == {
        "bf16": 2 * dot + batched + grouped,
        "bf16x3": dot,
        "bf16x6": dot,
        "s8": dot,
    }


def test_a_loop_is_counted_once():
    (loop,) = (
        instruction
        for instruction in module("nested_loops_v5e").entry.instructions.values()
        if instruction.opcode == "while"
    )
    assert total(loop) == 2 * 16 * 256 * 256


def test_of_a_conditional_the_branch_with_most():
    (choice,) = (
        instruction
        for instruction in module("conditional_v5e").entry.instructions.values()
        if instruction.opcode == "conditional"
    )
    # x @ w @ w beats x @ w and x.
    assert total(choice) == 2 * (2 * 256 * 256 * 256)


def test_a_pallas_kernel_has_none_that_are_seen():
    assert flops_by_layer_dtype(module("flash_attention_v5e")) == {}


def test_a_product_beside_a_collective():
    read = module("mesh_of_two_axes_v5e")
    assert total(read.entry.instructions["fusion.27"]) == 2 * 1024 * 1024 * 1024


@given(
    inputs=st.integers(1, 9),
    outputs=st.integers(1, 9),
    window=st.builds(
        WindowDimension, st.integers(1, 5), st.integers(1, 4), st.integers(-3, 4), st.integers(1, 5), st.integers(1, 3)
    ),
)
def test_useful_positions_are_those_that_meet_a_number(inputs: int, outputs: int, window: WindowDimension):
    met = {place * window.lhs_dilate for place in range(inputs)}
    expected = sum(
        out * window.stride + place * window.rhs_dilate - window.pad_low in met
        for out in range(outputs)
        for place in range(window.size)
    )
    assert useful_positions(inputs, outputs, window) == expected


@settings(max_examples=25)
@given(
    sizes=st.tuples(st.integers(3, 9), st.integers(3, 9)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    pads=st.tuples(st.tuples(st.integers(0, 2), st.integers(0, 2)), st.tuples(st.integers(0, 2), st.integers(0, 2))),
    dilations=st.tuples(st.integers(1, 3), st.integers(1, 2)),
    groups=st.sampled_from([("feature", 1), ("feature", 2), ("batch", 2)]),
)
def test_convolutions_count_as_in_xlas_own_analysis(sizes, kernel, strides, pads, dilations, groups):
    kind, count = groups

    def convolve(x, w):
        counts = {f"{kind}_group_count": count}
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(
            x, w, strides, pads, (dilations[0], 1), (1, dilations[1]), numbers, **counts
        )

    x = jax.ShapeDtypeStruct((4, *sizes, 6), jnp.float32)
    w = jax.ShapeDtypeStruct((*kernel, 6 // (count if kind == "feature" else 1), 8), jnp.float32)
    lowered = jax.jit(convolve).lower(x, w)
    read = hlo.parse(lowered.compiler_ir("hlo").as_hlo_module().to_string())  # pyright: ignore[reportOptionalMemberAccess]
    expected = (lowered.cost_analysis() or {}).get("flops", 0.0)
    assert sum(total(instruction) for instruction in read.entry.instructions.values()) == max(expected, 0.0)


def test_dots_count_as_in_xlas_own_analysis():
    x, w = jax.ShapeDtypeStruct((3, 5, 7), jnp.float32), jax.ShapeDtypeStruct((3, 7, 11), jnp.bfloat16)
    lowered = jax.jit(lambda x, w: jnp.einsum("bij,bjk->bik", x, w.astype(jnp.float32))).lower(x, w)
    read = hlo.parse(lowered.compiler_ir("hlo").as_hlo_module().to_string())  # pyright: ignore[reportOptionalMemberAccess]
    counted = [flops_of(instruction) for instruction in read.entry.instructions.values()]
    assert {"bf16": 2.0 * 3 * 5 * 7 * 11} in counted


def test_a_window_without_fields_has_one_place_each():
    assert window_of("dim_labels=bf_io->bf") == ()
    assert window_of("window={size=1x8 pad=0_0x7_7 rhs_reversal=0x1}, dim_labels=0bf1_i1o0->0b1f") == (
        WindowDimension(1),
        WindowDimension(8, pad_low=7),
    )


def test_a_convolution_without_labels():
    text = """HloModule m, is_scheduled=true

ENTRY %main (x: f32[8,8]) -> f32[8,8] {
  %x = f32[8,8]{1,0} parameter(0)
  ROOT %c = f32[8,8]{1,0} convolution(%x, %x)
}
"""
    read = hlo.parse(text)
    with pytest.raises(PlanError) as caught:
        flops_of(read.entry.instructions["c"])
    assert str(caught.value) == "the convolution 'c' has no dim_labels, such as 'dim_labels=b01f_01io->b01f'"


@pytest.mark.parametrize("window", ["size=0", "size=3x3 stride=2", "size=3 pad=1", "size=3 stride=x"])
def test_windows(window: str):
    with pytest.raises(PlanError) as caught:
        window_of(f"window={{{window}}}")
    assert str(caught.value) == (
        f"{f'window={{{window}}}'!r} in the compiler's text is not a window, such as 'window={{size=3x3 pad=1_1x1_1}}'"
    )
