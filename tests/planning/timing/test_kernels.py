from typing import Any

import pytest
from tests.planning.hlo import saved
from tests.planning.timing.test_pricing import V6E, price

from anytpu.planning.target import target_named
from anytpu.planning.timing import step_time
from anytpu.planning.timing.rates import rates_of

KERNEL = """%x = bf16[8192,1024]{1,0:T(8,128)(2,1)} parameter(0)
ROOT %r = bf16[8192,1024]{1,0:T(8,128)(2,1)} custom-call(%x), custom_call_target="tpu_custom_call", backend_config={"""
SAID = '"custom_call_config":{"cost_estimate":{"flops":"918000000000","bytes_accessed":"1000"}}}'


def test_a_kernel_is_priced_by_what_its_author_says():
    found = price(KERNEL + SAID, product_share=0.5)
    assert found is not None
    assert found.time_s == pytest.approx(2e-3, rel=0.01)
    assert (found.kind, found.priced_by, found.flops, found.remark) == ("kernel", "cost estimate", 918e9, "")
    assert found.least_s == pytest.approx(1e-3)


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("splash_mha_fwd.1", "kernel_share"),
        ("gmm.2", "grouped_share"),
        ("ragged-dot-none", "ragged_share"),
        ("mine", "product_share"),
    ],
)
def test_each_sort_of_kernel_has_a_share_of_its_own(name, rate):
    lines = (KERNEL + SAID).replace("%r ", f"%{name} ")
    changes: list[dict[str, Any]] = [{rate: share} for share in (0.8, 0.4)]
    fast, slow = (price(lines, name=name, **change) for change in changes)
    assert fast is not None and slow is not None
    assert slow.time_s == pytest.approx(2 * fast.time_s, rel=0.01)


def test_a_kernel_whose_author_says_nothing_is_a_floor_that_says_so():
    found = price(KERNEL + "}")
    rates = rates_of(V6E)
    assert found is not None
    assert found.time_s == pytest.approx(rates.start_s + 2 * 2**24 / rates.streaming_bytes_per_s)
    assert found.priced_by == "floor"
    assert (
        found.remark == "a Pallas kernel without cost_estimate; counted as the bytes that it reads and writes, a floor"
    )


def test_a_kernel_is_priced_by_its_own_code_times_its_grid():
    # A product of 4096 x 4096 in blocks of 512 x 1024 x 1024, without cost_estimate. On v5e it took 0.889 ms in Python,
    # 0.1 of it the host's: https://docs.jax.dev/en/latest/pallas/tpu/matmul.html.
    module = saved.module("pallas_product_v5e")
    time = step_time(module, target_named("v5e-1"))
    (kernel,) = (op for op in time.ops if op.kind == "kernel")
    assert kernel.flops == 2 * 4096**3
    # Blocks of the first operand are moved for each of 4 columns, those of the second for each of 8 rows.
    assert kernel.bytes == 2 * (4096**2 * 4 + 4096**2 * 8 + 4096**2)
    assert kernel.priced_by == "its code"
    assert time.unpriced == (
        f"{kernel.name}: a Pallas kernel without cost_estimate; counted as the products and blocks of its own code",
    )
    assert time.step_s == pytest.approx(0.889e-3, rel=0.05)
    assert 2 * 4096**3 / 197e12 <= time.interval_s[0] < 0.889e-3 < time.interval_s[1]


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
