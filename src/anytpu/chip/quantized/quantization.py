"""`quantize`: static post-training quantization of a float network, from calibration examples.

1. `calibration.py` computes the network on the examples and collects the range of each tensor.
2. A product whose parts need scales of their own is split.
3. `choices.py` chooses the scale and zero point of each tensor.
4. `counterparts.py` converts each node to integers, as specified in `graph/nodes.py`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from anytpu.chip.graph.nodes import Convolution, Network, Slice
from anytpu.chip.graph.splitting import split_products
from anytpu.chip.quantized.calibration import check, observe
from anytpu.chip.quantized.choices import choose, tensors_of_chip
from anytpu.chip.quantized.counterparts import NodeQuantizer
from anytpu.chip.quantized.ranges import Range, step
from anytpu.errors import QuantizationError

_TOLERATED = {8: 2.0, 16: 256.0}
"""By bits, the maximum ratio of the scales of two parts of a product that share one."""


def quantize(
    network: Network,
    calibration: Sequence[np.ndarray] | np.ndarray,
    *,
    bits: int = 8,
    method: Literal["minmax", "percentile", "mse"] = "minmax",
) -> Network:
    """Quantize a float network.

    Args:
        network: the float network.
        calibration: about 100 representative examples: an array for each input, `(examples, *the input's shape)`. For
            a network with one input the array itself is also valid.
        bits: bits per activation, 8 or 16; weights have 8.
        method: how to choose a tensor's range from the observed values. "minmax" covers all of them, "percentile" the
            inner 99.99 %. "mse" minimizes the squared error.

    Returns:
        The quantized network, which `reference.compute` computes.

    Raises:
        CalibrationError: the examples are missing or cannot be used.
        QuantizationError: a layer has values that no integers can represent.
    """
    _check_weights(network)
    arrays = check(network, calibration)
    histograms = observe(network, arrays, tensors_of_chip(network), method)
    ranges = {name: histogram.range(method, bits) for name, histogram in histograms.items()}
    network = split_products(network, lambda alike: _is_uneven(alike, ranges, bits))
    choices = choose(network, {name: ranges[name] for name in tensors_of_chip(network)}, bits)
    maker = NodeQuantizer(choices)
    nodes = tuple(made for node in network.nodes for made in maker.make(node))
    shapes = {**network.shapes, **{new: network.shapes[old] for (_, old), new in choices.detours.items()}}
    return Network(network.name, network.inputs, network.outputs, shapes, choices.quantizations, nodes)


def _is_uneven(alike: Sequence[Sequence[Slice]], ranges: Mapping[str, Range], bits: int) -> bool:
    """Return whether the slices of a product's result need scales that differ too much for one scale of all."""
    steps = []
    for same in zip(*alike, strict=True):
        covered = functools.reduce(Range.union, (ranges[part.output] for part in same))
        steps.append(float(step(covered.low, covered.high, bits)))
    return max(steps) > _TOLERATED[bits] * min((one for one in steps if one > 0), default=math.inf)


def _check_weights(network: Network) -> None:
    for node in network.nodes:
        if isinstance(node, Convolution):
            for what, array in (("weights", node.weights), ("bias", node.bias)):
                if not np.isfinite(array).all():
                    raise QuantizationError(
                        f"layer {node.layer or node.name!r} has {array[~np.isfinite(array)][0]} in its {what}, which "
                        f"no integer represents: load or train the model again"
                    )
