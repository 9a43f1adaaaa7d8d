"""`quantize`: a float network and some examples become a network in whole numbers.

Idea: static post-training quantization. The examples say what each tensor covers (`calibration.py`), `choices.py`
decides what its integers stand for, and `counterparts.py` makes each node what `nodes.py` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from anytpu.chip.network.nodes import Convolution, Network
from anytpu.chip.quantized.calibration import check, observe
from anytpu.chip.quantized.choices import choose, tensors_of_chip
from anytpu.chip.quantized.counterparts import Maker
from anytpu.chip.quantized.nodes import QuantizedNetwork
from anytpu.errors import QuantizationError, SettingError


def quantize(
    network: Network,
    calibration: Sequence[np.ndarray] | np.ndarray | None,
    *,
    bits: int = 8,
    method: Literal["minmax", "percentile", "mse"] = "minmax",
) -> QuantizedNetwork:
    """Turn a network into whole numbers.

    Args:
        network: in floating point.
        calibration: an array for each input (of a network with one input also that array itself), of about 100
            examples of what the model will see, `(examples, *the input's shape)`.
        bits: of the activations, 8 or 16; weights have 8.
        method: how a tensor's range is taken from what was seen: "minmax" all of it, "percentile" the inner 99.99 % of
            its numbers, "mse" the range with the least squared error.

    Returns:
        The network, as `reference.compute` computes it.

    Raises:
        CalibrationError: the examples are missing or cannot be used.
        QuantizationError: a layer has numbers that no integers can stand for.
        SettingError: `bits` or `method` is none of the above.
    """
    if bits not in (8, 16):
        raise SettingError(f"bits must be 8 or 16, not {bits!r}")
    if method not in ("minmax", "percentile", "mse"):
        raise SettingError(f"method must be 'minmax', 'percentile' or 'mse', not {method!r}")
    _check_weights(network)
    arrays = check(network, calibration)
    histograms = observe(network, arrays, tensors_of_chip(network), method)
    choices = choose(network, {name: one.range(method, bits) for name, one in histograms.items()}, bits)
    maker = Maker(choices)
    nodes = tuple(made for node in network.nodes for made in maker.make(node))
    shapes = {**network.shapes, **{new: network.shapes[old] for (_, old), new in choices.detours.items()}}
    return QuantizedNetwork(network.name, network.inputs, network.outputs, shapes, choices.quantizations, nodes)


def _check_weights(network: Network) -> None:
    for node in network.nodes:
        if isinstance(node, Convolution):
            for what, array in (("weights", node.weights), ("bias", node.bias)):
                if not np.isfinite(array).all():
                    raise QuantizationError(
                        f"layer {node.layer or node.name!r} has {array[~np.isfinite(array)][0]} in its {what}, which "
                        f"no integer stands for: load or train the model again"
                    )
