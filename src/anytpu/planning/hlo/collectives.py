"""`collective_of`: the devices that communicate in an instruction, and the data that they send.

Idea: the compiler writes a collective in three forms: as one instruction, as a start and a done with work between, or
inside fusions. Of these fusions one starts it, others are matrix products that run beside it, and one waits for it. In
every form the text states the groups and the bytes in and out. It writes groups in three ways. By their members:
`{{0,1},{2,3}}`. As a grid of device numbers that is transposed and cut: `[2,4]<=[4,2]T(1,0)`. As axes of a mesh:
`mesh['x'=4,'y'=2] {'x'}`.

Rule: bytes are those of one device, padding included. The parts of one collective have the same channel.

Source: openxla/xla, xla/hlo/ir/replica_group.h, for the groups.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Literal

import numpy as np

from anytpu.errors import PlanError
from anytpu.planning.hlo.instruction import Computation, HloInstruction
from anytpu.planning.hlo.shapes import Shape
from anytpu.planning.records.quoting import quoted

KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
MAX_DEVICES = 2**20
"""No collective has more devices than this."""

_CHANNEL = re.compile(r"channel_id=(\d{1,18})\b")
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")
_PAIR = re.compile(r"\{(\d+),(\d+)\}")
_STAGES: dict[str, Literal["start", "done"]] = {"AsyncCollectiveStart": "start", "AsyncCollectiveDone": "done"}
_ASYNC = ("async-start", "async-done", "async-update", "call-start", "call-done")
_FIELD = re.compile(r"replica_groups=(mesh\[[^\]]*\](?:, ?device_ids=\S+)? \{[^}]*\}|\[[^ ]*|\{\}|\{\{.*?\}\})")
_LISTS = re.compile(r"\{\{\d{1,7}(,\d{1,7})*\}(,\{\d{1,7}(,\d{1,7})*\})*\}")
_GRID = re.compile(r"\[(\d{1,7}),(\d{1,7})\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_AXIS = re.compile(r"'([^']+)'=(\d{1,7})\b")
_IDS = re.compile(r"device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\)")
_USED = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")

Stage = Literal["whole", "start", "done"]


@dataclasses.dataclass(frozen=True, slots=True)
class Collective:
    """A collective, from the point of view of one device.

    Attributes:
        kind: "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute" or
            "collective-broadcast".
        stage: "whole"; or "start" and "done" of one that runs beside other work.
        group: numbers of the devices of the first group, all of which have the same size; () for all devices.
        operand_bytes: bytes that a device sends.
        result_bytes: bytes that a device receives.
        channel: channel id, the same for all stages of one collective, or None.
        pairs: of a collective-permute: (from, to) device numbers.
        dtype: type of the elements that are sent, as the compiler writes it: "bf16"; of several arrays, of the largest.
    """

    kind: str
    stage: Stage
    group: tuple[int, ...]
    operand_bytes: int
    result_bytes: int
    channel: int | None
    pairs: tuple[tuple[int, int], ...] = ()
    dtype: str = ""


def collective_of(instruction: HloInstruction) -> Collective | None:
    """Return the collective that an instruction is, starts or waits for; None for any other.

    Args:
        instruction: an instruction that is executed by itself, not one inside a fusion.
    """
    base, stage = _base(instruction.opcode)
    # 1. An instruction of its own, or its start or done.
    if base in KINDS:
        return _ended(instruction) if stage == "done" else _collective(base, stage, instruction)
    # 2. Inside a fusion or an asynchronous call. A done without a computation is known by the start that it reads.
    if instruction.opcode != "fusion" and instruction.opcode not in _ASYNC:
        return None
    if not instruction.called and stage == "done":
        return _ended(instruction)
    for body in instruction.bodies:
        for inner in body.instructions.values():
            if inner.opcode in KINDS:
                return _inside(instruction, stage, inner, body)
    return None


def _base(opcode: str) -> tuple[str, Stage]:
    if opcode.endswith("-start"):
        return opcode.removesuffix("-start"), "start"
    return (opcode.removesuffix("-done"), "done") if opcode.endswith("-done") else (opcode, "whole")


def _ended(done: HloInstruction) -> Collective | None:
    begun = collective_of(done.operands[0])
    return dataclasses.replace(begun, stage="done") if begun else None


def _inside(caller: HloInstruction, stage: Stage, inner: HloInstruction, body: Computation) -> Collective | None:
    """Return the collective in a called computation; None if the caller is a product that runs beside it."""
    # A fusion of an all-reduce and the slice that each device keeps of it is a reduce-scatter.
    is_sliced = inner.opcode == "all-reduce" and body.root.opcode == "dynamic-slice"
    kind = "reduce-scatter" if is_sliced else inner.opcode
    if caller.opcode != "fusion":
        return dataclasses.replace(_collective(kind, "whole", inner), stage=stage)
    stages = (_STAGES[beside.call_target] for beside in body.instructions.values() if beside.call_target in _STAGES)
    fused = next(stages, None)
    # The product beside a collective repeats it in its body, and neither starts nor ends it.
    if fused is None and "async_collective_fusion_config" in inner.text:
        return None
    collective = dataclasses.replace(_collective(kind, "whole", inner), stage=fused or "whole")
    # The all-reduce inside returns everything; the fusion keeps the slice.
    received = sum(shape.padded_bytes for shape in caller.shapes)
    return dataclasses.replace(collective, result_bytes=received) if kind == "reduce-scatter" else collective


def _collective(kind: str, stage: Stage, instruction: HloInstruction) -> Collective:
    sent = [shape for operand in instruction.operands for shape in operand.shapes]
    got = _results(instruction, len(sent)) if stage == "start" else instruction.shapes
    pairs, channel = _PAIRS.search(instruction.text), _CHANNEL.search(instruction.text)
    return Collective(
        kind=kind,
        stage=stage,
        group=group_of(instruction.text),
        operand_bytes=sum(shape.padded_bytes for shape in sent),
        result_bytes=sum(shape.padded_bytes for shape in got),
        channel=int(channel[1]) if channel else None,
        pairs=tuple((int(a), int(b)) for a, b in _PAIR.findall(pairs[1])) if pairs else (),
        dtype=max(sent, key=lambda shape: shape.bytes).dtype if sent else "",
    )


def _results(start: HloInstruction, operands: int) -> Sequence[Shape]:
    """Return the arrays that a start will have received: its tuple is (operands, results, counters), or one bare
    array."""
    if len(start.shapes) <= operands:
        return start.shapes
    return start.shapes[operands : 2 * operands]


def group_of(text: str) -> tuple[int, ...]:
    """Return the devices of the first group of a collective; () if its text names none, for all devices.

    Raises:
        PlanError: the groups are written in an unknown form.

    Example:
        >>> group_of("replica_groups=[2,4]<=[4,2]T(1,0)")
        (0, 2, 4, 6)
        >>> group_of("replica_groups=mesh['x'=4,'y'=2] {'y'}")
        (0, 1)
    """
    start = text.find("replica_groups=")
    if start < 0:
        return ()
    match = _FIELD.search(text)
    if match is None:
        raise _unknown(text[start : start + 80])
    try:
        return () if match[1] == "{}" else _first_group(match[1])
    except (ArithmeticError, LookupError, ValueError) as error:
        raise _unknown(match[0]) from error


def _first_group(written: str) -> tuple[int, ...]:
    # 1. Lists of members.
    if _LISTS.fullmatch(written):
        return tuple(map(int, written[2 : written.index("}")].split(",")))
    # 2. A grid of device numbers: each row is a group.
    if grid := _GRID.match(written):
        return tuple(_device_grid(grid[3], grid[4]).reshape(int(grid[1]), int(grid[2]))[0].tolist())
    # 3. Axes of a mesh: the first group has index 0 along the other axes.
    mesh_text, _, used_text = written.rpartition(" ")
    sizes = {name: int(size) for name, size in _AXIS.findall(mesh_text)}
    used = _USED.findall(used_text)
    # 'x':(2)4 is the part of an axis that has 2 before it and 4 of its own.
    parts = {name: (int(before or 1), int(own or sizes[name])) for name, before, own in used}
    ids = _IDS.search(mesh_text)
    if not sizes or len(parts) < len(used) or ("device_ids" in mesh_text and not ids):
        raise ValueError(written)
    # The mesh may be laid over a grid of device numbers that is transposed first.
    devices = _device_grid(ids[1], ids[2]) if ids else _device_grid(",".join(map(str, sizes.values())))
    taken = tuple(_indices(size, *parts.get(name, (size, 1))) for name, size in sizes.items())
    return tuple(devices.reshape(tuple(sizes.values()))[taken].ravel().tolist())


def _device_grid(sizes_text: str, order_text: str | None = None) -> np.ndarray:
    """Return the device numbers as a grid of these sizes, with its dimensions in this order."""
    sizes = [int(size) for size in sizes_text.split(",") if size]
    if not 1 <= math.prod(sizes) <= MAX_DEVICES:
        raise ValueError(sizes_text)
    grid = np.arange(math.prod(sizes)).reshape(sizes)
    return grid.transpose([int(axis) for axis in order_text.split(",") if axis]) if order_text else grid


def _indices(size: int, before: int, own: int) -> slice:
    """Return the indices along an axis of the mesh that the part (before)own of it gives."""
    after, left = divmod(size, before * own)
    if left:
        raise ValueError(f"an axis of {size} has no part ({before}){own}")
    return slice(0, own * after, after)


def _unknown(written: str) -> PlanError:
    return PlanError(
        f"the groups {quoted(written)} of a collective in the compiler's text cannot be read; they should look like "
        f"'replica_groups={{{{0,1}},{{2,3}}}}' or 'replica_groups=[2,2]<=[4]'"
    )
