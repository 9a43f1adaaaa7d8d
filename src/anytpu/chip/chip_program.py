"""`ChipProgram`: a model as a program for the first TPU, to run, time, inspect and save.

Rule: seconds and cycles are predictions (`time`), and results are exact (`run`). Each report states which it shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anytpu._calls import explain_methods
from anytpu.chip.image.image import Image
from anytpu.chip.images import ImageCache, path_of
from anytpu.chip.isa.design import Design
from anytpu.chip.running import Runner
from anytpu.errors import ChipError
from anytpu.showing import report

if TYPE_CHECKING:
    from anytpu.chip.graph.nodes import Network, Port
    from anytpu.chip.quantized import Summary
    from anytpu.chip.timing import Timing


@explain_methods
class ChipProgram:
    """A program for the first TPU, returned by `chip.compile`, `chip.load` and `chip.assemble`.

    Attributes:
        name: the program's name.
        network: the quantized network, or None for an assembled program.
        summary: quantization error per layer; None for a loaded or assembled program.
        example: the first few calibration examples, by input tensor; empty for a loaded or assembled program. The
            program's page animates the array with them.

    Example:
        >>> program = tpu.chip.compile(model, calibration=x_train[:256])  # doctest: +SKIP
        >>> program.run(x_test[:2]).shape  # doctest: +SKIP
        (2, 10)
    """

    def __init__(
        self,
        image: Image,
        network: Network | None = None,
        spill: bool = True,
        summary: Summary | None = None,
        example: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self.name = image.name
        self.network = network
        self.summary = summary
        self.example = dict(example or {})
        self._images = ImageCache(image, network, spill)
        self._runner = Runner(self._images)

    def __repr__(self) -> str:
        return (
            f"<ChipProgram {self.name!r}, {len(self._images.own.instructions)} instructions, batches of {self.batch}>"
        )

    @property
    def batch(self) -> int:
        """Number of examples per batch, unless a call gives another batch."""
        return self._images.own.batch

    @property
    def design(self) -> Design:
        """The chip that the program is compiled for."""
        return self._images.own.design

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The inputs, in order."""
        return self._runner.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The outputs, in order."""
        return self._runner.outputs

    def image(self, batch: int | None = None, design: Design | None = None) -> Image:
        """Return the instructions and weights for a batch size; they are compiled on the first call.

        Args:
            batch: examples per batch; None: the program's own batch.
            design: another chip; None: the program's own chip.

        Raises:
            ChipError: the program was assembled, so it has no network to compile again.
            CapacityError: a batch of that size does not fit on the chip.
        """
        return self._images.image(batch, design)

    def run(self, x: Any) -> Any:
        """Run the program, and return its outputs as float32: exact by the definition of the instructions.

        Args:
            x: the input, `(rows, ...)` in the model's shape; a list or a dictionary for several inputs. Any number of
                rows is valid. They run in batches, or a few rows in a batch of the next power of two. Free rows of a
                batch repeat its last row, and their results are dropped.

        Returns:
            The output, `(rows, ...)`, or a tuple of outputs: float32, dequantized from the chip's integers. A final
            host step (softmax) computes in float32 from these.

        Raises:
            ChipError: an input has another shape or kind, or a NaN. An infinity saturates, like any value outside
                the chip's range.
        """
        return _one_or_all(self._runner.run_real(x))

    def run_int8(self, x: Any) -> Any:
        """Run the program, and return each output's integers: int8, or int16 with 16-bit activations.

        For an output computed on the host (softmax), return the chip tensors it is computed from.

        Returns:
            The integers of a single tensor, or a tuple of several. An output of the chip has the model's shape,
            `(rows, ...)`; any other chip tensor has `(rows, height, width, channels)`.
        """
        return _one_or_all(self._runner.run_integers(x))

    def time(
        self, batch: int | None = None, *, events: bool = False, back_to_back: bool = False, **knobs: Any
    ) -> Timing:
        """Predict the time of a batch, and the causes of its cycles.

        Args:
            batch: examples per batch; None: the program's own batch.
            events: also record the start and end of each unit's work.
            back_to_back: time a batch in a steady stream, whose input is read while the previous batch is computed.
                False times a single batch from its first input to its last output.
            **knobs: changed parameters of the chip, by their names in `Design`: `weight_bytes_per_s=4 * 34e9`.

        Raises:
            SettingError: an unknown parameter, an invalid value, or events of batches back to back.
        """
        from anytpu.chip.timing import time

        design = self.design.turned(knobs)
        return time(self.image(batch, design), design=design, events=events, back_to_back=back_to_back)

    def disassemble(self, batch: int | None = None, *, weights: bool = False) -> str:
        """Return the program as assembly text; with `weights`, `chip.assemble` restores the same bytes from it."""
        from anytpu.chip.assembly import disassemble

        return disassemble(self.image(batch), weights=weights)

    def save(self, path: str | Path) -> Path:
        """Write the program as a `.tpu` file, which `chip.load` reads, and return its path.

        Raises:
            ChipFileError: the file cannot be written.
        """
        from anytpu.chip import file

        return file.write(path_of(path), self._images.own, self.network, self._images.spill)

    def to_onnx(self, path: str | Path, *, integers: bool = False) -> Path:
        """Write the quantized network as an ONNX model, and return its path.

        Args:
            path: the file to write.
            integers: also make each tensor of the chip an output, "name:integers".

        Raises:
            ChipError: the program has no network, a host step has no ONNX operator, or onnx is not installed.
            ChipFileError: the file cannot be written.
        """
        from anytpu.chip.onnx import write

        if self.network is None:
            raise ChipError(f"{self.name} was assembled, so there is no network to write as ONNX.")
        return write(self.network, path_of(path), integers=integers)

    def trace(self, path: str | Path, batch: int | None = None) -> Path:
        """Write a trace of all units for https://ui.perfetto.dev, and return its path."""
        return report("chip").to_trace(self.time(batch, events=True), path_of(path), self.image(batch))

    def to_html(self, path: str | Path) -> Path:
        """Write all reports as one self-contained HTML page, and return its path."""
        return report("chip").to_html(self, path_of(path))

    def to_svg(self, folder: str | Path) -> list[Path]:
        """Write each plot as an SVG file into a folder, and return their paths."""
        return report("chip").to_images(self, path_of(folder), "svg")

    def to_png(self, folder: str | Path) -> list[Path]:
        """Write each plot as a PNG file into a folder, and return their paths."""
        return report("chip").to_images(self, path_of(folder), "png")

    def show(self) -> None:
        """Print a summary: the layers, the place of each (chip or host), the memory and the predicted time."""
        report("chip").show(self)

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook displays."""
        return report("chip").to_fragment(self)


def _one_or_all(arrays: list[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else tuple(arrays)
