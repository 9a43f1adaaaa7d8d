"""The section of a page on integers: how the numbers of one layer become integers, and what that costs.

Idea: all examples are of the layer whose first tile the page shows, so the reader meets one layer only.
"""

from __future__ import annotations

import numpy as np

from anytpu import units
from anytpu.chip.graph.nodes import Convolution, Network, Quantization
from anytpu.chip.page import figures, pictures
from anytpu.chip.page.record import ChipPage
from anytpu.chip.page.sections import fold
from anytpu.chip.quantized.summary import Summary, sampled, weight_bytes
from anytpu.report.drawing import svg
from anytpu.report.drawing.shapes import Drawing, Label, Polyline, Shape
from anytpu.report.html import Markup, element, joined, remark, section, table

_WIDTH, _LEFT, _RIGHT, _REAL, _INTEGER = 360.0, 24.0, 336.0, 42.0, 96.0
_LINES = 32
"""Number of lines from real numbers to integers in the picture."""


def shown_layer(page: ChipPage) -> Convolution | None:
    """Return the node whose first tile the page shows, else the first with weights; None without weights."""
    nodes = [node for node in page.network.nodes if isinstance(node, Convolution)] if page.network else []
    wanted = page.first_tile.node if page.first_tile else ""
    return next((node for node in nodes if node.name == wanted), nodes[0] if nodes else None)


def integers(page: ChipPage) -> Markup:
    """Return the section: a range, five weights, the sizes before and after, the error of the outputs."""
    if page.network is None:
        return joined()
    node = shown_layer(page)
    bits = page.summary.bits if page.summary else max([q.bits for q in page.network.quantizations.values()], default=8)
    return section(
        "quantization",
        "Real numbers as integers",
        f"weights of 8 bits, activations of {bits}",
        _one_layer(node, page.network, page.summary) if node else None,
        element("h3", "Size and error"),
        element("p", _sizes(page.network)),
        remark(_error(page.summary)),
    )


def _one_layer(node: Convolution, network: Network, summary: Summary | None) -> Markup:
    source, target = (network.quantizations[name] for name in (node.inputs[0], node.output))
    weights, name = Quantization(float(node.weight_scales[0])), node.layer or node.name
    rows = [
        (title, *(f"{number:.4g}" for number in _ends(held, low)), f"{held.scale:.3g}", f"{held.zero_point}")
        for title, held, low in (
            ("input", source, source.low),
            ("weights of output 0", weights, -127),
            ("result", target, target.low),
        )
    ]
    count = 2**source.bits
    return joined(
        remark(
            f"The integer q stands for (q - zero point) x scale: {count:,} integers in equal steps, and the zero point "
            "stands for 0.0. The ranges were observed on your examples."
        ),
        table((name, "smallest", "largest", "scale", "zero point"), rows, "counters", numbers=(1, 2, 3, 4)),
        element("figure", svg.inline(_range(source)), class_="range"),
        element("h3", f"Five weights of {name}"),
        _five_weights(node, summary),
        fold(f"All weights of {name} as integers", svg.inline(pictures.histogram(node))),
    )


def _ends(held: Quantization, low: int) -> list[float]:
    return [float(end) for end in held.dequantize(np.array([low, held.high]))]


def _range(held: Quantization) -> Drawing:
    """Return a line of real numbers above a line of the integers that stand for them."""
    low, high = _ends(held, held.low)

    def x(integer: float) -> float:
        return _LEFT + (integer - held.low) / (held.high - held.low) * (_RIGHT - _LEFT)

    marks = [(held.low, low, "start"), (held.high, high, "end")]
    if min(held.zero_point - held.low, held.high - held.zero_point) > (held.high - held.low) / 8:
        marks.append((held.zero_point, 0.0, "middle"))
    shapes: list[Shape] = [
        Polyline(((x(integer), _REAL), (x(integer), _INTEGER)), "grid")
        for integer in np.linspace(held.low, held.high, _LINES)
    ]
    shapes += [Polyline(((_LEFT, y), (_RIGHT, y)), colour, 3.0) for y, colour in ((_REAL, "c1"), (_INTEGER, "c0"))]
    for integer, real, anchor in marks:
        at = x(integer)
        shapes += [
            Polyline(((at, _REAL), (at, _INTEGER)), "muted", 1.5),
            Label(at, _REAL - 10, f"{real:.4g}", anchor, "ink", 12.0),  # type: ignore[arg-type]
            Label(at, _INTEGER + 20, f"{integer:,}", anchor, "ink", 12.0),  # type: ignore[arg-type]
        ]
    shapes += [Label(_WIDTH / 2, 12, "real numbers of the input", "middle", "muted", 12.0)]
    shapes += [Label(_WIDTH / 2, _INTEGER + 36, f"{held.high - held.low + 1:,} integers", "middle", "muted", 12.0)]
    said = f"{low:.4g} becomes {held.low}, {high:.4g} becomes {held.high}, 0.0 becomes {held.zero_point}."
    return Drawing("range", "A range as integers", said, _WIDTH, _INTEGER + 44, tuple(shapes))


def _five_weights(node: Convolution, summary: Summary | None) -> Markup:
    layers = summary.layers if summary else ()
    real = next((layer.sample for layer in layers if layer.layer == (node.layer or node.name)), ())
    whole = node.weights[..., 0].ravel()[sampled(node.weights)]
    scale = float(node.weight_scales[0])
    rows = [(f"{integer}", f"{integer * scale:.5f}") for integer in whole.tolist()]
    # A layer of several products keeps weights of its first one only.
    if len(real) != len(rows) or np.abs(np.array(real) / scale - whole).max() > 0.501:
        return table(("integer", "stands for"), rows, "counters", numbers=(0, 1))
    rows = [(f"{before:.5f}", f"{before / scale:.2f}", *row) for before, row in zip(real, rows, strict=True)]
    titles = ("real weight", f"divided by {scale:.4g}", "integer", "stands for")
    return table(titles, rows, "counters", numbers=(0, 1, 2, 3))


def weight_sizes(network: Network | None) -> tuple[int, int] | None:
    """Return the bytes of the chip's weights as float32 and as they are; None without weights."""
    before, after = weight_bytes(node for node in (network.nodes if network else ()) if isinstance(node, Convolution))
    return (before, after) if after else None


def _sizes(network: Network) -> str:
    sizes = weight_sizes(network)
    if sizes is None:
        return "The chip holds no weights."
    before, after = map(units.format_bytes, sizes)
    return (
        f"The chip's weights take {before} as float32 and {after} here, {sizes[0] / sizes[1]:.2f} times smaller: a "
        "byte for each weight, and a scale and a bias for each output. For Inception, Google gives 91 MB and 23 MB."
    )


def _error(summary: Summary | None) -> str:
    if summary is None:
        return "The program was loaded from a file, which has no record of its error against the float32 model."
    outputs = ", ".join(figures.format_decibel(ratio_db) for ratio_db in summary.output_sqnr_db)
    return (
        f"Ranges were calibrated on {summary.examples:,} examples. Against the float32 model, on {summary.compared:,} "
        f"of them, the signal-to-quantization-noise ratio of the outputs is {outputs}. 6 dB are one bit."
    )
