"""Bar plots by layer: cycles by cause, quantization noise, weights before and after quantization."""

from __future__ import annotations

from collections.abc import Sequence

from anytpu import units
from anytpu.chip.timing.record import PartTiming, Timing
from anytpu.report.chip import figures
from anytpu.report.chip.causes import CAUSES, cycles_by_cause, cycles_of, dominating
from anytpu.report.chip.grouping import grouped_layers, grouped_parts
from anytpu.report.chip.layers import ProgramLayer
from anytpu.report.drawing.rows import Row, bars
from anytpu.report.drawing.shapes import Drawing
from anytpu.report.wording import percent

_MAX_LAYERS = 24
_FLOAT_BYTES = 4


def cycles_by_layer(timing: Timing, narrow: bool = False) -> Drawing | None:
    """Return the cycles of the longest layers, each by cause."""
    parts = grouped_parts(timing.parts, _MAX_LAYERS)
    longest = sorted(parts, key=cycles_of, reverse=True)[:_MAX_LAYERS]
    total = timing.cycles or 1.0
    rows = [
        Row(part.name, f"mostly {dominating(part).short}",
            percent(cycles_of(part) / total), units.format_count(cycles_of(part)),
            tuple((cycles, cause.colour, 1.0) for cycles, cause in zip(cycles_by_cause(part), CAUSES, strict=True)),
            hover(part))
        for part in parts
        if cycles_of(part) > 0 and any(part is kept for kept in longest)
    ]  # fmt: skip
    return bars("cycles_by_layer", "Predicted cycles by layer and cause", rows, narrow)


def hover(part: PartTiming) -> str:
    """Return the tooltip of a layer."""
    causes = zip(CAUSES, cycles_by_cause(part), strict=True)
    said = ", ".join(f"{cause.short} {units.format_count(cycles)}" for cause, cycles in causes if cycles > 0)
    return f"{part.name}: {figures.format_cycles(cycles_of(part))} ({said})"


def noise_by_layer(layers: Sequence[ProgramLayer], narrow: bool = False) -> Drawing | None:
    """Return the signal-to-noise ratio of each layer; of many layers, the noisiest."""
    parts = grouped_layers(layers, _MAX_LAYERS)
    known = [(layer, layer.sqnr_db) for layer in parts if layer.sqnr_db is not None and layer.sqnr_db != float("inf")]
    noisiest = sorted(known, key=lambda pair: pair[1])[:_MAX_LAYERS]
    rows = [
        Row(layer.title, layer.kind, "", figures.format_decibel(db), ((max(db, 0.0), "c1", 1.0),))
        for layer, db in known
        if any(layer is kept for kept, _ in noisiest)
    ]
    return bars("noise_by_layer", "Signal to quantization noise by layer", rows, narrow)


def weights_by_layer(layers: Sequence[ProgramLayer], narrow: bool = False) -> Drawing | None:
    """Return the weights of the largest layers, with their size as integers and as float32."""
    layers = grouped_layers(layers, _MAX_LAYERS)
    largest = sorted((layer for layer in layers if layer.weight_bytes), key=lambda layer: -layer.weight_bytes)[
        :_MAX_LAYERS
    ]
    rows = [
        Row(layer.title, layer.kind, "", units.format_bytes(layer.weight_bytes),
            ((float(layer.weight_bytes), "c0", 1.0), (float(layer.weight_bytes) * (_FLOAT_BYTES - 1), "c0", 0.25)),
            f"{layer.title}: {units.format_bytes(layer.weight_bytes)} as integers, "
            f"{units.format_bytes(layer.weight_bytes * _FLOAT_BYTES)} in floating point")
        for layer in layers
        if any(layer is kept for kept in largest)
    ]  # fmt: skip
    return bars("weights_by_layer", "Weights by layer; the additional size of float32 is pale", rows, narrow)
