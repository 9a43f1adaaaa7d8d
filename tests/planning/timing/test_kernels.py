import math
from typing import Any

import jax
import pytest
from jax import ShapeDtypeStruct
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from tests.planning.hlo import saved
from tests.planning.timing.test_pricing import V6E, price

import anytpu as tpu
from anytpu.planning.records.target import target_named
from anytpu.planning.timing import step_time
from anytpu.planning.timing.rates import rates_of

KERNEL = """%x = bf16[8192,1024]{1,0:T(8,128)(2,1)} parameter(0)
ROOT %r = bf16[8192,1024]{1,0:T(8,128)(2,1)} custom-call(%x), custom_call_target="tpu_custom_call", backend_config={"""
SAID = '"custom_call_config":{"cost_estimate":{"flops":"918000000000","bytes_accessed":"1000"}}}'


def test_a_kernel_is_priced_by_what_its_author_says():
    found = price(KERNEL + SAID, product_share=0.5)
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
    assert slow.time_s == pytest.approx(2 * fast.time_s, rel=0.01)


def test_a_kernel_of_which_nothing_is_known_is_all_its_arrays_and_says_that_it_may_use_less():
    found = price(KERNEL + "}")
    rates = rates_of(V6E)
    assert found.time_s == pytest.approx(rates.start_s + 2 * 2**24 / rates.streaming_bytes_per_s)
    assert found.priced_by == "floor"
    assert found.remark == (
        "a Pallas kernel without cost_estimate; counted as all bytes of its arrays, of which it may use less"
    )
    assert (found.least_s, found.optional_s) == (0.0, found.time_s)


TABLE, ROWS = ShapeDtypeStruct((2**18, 1024), "float32"), ShapeDtypeStruct((512, 1024), "float32")
PLACES = ShapeDtypeStruct((64,), "int32")
BLOCK = (8, 1024)
V5E = target_named("v5e-1")
STATED = pl.CostEstimate(flops=0, bytes_accessed=4 * 2**20, transcendentals=0)
OWN_CODE = "a Pallas kernel without cost_estimate; counted as the products and blocks of its own code"


def rows_of(estimate, grid=(64,), is_repeated=False):
    """Return a step that copies 64 blocks of 32 KiB out of a table of 1 GiB, by their places."""

    def kernel(places, table, rows):
        rows[...] = table[...]

        def double(n):
            rows[...] *= 2
            return n + 1

        if is_repeated:
            jax.lax.while_loop(lambda n: n < places[0], double, 0)

    def step(table, places):
        spec = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=grid or (places[0],),
            in_specs=[pl.BlockSpec(BLOCK, lambda n, places: (places[n], 0))],
            out_specs=pl.BlockSpec(BLOCK, lambda n, places: (n, 0)),
        )
        call = pl.pallas_call(kernel, grid_spec=spec, out_shape=ROWS, cost_estimate=estimate)
        return table, call(places, table)

    return step, (TABLE, PLACES)


def copied_rows(estimate):
    """Return the same step, whose kernel is given the table in any memory and starts the copies itself."""

    def kernel(places, table, rows, semaphore):
        source = table.at[pl.ds(places[pl.program_id(0)] * 8, 8)]
        copy = pltpu.make_async_copy(source, rows, semaphore)
        copy.start()
        copy.wait()

    def step(table, places):
        spec = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(64,),
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=pl.BlockSpec(BLOCK, lambda n, places: (n, 0)),
            scratch_shapes=[pltpu.SemaphoreType.DMA],
        )
        return table, pl.pallas_call(kernel, grid_spec=spec, out_shape=ROWS, cost_estimate=estimate)(places, table)

    return step, (TABLE, PLACES)


def updated_cache(estimate):
    """Return a step that writes 64 blocks into a table of 1 GiB in place."""

    def kernel(places, rows, table, result):
        result[...] = rows[...]

    def step(table, batch):
        spec = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(64,),
            in_specs=[pl.BlockSpec(BLOCK, lambda n, places: (n, 0)), pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=pl.BlockSpec(BLOCK, lambda n, places: (places[n], 0)),
        )
        call = pl.pallas_call(
            kernel, grid_spec=spec, out_shape=TABLE, input_output_aliases={2: 0}, cost_estimate=estimate
        )
        return call(*batch, table), {}

    return step, (TABLE, (PLACES, ROWS))


def planned(job):
    step, specs = job
    time = tpu.plan(step, input_specs=specs, tpu="v5e-1")["v5e-1"].time
    assert time is not None
    (kernel,) = (op for op in time.ops if op.kind == "kernel")
    return time, kernel


@pytest.mark.parametrize("job", [rows_of, copied_rows, updated_cache])
@pytest.mark.parametrize("estimate", [STATED, None])
def test_a_kernel_that_uses_a_part_of_an_array_is_counted_as_that_part(job, estimate):
    time, kernel = planned(job(estimate))
    assert kernel.bytes == 4 * 2**20
    # 64 steps of the grid take longer than the bytes do.
    assert kernel.least_s <= 4 * 2**20 / 819e9 < kernel.time_s < 50e-6
    # The table that the kernel copies from itself could be read as a whole.
    is_open = job is copied_rows and estimate is None
    assert kernel.further_s == (pytest.approx(2**30 / rates_of(V5E).streaming_bytes_per_s) if is_open else 0.0)
    assert (time.interval_s[1] > 2**30 / 819e9) == is_open
    assert time.unpriced == (() if estimate else (f"kernel ({kernel.source}): {OWN_CODE}",))


def test_a_kernel_of_unknown_length_has_no_upper_bound():
    time, kernel = planned(rows_of(None, is_repeated=True))
    assert math.isinf(time.interval_s[1])
    assert kernel.bytes == 4 * 2**20
    assert time.unpriced == (
        f"kernel ({kernel.source}): {OWN_CODE}; a loop in it runs nobody knows how often, and counts once",
    )
    time, kernel = planned(rows_of(None, grid=None))
    assert math.isinf(time.interval_s[1])
    assert (kernel.least_s, time.interval_s[0] < 100e-6) == (0.0, True)
    # What the author states holds for all rounds.
    assert math.isfinite(planned(rows_of(STATED, grid=None))[0].interval_s[1])


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


def attention():
    """Return the price of each kernel of a module with JAX's attention kernels: 8 heads of 4,096 tokens, 128 features.

    Compiled by libtpu 0.0.42.1 for v5e. The blocks of splash have 512 tokens, and its local mask 513.
    """
    time = step_time(saved.module("attention_kernels_v5e"), V5E)
    return {op.name: op for op in time.ops if op.kind == "kernel"}


@pytest.mark.parametrize(
    ("name", "products", "computed"),
    [
        ("splash_mha_fwd.full", 2, 1),
        ("splash_mha_fwd.causal", 2, 36 / 64),  # blocks on and below the diagonal, of 8 x 8
        ("splash_mha_fwd.local", 2, 15 / 64),
        ("flash_attention.512", 2, 36 / 64),  # its author states the whole square
        ("flash_mha_bwd_dkv.whole", 4, 1),
        ("flash_mha_bwd_dkv.512", 4, 36 / 64),
        ("flash_mha_bwd_dkv.128", 4, 33 / 64),
    ],
)
def test_attention_computes_the_blocks_of_its_mask(name, products, computed):
    kernel = attention()[name]
    assert kernel.flops == computed * 2 * products * 8 * 4096**2 * 128
    assert kernel.priced_by == ("cost estimate" if name == "flash_attention.512" else "roofline")
    # Nothing of it is uncertain, so the interval begins at the peak of the matrix units.
    assert kernel.flops / 197e12 == pytest.approx(kernel.least_s) and kernel.least_s < kernel.time_s


def test_attention_costs_the_same_inside_of_a_gradient_and_more_in_small_blocks():
    kernels = attention()
    in_step, in_gradient = kernels["flash_attention.128"], kernels["jvp_jit_flash_attention__.128"]
    assert in_step.time_s == in_gradient.time_s > 3 * kernels["flash_attention.512"].time_s
