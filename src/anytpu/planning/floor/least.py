"""`work_of`, `least_of`: the FLOPs and bytes that a step requires, in total and for one device.

Idea: a step is traced once; the minimum for each device of any system follows by arithmetic.

Rule: global shapes are divided once by the number of devices that share the work.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from anytpu.planning.compiler.export import left_out_note
from anytpu.planning.floor.products import Flops, alive, products_of
from anytpu.planning.floor.traffic import read_whole, written_whole
from anytpu.planning.memory.arguments import arguments_of, buffer_of
from anytpu.planning.records import Buffer
from anytpu.planning.target import Target
from anytpu.program.lowering import TRACING, trace_for_plan
from anytpu.program.program import Program


@dataclasses.dataclass(frozen=True)
class Least:
    """FLOPs and bytes that a step requires of one device.

    Attributes:
        flops: FLOPs of the products, by the multiplied type.
        crossing_bytes: minimum HBM traffic, bytes: arguments read and results written.
        memory: buffers in memory at the end of the step: state, batch and outputs.
        uncounted: products that were not counted, a sentence each.
        notes: further notes on the step, a sentence each.
    """

    flops: Flops
    crossing_bytes: int
    memory: tuple[Buffer, ...]
    uncounted: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class RequiredWork:
    """The work that a step requires of all devices together.

    Attributes:
        program: the program.
        flops: FLOPs of the products, by the multiplied type.
        is_read: for each argument, whether all of it has to be read.
        is_written: for each result, whether all of it has to be written.
        outputs: shape and type of each result beside the state.
        uncounted: products that were not counted, a sentence each.
        notes: further notes on the step, a sentence each.
    """

    program: Program
    flops: Flops
    is_read: Sequence[bool]
    is_written: Sequence[bool]
    outputs: Sequence[Any]
    uncounted: tuple[str, ...]
    notes: tuple[str, ...]


def work_of(program: Program) -> RequiredWork:
    """Trace a step and return the work that it requires.

    Raises:
        ProgramError: the step cannot be traced.
    """
    with TRACING:
        traced, left_out = trace_for_plan(program)
    jaxpr = traced.jaxpr
    flops, uncounted = products_of(jaxpr)
    whole, states = alive(jaxpr.jaxpr), len(jax.tree.leaves(program.state))
    is_read, is_written = read_whole(whole), written_whole(whole)
    outputs, notes = jaxpr.out_avals[states:], left_out_note(left_out)
    return RequiredWork(program, flops, is_read, is_written, outputs, tuple(uncounted), notes)


def least_of(work: RequiredWork, target: Target) -> Least:
    """Return the FLOPs and bytes that a step requires of one device of a system."""
    program = work.program
    each = 1 / target.devices if is_split(program) else 1.0
    arguments, states = arguments_of(program, target), len(jax.tree.leaves(program.state))
    outputs = tuple(buffer_of(f"output/{place}", "output", leaf, each) for place, leaf in enumerate(work.outputs))
    made = (*arguments[:states], *outputs)
    crossing_bytes = _sum(arguments, work.is_read) + _sum(made, work.is_written)
    split = Flops({dtype: count * each for dtype, count in work.flops.items()})  # type: ignore[arg-type]
    return Least(split, crossing_bytes, (*arguments, *outputs), work.uncounted, work.notes)


def is_split(program: Program) -> bool:
    """Return whether the devices share the work of a program; otherwise each does all of it."""
    has_rows = any(layout.axis is not None for _, layout in program.leaves())
    return program.placement is not None or program.replicas is not None or has_rows


def _sum(buffers: Sequence[Buffer], counts: Sequence[bool]) -> int:
    return sum(buffer.bytes for buffer, is_counted in zip(buffers, counts, strict=True) if is_counted)
