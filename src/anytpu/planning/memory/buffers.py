"""`buffers_of`: the arrays in memory, by the names that users know.

Idea: an argument is a weight, an optimizer slot or a part of the batch; a result is a layer's output or its
gradient.

Rule: an array is not named after an instruction that only moves it, a copy or a loop that carries it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from anytpu.planning.hlo import Instruction, Module, layer_of
from anytpu.planning.memory.liveness import Held, Peak
from anytpu.planning.memory.names import FlatArgument, leaves_of, position_of
from anytpu.planning.records.memory import Buffer
from anytpu.program.program import Program

_PASSED_ON = ("copy", "copy-done", "bitcast", "get-tuple-element", "copy-start", "convert", "reshape", "transpose")


def buffers_of(peak: Peak, module: Module, program: Program) -> list[Buffer]:
    """Return the arrays in memory at the peak, with users' names.

    Args:
        peak: the peak.
        module: the compiled module.
        program: the program, for the names of its arguments.
    """
    leaves = leaves_of(program)
    return [_buffer(held, module, leaves) for held in peak.held]


def _buffer(held: Held, module: Module, leaves: Sequence[FlatArgument]) -> Buffer:
    shape = held.shape
    buffer = Buffer(held.instruction.name, "temporary", shape.padded_bytes, shape.bytes, str(shape))
    if held.argument is not None:
        place = position_of(held.instruction.op_name, held.argument)
        leaf = leaves[place] if place < len(leaves) else FlatArgument(f"argument {place}", "state")
        return dataclasses.replace(buffer, name=leaf.name, use=leaf.use)
    maker = _maker(held, module)
    use: Literal["output", "temporary"] = "output" if held.result is not None else "temporary"
    name = called(maker.op_name, buffer.name)
    states = sum(leaf.use == "state" for leaf in leaves)
    if held.result is not None and held.result < states:
        name = f"{leaves[held.result].name}, updated"
    source = module.source_of(maker)
    layer = layer_of(maker.op_name).layer
    return dataclasses.replace(buffer, name=name, use=use, layer=layer, source=str(source) if source else "")


def called(op_name: str, otherwise: str) -> str:
    """Return the name of an array by the operation that made it: "conv1 output", "conv1 gradient"."""
    layer, is_backward = layer_of(op_name)
    if not layer:
        return otherwise
    return f"{layer} gradient" if is_backward else f"{layer} output"


def _maker(held: Held, module: Module) -> Instruction:
    """Return the instruction that an array is named after: past copies, and in a loop the one that fills it."""
    instruction = held.writer or held.instruction
    home = module.home_of(instruction)
    while not instruction.op_name and instruction.opcode in _PASSED_ON and instruction.operands:
        instruction = home.instructions[instruction.operands[0]]
    return instruction if instruction.op_name else held.instruction
