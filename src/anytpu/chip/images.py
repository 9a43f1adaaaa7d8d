"""`ImageCache`: the images of a program for other batch sizes and other chips, compiled on demand.

Idea: an image is for one chip and one batch size, but the quantized network serves any. The images
share their weights. A program that was assembled from text has no network, and therefore a single image.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anytpu.chip.graph.nodes import Network
from anytpu.chip.image.image import Image
from anytpu.chip.isa.design import COMPILED_FOR, Design
from anytpu.errors import ChipError, SettingError, SettingTypeError


class ImageCache:
    """The images of one program.

    Attributes:
        own: the image that the program was made with.
        network: the quantized network from which other images are compiled, or None.
        spill: whether the compiler may move tensors that exceed the Unified Buffer to the host.
    """

    def __init__(self, own: Image, network: Network | None, spill: bool) -> None:
        self.own = own
        self.network = network
        self.spill = spill
        self._known = {_key(own.batch, own.design): own}

    def image(self, batch: int | None = None, design: Design | None = None) -> Image:
        """Return the image for a batch size and a chip; None: the batch or the chip of `own`.

        Raises:
            SettingError: the batch is not a positive integer.
            SettingTypeError: the design is none.
            ChipError: the image has to be compiled, and there is no network.
            CapacityError: the batch does not fit on the chip.
        """
        batch, design = self.own.batch if batch is None else batch, self.own.design if design is None else design
        check_batch(batch)
        check_design(design)
        key = _key(batch, design)
        if key not in self._known:
            # Compile with the rates of `own`: the instructions do not depend on rates, so they are not in the key.
            numbers: dict[str, int] = dict(zip(COMPILED_FOR, design.compiled_for, strict=True))
            self._known[key] = self._compiled(batch, self.own.design.turned(numbers))
        return self._known[key]

    def _compiled(self, batch: int, design: Design) -> Image:
        from anytpu.chip.compiler import compile_image

        if self.network is None:
            raise ChipError(
                f"{self.own.name} was assembled for batches of {self.own.batch} and for one chip; it has no network to "
                "compile anew."
            )
        return compile_image(self.network, batch=batch, design=design, spill=self.spill, known=self.own.weights)


def check_spill(spill: Any) -> bool:
    """Return whether tensors may move to the host; raise `SettingError` unless that is True or False."""
    if not isinstance(spill, bool):
        raise SettingError(f"spill must be True or False, not {spill!r}.")
    return spill


def check_batch(batch: Any) -> None:
    """Raise `SettingError` unless a batch is a positive integer."""
    if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
        raise SettingError(f"batch must be a positive integer, the examples that go through at a time, not {batch!r}.")


def check_design(design: Any) -> None:
    """Raise `SettingTypeError` unless a value is a chip."""
    if not isinstance(design, Design):
        raise SettingTypeError(f"design must be a chip, tpu.chip.TPU_V1 or a tpu.chip.Design, not {design!r}.")


def path_of(path: str | Path) -> Path:
    """Convert to `Path`.

    Raises:
        SettingTypeError: the value is neither a string nor a path.
    """
    try:
        return Path(path)
    except TypeError as error:
        raise SettingTypeError(f"a path must be a string or a pathlib.Path, not {path!r}.") from error


def _key(batch: int, design: Design) -> tuple[int, ...]:
    return batch, *design.compiled_for
