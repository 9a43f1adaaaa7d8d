"""The layers of a program as a table shows them: where each is computed, how large it is, how well it fills the array.

Idea: the instructions between a `DebugTag` and the next are a layer. Their products say how many passes went through
the array and how many rows each had; what the model asks for, over what the array could do in them, is its
utilisation.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from anytpu.chip.image import Image
from anytpu.chip.isa.instructions import Convolve, DebugTag, InterruptHost, Product, SetConfiguration
from anytpu.chip.isa.registers import Register
from anytpu.chip.quantized.nodes import QConvolution, QuantizedNetwork

if TYPE_CHECKING:
    from anytpu.chip.quantized.summary import Summary


@dataclasses.dataclass(frozen=True)
class Layer:
    """A part of a program.

    Attributes:
        name: of the node that it was made of.
        title: what people call it: the layer of their model, and the node's name where there is none, or where the
            layer is several parts.
        kind: what it is ("convolution", "max pool").
        note: how it was placed, or why the chip does not do it.
        on_host: whether the host computes it.
        shape: `(height, width, channels)` of the result of one example; None where it is not known.
        macs: multiply-adds that the model asks for, of the whole batch.
        weight_bytes: of the model's own weights, one a number; 0 where there are none, or where they are those of an
            earlier part, as in the time steps of a recurrent layer.
        passes: of a tile through the array.
        rows: that these passes had, all together; of 16 bits, each counts twice.
        packed: the most taps that a pass packs side by side; 1 for a native pass, 0 without convolutions.
        utilisation: the part of the array's multiply-adds in these rows that the model asks for; None without passes.
        sqnr_db: how much larger the values are than what quantization did to them; None where it is not known.
    """

    name: str
    title: str
    kind: str
    note: str = ""
    on_host: bool = False
    shape: tuple[int, int, int] | None = None
    macs: int = 0
    weight_bytes: int = 0
    passes: int = 0
    rows: int = 0
    packed: int = 0
    utilisation: float | None = None
    sqnr_db: float | None = None

    @property
    def way(self) -> str:
        """How a convolution goes through the array: "native" or "packed"; "" for anything else."""
        return ("", "native", "packed")[min(self.packed, 2)]


@dataclasses.dataclass
class _Work:
    """What is counted of a tag."""

    passes: int = 0
    rows: int = 0
    packed: int = 0
    on_host: bool = False


def layers(image: Image, network: QuantizedNetwork | None = None, summary: Summary | None = None) -> list[Layer]:
    """Return the layers of a program, in order.

    Args:
        image: its instructions.
        network: what they were compiled from; None: shapes and weights are not known.
        summary: what quantization did; None: it is not known.
    """
    work = _work(image)
    counts = collections.Counter(tag.layer for tag in image.tags)
    own_bytes = _own_weight_bytes(network)
    nodes = {node.name: node for node in network.nodes} if network else {}
    noise = {one.layer: one.sqnr_db for one in summary.layers} if summary else {}
    # A layer of the user's may be several parts; its noise is that of its last.
    last = {tag.layer or tag.name: tag.name for tag in image.tags}
    made = []
    for tag, done in zip(image.tags, work, strict=True):
        node = nodes.get(tag.name)
        cells = done.rows * image.design.array**2
        made.append(
            Layer(
                tag.name,
                tag.layer if tag.layer and counts[tag.layer] == 1 else tag.name,
                tag.kind,
                tag.note,
                done.on_host,
                network.shapes.get(node.output) if network and node else None,
                tag.macs,
                own_bytes.get(tag.name, 0),
                done.passes,
                done.rows,
                done.packed,
                min(tag.macs / cells, 1.0) if cells else None,
                noise.get(tag.layer or tag.name) if last[tag.layer or tag.name] == tag.name else None,
            )
        )
    return made


def _own_weight_bytes(network: QuantizedNetwork | None) -> dict[str, int]:
    """Return the bytes of the weights of each node that is the first with these."""
    found: dict[str, int] = {}
    seen: set[tuple[object, ...]] = set()
    for node in network.nodes if network else ():
        if isinstance(node, QConvolution):
            which = (node.weights.shape, hashlib.sha256(node.weights.tobytes()).digest())
            found[node.name] = 0 if which in seen else node.weights.size
            seen.add(which)
    return found


def _work(image: Image) -> Sequence[_Work]:
    work = [_Work() for _ in image.tags]
    current, taps = None, 0
    for instruction in image.instructions:
        if isinstance(instruction, DebugTag):
            current = work[instruction.tag] if instruction.tag < len(work) else None
        elif isinstance(instruction, SetConfiguration) and instruction.register == Register.TAPS:
            taps = int(instruction.value)
        elif current is None:
            continue
        elif isinstance(instruction, InterruptHost):
            current.on_host = True
        elif isinstance(instruction, Product):
            current.passes += instruction.repeat
            current.rows += instruction.repeat * instruction.rows * (1 + instruction.wide)
            if isinstance(instruction, Convolve):
                current.packed = max(current.packed, taps, 1)
    return work
