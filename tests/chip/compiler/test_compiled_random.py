"""Random networks on chips of several sizes: every bit as the reference has it, and no hazard."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anytpu.chip.compiler import compile_image
from anytpu.chip.graph.nodes import Port
from anytpu.chip.isa.design import TPU_V1, Design
from anytpu.errors import CapacityError
from chip_random import Case, cases
from quantized_samples import agree

DESIGNS = st.sampled_from(
    [TPU_V1, Design(array=8, accumulator_rows=64), Design(array=40, accumulator_rows=10), Design(array=33)]
)


def values_of(case: Case):
    network = case.network
    return {
        port.tensor: network.quantizations[port.tensor].quantize(array.reshape(-1, *network.shapes[port.tensor]))
        for port, array in zip(network.inputs, case.inputs, strict=True)
    }


@settings(max_examples=80)
@given(cases(most_nodes=8, most_channels=45), DESIGNS, st.booleans())
def test_every_bit(case: Case, design: Design, shows_all: bool):
    network, values = case.network, values_of(case)
    if shows_all:
        ports = tuple(Port(node.output, network.shapes[node.output]) for node in network.nodes)
        network = dataclasses.replace(network, outputs=ports)
    batch = len(next(iter(values.values())))
    agree(compile_image(network, batch=batch, design=design), network, values)


@settings(max_examples=80)
@given(cases(most_nodes=8, most_channels=45), DESIGNS, st.integers(4, 160))
def test_every_bit_where_there_is_little_room(case: Case, design: Design, units: int):
    network, values = case.network, values_of(case)
    batch = len(next(iter(values.values())))
    for times in (1, 8, 64, 512):
        small = dataclasses.replace(design, unified_buffer_bytes=32 * units * times)
        try:
            image = compile_image(network, batch=batch, design=small)
        except CapacityError:
            continue
        agree(image, network, values)
        return
    pytest.fail("no size was enough")
