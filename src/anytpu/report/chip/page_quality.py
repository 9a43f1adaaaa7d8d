"""The section of a page on quantization: sizes before and after, integer weights, the noise of each layer."""

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

_MAX_HISTOGRAMS = 60


def quality(page: ChipPage) -> Markup:
    """Return the section on the quantization of the model."""
    if page.network is None:
        return joined()
    return element(
        "section",
        element("h2", "Quantization", element("small", _bits(page.summary))),
        element("p", _said(page.summary), class_="remark"),
        _histograms(page),
        _figure(noise_by_layer(page.layers), noise_by_layer(page.layers, narrow=True)),
        _figure(weights_by_layer(page.layers), weights_by_layer(page.layers, narrow=True)),
        id="quantization",
    )


def _bits(summary: Summary | None) -> str:
    return f"weights of 8 bits, activations of {summary.bits}" if summary else "weights of 8 bits"


def _said(summary: Summary | None) -> str:
    if summary is None:
        return "The program was loaded from a file, which has no record of its error against the float32 model."
    outputs = ", ".join(figures.format_decibel(ratio_db) for ratio_db in summary.output_sqnr_db)
    before, after = units.format_bytes(summary.float_bytes), units.format_bytes(summary.quantized_bytes)
    return (
        f"Weights take {before} as float32 and {after} as integers with their scales. Ranges were calibrated on "
        f"{summary.examples:,} examples. Against the float32 model, on {summary.compared:,} of them, the "
        f"signal-to-quantization-noise ratio of the outputs is {outputs}. 6 dB are one bit."
    )


def _figure(drawing: Drawing | None, narrow: Drawing | None) -> Markup:
    return element("figure", element("h3", drawing.title), svg.either(drawing, narrow)) if drawing else joined()


def _histograms(page: ChipPage) -> Markup:
    """Return a histogram per layer. The script shows the selected one; without a script the largest layer is shown."""
    nodes = layers_with_weights(page.network)[:_MAX_HISTOGRAMS]
    if not nodes:
        return joined()
    drawings = [histogram(node) for node in nodes]
    options = [element("option", node.layer or node.name, value=index) for index, node in enumerate(nodes)]
    pictures = [
        element("div", svg.inline(drawing), data_histogram=index, hidden="hidden" if index else None)
        for index, drawing in enumerate(drawings)
    ]
    return element(
        "figure",
        element("figcaption", element("label", "Weights as integers of ", element("select", *options))),
        *pictures,
        id="weights",
    )
