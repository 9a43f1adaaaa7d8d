import dataclasses

import pytest
from tests.planning.timing.modules import computation, cycles, module_of

from anytpu.planning.target import target_named
from anytpu.planning.timing.pricing import Pricer
from anytpu.planning.timing.rates import rates_of

V6E = target_named("v6e-1")
RATES = rates_of(V6E)


def price(lines, *computations, name="r", target=V6E, **changed):
    module = module_of(lines, *computations)
    pricer = Pricer(module, target, dataclasses.replace(rates_of(target), **changed))
    return pricer.price(module.entry, module.entry.instructions[name])


def product(side, dtype="bf16", said=2574448):
    shape = f"{dtype}[{side},{side}]{{1,0:T(8,128)(2,1)}}"
    body = computation(
        "product",
        f"""%a = {shape} parameter(0)
        %b = {shape} parameter(1)
        ROOT %dot = {shape} convolution(%a, %b), dim_labels=bf_io->bf""",
    )
    lines = f"""%x = {shape} parameter(0)
    %y = {shape} parameter(1)
    ROOT %r = {shape} fusion(%x, %y), kind=kOutput, calls=%product, {cycles(said, "CLASSIC")}"""
    return lines, body


def test_a_matrix_product_on_v6e_is_within_15_percent_of_what_was_published():
    # AI-Hypercomputer/tpu-recipes, microbenchmarks/README.md: 1.32876 ms; the cycles are those of libtpu 0.0.42.1.
    found = price(*product(8192))
    assert found is not None
    assert found.time_s == pytest.approx(1.32876e-3, rel=0.15)
    assert (found.kind, found.bound, found.priced_by, found.flops) == ("matmul", "compute", "cycles", 2 * 8192**3)


def test_a_product_is_never_faster_than_the_matrix_units():
    found = price(*product(8192, said=1000), factor=1.0)
    assert found is not None
    assert found.time_s == pytest.approx(2 * 8192**3 / 918e12)
    assert found.priced_by == "roofline"


def test_bytes_of_eight_bits_are_multiplied_twice_as_fast():
    wide, narrow = (price(*product(8192, dtype, said=1000)) for dtype in ("bf16", "s8"))
    assert wide is not None and narrow is not None
    assert narrow.time_s == pytest.approx(wide.time_s / 2)


def test_a_copy_on_v6e_is_within_15_percent_of_what_was_published():
    # The same, HBM bandwidth: 33554432 bytes copied in 0.049359414 ms, which the compiler says takes 178016 cycles.
    found = price(
        f"""%x = bf16[16384,1024]{{1,0:T(8,128)(2,1)}} parameter(0)
        ROOT %r = bf16[16384,1024]{{1,0:T(8,128)(2,1)}} copy(%x), {cycles(178016)}"""
    )
    assert found is not None
    assert found.time_s == pytest.approx(0.049359414e-3, rel=0.15)
    assert (found.kind, found.bound, found.priced_by) == ("memory", "memory", "bandwidth")


def test_a_copy_that_turns_takes_longer():
    lines = """%x = bf16[16384,1024]{{1,0:T(8,128)(2,1)}} parameter(0)
        ROOT %r = bf16[16384,1024]{{{}:T(8,128)(2,1)}} copy(%x), {}"""
    straight, turned = (price(lines.format(order, cycles(1348160))) for order in ("1,0", "0,1"))
    assert straight is not None and turned is not None
    assert turned.time_s > 1.5 * straight.time_s


def test_an_elementwise_fusion_is_priced_by_its_cycles():
    body = computation(
        "waved", "%a = f32[64,128]{1,0:T(8,128)} parameter(0)\nROOT %t = f32[64,128]{1,0:T(8,128)} tanh(%a)"
    )
    found = price(
        f"""%x = f32[64,128]{{1,0:T(8,128)S(1)}} parameter(0)
        ROOT %r = f32[64,128]{{1,0:T(8,128)S(1)}} fusion(%x), kind=kLoop, calls=%waved, {cycles(17500)}""",
        body,
        factor=1.0,
        excess_share=1.0,
    )
    assert found is not None
    assert found.time_s == pytest.approx(10e-6, rel=1e-3)
    assert (found.kind, found.bound, found.priced_by, found.bytes) == ("vector", "compute", "cycles", 0)


KERNEL = """%x = bf16[8192,1024]{1,0:T(8,128)(2,1)} parameter(0)
ROOT %r = bf16[8192,1024]{1,0:T(8,128)(2,1)} custom-call(%x), custom_call_target="tpu_custom_call", backend_config={"""


def test_a_kernel_is_priced_by_what_its_author_says():
    said = '"custom_call_config":{"cost_estimate":{"flops":"918000000000","bytes_accessed":"1000"}}}'
    found = price(KERNEL + said, kernel_share=0.5)
    assert found is not None
    assert found.time_s == pytest.approx(2e-3, rel=0.01)
    assert (found.kind, found.priced_by, found.flops, found.remark) == ("kernel", "cost estimate", 918e9, "")


def test_a_kernel_whose_author_says_nothing_is_a_floor_that_says_so():
    found = price(KERNEL + "}")
    assert found is not None
    assert found.time_s == pytest.approx(RATES.start_s + 2 * 2**24 / RATES.streaming_bytes_per_s)
    assert (
        found.remark == "a Pallas kernel without cost_estimate; counted as the bytes that it reads and writes, a floor"
    )


def test_custom_calls_that_only_name_cost_nothing():
    lines = """%x = s8[4096]{0:T(1024)S(1)} parameter(0)
    ROOT %r = s8[8192]{0:T(1024)S(1)} custom-call(%x, %x), custom_call_target="ConcatBitcast" """
    assert price(lines) is None


def test_other_custom_calls_are_counted_by_their_bytes_and_say_so():
    lines = """%x = f32[1024,1024]{1,0:T(8,128)} parameter(0)
    ROOT %r = f32[1024,1024]{1,0:T(8,128)} custom-call(%x), custom_call_target="TopK" """
    found = price(lines)
    assert found is not None
    assert found.remark == "a custom call to 'TopK'; counted as the bytes that it reads and writes"


def test_what_the_compiler_gives_no_cycles_for_is_counted_by_its_bytes():
    lines = """%x = f32[1024,1024]{1,0:T(8,128)} parameter(0)
    ROOT %r = f32[1024,1024]{1,0:T(8,128)} select-and-scatter(%x)"""
    found = price(lines)
    assert found is not None
    assert (found.bytes, found.priced_by) == (2 * 2**22, "bandwidth")
    assert found.remark == "the compiler gives no cycles; counted as its bytes, a floor"


def test_names_and_scalars_cost_nothing():
    assert price("%x = f32[] parameter(0)\nROOT %r = f32[]{:T(128)S(6)} negate(%x)", name="x") is None
    assert price("%x = f32[]{:T(128)S(6)} parameter(0)\nROOT %r = f32[]{:T(128)S(6)} negate(%x)") is None


ATTENTION = """%q = bf16[3,32,8192,128]{3,2,1,0:T(8,128)(2,1)} parameter(0)
%k = bf16[3,8,8192,128]{3,2,1,0:T(8,128)(2,1)} parameter(1)
"""


@pytest.mark.parametrize(
    ("name", "results", "products"),
    [
        ("splash_mha_fwd_residuals.1", 1, 2),
        ("flash_mha_bwd_dq_block.1", 1, 3),
        ("flash_mha_bwd_dkv_block.1", 2, 4),
        ("splash_mha_dkv_no_residuals.1", 3, 5),
    ],
)
def test_attention_kernels_of_jax_are_known_by_name(name, results, products):
    shape = "bf16[3,32,8192,128]{3,2,1,0:T(8,128)(2,1)}"
    shapes = f"({', '.join([shape] * results)})" if results > 1 else shape
    lines = f'{ATTENTION}ROOT %{name} = {shapes} custom-call(%q, %k, %k), custom_call_target="tpu_custom_call"'
    found = price(lines, name=name, kernel_share=0.5)
    assert found is not None
    assert found.flops == products * 3 * 32 * 8192 * 8192 * 128
    assert found.time_s == pytest.approx(found.flops / (0.5 * 918e12), rel=0.01)
    assert found.priced_by == "roofline"
    assert found.remark == "a Pallas kernel without cost_estimate; counted as causal attention, by its name"
