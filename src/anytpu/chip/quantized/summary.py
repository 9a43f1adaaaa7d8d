"""`Summary`: what quantization did to a model, layer by layer: bytes saved, exactness lost.

Idea: when a quantized model is worse than it should be, one layer is usually to blame. Its output, beside that of the
float network for the same examples, shows it.

A tensor that was 0 for every example says nothing of its scale; it is named, since that scale is a guess.

Rule: an error is told as the ratio of signal to quantization noise, 10 log10(mean x^2 / mean (x - its integer's)^2), in
dB: 6 dB are one bit. It is that of everything up to there, not of the layer alone. Bytes are those of weights: float32
before; int8 with a float32 scale and an int32 bias for each output channel after; what stays on the host stays float32.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from anytpu.chip.network.nodes import Convolution, Network, Node
from anytpu.chip.quantized import reference
from anytpu.chip.quantized.calibration import check, evaluate_chunks, observe
from anytpu.chip.quantized.nodes import QConvolution, QHostStep, QuantizedNetwork
from anytpu.errors import HostStepError
from anytpu.units import format_bytes

_MACS = 4e9
"""Multiplications that looking at the errors may take; it decides on how many of the examples they are looked at."""

_EXAMPLES = 32


@dataclasses.dataclass(frozen=True)
class LayerSummary:
    """What quantization did to a layer.

    Attributes:
        layer: its name.
        kinds: of its nodes in the quantized network, each once ("QConvolution", "QTable").
        float_bytes, quantized_bytes: of its weights.
        sqnr_db: of its last tensor, signal to quantization noise; infinite where nothing is lost.
    """

    layer: str
    kinds: tuple[str, ...]
    float_bytes: int
    quantized_bytes: int
    sqnr_db: float


@dataclasses.dataclass(frozen=True)
class Summary:
    """What quantization did to a model.

    Attributes:
        name: of the model.
        bits: of the activations.
        examples: how many examples the ranges were taken from.
        compared: on how many of them the errors were looked at.
        layers: in order.
        output_sqnr_db: of each output.
        never_active: the layers whose last tensor, and "input 'name'" of those inputs, was 0 in every example,
            of those that the chip holds.
    """

    name: str
    bits: int
    examples: int
    compared: int
    layers: tuple[LayerSummary, ...]
    output_sqnr_db: tuple[float, ...]
    never_active: tuple[str, ...] = ()

    @property
    def float_bytes(self) -> int:
        """Bytes of all weights in float32."""
        return sum(layer.float_bytes for layer in self.layers)

    @property
    def quantized_bytes(self) -> int:
        """Bytes of all weights afterwards."""
        return sum(layer.quantized_bytes for layer in self.layers)

    @property
    def worst(self) -> LayerSummary:
        """The layer whose output is furthest from the float network's."""
        return min(self.layers, key=lambda layer: layer.sqnr_db)

    def __str__(self) -> str:
        width = max([len(layer.layer) for layer in self.layers] + [5])
        rows = [f"{'layer':{width}} {'float32':>10} {'int8':>10} {'SQNR dB':>8}"]
        for one in self.layers:
            sizes = [format_bytes(size) if size else "" for size in (one.float_bytes, one.quantized_bytes)]
            rows.append(f"{one.layer:{width}} {sizes[0]:>10} {sizes[1]:>10} {one.sqnr_db:8.1f}")
        totals = [format_bytes(size) for size in (self.float_bytes, self.quantized_bytes)]
        errors = ", ".join(f"{error:.1f}" for error in self.output_sqnr_db)
        rows.append(f"{'sum':{width}} {totals[0]:>10} {totals[1]:>10} {errors:>8}")
        if self.never_active:
            rows.append(f"never active in calibration, so that scales are guesses: {', '.join(self.never_active)}")
        return "\n".join(rows)


def summarize(network: Network, quantized: QuantizedNetwork, calibration: Sequence[np.ndarray] | np.ndarray) -> Summary:
    """Compare a quantized network with the one that it was made of.

    Args:
        network: in floating point.
        quantized: what `quantize` made of it.
        calibration: the examples, as `quantize` takes them; the errors are looked at on the first few.

    Raises:
        HostStepError: a step of the host makes something that is no number of integers.
    """
    arrays = check(network, calibration)
    compared = int(np.clip(_MACS // max(_macs(network), 1), 1, min(_EXAMPLES, len(arrays[0]))))
    powers = _powers(network, quantized, arrays, compared)
    errors = {name: decibels(*power) for name, power in powers.items()}
    layers: dict[str, list[Node]] = {}
    for node in quantized.nodes:
        layers.setdefault(node.layer or node.name, []).append(node)
    last = {_last_tensor(nodes, network): layer for layer, nodes in layers.items()}
    silent = [name for name in last if name in quantized.quantizations and powers[name][0] == 0]
    return Summary(
        name=network.name,
        bits=max((one.bits for one in quantized.quantizations.values()), default=8),
        examples=len(arrays[0]),
        compared=compared,
        layers=tuple(_layer_summary(layer, nodes, network, errors) for layer, nodes in layers.items()),
        output_sqnr_db=tuple(errors[port.tensor] for port in network.outputs),
        never_active=(
            *(
                f"input {port.tensor!r}"
                for port, array in zip(network.inputs, arrays, strict=True)
                if port.tensor in quantized.quantizations and not array.any()
            ),
            *(last[name] for name in _always_zero(network, arrays, silent)),
        ),
    )


def weight_bytes(nodes: Iterable[Node]) -> tuple[int, int]:
    """Return the bytes of the weights of some quantized nodes, before in float32 and now; shared ones count once."""
    from anytpu.chip.network import operations  # loads JAX

    products = {id(node.weights): node for node in nodes if isinstance(node, QConvolution)}.values()
    kept = {id(node.step): node.step for node in nodes if isinstance(node, QHostStep)}.values()
    kept_bytes = sum(array.nbytes for step in kept for array in operations.to_json([step.steps])[1])
    before = sum(4 * (node.weights.size + node.bias.size) for node in products)
    after = sum(node.weights.nbytes + node.weight_scales.nbytes + node.bias.nbytes for node in products)
    return before + kept_bytes, after + kept_bytes


def _layer_summary(layer: str, nodes: list[Node], network: Network, errors: Mapping[str, float]) -> LayerSummary:
    before, after = weight_bytes(nodes)
    kinds = tuple(dict.fromkeys(type(node).__name__ for node in nodes))
    return LayerSummary(layer, kinds, before, after, errors[_last_tensor(nodes, network)])


def _last_tensor(nodes: Sequence[Node], network: Network) -> str:
    return next(node.output for node in reversed(nodes) if node.output in network.shapes)


def _always_zero(network: Network, arrays: Sequence[np.ndarray], names: Sequence[str]) -> list[str]:
    """Return those of some tensors that are 0 in all examples, of which few were compared."""
    histograms = observe(network, arrays, names, "minmax") if names else {}
    return [name for name, one in histograms.items() if one.low == one.high]


def _powers(
    network: Network, quantized: QuantizedNetwork, arrays: Sequence[np.ndarray], compared: int
) -> dict[str, np.ndarray]:
    """Return the squares of signal and of noise of each tensor on the first few examples, added up."""
    powers = {name: np.zeros(2) for name in network.shapes}
    done, chunks = 0, evaluate_chunks(network, arrays)
    while done < compared:
        values = {name: array[: compared - done] for name, array in next(chunks).items()}
        rows = slice(done, done + len(next(iter(values.values()))))
        try:
            tensors = reference.compute(quantized, [array[rows] for array in arrays])
        except HostStepError as error:
            made = f"Among the examples of calibration, t{error.made[1:]}"
            raise HostStepError(made, error.row + done, error.reason) from None
        for name, power in powers.items():
            quantization = quantized.quantizations.get(name)
            ours = tensors[name] if quantization is None else quantization.dequantize(tensors[name])
            power += _signal_and_noise(np.asarray(values[name], np.float64), ours)
        done = rows.stop
    return powers


def _signal_and_noise(exact: np.ndarray, ours: np.ndarray) -> np.ndarray:
    """Return the sums of squares of what is exact and of what is lost, without what is not finite (a mask)."""
    known = np.isfinite(exact) & np.isfinite(ours)
    signal = exact[known]
    return np.array([np.square(signal).sum(), np.square(signal - ours[known]).sum()])


def decibels(signal: float, noise: float) -> float:
    """Return 10 log10(signal / noise), infinite without noise, minus infinite without a signal.

    Example:
        >>> decibels(100.0, 1.0), decibels(1.0, 0.0), decibels(0.0, 1.0)
        (20.0, inf, -inf)
    """
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf


def _macs(network: Network) -> int:
    """Return the multiplications of a network's products for one example."""
    products = (node for node in network.nodes if isinstance(node, Convolution))
    return sum(math.prod(network.shapes[node.output][:2]) * node.weights.size for node in products)
