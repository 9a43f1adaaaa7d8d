"""Programs of the chip and predicted runs made by hand, as large and as odd as real ones: what the reports are tried
on."""

from __future__ import annotations

import dataclasses

import numpy as np

from anytpu.chip.graph.nodes import Convolution, HostStep, Network, Pool, Port, Quantization
from anytpu.chip.image.image import Image, Resident, Tag
from anytpu.chip.isa.instructions import (
    Activate,
    Convolve,
    DebugTag,
    Halt,
    Instruction,
    InterruptHost,
    MatrixMultiply,
    ReadHostMemory,
    ReadWeights,
    SetConfiguration,
    Sync,
    WriteHostMemory,
)
from anytpu.chip.isa.registers import Register
from anytpu.chip.isa.units import Unit
from anytpu.chip.page.first_tile import FinishedSums, FirstTile
from anytpu.chip.page.layers import layers
from anytpu.chip.page.record import ChipPage
from anytpu.chip.quantized.summary import LayerSummary, Summary
from anytpu.chip.timing.record import Event, PartTiming, Span, Timing

BATCH = 8
MACS = (28 * 28 * 9 * 32 * BATCH, 0, 14 * 14 * 288 * 64 * BATCH, 14 * 14 * 64 * 10 * BATCH, 0)
EVIL = "</script><script>alert('x')</script>\x07"


def digits(name: str = "digits", conv: str = "conv1") -> ChipPage:
    """Return a small CNN: a packed convolution, a pool, a native convolution, a dense layer, a softmax on the host."""
    image, net, run = _image(name, conv), _network(name, conv), timing(name, conv)
    noise = (38.2, 38.2, 31.5, 29.9, None)
    sizes = (288, 0, 18432, 640, 0)
    quality = Summary(name, 8, 64, 8, tuple(
        LayerSummary(layer, (), 4 * size, size + size // 16, db, (-0.268, -0.204, 0.051, 0.128, 0.431) if size else ())
        for layer, size, db in zip((conv, "pool1", "conv2", "dense", "softmax"), sizes, noise, strict=True)
    ), (28.4,))  # fmt: skip
    return ChipPage(image, run, net, tuple(layers(image, net, quality, run.parts)), quality, tile())


def tile() -> FirstTile:
    """Return a tile with weights in 9 rows and 32 columns, and rows of numbers, the first of which are all the same."""
    rng = np.random.default_rng(1)
    weights, numbers = np.zeros((256, 256), np.int8), np.zeros((64, 256), np.int32)
    weights[:9, :32] = np.clip(rng.normal(0, 45, (9, 32)).round(), -127, 127)
    numbers[:, :9] = -128
    numbers[16:, :9] = rng.integers(-128, 128, (48, 9))
    return FirstTile("conv1", weights, numbers, 9, True, False, "conv1/convolution", _finished(numbers, weights))


def _finished(numbers: np.ndarray, weights: np.ndarray) -> FinishedSums:
    """Return the sums of a tile, and what an Activate with a bias, a multiplier and a ReLU makes of them."""
    sums = numbers @ weights[:, :8].astype(np.int32)
    bias, multiplier = np.arange(8, dtype=np.int32) * 100 - 350, np.full(8, 0.004, np.float32)
    results = np.rint((sums + bias).astype(np.float32) * multiplier).astype(np.int32) + 3
    return FinishedSums(sums, bias, multiplier, 3, 3, 127, False, np.clip(results, 3, 127))


def _image(name: str, conv: str) -> Image:
    tags = (
        Tag("conv1/convolution", conv, "convolution", MACS[0], "9 of 9 taps a pass"),
        Tag("pool1/pool", "pool1", "max pool"),
        Tag("conv2/convolution", "conv2", "convolution", MACS[2]),
        Tag("dense/dot", "dense", "dense", MACS[3]),
        Tag("softmax", "", "softmax on the host", 0, "on the host: it divides one tensor by another"),
    )
    residents = (
        Resident("x", 0, 28 * 28 * BATCH, 1, 4),
        Resident("c1", 8192, 28 * 28 * BATCH, 5, 8),
        Resident("p1", 0, 14 * 14 * BATCH, 8, 14),
        Resident("c2", 16384, 14 * 14 * 2 * BATCH, 15, 19),
        Resident("d", 2000, BATCH, 20, 21),
    )
    return Image(name, _instructions(), np.zeros(7 * 65536, np.uint8), BATCH, 8192, tags=tags, residents=residents)


def _instructions() -> tuple[Instruction, ...]:
    every = 31
    return (
        DebugTag(0),
        ReadHostMemory(0, 0, 28 * 28 * BATCH),
        SetConfiguration(Register.TAPS, 9),
        ReadWeights(0, 1),
        Convolve(0, 0, 2048, 1),
        Activate("scale", 0, 8192, 2048),
        DebugTag(1),
        Sync(every, every),
        Activate("max", 8192, 0, 14 * 14 * BATCH),
        DebugTag(2),
        SetConfiguration(Register.TAPS, 1),
        SetConfiguration(Register.LANES, 32),
        ReadWeights(32, 9),
        Sync(every, every),
        Convolve(0, 0, 14 * 14 * BATCH, 9),
        Activate("scale", 0, 16384, 14 * 14 * BATCH),
        DebugTag(3),
        ReadWeights(320, 2),
        Sync(every, every),
        MatrixMultiply(16384, 0, BATCH, 2),
        Activate("scale", 0, 2000, BATCH),
        WriteHostMemory(0, 2000, BATCH),
        DebugTag(4),
        InterruptHost(0),
        Halt(),
    )


def _network(name: str, conv: str) -> Network:
    rng = np.random.default_rng(0)
    q = Quantization(0.05, 3)

    def convolution(node: str, layer: str, takes: str, makes: str, kernel: int, rows: int, columns: int) -> Convolution:
        weights = np.clip(rng.normal(0, 40, (kernel, kernel, rows, columns)).round(), -127, 127).astype(np.int8)
        scales = np.full(columns, 0.01, np.float32)
        bias = np.zeros(columns, np.int32)
        pad = ((kernel // 2,) * 2,) * 2
        return Convolution(
            node, layer, (takes,), makes, weights, scales, bias, (1, 1), (1, 1), pad, 1, q.low, q.high
        )  # fmt: skip

    nodes = (
        convolution("conv1/convolution", conv, "x", "c1", 3, 1, 32),
        Pool("pool1/pool", "pool1", ("c1",), "p1", "max", (2, 2), (2, 2), ((0, 0), (0, 0)), False),
        convolution("conv2/convolution", "conv2", "p1", "c2", 3, 32, 64),
        convolution("dense/dot", "dense", "c2", "d", 1, 64, 10),
        HostStep("softmax", "", ("d",), "y", "softmax", "it divides", None),
    )
    shapes = {
        "x": (28, 28, 1),
        "c1": (28, 28, 32),
        "p1": (14, 14, 32),
        "c2": (14, 14, 64),
        "d": (1, 1, 10),
        "y": (1, 1, 10),
    }
    held = {tensor: q for tensor in ("x", "c1", "p1", "c2", "d")}
    return Network(
        name, (Port("x", (28, 28, 1)),), (Port("y", (10,)),), shapes, held, nodes
    )  # fmt: skip


def timing(name: str = "digits", conv: str = "conv1", repeats: int = 1) -> Timing:
    """Return a predicted run whose events add up to its counters.

    Args:
        name: of the program.
        conv: the first layer's name.
        repeats: how often the same goes on, for a run of many events.
    """
    events: list[Event] = []
    spans: list[Span] = []
    sums = [[0.0] * 4 for _ in MACS]
    now = 0.0
    for _ in range(repeats):
        now = _pass(events, spans, sums, now)
    end = now + 40
    events.append(Event(Unit.WRITE, now, end, "WriteHostMemory", 3, 21))
    sums[3][3] += 40
    spans[-1] = spans[-1]._replace(stop_cycles=end)
    names = (conv, "pool1", "conv2", "dense", "softmax")
    weight_bytes = (65536, 0, 9 * 65536, 2 * 65536, 0)
    parts = tuple(
        PartTiming(part, *sums[n], MACS[n] * repeats, weight_bytes[n] * repeats) for n, part in enumerate(names)
    )
    totals = [sum(part_sums[cause] for part_sums in sums) for cause in range(4)]
    return Timing(
        name, _design(), BATCH, end, *totals, 900.0, 2000.0, sum(MACS) * repeats, totals[0] * 65536,
        sum(weight_bytes) * repeats, 200_704, 256, parts, tuple(events),
        byte_macs=sum(MACS) * repeats, host_steps=("softmax",), spans=tuple(spans),
    )  # fmt: skip


def _design():
    from anytpu.chip.isa.design import TPU_V1

    return TPU_V1


def _pass(events: list[Event], spans: list[Span], sums: list[list[float]], now: float) -> float:
    """Append one run of the layers from `now` on, and return when it ends."""

    def add(unit: Unit, start: float, length: float, kind: str, tag: int, instruction: int) -> float:
        events.append(Event(unit, start, start + length, kind, tag, instruction))
        return start + length

    def wait(until: float, cause: int, tag: int) -> float:
        sums[tag][cause] += until - now
        if spans and spans[-1].tag == tag and spans[-1].stop_cycles == now:
            spans[-1] = spans[-1]._replace(stop_cycles=until)
        elif until > now:
            spans.append(Span(now, until, tag))
        return until

    read = add(Unit.READ, now, 3000, "ReadHostMemory", 0, 1)
    fetched = now
    for tag, instruction, count in ((0, 3, 1), (2, 12, 9), (3, 17, 2)):
        for _ in range(count):
            fetched = add(Unit.WEIGHTS, fetched, 1349.25, "fetch", tag, instruction)
    arrived = [event.stop_cycles for event in events if event.kind == "fetch"][-12:]
    now = wait(read, 3, 0)
    for tag, instruction, rows, tiles in (
        (0, 4, 6272, arrived[:1]),
        (2, 14, 1568, arrived[1:10]),
        (3, 19, 8, arrived[10:]),
    ):
        for come in tiles:
            if come > now:
                events.append(Event(Unit.MATRIX, now, come, "stall", tag, instruction))
                now = wait(come, 1, tag)
            now = wait(add(Unit.MATRIX, now, 256, "shift", tag, instruction), 2, tag)
            kind = "MatrixMultiply" if tag == 3 else "Convolve"
            now = wait(add(Unit.MATRIX, now, rows, kind, tag, instruction), 0, tag)
        now = wait(add(Unit.ACTIVATE, now, rows, "Activate", tag, instruction + 1), 3, tag)
        if tag == 0:
            now = wait(add(Unit.ACTIVATE, now, 1568, "Activate", 1, 8), 3, 1)
    return now


def many(events: int = 20_000) -> ChipPage:
    """Return a program whose run has at least so many events."""
    one = digits("many")
    runs = -(-events // len(timing().events))
    return dataclasses.replace(one, timing=timing("many", repeats=runs))


def steps() -> ChipPage:
    """Return a program of the many parts of a recurrent layer, and a softmax on the host."""
    one = digits("steps")
    parts = [dataclasses.replace(one.layers[n % 4], name=f"lstm/step/{n}") for n in range(800)]
    return dataclasses.replace(one, layers=(*parts, one.layers[4]))


def bare() -> ChipPage:
    """Return a program that was assembled: no network, no tags, no residents, hardly any events."""
    image = Image("bare", (ReadWeights(0, 1), MatrixMultiply(0, 0, 4), Halt()), np.zeros(65536, np.uint8))
    events = (
        Event(Unit.WEIGHTS, 0, 1349.25, "fetch", -1, 0),
        Event(Unit.MATRIX, 1605.25, 1609.25, "MatrixMultiply", -1, 1),
    )
    run = Timing("bare", _design(), 1, 1609.25, 4, 1349.25, 256, 0, 0, 0, 0, 4 * 65536, 65536, 0, 0, (), events)
    return ChipPage(image, run, None, ())


def idle() -> ChipPage:
    """Return a program that was assembled and has no work for the chip."""
    image = Image("idle", (Halt(),), np.zeros(0, np.uint8))
    return ChipPage(image, Timing("idle", _design(), 1, *[0.0] * 7, 0, 0.0, 0, 0, 0), None, ())


def hostile() -> ChipPage:
    """Return a program whose names are markup."""
    return digits(EVIL, EVIL)
