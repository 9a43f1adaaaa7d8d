"""`ChipPage`: the records of a program's report, collected once."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from anytpu.chip.graph.nodes import Network
from anytpu.chip.image.image import Image
from anytpu.chip.page.first_tile import FirstTile, first_tile
from anytpu.chip.page.lanes import with_titles
from anytpu.chip.page.layers import ProgramLayer, layers
from anytpu.chip.timing.record import Timing

if TYPE_CHECKING:
    from anytpu.chip.chip_program import ChipProgram
    from anytpu.chip.quantized.summary import Summary


@dataclasses.dataclass(frozen=True, eq=False)
class ChipPage:
    """The records of a program's report.

    Attributes:
        image: the instructions, for the program's own batch size.
        timing: a predicted run of them, with its events.
        network: the quantized network; None for an assembled program.
        layers: the parts of the program.
        summary: summary of the quantization; None if not known.
        first_tile: operands of the first product; None without products.
    """

    image: Image
    timing: Timing
    network: Network | None
    layers: tuple[ProgramLayer, ...]
    summary: Summary | None = None
    first_tile: FirstTile | None = None


def page_of(program: ChipProgram) -> ChipPage:
    """Return the records of a program; this predicts a run and executes the program up to its first product."""
    image, timing = program.image(), with_titles(program.time(events=True))
    return ChipPage(
        image,
        timing,
        program.network,
        tuple(layers(image, program.network, program.summary, timing.parts)),
        program.summary,
        first_tile(image, program.network, program.example),
    )
