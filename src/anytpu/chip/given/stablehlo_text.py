"""`erased`: the text of quantized StableHLO without its `!quant` types, which JAX's parser does not know.

Idea: a quantized tensor becomes one of float32. The type of each result is kept as the location of its operation. So
the module is read by the parser that every other program is read by.

Source: https://openxla.org/stablehlo/spec#quantized_element_types, and MLIR's dialect "quant".
"""

from __future__ import annotations

import dataclasses
import re

import numpy as np

from anytpu.chip.given.values import Scaled
from anytpu.chip.graph.nodes import Quantization
from anytpu.errors import QuantizationError

MARK = "!quant.uniform"

_TYPE = re.compile(r"!quant\.uniform<(?:[^<>]|<[^<>]*>)*>")
_PARTS = re.compile(r"!quant\.uniform<([iu]\d+)(?:<(-?\d+):(-?\d+)>)?:(\w+)(?::(\d+))?,\s*(\{.*\}|[^{}]+)>")
_AS_LAYER = str.maketrans("<>:,-", "[];|~")
"""No layer has the characters of `parsing.layer_of`'s other parts."""

_RESULT = re.compile(r"^(\s*)(%[\w#$.:-]+)\s*=\s*(.*)$")
_SAME = re.compile(r"^(stablehlo\.uniform_quantize %[\w#$.:-]+)\s*:\s*(tensor<.*>)$")
"""A quantization whose operand has the type of its result, which is printed once."""
_LOCATION = re.compile(r"\s+loc\((?:[^()]|\([^()]*\))*\)\s*$")
_ARGUMENT = re.compile(r"%(\w+): tensor<((?:\d+x)*)(" + _TYPE.pattern + r"|[^!>]*)>")


@dataclasses.dataclass(frozen=True)
class QuantizedType:
    """A `!quant.uniform` type.

    Attributes:
        bits: bits of its integers.
        low, high: their bounds.
        scales, zero_points: one, or one for each index of `axis`.
        axis: axis of the scales; None: there is one.
    """

    bits: int
    low: int
    high: int
    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    axis: int | None

    @staticmethod
    def of(text: str) -> QuantizedType:
        """Return the type that a text names.

        Raises:
            QuantizationError: its integers are not of 8, 16 or 32 bits, or it has another form.
        """
        found = _PARTS.fullmatch(text)
        if found is None or found[1][1:] not in ("8", "16", "32") or found[4] != "f32":
            raise QuantizationError(
                f"it has values of {text:.100}, and the chip's have 8 or 16 bits, with a scale of float32: quantize "
                "the model with 8 bits."
            )
        bits, signed = int(found[1][1:]), found[1][0] == "i"
        ends = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        low, high = (int(found[2]), int(found[3])) if found[2] else ends
        pairs = [part.strip().partition(":") for part in found[6].strip("{}").split(",")]
        moved = 0 if signed else 2 ** (bits - 1)
        return QuantizedType(
            bits,
            low - moved,
            high - moved,
            tuple(float(np.float32(float(scale))) for scale, _, _ in pairs),
            tuple(int(zero or 0) - moved for _, _, zero in pairs),
            None if found[5] is None else int(found[5]),
        )

    @staticmethod
    def of_layer(layer: str) -> QuantizedType | None:
        """Return the type that the layer of an operation of an erased module holds; None: its result has none."""
        if not layer.startswith(MARK):
            return None
        return QuantizedType.of(layer.translate({new: old for old, new in _AS_LAYER.items()}))

    @property
    def quantization(self) -> Quantization:
        """The quantization of an activation."""
        if len(self.scales) != 1 or self.bits > 16:
            raise QuantizationError(
                "it has activations with a scale for each channel or of 32 bits, and the chip's have one scale and 8 "
                "or 16 bits: quantize the model with one scale for each activation."
            )
        return Quantization(self.scales[0], self.zero_points[0], self.bits)

    def quantized(self, reals: np.ndarray) -> Scaled:
        """Return constants of real numbers in integers of this type."""
        scaled = self.constant(np.zeros(reals.shape, np.int8))
        return scaled.reshaped(scaled.quantized(reals, self.low, self.high).astype(np.int64), scaled.axis)

    def constant(self, integers: np.ndarray) -> Scaled:
        """Return integers of a file as a constant of this type."""
        moved = integers.astype(np.int64) - (2 ** (self.bits - 1) if integers.dtype.kind == "u" else 0)
        return Scaled(moved, np.array(self.scales, np.float32), np.array(self.zero_points, np.int64), self.axis or 0)


@dataclasses.dataclass(frozen=True)
class Parameter:
    """An argument of the main function: its name, its shape with the batch, its dtype, and its `!quant` type if any."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    quantized: QuantizedType | None


def erased(text: str) -> tuple[str, list[Parameter]]:
    """Return a module's text without `!quant` types, and the types of the main function's arguments."""
    start, end = text.find("@main("), text.find("->", text.find("@main("))
    if 0 <= start < end:  # the signature in one line
        text = text[:start] + text[start:end].replace("\n", " ") + text[end:]
    lines, arguments = [], list[Parameter]()
    for line in text.splitlines():
        if "func.func" in line and "@main" in line:
            arguments = [_argument(*found) for found in _ARGUMENT.findall(line)]
        lines += _erased_line(line)
    return "\n".join(lines), arguments


def _argument(name: str, sizes: str, dtype: str) -> Parameter:
    shape = tuple(int(size) for size in sizes.split("x")[:-1])
    if dtype.startswith(MARK):
        return Parameter(name, shape, "f32", QuantizedType.of(dtype))
    return Parameter(name, shape, dtype, None)


def _erased_line(line: str) -> list[str]:
    result, types = _RESULT.match(line), list(_TYPE.finditer(line))
    if result is None or not types:
        return [_TYPE.sub("f32", line)]
    line = _LOCATION.sub("", line)
    after = line.rpartition("->")[2] if "->" in line else line
    given = _TYPE.findall(after)
    # The last part of a location is a primitive's name, and the part before it is the layer (`parsing.layer_of`).
    mark = f' loc("{given[-1].translate(_AS_LAYER)}/quantized")' if given else ""
    if given:
        QuantizedType.of(given[-1])
    indent, name, rest = result.groups()
    rest = _SAME.sub(r"\1 : (\2) -> \2", _LOCATION.sub("", rest))
    for word in ("uniform_quantize", "uniform_dequantize"):
        rest = re.sub(rf"^stablehlo\.{word} (%[\w#$.:-]+)", rf"stablehlo.custom_call @{word}(\1)", rest)
        rest = re.sub(rf'^"stablehlo\.{word}"\((%[\w#$.:-]+)\)', rf"stablehlo.custom_call @{word}(\1)", rest)
    if "stablehlo.constant" in rest:
        # The integers keep their own type, and are marked where they are converted.
        (found,) = _PARTS.findall(given[-1])
        whole = _TYPE.sub(found[0].replace("u", "ui") if found[0][0] == "u" else found[0], rest)
        own = whole.rpartition("->")[2].strip()
        floats = re.sub(r"x?[su]?i\d+>$", lambda met: ("x" if met[0][0] == "x" else "") + "f32>", own)
        raw = f"%integers_{name[1:]}"
        return [f"{indent}{raw} = {whole}", f"{indent}{name} = stablehlo.convert {raw} : ({own}) -> {floats}{mark}"]
    return [f"{indent}{name} = {_TYPE.sub('f32', rest)}{mark}"]
