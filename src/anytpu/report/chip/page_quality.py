"""What quantization did, on a page: bytes before and after, the weights as whole numbers, the noise of each layer."""

from __future__ import annotations

from anytpu import units
from anytpu.chip.quantized.summary import Summary
from anytpu.report.chip import figures
from anytpu.report.chip.histogram import histogram, layers_with_weights
from anytpu.report.chip.layer_bars import noise_by_layer, weights_by_layer
from anytpu.report.chip.record import ChipPage
from anytpu.report.drawing import svg
from anytpu.report.drawing.shapes import Drawing
from anytpu.report.web.markup import Markup, element, joined

_MOST = 60


def quality(one: ChipPage) -> Markup:
    """Return what quantization did to the model."""
    if one.network is None:
        return joined()
    return element(
        "section",
        element("h2", "Quantization", element("small", _bits(one.summary))),
        element("p", _said(one.summary), class_="remark"),
        _histograms(one),
        _figure(noise_by_layer(one.layers), noise_by_layer(one.layers, narrow=True)),
        _figure(weights_by_layer(one.layers), weights_by_layer(one.layers, narrow=True)),
        id="quantization",
    )


def _bits(summary: Summary | None) -> str:
    return f"weights of 8 bits, activations of {summary.bits}" if summary else "weights of 8 bits"


def _said(summary: Summary | None) -> str:
    if summary is None:
        return "The program was loaded, and keeps no record of how far it is from the model in floating point."
    outputs = ", ".join(figures.format_decibel(one) for one in summary.output_sqnr_db)
    before, after = units.format_bytes(summary.float_bytes), units.format_bytes(summary.quantized_bytes)
    return (
        f"Weights take {before} as float32 and {after} as whole numbers with their scales. Ranges were taken from "
        f"{summary.examples:,} examples; beside the model in floating point, on {summary.compared:,} of them, the "
        f"outputs have {outputs} of signal over quantization noise. 6 dB are one bit."
    )


def _figure(drawing: Drawing | None, narrow: Drawing | None) -> Markup:
    return element("figure", element("h3", drawing.title), svg.either(drawing, narrow)) if drawing else joined()


def _histograms(one: ChipPage) -> Markup:
    """Return a histogram of each layer's weights; the script shows the one that is chosen, else the largest is."""
    nodes = layers_with_weights(one.network)[:_MOST]
    if not nodes:
        return joined()
    drawings = [histogram(node) for node in nodes]
    options = [element("option", node.layer or node.name, value=number) for number, node in enumerate(nodes)]
    pictures = [
        element("div", svg.inline(drawing), data_histogram=number, hidden="hidden" if number else None)
        for number, drawing in enumerate(drawings)
    ]
    return element(
        "figure",
        element("figcaption", element("label", "Weights as whole numbers of ", element("select", *options))),
        *pictures,
        id="weights",
    )
