"""Histograms of the integer weights of layers."""

from __future__ import annotations

import numpy as np

from anytpu import units
from anytpu.chip.quantized.nodes import QConvolution, QuantizedNetwork
from anytpu.report.drawing.shapes import Box, Drawing, Label, Line, Shape
from anytpu.report.wording import percent

_WIDTH, _HEIGHT = 480.0, 220.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 20.0, 460.0, 40.0, 184.0
_BIN = 4


def layers_with_weights(network: QuantizedNetwork | None) -> list[QConvolution]:
    """Return the layers that have weights, the largest first."""
    nodes = [node for node in network.nodes if isinstance(node, QConvolution)] if network else []
    return sorted(nodes, key=lambda node: -node.weights.size)


def histogram(node: QConvolution) -> Drawing:
    """Return the histogram of a layer's weights, with four values per bar."""
    counts = np.bincount(node.weights.ravel().astype(np.int64) + 128, minlength=256).reshape(-1, _BIN).sum(axis=1)
    most = max(int(counts.max()), 1)
    width = (_RIGHT - _LEFT) / len(counts)
    shapes: list[Shape] = [Line(((_LEFT, _BOTTOM), (_RIGHT, _BOTTOM)), "grid")]
    for index, count in enumerate(counts):
        if count:
            low = index * _BIN - 128
            height = max(float(count) / most * (_BOTTOM - _TOP), 0.7)
            said = f"{low} to {low + _BIN - 1}: {int(count):,} weights"
            shapes.append(Box(_LEFT + index * width, _BOTTOM - height, width - 1, height, "c0", title=said))
    for value in (-127, -64, 0, 64, 127):
        at = _LEFT + (value + 128.5) * width / _BIN
        shapes.append(Label(at, _BOTTOM + 18, f"{value}", "middle", "muted", 12.0))
    zero = float((node.weights == 0).mean()) if node.weights.size else 0.0
    said = (
        f"{units.format_count(node.weights.size)} weights, {percent(zero)} of them 0, "
        f"{len(np.unique(node.weights)):,} values in use"
    )
    shapes.append(Label(_LEFT, 16, said, colour="muted", size=12.0))
    name = node.layer or node.name
    return Drawing("weights_histogram", f"Weights of {name} as integers", said + ".", _WIDTH, _HEIGHT, tuple(shapes))
