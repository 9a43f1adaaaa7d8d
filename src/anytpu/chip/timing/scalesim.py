"""`cycles`: what SCALE-Sim counts for a layer on a systolic array, exactly and at once. Its rules, not the first TPU's.

Idea: SCALE-Sim (https://github.com/scalesim-project/SCALE-Sim, 3.0.0) writes down what every edge of the array reads
and writes in every cycle, and counts the lines. The number of lines follows from three numbers of a layer, so it can be
had without them. For comparing with work that used it.

Rule: a layer is a product of M x K by K x N, of which one dimension lies along the array's rows, one along its columns,
and one is time; along rows and columns it is cut into folds, and each fold costs the same, however little of the array
it fills. With R rows, C columns and T steps of time:

    weight (ws) and input stationary (is): folds * (2 R + C + T - 2) - 1
    output stationary (os):                folds * (R + C + T - 2) - 1

Loading the operand that stays (R), streaming (T) and draining (R + C - 2) come one after another in each fold. Here is
where the first TPU differs: it shifts weights in behind the tile before, and never waits between two tiles for sums to
drain; but its weights come from a memory, which the array most often waits for (`anytpu.chip.timing.time`). In
SCALE-Sim's mode CALC, which this is, memories are as fast as the array asks.
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
"""Which operand stays in the cells: weights, outputs, inputs."""

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
    """A layer as SCALE-Sim sees it: a product of `rows` x `depth` by `depth` x `columns`.

    Attributes:
        name: what people call it.
        rows: positions of the output (M); the batch is 1.
        depth: numbers that are summed up for each (K).
        columns: filters (N).
    """

    name: str
    rows: int
    depth: int
    columns: int

    @property
    def macs(self) -> int:
        """Multiply-adds."""
        return self.rows * self.depth * self.columns


@dataclasses.dataclass(frozen=True)
class SystolicDesign:
    """The array of a SCALE-Sim configuration.

    Attributes:
        rows, columns: cells.
        dataflow: which operand stays in them.

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
    """Read the array out of a SCALE-Sim configuration (.cfg); all else in it is about memories.

    Raises:
        FileError: the file cannot be read.
        SettingError: it has no array, or one that makes no sense.
    """
    parser = configparser.ConfigParser()
    try:
        parser.read_string(_text(path), str(path))
    except configparser.Error as error:
        raise SettingError(f"{path} is no SCALE-Sim configuration: {error}") from error
    section = "architecture_presets"
    if not parser.has_section(section):
        raise SettingError(f"{path} is no SCALE-Sim configuration: it has no section [{section}].")
    found = {name: parser.get(section, name, fallback="") for name in ("ArrayHeight", "ArrayWidth", "Dataflow")}
    sides = [_positive(found[name], f"{path}, [{section}]: {name}") for name in ("ArrayHeight", "ArrayWidth")]
    dataflow = found["Dataflow"].strip()
    if dataflow not in ("ws", "os", "is"):
        raise SettingError(f"{path}, [{section}]: Dataflow must be ws, os or is, not {dataflow!r}.")
    return SystolicDesign(sides[0], sides[1], dataflow)


def read_topology(path: str | Path, kind: Literal["conv", "gemm"] = "conv") -> tuple[Layer, ...]:
    """Read the layers of a SCALE-Sim topology (.csv).

    Args:
        path: the file. Its first line is a heading. Of kind "conv" each line has a name and "IFMAP Height, IFMAP Width,
            Filter Height, Filter Width, Channels, Num Filter, Strides", without padding; a layer with "DP" in its name
            is depthwise, which SCALE-Sim counts as a layer of one channel for each channel. Of kind "gemm": a name
            and "M, N, K".
        kind: which of the two.

    Raises:
        FileError: the file cannot be read.
        SettingError: a line is not as above; it is named.
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
