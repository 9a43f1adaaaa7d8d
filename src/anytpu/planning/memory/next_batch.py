"""`with_next_batch`: the memory of a step, and of the next batch, which is sent while the devices compute.

Idea: a run does not wait for a batch if the next one arrives in time. `fit`, and every loop that starts steps without
waiting for their results, works so. Then two batches are in memory, and the compiled step knows of one.

Rule: only leaves that are split over the devices are sent; a leaf that every device holds whole is sent once. The
stacks in which `fit` sends small batches take 64 MiB over all devices, and are not counted.
"""

from __future__ import annotations

import dataclasses

from anytpu.planning.memory.arguments import arguments_of
from anytpu.planning.memory.names import leaves_of
from anytpu.planning.records.memory import Buffer, Memory
from anytpu.planning.target import Target
from anytpu.program.program import Program

NAME = "the next batch"


def with_next_batch(memory: Memory, program: Program, target: Target) -> Memory:
    """Return the memory of one device with the next batch, as large as the step's own batch.

    Args:
        memory: memory of the step alone.
        program: the program.
        target: the devices that it was compiled for.
    """
    names = [leaf.name for leaf in leaves_of(program) if leaf.use == "batch"]
    is_placed = program.placement is not None
    travelling = {
        name for name, (_, layout) in zip(names, program.leaves(), strict=True) if is_placed or layout.axis is not None
    }
    # The compiler's buffers are padded; it does not list each.
    known = {buffer.name: buffer for buffer in (*arguments_of(program, target), *memory.buffers)}
    batch = [buffer for name, buffer in known.items() if buffer.use == "batch" and name in travelling]
    following = Buffer(
        NAME, "batch", sum(buffer.bytes for buffer in batch), sum(buffer.logical_bytes for buffer in batch), ""
    )
    if not following.bytes:
        return memory
    return dataclasses.replace(
        memory,
        peak_bytes=memory.peak_bytes + following.bytes,
        upper_bound_bytes=memory.upper_bound_bytes and memory.upper_bound_bytes + following.bytes,
        buffers=tuple(sorted((*memory.buffers, following), key=lambda buffer: -buffer.bytes)),
    )
