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
        dataflow: the stationary operand: weights ("ws"), outputs ("os") or inputs ("is").
    """

    rows: int = 256
    columns: int = 256
    dataflow: str = "ws"


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


def read_configuration(path: Path) -> SystolicDesign:
    """Read the array of a SCALE-Sim configuration (.cfg); its other settings are ignored."""
    parser = configparser.ConfigParser()
    parser.read_string(path.read_text(encoding="utf-8"), str(path))
    array = parser["architecture_presets"]
    return SystolicDesign(int(array["ArrayHeight"]), int(array["ArrayWidth"]), array["Dataflow"].strip())


def read_topology(path: Path, kind: Literal["conv", "gemm"] = "conv") -> tuple[Layer, ...]:
    """Read the layers of a SCALE-Sim topology (.csv).

    Args:
        path: the file. Its first line is a heading, and each other line is a layer.
        kind: format of the layers. "gemm": a name and "M, N, K". "conv": a name and "IFMAP Height, IFMAP Width, Filter
            Height, Filter Width, Channels, Num Filter, Strides". There is no padding. A layer with "DP" in its name is
            depthwise, and SCALE-Sim counts a one-channel layer for each channel.
    """
    layers: list[Layer] = []
    for line in path.read_text(encoding="utf-8").splitlines()[1:]:
        name, *fields = [field.strip() for field in line.split(",") if field.strip()]
        layers.extend(_convolution(name, *map(int, fields)) if kind == "conv" else _product(name, *map(int, fields)))
    return tuple(layers)


def _product(name: str, rows: int, columns: int, depth: int) -> Iterator[Layer]:
    yield Layer(name, rows, depth, columns)


def _convolution(
    name: str, height: int, width: int, kernel_height: int, kernel_width: int, channels: int, filters: int, stride: int
) -> Iterator[Layer]:
    rows = -(-(height - kernel_height + stride) // stride) * -(-(width - kernel_width + stride) // stride)
    if "DP" in name:
        for channel in range(channels):
            yield Layer(f"{name}Channel_{channel}", rows, kernel_height * kernel_width, filters)
        return
    yield Layer(name, rows, kernel_height * kernel_width * channels, filters)
