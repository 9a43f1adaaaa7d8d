"""`ChipPage`: all that a report of a program shows, gathered once."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from anytpu.chip.image import Image
from anytpu.chip.quantized.nodes import QuantizedNetwork
from anytpu.chip.timing.record import Timing
from anytpu.report.chip.first_tile import FirstTile, first_tile
from anytpu.report.chip.lanes import with_titles
from anytpu.report.chip.layers import Layer, layers

if TYPE_CHECKING:
    from anytpu.chip.chip_program import ChipProgram
    from anytpu.chip.quantized.summary import Summary


@dataclasses.dataclass(frozen=True, eq=False)
class ChipPage:
    """What a report shows of a program.

    Attributes:
        image: the instructions, for the program's own batch.
        timing: a predicted run of them, with its events.
        network: the quantized network; None for a program that was assembled.
        layers: the parts of the program.
        summary: what quantization did; None where it is not known.
        first_tile: what the array multiplies first; None where it never multiplies.
    """

    image: Image
    timing: Timing
    network: QuantizedNetwork | None
    layers: tuple[Layer, ...]
    summary: Summary | None = None
    first_tile: FirstTile | None = None


def page_of(program: ChipProgram) -> ChipPage:
    """Return what there is to show of a program: for this, it is timed, and run up to its first product."""
    image = program.image()
    return ChipPage(
        image,
        with_titles(program.time(events=True)),
        program.network,
        tuple(layers(image, program.network, program.summary)),
        program.summary,
        first_tile(image, program.network, program.example),
    )
