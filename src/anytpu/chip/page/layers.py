"""The layers of a program: location, size, and utilisation of the array.

Idea: the instructions between a `DebugTag` and the next are a layer. Its products give the number of passes through the
array and their rows. The utilisation is the ratio of the model's multiply-adds to the array's capacity in these rows.

A layer is named by its path in the model ("lstm/lstm_cell/dense_4"). If there are too many to show, those with the
same name up to the first slash are merged. So the time steps of a recurrent layer become one layer.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from anytpu.chip.graph.nodes import Convolution, Network
from anytpu.chip.image.image import Image
from anytpu.chip.isa.instructions import ArrayInstruction, Convolve, DebugTag, InterruptHost, SetConfiguration
from anytpu.chip.isa.registers import Register
from anytpu.chip.timing.record import PartTiming

if TYPE_CHECKING:
    from anytpu.chip.quantized.summary import Summary


@dataclasses.dataclass(frozen=True)
class ProgramLayer:
    """A part of a program.

    Attributes:
        name: name of the network's node.
        title: name of the user's layer; the node's name if there is no layer, or if the layer has several parts.
        kind: kind of operation, such as "convolution" or "max pool".
        note: remark on its placement, or why the chip does not compute it.
        on_host: whether the host computes it.
        shape: `(height, width, channels)` of the result for one example; None if not known.
        macs: number of the model's multiply-adds for the whole batch.
        weight_bytes: size of the model's weights, one byte each; 0 without weights. It is also 0 if an earlier part
            has the same weights, as in the time steps of a recurrent layer.
        passes: number of passes of a tile through the array.
        rows: total number of rows in these passes; 16-bit rows count twice.
        packed: maximum number of kernel taps packed side by side in a pass; 1 if native, 0 without convolutions.
        utilisation: the model's multiply-adds over the array's capacity in these rows, 0 to 1; None without passes.
        sqnr_db: signal-to-quantization-noise ratio, in dB; None if not known.
        timing: its predicted cycles; None if not known.
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
    timing: PartTiming | None = None

    @property
    def way(self) -> str:
        """Mapping of a convolution to the array: "native" or "packed"; "" for other kinds."""
        return ("", "native", "packed")[min(self.packed, 2)]


@dataclasses.dataclass
class _TagCounts:
    """Counts of the instructions of a tag: array passes, their rows, packed taps, calls of the host."""

    passes: int = 0
    rows: int = 0
    packed: int = 0
    on_host: bool = False


def layers(
    image: Image,
    network: Network | None = None,
    summary: Summary | None = None,
    timings: Sequence[PartTiming] = (),
) -> list[ProgramLayer]:
    """Return the layers of a program, in order.

    Args:
        image: its instructions.
        network: the network from which they were compiled; None: shapes and weights are not known.
        summary: the summary of the quantization; None: the noise is not known.
        timings: the predicted cycles of its parts, in the same order; empty: not known.
    """
    work = _count_tags(image)
    counts = collections.Counter(tag.layer for tag in image.tags)
    own_bytes = _own_weight_bytes(network)
    nodes = {node.name: node for node in network.nodes} if network else {}
    noise = {layer.layer: layer.sqnr_db for layer in summary.layers} if summary else {}
    # A user's layer may have several parts; its noise is that of the last one.
    last = {tag.layer or tag.name: tag.name for tag in image.tags}
    parts = []
    for tag, counted, timing in itertools.zip_longest(image.tags, work, timings[: len(image.tags)]):
        node = nodes.get(tag.name)
        cells = counted.rows * image.design.array**2
        parts.append(
            ProgramLayer(
                tag.name,
                tag.layer if tag.layer and counts[tag.layer] == 1 else tag.name,
                tag.kind,
                tag.note,
                counted.on_host,
                network.shapes.get(node.output) if network and node else None,
                tag.macs,
                own_bytes.get(tag.name, 0),
                counted.passes,
                counted.rows,
                counted.packed,
                min(tag.macs / cells, 1.0) if cells else None,
                noise.get(tag.layer or tag.name) if last[tag.layer or tag.name] == tag.name else None,
                timing,
            )
        )
    return parts


def _own_weight_bytes(network: Network | None) -> dict[str, int]:
    """Return the size of each node's weights; 0 if an earlier node has the same weights."""
    sizes: dict[str, int] = {}
    seen: set[tuple[object, ...]] = set()
    for node in network.nodes if network else ():
        if isinstance(node, Convolution):
            digest = (node.weights.shape, hashlib.sha256(node.weights.tobytes()).digest())
            sizes[node.name] = 0 if digest in seen else node.weights.size
            seen.add(digest)
    return sizes


def _count_tags(image: Image) -> Sequence[_TagCounts]:
    work = [_TagCounts() for _ in image.tags]
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
        elif isinstance(instruction, ArrayInstruction):
            current.passes += instruction.repeat
            current.rows += instruction.repeat * instruction.rows * (1 + instruction.wide)
            if isinstance(instruction, Convolve):
                current.packed = max(current.packed, taps, 1)
    return work


PartT = TypeVar("PartT", PartTiming, ProgramLayer)
ItemT = TypeVar("ItemT")


def largest(items: Sequence[ItemT], size: Callable[[ItemT], float], most: int) -> list[ItemT]:
    """Return the largest items in their order, at most `most`."""
    ranked = sorted(range(len(items)), key=lambda index: -size(items[index]))
    return [items[index] for index in sorted(ranked[:most])]


def grouped_parts(parts: Sequence[PartTiming], max_parts: int) -> list[PartTiming]:
    """Return the parts of a run, summed by layer if there are more than `max_parts`."""
    if len(parts) <= max_parts:
        return list(parts)
    return [_sum(_title(name, len(own)), own) for name, own in _groups(parts)]


def _sum(name: str, parts: Sequence[PartTiming]) -> PartTiming:
    summed = [field.name for field in dataclasses.fields(PartTiming) if field.name != "name"]
    return PartTiming(name, **{field: sum(getattr(part, field) for part in parts) for field in summed})


def grouped_layers(layers: Sequence[ProgramLayer], max_parts: int) -> list[ProgramLayer]:
    """Return the layers of a program, merged by the user's layer if there are more than `max_parts`.

    Layers on the host are not merged.
    """
    if len(layers) <= max_parts:
        return list(layers)
    merged = []
    for name, own in _groups([layer for layer in layers if not layer.on_host]):
        cells = sum(layer.macs / layer.utilisation for layer in own if layer.utilisation)
        known = [layer.sqnr_db for layer in own if layer.sqnr_db is not None]
        timed = [layer.timing for layer in own if layer.timing is not None]
        merged.append(
            dataclasses.replace(
                own[-1],
                title=_title(name, len(own)),
                kind=own[-1].kind if len(own) == 1 else "several",
                note=own[-1].note if len(own) == 1 else "",
                macs=sum(layer.macs for layer in own),
                weight_bytes=sum(layer.weight_bytes for layer in own),
                passes=sum(layer.passes for layer in own),
                rows=sum(layer.rows for layer in own),
                packed=max(layer.packed for layer in own),
                utilisation=sum(layer.macs for layer in own) / cells if cells else None,
                sqnr_db=known[-1] if known else None,
                timing=_sum(name, timed) if timed else None,
            )
        )
    return [*merged, *(layer for layer in layers if layer.on_host)]


def _title(name: str, count: int) -> str:
    return name if count == 1 else f"{name} ({count:,} parts)"


def _groups(parts: Iterable[PartT]) -> list[tuple[str, list[PartT]]]:
    groups: dict[str, list[PartT]] = {}
    for part in parts:
        groups.setdefault(part.name.partition("/")[0], []).append(part)
    return list(groups.items())
