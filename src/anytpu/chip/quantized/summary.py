"""`Summary`: the effect of quantization on a model, layer by layer: weight bytes and quantization error.

Idea: if a quantized model is inaccurate, a single layer is usually the cause. Comparing each layer's output with the
float network's, for the same examples, identifies it.

The summary also names tensors that were 0 in every example, because their scales are guesses.

Rule: the error is the signal-to-quantization-noise ratio (SQNR) in dB, 10 log10(mean x^2 / mean (x - y)^2). Here x is a
float value and y the dequantized integer; 6 dB are one bit. A layer's SQNR includes the errors of all earlier layers.

Bytes count weights: float32 before quantization. After it, int8 weights, with a float32 scale and an int32 bias per
output channel. Weights of host steps stay float32.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from anytpu.chip.graph.nodes import Convolution, HostStep, Network, Node
from anytpu.chip.quantized import reference
from anytpu.chip.quantized.calibration import check, evaluate_chunks, observe
from anytpu.errors import HostStepError
from anytpu.units import format_bytes

_MACS = 4e9
"""Maximum number of multiplications to measure the errors; it limits the number of compared examples."""

_EXAMPLES = 32


@dataclasses.dataclass(frozen=True)
class LayerSummary:
    """The effect of quantization on a layer.

    Attributes:
        layer: name of the layer.
        kinds: distinct class names of its quantized nodes ("Convolution", "Table").
        float_bytes, quantized_bytes: bytes of its weights before and after quantization.
        sqnr_db: signal-to-quantization-noise ratio of its last tensor, in dB; infinite without error.
        sample: a few real weights of its first product before quantization, those that `sampled` chooses.
    """

    layer: str
    kinds: tuple[str, ...]
    float_bytes: int
    quantized_bytes: int
    sqnr_db: float
    sample: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True)
class Summary:
    """The effect of quantization on a model.

    Attributes:
        name: name of the model.
        bits: bits per activation, 8 or 16.
        examples: number of calibration examples.
        compared: number of examples on which the errors were measured, at least 1.
        layers: the summary of each layer, in order.
        output_sqnr_db: signal-to-quantization-noise ratio of each output, in dB.
        never_active: layers whose last tensor was 0 in every example, and such inputs as "input 'name'"; only
            tensors on the chip.
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
        for layer in self.layers:
            sizes = [format_bytes(size) if size else "" for size in (layer.float_bytes, layer.quantized_bytes)]
            rows.append(f"{layer.layer:{width}} {sizes[0]:>10} {sizes[1]:>10} {layer.sqnr_db:8.1f}")
        totals = [format_bytes(size) for size in (self.float_bytes, self.quantized_bytes)]
        errors = ", ".join(f"{error:.1f}" for error in self.output_sqnr_db)
        rows.append(f"{'sum':{width}} {totals[0]:>10} {totals[1]:>10} {errors:>8}")
        if self.never_active:
            rows.append(f"never active in calibration, so that scales are guesses: {', '.join(self.never_active)}")
        return "\n".join(rows)


def summarize(network: Network, quantized: Network, calibration: Sequence[np.ndarray] | np.ndarray) -> Summary:
    """Compare a quantized network with its float network.

    Args:
        network: the float network.
        quantized: the result of `quantize` for it.
        calibration: the examples, as `quantize` takes them; the errors are measured on the first few.

    Raises:
        HostStepError: a host step produces NaN or infinity from finite inputs.
    """
    arrays = check(network, calibration)
    compared = int(np.clip(_MACS // max(_macs(network), 1), 1, min(_EXAMPLES, len(arrays[0]))))
    powers = _powers(network, quantized, arrays, compared)
    errors = {name: decibels(*power) for name, power in powers.items()}
    layers: dict[str, list[Node]] = {}
    for node in quantized.nodes:
        layers.setdefault(node.layer or node.name, []).append(node)
    last = {_last_tensor(nodes, network): layer for layer, nodes in layers.items()}
    real = {node.name: node for node in network.nodes}
    silent = [name for name in last if name in quantized.quantizations and powers[name][0] == 0]
    return Summary(
        name=network.name,
        bits=max((quantization.bits for quantization in quantized.quantizations.values()), default=8),
        examples=len(arrays[0]),
        compared=compared,
        layers=tuple(_layer_summary(layer, nodes, network, real, errors) for layer, nodes in layers.items()),
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
    """Return the weight bytes of some quantized nodes, before and after quantization; shared weights count once."""
    products = {id(node.weights): node for node in nodes if isinstance(node, Convolution)}.values()
    kept = {id(node.steps): node for node in nodes if isinstance(node, HostStep)}.values()
    operands = [operand for step in kept for operation in step.steps.operations for operand in operation.operands]
    kept_bytes = sum(operand.nbytes for operand in operands if isinstance(operand, np.ndarray))
    before = sum(4 * (node.weights.size + node.bias.size) for node in products)
    after = sum(node.weights.nbytes + node.weight_scales.nbytes + node.bias.nbytes for node in products)
    return before + kept_bytes, after + kept_bytes


def _layer_summary(
    layer: str, nodes: list[Node], network: Network, real: Mapping[str, Node], errors: Mapping[str, float]
) -> LayerSummary:
    before, after = weight_bytes(nodes)
    kinds = tuple(dict.fromkeys(type(node).__name__ for node in nodes))
    sample: list[float] = []
    product = next((node for node in nodes if isinstance(node, Convolution)), None)
    own = real.get(product.name) if product else None
    if product and isinstance(own, Convolution):
        sample = own.weights[..., 0].ravel()[sampled(product.weights)].tolist()
    return LayerSummary(layer, kinds, before, after, errors[_last_tensor(nodes, network)], tuple(sample))


def sampled(weights: np.ndarray, count: int = 5) -> np.ndarray:
    """Return indices of a few weights of the first output channel, from the smallest integer to the largest.

    Example:
        >>> sampled(np.int8([[[[3], [-127], [0], [5]]]]), 3)
        array([1, 2, 3])
    """
    order = np.argsort(weights[..., 0].ravel(), kind="stable")
    return order[np.unique(np.linspace(0, len(order) - 1, count).astype(int))]


def _last_tensor(nodes: Sequence[Node], network: Network) -> str:
    return next(node.output for node in reversed(nodes) if node.output in network.shapes)


def _always_zero(network: Network, arrays: Sequence[np.ndarray], names: Sequence[str]) -> list[str]:
    """Return the tensors that are 0 in all examples, not only in the compared ones."""
    histograms = observe(network, arrays, names, "minmax") if names else {}
    return [name for name, histogram in histograms.items() if histogram.low == histogram.high]


def _powers(network: Network, quantized: Network, arrays: Sequence[np.ndarray], compared: int) -> dict[str, np.ndarray]:
    """Return the sums of squares of signal and noise of each tensor, on the first `compared` examples."""
    powers = {name: np.zeros(2) for name in network.shapes if name in quantized.shapes}
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
    """Return the sums of squares of signal and error; skip values that are not finite (a mask's)."""
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
    """Return the number of multiplications of a network's convolutions for one example."""
    products = (node for node in network.nodes if isinstance(node, Convolution))
    return sum(math.prod(network.shapes[node.output][:2]) * node.weights.size for node in products)
