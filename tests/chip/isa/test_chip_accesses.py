"""Which stretches an instruction touches: never too few, against a plain walk over rows and taps."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from anytpu.chip.isa.accesses import AddressRange, Memory, accesses, parameters_popped, tiles_popped
from anytpu.chip.isa.design import Design
from anytpu.chip.isa.instructions import (
    Activate,
    Convolve,
    DebugTag,
    Halt,
    MatrixMultiply,
    Nop,
    ReadHostMemory,
    ReadWeights,
    SetConfiguration,
    WriteHostMemory,
)
from anytpu.chip.isa.issue import RESET, issue
from anytpu.chip.isa.registers import Register as R

DESIGN = Design(array=64)
BUFFER, SUMS = Memory.BUFFER, Memory.ACCUMULATORS


def registers(**values: int | float):
    return {**RESET, **{int(R[name]): value for name, value in values.items()}}


def test_registers_are_those_at_issue():
    walked = list(issue([SetConfiguration(R.PITCH, 2), Nop(), DebugTag(3), SetConfiguration(R.PITCH, 5), Halt()]))
    assert [one.registers[R.PITCH] for one in walked] == [2, 2, 2, 5, 5]
    assert [one.tag for one in walked] == [-1, -1, 3, 3, 3]
    assert [one.number for one in walked] == [0, 1, 2, 3, 4]
    assert RESET[R.PITCH] == 0


def test_copies_between_the_host_and_the_buffer():
    host, buffer = AddressRange(Memory.HOST, 32, 32 + 96), AddressRange(BUFFER, 7, 10)
    assert accesses(ReadHostMemory(32, 7, 3), RESET, DESIGN) == ((host,), (buffer,))
    assert accesses(WriteHostMemory(32, 7, 3), RESET, DESIGN) == ((buffer,), (host,))


def test_weights_are_read_by_blocks():
    def blocks(instruction: ReadWeights):
        reads, writes = accesses(instruction, RESET, DESIGN)
        return [(one.start, one.stop) for one in reads], [(one.start, one.stop) for one in writes]

    assert blocks(ReadWeights(3, 2)) == ([(3, 7)], [])  # 64 x 64 bytes are 2 blocks
    assert blocks(ReadWeights(3, 2, "parameters")) == ([(3, 5)], [])
    assert blocks(ReadWeights(3, 2, "table", 4)) == ([(3, 5)], [(4, 6)])
    assert blocks(ReadWeights(3, 1, "table", 4, wide=True)) == ([(3, 67)], [(4, 5)])


def test_a_product_reads_planes_and_writes_sums():
    product = MatrixMultiply(address=100, accumulator=8, rows=5, repeat=3)
    reads, writes = accesses(product, registers(PITCH=2, PLANE_STRIDE=10), DESIGN)
    assert reads == (AddressRange(BUFFER, 100, 130),)
    reads, _ = accesses(product, registers(PITCH=2, PLANE_STRIDE=50), DESIGN)
    assert reads == (AddressRange(BUFFER, 100, 110), AddressRange(BUFFER, 150, 160), AddressRange(BUFFER, 200, 210))
    assert writes == (AddressRange(SUMS, 8, 13),)
    wide = MatrixMultiply(address=100, accumulator=8, rows=5, accumulate=True, wide=True)
    reads, writes = accesses(wide, registers(PITCH=2, HIGH_OFFSET=40), DESIGN)
    assert reads == (AddressRange(BUFFER, 100, 110), AddressRange(BUFFER, 140, 150), AddressRange(SUMS, 8, 13))


def test_the_last_row_of_a_product_ends_with_its_lanes():
    reads, _ = accesses(MatrixMultiply(0, 0, rows=3), registers(PITCH=10), DESIGN)
    assert reads == (AddressRange(BUFFER, 0, 22),)


def test_what_activate_reads_and_writes():
    scale = Activate("scale", source=4, target=50, rows=3, table=True)
    assert accesses(scale, registers(OUT_PITCH=2, TABLE=9), DESIGN) == (
        (AddressRange(SUMS, 4, 7), AddressRange(Memory.TABLES, 9, 10)),
        (AddressRange(BUFFER, 50, 56),),
    )
    add = Activate("add", source=10, target=50, rows=6, second=30, wide=True, wide_out=True)
    geometry = registers(
        PITCH=1, SECOND_PITCH=1, SECOND_ROWS=2, OUT_PITCH=1, HIGH_OFFSET=6, SECOND_HIGH_OFFSET=2, OUT_HIGH_OFFSET=100
    )
    assert accesses(add, geometry, DESIGN) == (
        (
            AddressRange(BUFFER, 10, 16),
            AddressRange(BUFFER, 16, 22),
            AddressRange(BUFFER, 30, 32),
            AddressRange(BUFFER, 32, 34),
        ),
        (AddressRange(BUFFER, 50, 56), AddressRange(BUFFER, 150, 156)),
    )


def test_a_window_outside_of_the_source_reads_nothing():
    geometry = registers(
        PITCH=1, LANES=8, BATCH=1, IN_HEIGHT=2, IN_WIDTH=2, OUT_WIDTH=1, KERNEL_HEIGHT=1, KERNEL_WIDTH=1,
        STRIDE_HEIGHT=1, STRIDE_WIDTH=1, TAPS=1, PAD_TOP=5,
    )  # fmt: skip
    assert accesses(Convolve(0, 0, rows=1), geometry, DESIGN).reads == ()


def test_what_is_popped():
    assert tiles_popped(MatrixMultiply(0, 0, 1, repeat=9)) == 9
    assert tiles_popped(Convolve(0, 0, 1, repeat=9, keep=True)) == 8
    assert tiles_popped(Halt()) == 0
    assert parameters_popped(Activate("scale", 0, 0, 1)) == 1
    assert parameters_popped(Activate("scale", 0, 0, 1, keep=True)) == 0
    assert parameters_popped(Activate("copy", 0, 0, 1)) == 0


small = st.integers(1, 4)


@settings(max_examples=300, deadline=None)
@given(
    batch=small, height=st.integers(1, 6), width=st.integers(1, 6), out_width=small, kernel=st.tuples(small, small),
    stride=st.tuples(small, small), dilation=st.tuples(small, small), pad=st.tuples(*[st.integers(-3, 3)] * 2),
    taps=small, first_tap=st.integers(0, 5), repeat=small, first_row=st.integers(0, 20), rows=st.integers(1, 20),
)  # fmt: skip
def test_a_convolution_reads_within_its_stretch(
    batch, height, width, out_width, kernel, stride, dilation, pad, taps, first_tap, repeat, first_row, rows
):
    all_taps = range(first_tap, min(first_tap + repeat * taps, kernel[0] * kernel[1]))
    assume(all_taps)
    geometry = registers(
        PITCH=1, LANES=32, BATCH=batch, IN_HEIGHT=height, IN_WIDTH=width, OUT_WIDTH=out_width, FIRST_ROW=first_row,
        KERNEL_HEIGHT=kernel[0], KERNEL_WIDTH=kernel[1], STRIDE_HEIGHT=stride[0], STRIDE_WIDTH=stride[1],
        DILATION_HEIGHT=dilation[0], DILATION_WIDTH=dilation[1], PAD_TOP=pad[0], PAD_LEFT=pad[1], TAPS=taps,
        FIRST_TAP=first_tap,
    )  # fmt: skip
    touched = np.zeros(height * width * batch, bool)
    for row in range(first_row, first_row + rows):
        (out_h, out_w), n = divmod(row // batch, out_width), row % batch
        for tap in all_taps:
            kh, kw = divmod(tap, kernel[1])
            h = out_h * stride[0] - pad[0] + kh * dilation[0]
            w = out_w * stride[1] - pad[1] + kw * dilation[1]
            if 0 <= h < height and 0 <= w < width:
                touched[(h * width + w) * batch + n] = True
    reads, _ = accesses(Convolve(1000, 0, rows=rows, repeat=repeat), geometry, DESIGN)
    covered = np.zeros_like(touched)
    for one in reads:
        assert 1000 <= one.start < one.stop <= 1000 + len(touched)
        covered[one.start - 1000 : one.stop - 1000] = True
    assert not (touched & ~covered).any()
