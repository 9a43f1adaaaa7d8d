"""The witness: whole networks, compiled, whose products the systolic array makes cell by cell, give the same bits."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anytpu.chip.compiler import compile_image
from anytpu.chip.isa.design import Design
from anytpu.chip.machine import run
from chip_random import Case, cases
from chip_witness import witness
from quantized_samples import inputs_of


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(cases(most_nodes=3, most_channels=12), st.integers(4, 16), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_random_networks_on_small_chips(case: Case, array: int, batch: int, seed: int):
    design = Design(array=array, accumulator_rows=64, unified_buffer_bytes=2**20)
    image = compile_image(case.network, batch=batch, design=design)
    values = inputs_of(case.network, batch, seed)
    fast, slow = run(image, values), witness(image, values)
    assert fast.keys() == slow.keys()
    for name, array_of_fast in fast.items():
        np.testing.assert_array_equal(array_of_fast, slow[name], err_msg=name)
