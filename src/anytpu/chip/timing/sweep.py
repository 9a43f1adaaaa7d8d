"""`sweep`: time one program on many chips that differ in some parameters (paper, section 7)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping

from anytpu.chip.image.image import Image
from anytpu.chip.isa.design import COMPILED_FOR, TPU_V1, Design
from anytpu.chip.timing.latencies import Latencies
from anytpu.chip.timing.model import time
from anytpu.chip.timing.record import Timing
from anytpu.errors import SettingError

Compiler = Callable[[Design], Image]
"""Compiles the program for a chip: `lambda design: compile_image(network, batch=200, design=design)`."""


def sweep(
    program: Image | Compiler,
    knobs: Mapping[str, Iterable[float]],
    *,
    design: Design | None = None,
    back_to_back: bool = False,
    latencies: Latencies | None = None,
) -> list[Timing]:
    """Time a program on every combination of some parameters of the chip.

    Args:
        program: an image, or a function that compiles an image for a chip. Changing the array, the accumulators or
            the memories needs the function; it is called once for each distinct set of these.
        knobs: maps the name of each parameter of `Design` to its values.
        design: the chip whose parameters change; None: the image's chip, or the first TPU.
        back_to_back, latencies: as for `time`.

    Returns:
        A timing for each combination, with its `design`; the last parameter varies fastest.

    Raises:
        SettingError: a parameter does not exist, has no values or an invalid value, or needs a function that compiles.

    Example:
        >>> from anytpu.chip.isa.instructions import Halt, MatrixMultiply, ReadWeights
        >>> import numpy as np
        >>> program = (ReadWeights(0, 50), MatrixMultiply(0, 0, rows=96, repeat=50), Halt())
        >>> image = Image("fifty tiles", program, np.zeros(50 * 65536, np.uint8))
        >>> one, four = sweep(image, {"weight_bytes_per_s": [34e9, 4 * 34e9]})
        >>> round(one.cycles / four.cycles, 1)
        3.9
    """
    values = {name: list(choices) for name, choices in knobs.items()}
    base = design or (program.design if isinstance(program, Image) else TPU_V1)
    base.turned({name: getattr(base, name, None) for name in values})  # checks the names before any compilation
    _check(program, values)
    images: dict[tuple[float, ...], Image] = {}
    timings = []
    for combination in itertools.product(*values.values()):
        turned = base.turned(dict(zip(values, combination, strict=True)))
        key = turned.compiled_for
        if key not in images:
            images[key] = program if isinstance(program, Image) else program(turned)
        timings.append(time(images[key], design=turned, back_to_back=back_to_back, latencies=latencies))
    return timings


def _check(program: Image | Compiler, values: Mapping[str, list[float]]) -> None:
    for name, choices in values.items():
        if not choices:
            raise SettingError(f"{name} is to be turned, but no values were given: give at least one.")
        if name in COMPILED_FOR and isinstance(program, Image):
            raise SettingError(
                f"{program.name!r} was compiled for one {name}: to turn it give a function that compiles the program "
                f"for a chip, not an image."
            )
