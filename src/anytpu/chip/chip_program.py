"""`ChipProgram`: a model as a program for the first TPU. Run it, time it, read it, save it.

Rule: a figure in seconds or cycles is predicted (`time`), a result is exact (`run`), and each says which it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anytpu.chip import written
from anytpu.chip.design import Design
from anytpu.chip.image import Image
from anytpu.chip.images import Images, Settings
from anytpu.chip.running import Runner
from anytpu.showing import report

if TYPE_CHECKING:
    from anytpu.chip.network.nodes import Port
    from anytpu.chip.quantized import QuantizedNetwork, Summary
    from anytpu.chip.timing import Timing


class ChipProgram:
    """A program for the first TPU, which `chip.compile`, `chip.load` and `chip.assemble` return.

    Attributes:
        name: what people call it.
        network: the quantized network, or None for a program that was assembled.
        summary: what quantization did, layer by layer; None for a program that was loaded or assembled.
        example: the first few examples that it was compiled with, by the tensor that each input is; empty for a
            program that was loaded or assembled. What its page shows goes through the array with these.

    Example:
        >>> program = tpu.chip.compile(model, calibration=x_train[:256])  # doctest: +SKIP
        >>> program.run(x_test[:2]).shape  # doctest: +SKIP
        (2, 10)
    """

    def __init__(
        self,
        image: Image,
        network: QuantizedNetwork | None = None,
        settings: Settings | None = None,
        summary: Summary | None = None,
        example: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self.name = image.name
        self.network = network
        self.summary = summary
        self.example = dict(example or {})
        self._images = Images(image, network, settings or Settings())
        self._runner = Runner(self._images)

    def __repr__(self) -> str:
        return (
            f"<ChipProgram {self.name!r}, {len(self._images.own.instructions)} instructions, batches of {self.batch}>"
        )

    @property
    def batch(self) -> int:
        """The examples that go through at a time, unless another batch is asked for."""
        return self._images.own.batch

    @property
    def design(self) -> Design:
        """The chip that it is compiled for."""
        return self._images.own.design

    @property
    def inputs(self) -> tuple[Port, ...]:
        """What goes in, in order."""
        return self._runner.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        """What comes out, in order."""
        return self._runner.outputs

    def image(self, batch: int | None = None, design: Design | None = None) -> Image:
        """Return the instructions and the weights for batches of a size; compiled when first asked for.

        Args:
            batch: examples that go through at a time; None: the program's own.
            design: another chip; None: the program's own.

        Raises:
            ChipError: the program was assembled, so it has no network to compile anew.
            CapacityError: a batch of that size does not fit on the chip.
        """
        return self._images.image(batch, design)

    def run(self, x: Any) -> Any:
        """Run the program, and return its outputs as real numbers: exact, by the meaning of the instructions.

        Args:
            x: the input, `(rows, ...)` in the model's shape; a list, or a dictionary, for a model of several. Any
                number of rows: they go through in batches, or a few in one of the next power of two; what is left free
                is filled up with zeros that are cut off.

        Returns:
            The output, `(rows, ...)`, or a tuple of them: float32, of the chip's integers; what a step of the host
            makes at the end (softmax) is computed in float32 of those.

        Raises:
            ChipError: an input of another shape or kind, or with a NaN; an infinite number saturates, as one that is
                too great for the chip does.
        """
        return _one_or_all(self._runner.real(x))

    def run_int8(self, x: Any) -> Any:
        """Run the program, and return the integers that leave the chip: int8, or int16 with 16-bit activations.

        Where the host makes an output of them (softmax), these are the integers that it made it of.

        Returns:
            `(rows, ...)` in the model's shape where the chip makes the output itself, else `(rows, height, width,
            channels)`; a tuple, where there are several.
        """
        return _one_or_all(self._runner.whole(x))

    def time(
        self, batch: int | None = None, *, events: bool = False, back_to_back: bool = False, **knobs: Any
    ) -> Timing:
        """Predict how long a batch takes, and why.

        Args:
            batch: examples; None: the program's own.
            events: also say what each unit does when.
            back_to_back: a batch in the middle of many, whose input comes while the one before is worked on; not one
                batch alone, from its first input to its last output.
            **knobs: numbers of the chip to turn, by their names in `Design`: `weight_bytes_per_s=4 * 34e9`.

        Raises:
            SettingError: an unknown knob, a value that makes no sense, or events of batches back to back.
        """
        from anytpu.chip.timing import time

        design = self.design.turned(knobs)
        return time(self.image(batch, design), design=design, events=events, back_to_back=back_to_back)

    def disassemble(self, batch: int | None = None, *, weights: bool = False) -> str:
        """Return the program as text; with `weights` all of it, so that `chip.assemble` gives the same bytes again."""
        return written.text(self._images, batch, weights)

    def save(self, path: str | Path) -> Path:
        """Write the program as a `.tpu` file, which `chip.load` reads, and return its path.

        Raises:
            ChipFileError: it cannot be written there.
        """
        return written.save(self._images, path)

    def to_onnx(self, path: str | Path, *, unsigned: bool = False, integers: bool = False) -> Path:
        """Write the quantized network as an ONNX model that computes the same integers, and return its path.

        Args:
            path: where.
            unsigned: u8 in place of s8, for a CPU without VNNI, on which onnxruntime's sums of others saturate.
            integers: also make each tensor of the chip an output, "name:integers".

        Raises:
            ChipError: the program has no network, a step of the host has no operator, or onnx is not installed.
            ChipFileError: it cannot be written there.
        """
        return written.save_onnx(self._images, path, unsigned, integers)

    def trace(self, path: str | Path, batch: int | None = None) -> Path:
        """Write what each unit does when as a trace for https://ui.perfetto.dev, and return its path."""
        return report("chip").to_trace(self.time(batch, events=True), written.path_of(path), self.image(batch))

    def to_html(self, path: str | Path) -> Path:
        """Write all that there is to see as one HTML page that needs no network, and return its path."""
        return report("chip").to_html(self, written.path_of(path))

    def to_svg(self, folder: str | Path) -> list[Path]:
        """Write each plot as an SVG file into a folder, and return their paths."""
        return report("chip").to_images(self, written.path_of(folder), "svg")

    def to_png(self, folder: str | Path) -> list[Path]:
        """Write each plot as a PNG file into a folder, and return their paths."""
        return report("chip").to_images(self, written.path_of(folder), "png")

    def show(self) -> None:
        """Print what the program is: its layers, where each is computed, its memory and its predicted time."""
        report("chip").show(self)

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return report("chip").to_fragment(self)


def _one_or_all(arrays: list[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else tuple(arrays)
