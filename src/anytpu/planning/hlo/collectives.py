"""`collective_of`: the devices that communicate in an instruction, and the data that they send.

Idea: the compiler writes a collective in three forms: as one instruction, as a start and a done with work between, or
inside fusions. Of these fusions one starts it, others are matrix products that run beside it, and one waits for it. In
every form the text states the groups, the bytes in and out, and the rings.

Rule: bytes are those of one device, padding included. The parts of one collective have the same channel.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any, Literal

from anytpu.planning.hlo.groups import Groups, groups_of
from anytpu.planning.hlo.instruction import Computation, Instruction, Shape
from anytpu.planning.hlo.module import Module

KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
_CHANNEL = re.compile(r"channel_id=(\d{1,18})\b")
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")
_PAIR = re.compile(r"\{(\d+),(\d+)\}")
_EMITTER = re.compile(r'"collective_algorithm_config":\{"emitter":"(\w*)"(?:,"strategy":"(\w*)")?')
_RINGS = re.compile(r"\w\{colors:(\d{1,18}) phases:(\d{1,18}) cores:\{((?:\d{1,18} ?)+)\}")
_STAGES: dict[str, Literal["start", "done"]] = {"AsyncCollectiveStart": "start", "AsyncCollectiveDone": "done"}
_ASYNC = ("async-start", "async-done", "async-update", "call-start", "call-done")


@dataclasses.dataclass(frozen=True, slots=True)
class Collective:
    """A collective, from the point of view of one device.

    Attributes:
        kind: "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute" or
            "collective-broadcast".
        stage: "whole"; or "start", "during" (a matrix product that goes on while it runs) and "done" of one that runs
            beside other work.
        groups: the groups of devices.
        operand_bytes: bytes that a device sends.
        result_bytes: bytes that a device receives.
        operands: number of arrays that a device sends.
        dtype: type of the first array.
        channel: channel id, the same for all stages of one collective, or None.
        pairs: of a collective-permute: (from, to) device numbers.
        emitter: the compiler's name of its algorithm: "RotatedPincerEmitter", or ""; "SparseCore" for work of a chip's
            SparseCores.
        strategy: "UniDirectionNDRingStrategy", or "".
        colors: number of rings used at the same time, or None if the text does not say.
        phases: number of torus dimensions that it traverses one after the other, or None.
        rings: devices on the ring of each phase: (4, 2), or ().
    """

    kind: str
    stage: Literal["whole", "start", "during", "done"]
    groups: Groups
    operand_bytes: int
    result_bytes: int
    operands: int
    dtype: str
    channel: int | None
    pairs: tuple[tuple[int, int], ...] = ()
    emitter: str = ""
    strategy: str = ""
    colors: int | None = None
    phases: int | None = None
    rings: tuple[int, ...] = ()


def collective_of(module: Module, instruction: Instruction) -> Collective | None:
    """Return the collective that an instruction is, starts, waits for or runs beside; None for any other.

    Args:
        module: the module.
        instruction: an instruction that is executed by itself, not one inside a fusion.
    """
    base, stage = _base(instruction.opcode)
    if base in KINDS:
        home = module.home_of(instruction)
        if stage == "done":
            start = home.instructions[instruction.operands[0]]
            begun = collective_of(module, start)
            return dataclasses.replace(begun, stage="done") if begun else None
        return _collective(module, base, stage, instruction, home)
    if instruction.opcode == "fusion" or instruction.opcode in _ASYNC:
        return _inside(module, instruction, stage)
    return None


def _base(opcode: str) -> tuple[str, Literal["whole", "start", "done"]]:
    if opcode.endswith("-start"):
        return opcode.removesuffix("-start"), "start"
    return (opcode.removesuffix("-done"), "done") if opcode.endswith("-done") else (opcode, "whole")


def _inside(module: Module, instruction: Instruction, stage: Literal["whole", "start", "done"]) -> Collective | None:
    """Return the collective in the computation that an instruction calls."""
    if not instruction.called and stage == "done":
        start = module.home_of(instruction).instructions[instruction.operands[0]]
        begun = collective_of(module, start)
        return dataclasses.replace(begun, stage="done") if begun else None
    for name in instruction.called:
        computation = module.computations[name]
        for inner in computation.instructions.values():
            if inner.opcode in KINDS:
                inner_collective = _collective(module, _kind(inner, computation), "whole", inner, computation)
                where = stage if instruction.opcode != "fusion" else _stage(inner, computation)
                return _as_called(dataclasses.replace(inner_collective, stage=where), instruction)
    return None


def _as_called(collective: Collective, caller: Instruction) -> Collective:
    """Return a collective with the parts that only its caller's text has: the algorithm, and a reduce-scatter's
    result."""
    if collective.kind == "reduce-scatter" and caller.opcode == "fusion":
        collective = dataclasses.replace(collective, result_bytes=sum(shape.padded_bytes for shape in caller.shapes))
    return dataclasses.replace(collective, **_algorithm(caller.text)) if not collective.emitter else collective


def _algorithm(text: str) -> dict[str, Any]:
    colors = text.count('"phase_rings":')
    if colors and '"device_type":"DEVICE_TYPE_SPARSECORE"' in text:
        return {"emitter": "SparseCore", "colors": colors, "phases": text.count('"ring_type":') // colors}
    emitter, rings = _EMITTER.search(text), _RINGS.search(text)
    return {
        "emitter": emitter[1] if emitter else "",
        "strategy": (emitter[2] or "") if emitter else "",
        "colors": int(rings[1]) if rings else None,
        "phases": int(rings[2]) if rings else None,
        "rings": tuple(map(int, rings[3].split())) if rings else (),
    }


def _kind(inner: Instruction, computation: Computation) -> str:
    # A fusion of an all-reduce and the slice that each device keeps of it is a reduce-scatter.
    is_sliced = computation.instructions[computation.root].opcode == "dynamic-slice"
    return "reduce-scatter" if inner.opcode == "all-reduce" and is_sliced else inner.opcode


def _stage(inner: Instruction, computation: Computation) -> Literal["whole", "start", "during", "done"]:
    for beside in computation.instructions.values():
        if beside.call_target in _STAGES:
            return _STAGES[beside.call_target]
    return "during" if "async_collective_fusion_config" in inner.text else "whole"


def _collective(
    module: Module, kind: str, stage: Literal["whole", "start"], instruction: Instruction, home: Computation
) -> Collective:
    operand_shapes = [shape for name in instruction.operands for shape in home.instructions[name].shapes]
    got = _results(instruction, len(operand_shapes)) if stage == "start" else instruction.shapes
    pairs = _PAIRS.search(instruction.text)
    channel = _CHANNEL.search(instruction.text)
    return Collective(
        kind=kind,
        stage=stage,
        groups=groups_of(instruction.text, module.num_partitions),
        operand_bytes=sum(shape.padded_bytes for shape in operand_shapes),
        result_bytes=sum(shape.padded_bytes for shape in got),
        operands=len(operand_shapes),
        dtype=operand_shapes[0].dtype if operand_shapes else "",
        channel=int(channel[1]) if channel else None,
        pairs=tuple((int(a), int(b)) for a, b in _PAIR.findall(pairs[1])) if pairs else (),
        **_algorithm(instruction.text),
    )


def _results(start: Instruction, operands: int) -> Sequence[Shape]:
    """Return the arrays that a start will have received: its tuple is (operands, results, counters), or one bare
    array."""
    if len(start.shapes) <= operands:
        return start.shapes
    return start.shapes[operands : 2 * operands]
