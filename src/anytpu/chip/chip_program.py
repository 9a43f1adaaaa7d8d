"""`ChipProgram`: a model as a program for the first TPU. Run it, time it, read it, save it.

Idea: instructions are for one chip and for batches of one size; the quantized network that they were compiled from is
for any. So a program keeps the network, and compiles images of it as they are needed; one that was assembled from text
has no network, and one image.

Rule: a figure in seconds or cycles is predicted (`time`), a result is exact (`run`), and each says which it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from anytpu.chip import ports
from anytpu.chip.design import Design
from anytpu.chip.image import Binding, Image
from anytpu.chip.network.nodes import Port, Shape
from anytpu.chip.quantized.nodes import QHostStep, Quantization, QuantizedNetwork
from anytpu.errors import ChipError, SettingError
from anytpu.showing import report

if TYPE_CHECKING:
    from anytpu.chip.quantized.summary import Summary
    from anytpu.chip.timing.record import Timing

COMPILED_FOR = ("array", "accumulator_rows", "unified_buffer_bytes", "weight_memory_bytes")
"""The numbers of a chip that its instructions depend on; the others only change how long they take."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """How images are compiled.

    Attributes:
        convolution: "native" passes, "packed" ones, or the cheaper ("auto").
        spill: move to the host what the Unified Buffer has no room for; else that is an error.
    """

    convolution: Literal["auto", "native", "packed"] = "auto"
    spill: bool = True


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
        self._own = image
        self._settings = settings or Settings()
        self._images = {(image.batch, _compiled_for(image.design)): image}

    def __repr__(self) -> str:
        return f"<ChipProgram {self.name!r}, {len(self._own.instructions)} instructions, batches of {self.batch}>"

    @property
    def batch(self) -> int:
        """The examples that go through at a time, unless another batch is asked for."""
        return self._own.batch

    @property
    def design(self) -> Design:
        """The chip that it is compiled for."""
        return self._own.design

    @property
    def inputs(self) -> tuple[Port, ...]:
        """What goes in, in order."""
        return self.network.inputs if self.network else _ports(self._own.inputs)

    @property
    def outputs(self) -> tuple[Port, ...]:
        """What comes out, in order."""
        return self.network.outputs if self.network else _ports(self._own.outputs)

    def image(self, batch: int | None = None, design: Design | None = None) -> Image:
        """Return the instructions and the weights for batches of a size; compiled when first asked for.

        Args:
            batch: examples that go through at a time; None: the program's own.
            design: another chip; None: the program's own.

        Raises:
            ChipError: the program was assembled, so it has no network to compile anew.
            CapacityError: a batch of that size does not fit on the chip.
        """
        batch, design = self.batch if batch is None else batch, design or self.design
        check_batch(batch)
        key = batch, _compiled_for(design)
        if key not in self._images:
            self._images[key] = self._compiled(batch, design)
        return self._images[key]

    def run(self, x: Any) -> Any:
        """Run the program, and return its outputs as real numbers: exact, by the meaning of the instructions.

        Args:
            x: the input, `(rows, ...)` in the model's shape; a list, or a dictionary, for a model of several. Any
                number of rows: they go through in batches, the last one filled up with zeros that are cut off.

        Returns:
            The output, `(rows, ...)`, or a tuple of them: float32, of the chip's integers; what a step of the host
            makes at the end (softmax) is computed in float32 of those.

        Raises:
            ChipError: an input of another shape or kind, or with a NaN.
        """
        quantizations = self._quantizations
        found = self._run(x, [port.tensor for port in self.outputs])
        arrays = [
            ports.array_of(port, found[port.tensor], quantizations).astype(port.dtype, copy=False)
            for port in self.outputs
        ]
        return arrays[0] if len(arrays) == 1 else tuple(arrays)

    def run_int8(self, x: Any) -> Any:
        """Run the program, and return the integers that leave the chip: int8, or int16 with 16-bit activations.

        Where the host makes an output of them (softmax), these are the integers that it made it of.

        Returns:
            `(rows, ...)` in the model's shape where the chip makes the output itself, else `(rows, height, width,
            channels)`; a tuple, where there are several.
        """
        tensors = list(dict.fromkeys(one for port in self.outputs for one in self._whole(port.tensor)))
        found = self._run(x, tensors)
        shapes = {port.tensor: port.shape for port in self.outputs}
        arrays = [found[one].reshape(len(found[one]), *shapes.get(one, found[one].shape[1:])) for one in tensors]
        return arrays[0] if len(arrays) == 1 else tuple(arrays)

    def time(self, batch: int | None = None, *, events: bool = False, **knobs: Any) -> Timing:
        """Predict how long a batch takes, and why.

        Args:
            batch: examples; None: the program's own.
            events: also say what each unit does when.
            **knobs: numbers of the chip to turn, by their names in `Design`: `weight_bytes_per_s=4 * 34e9`.

        Raises:
            SettingError: an unknown knob, or one that is not positive.
        """
        from anytpu.chip.timing import time

        design = turned(self.design, knobs)
        return time(self.image(batch, design), design=design, events=events)

    def disassemble(self, batch: int | None = None, *, weights: bool = False) -> str:
        """Return the program as text; with `weights` all of it, so that `chip.assemble` gives the same bytes again."""
        from anytpu.chip.assembly import disassemble

        return disassemble(self.image(batch), weights=weights)

    def save(self, path: str | Path) -> Path:
        """Write the program as a `.tpu` file, which `chip.load` reads, and return its path.

        Raises:
            ChipFileError: it cannot be written there.
        """
        from anytpu.chip import file

        file.write(path, self._own, self.network)
        return Path(path)

    def to_onnx(self, path: str | Path, *, unsigned: bool = False) -> Path:
        """Write the quantized network as an ONNX model that computes the same integers, and return its path.

        Args:
            path: where.
            unsigned: u8 in place of s8, for a CPU without VNNI, on which onnxruntime's sums of others saturate.

        Raises:
            ChipError: the program has no network, a step of the host has no operator, or onnx is not installed.
        """
        from anytpu.chip.onnx import write

        if self.network is None:
            raise ChipError(f"{self.name} was assembled, so there is no network to write as ONNX.")
        return write(self.network, path, unsigned=unsigned)

    def trace(self, path: str | Path, batch: int | None = None) -> Path:
        """Write what each unit does when as a trace for https://ui.perfetto.dev, and return its path."""
        return report("chip").to_trace(self.time(batch, events=True), path, self.image(batch))

    def to_html(self, path: str | Path) -> Path:
        """Write all that there is to see as one HTML page that needs no network, and return its path."""
        return report("chip").to_html(self, path)

    def to_svg(self, folder: str | Path) -> list[Path]:
        """Write each plot as an SVG file into a folder, and return their paths."""
        return report("chip").to_images(self, folder, "svg")

    def to_png(self, folder: str | Path) -> list[Path]:
        """Write each plot as a PNG file into a folder, and return their paths."""
        return report("chip").to_images(self, folder, "png")

    def show(self) -> None:
        """Print what the program is: its layers, where each is computed, its memory and its predicted time."""
        report("chip").show(self)

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return report("chip").to_fragment(self)

    @property
    def _quantizations(self) -> Mapping[str, Quantization]:
        if self.network:
            return self.network.quantizations
        return {one.tensor: one.quantization for one in (*self._own.inputs, *self._own.outputs)}

    @property
    def _shapes(self) -> Mapping[str, Shape]:
        if self.network:
            return self.network.shapes
        return {one.tensor: one.shape for one in (*self._own.inputs, *self._own.outputs)}

    def _compiled(self, batch: int, design: Design) -> Image:
        from anytpu.chip.compiler import compile_image

        if self.network is None:
            raise ChipError(
                f"{self.name} was assembled for batches of {self.batch} and for one chip; it has no network to compile "
                "anew."
            )
        return compile_image(
            self.network,
            batch=batch,
            design=design,
            convolution=self._settings.convolution,
            spill=self._settings.spill,
        )

    def _run(self, x: Any, tensors: list[str]) -> dict[str, np.ndarray]:
        """Return some tensors of a run over all rows of x."""
        from anytpu.chip import machine

        arrays = ports.arrays_of(x)
        rows = ports.check_arrays(self.name, self.inputs, arrays)
        # Fewer rows than a batch get instructions of their own; more go through in batches, the last one filled up.
        image = self.image(min(rows, self.batch) or 1) if self.network else self._own
        made = [machine.run(image, one) for one in self._batches(arrays, image.batch)]
        return {name: np.concatenate([one[name] for one in made])[:rows] for name in tensors}

    def _batches(self, arrays: list[np.ndarray], batch: int) -> Iterator[dict[str, np.ndarray]]:
        for start in range(0, max(1, len(arrays[0])), batch):
            taken = [array[start : start + batch] for array in arrays]
            full = [np.concatenate([one, np.zeros((batch - len(one), *one.shape[1:]), one.dtype)]) for one in taken]
            yield {
                port.tensor: ports.tensor_of(port, one, self._shapes, self._quantizations)
                for port, one in zip(self.inputs, full, strict=True)
            }

    def _whole(self, tensor: str) -> list[str]:
        """Return the tensor if the chip holds it, else those that the host makes it of."""
        if tensor in self._quantizations or self.network is None:
            return [tensor]
        maker = next((one for one in self.network.nodes if one.output == tensor), None)
        if not isinstance(maker, QHostStep):
            return []
        return [one for name in maker.inputs for one in self._whole(name)]


def turned(design: Design, knobs: Mapping[str, Any]) -> Design:
    """Return a chip with some numbers changed.

    Raises:
        SettingError: an unknown name, or a number that is not positive.

    Example:
        >>> turned(Design(), {"clock_hz": 1.4e9}).clock_hz
        1400000000.0
    """
    known = [field.name for field in dataclasses.fields(Design)]
    for name in knobs:
        if name not in known:
            raise SettingError(f"a chip has no number {name!r}; those that can be turned are {', '.join(known)}.")
    return dataclasses.replace(design, **knobs)


def _compiled_for(design: Design) -> tuple[int, ...]:
    return tuple(getattr(design, name) for name in COMPILED_FOR)


def check_batch(batch: Any) -> None:
    """Raise `SettingError` unless a batch is a positive integer."""
    if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
        raise SettingError(f"batch must be a positive integer, the examples that go through at a time, not {batch!r}.")


def _ports(bindings: Sequence[Binding]) -> tuple[Port, ...]:
    """Return the ports of a program without a network: a vector's shape is that of its channels, and so on."""
    return tuple(Port(one.tensor, one.shape[_leading_ones(one.shape[:2]) :]) for one in bindings)


def _leading_ones(shape: tuple[int, ...]) -> int:
    return next((number for number, size in enumerate(shape) if size != 1), len(shape))
