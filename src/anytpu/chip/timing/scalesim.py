"""`cycles`: SCALE-Sim's cycle count of a layer on a systolic array, in closed form. Its rules, not the first TPU's.

Idea: SCALE-Sim (https://github.com/scalesim-project/SCALE-Sim, 3.0.0) lists the reads and writes of every edge of the
array in every cycle, and counts the lines. The count depends on three sizes of a layer only, so this module computes it
directly. It serves to compare with publications that use SCALE-Sim.

Rule: a layer is a product of M x K by K x N. One dimension is mapped to the array's rows, one to its columns, and the
third is time. Rows and columns are divided into folds. Every fold costs the same, even if it does not fill the array.
With R rows, C columns and T steps of time:

    weight (ws) and input stationary (is): folds * (2 R + C + T - 2) - 1
    output stationary (os):                folds * (R + C + T - 2) - 1

In each fold, loading the stationary operand (R), streaming (T) and draining (R + C - 2) are sequential. The first TPU
differs in three ways (`anytpu.chip.timing.time`):

1. It shifts weights in while the previous tile multiplies.
2. It does not wait for sums to drain between two tiles.
3. Its weights come from a memory, and in most programs the array waits for it. SCALE-Sim's mode CALC, computed here,
   has memories that are as fast as the array needs.
"""

from __future__ import annotations

import configparser
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from anytpu.errors import FileError, SettingError
from anytpu.files.opening import read_text

Dataflow = Literal["ws", "os", "is"]
"""The stationary operand: weights ("ws"), outputs ("os") or inputs ("is")."""

_CONVOLUTION = (
    "IFMAP Height",
    "IFMAP Width",
    "Filter Height",
    "Filter Width",
    "Channels",
    "Num Filter",
    "Strides",
)
_PRODUCT = ("M", "N", "K")


@dataclasses.dataclass(frozen=True)
class Layer:
    """A layer of SCALE-Sim: a product of `rows` x `depth` by `depth` x `columns`.

    Attributes:
        name: name of the layer.
        rows: number of output positions (M); the batch is 1.
        depth: number of products summed per output (K).
        columns: number of filters (N).
    """

    name: str
    rows: int
    depth: int
    columns: int

    @property
    def macs(self) -> int:
        """Number of multiply-adds."""
        return self.rows * self.depth * self.columns


@dataclasses.dataclass(frozen=True)
class SystolicDesign:
    """The array of a SCALE-Sim configuration.

    Attributes:
        rows, columns: number of cells along each side.
        dataflow: the stationary operand.

    Raises:
        SettingError: a side is not positive, or the dataflow is unknown.
    """

    rows: int = 256
    columns: int = 256
    dataflow: Dataflow = "ws"

    def __post_init__(self):
        for name in ("rows", "columns"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise SettingError(f"{name} of a systolic array must be a positive integer, not {value!r}.")
        if self.dataflow not in ("ws", "os", "is"):
            raise SettingError(f"dataflow must be 'ws', 'os' or 'is', not {self.dataflow!r}.")


def cycles(layer: Layer, design: SystolicDesign | None = None) -> int:
    """Return the "Total Cycles" of SCALE-Sim's mode CALC.

    Args:
        layer: the layer.
        design: the array; None: 256 x 256, weight stationary.

    Example:
        >>> cycles(Layer("a 600 x 600 matrix of LSTM1", rows=96, depth=600, columns=600))
        7757
    """
    design = design or SystolicDesign()
    along = {
        "ws": (layer.depth, layer.columns, layer.rows),
        "os": (layer.rows, layer.columns, layer.depth),
        "is": (layer.depth, layer.rows, layer.columns),
    }
    down, across, steps = along[design.dataflow]
    folds = -(-down // design.rows) * -(-across // design.columns)
    loading = 0 if design.dataflow == "os" else design.rows
    return folds * (loading + design.rows + design.columns + steps - 2) - 1


def read_configuration(path: str | Path) -> SystolicDesign:
    """Read the array of a SCALE-Sim configuration (.cfg); its other settings are ignored.

    Raises:
        FileError: the file cannot be read.
        SettingError: the array is missing or invalid.
    """
    parser = configparser.ConfigParser()
    try:
        parser.read_string(_text(path), str(path))
    except configparser.Error as error:
        raise SettingError(f"{path} is no SCALE-Sim configuration: {error}") from error
    section = "architecture_presets"
    if not parser.has_section(section):
        raise SettingError(f"{path} is no SCALE-Sim configuration: it has no section [{section}].")
    values = {name: parser.get(section, name, fallback="") for name in ("ArrayHeight", "ArrayWidth", "Dataflow")}
    sides = [_positive(values[name], f"{path}, [{section}]: {name}") for name in ("ArrayHeight", "ArrayWidth")]
    dataflow = values["Dataflow"].strip()
    if dataflow not in ("ws", "os", "is"):
        raise SettingError(f"{path}, [{section}]: Dataflow must be ws, os or is, not {dataflow!r}.")
    return SystolicDesign(sides[0], sides[1], dataflow)


def read_topology(path: str | Path, kind: Literal["conv", "gemm"] = "conv") -> tuple[Layer, ...]:
    """Read the layers of a SCALE-Sim topology (.csv).

    Args:
        path: the file. Its first line is a heading, and each other line is a layer.
        kind: format of the layers. "gemm": a name and "M, N, K". "conv": a name and "IFMAP Height, IFMAP Width, Filter
            Height, Filter Width, Channels, Num Filter, Strides". There is no padding. A layer with "DP" in its name is
            depthwise, and SCALE-Sim counts a one-channel layer for each channel.

    Raises:
        FileError: the file cannot be read.
        SettingError: a line has another format; the message names it.
    """
    if kind not in ("conv", "gemm"):
        raise SettingError(f"kind of a topology must be 'conv' or 'gemm', not {kind!r}.")
    names = _CONVOLUTION if kind == "conv" else _PRODUCT
    layers: list[Layer] = []
    for number, line in enumerate(_text(path).splitlines(), 1):
        if number == 1 or not line.strip():
            continue
        name, *fields = [field.strip() for field in line.split(",")]
        place = f"{path}, line {number}"
        if len([field for field in fields if field]) < len(names):
            raise SettingError(f"{place}: expected a name and {', '.join(names)}, got {line.strip()!r}.")
        values = [_positive(text, f"{place}: {what}") for what, text in zip(names, fields, strict=False)]
        layers.extend(_convolution(name, values, place) if kind == "conv" else _product(name, values))
    return tuple(layers)


def _product(name: str, values: list[int]) -> Iterator[Layer]:
    rows, columns, depth = values
    yield Layer(name, rows, depth, columns)


def _convolution(name: str, values: list[int], place: str) -> Iterator[Layer]:
    height, width, kernel_height, kernel_width, channels, filters, stride = values
    if kernel_height > height or kernel_width > width:
        raise SettingError(
            f"{place}: a filter of {kernel_height} x {kernel_width} is larger than its input of {height} x {width}; a "
            f"topology has no padding, so add it to the input."
        )
    rows = -(-(height - kernel_height + stride) // stride) * -(-(width - kernel_width + stride) // stride)
    if "DP" in name:
        for channel in range(channels):
            yield Layer(f"{name}Channel_{channel}", rows, kernel_height * kernel_width, filters)
        return
    yield Layer(name, rows, kernel_height * kernel_width * channels, filters)


def _positive(text: str, what: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise SettingError(f"{what} must be a positive integer, not {text.strip()!r}.")
    return int(text)


def _text(path: str | Path) -> str:
    try:
        return read_text(Path(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise FileError(f"{str(path)!r} cannot be read: {reason}") from error
