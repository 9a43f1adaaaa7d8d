"""What a step takes of a device's memory, and how much of it there is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Literal

import jax

from anytpu.planning.limits import limit_bytes
from anytpu.planning.records import Buffer, Memory
from anytpu.planning.roofline.fusing import Kernel
from anytpu.planning.roofline.liveness import buffers, temporaries
from anytpu.planning.roofline.node import Node
from anytpu.planning.roofline.share import Share
from anytpu.planning.target import Target
from anytpu.program.program import Program


def memory_of_share(
    program: Program, target: Target, share: Share, kernels: Mapping[Node | None, list[Kernel]]
) -> Memory:
    """Return the memory of one device: the state, the batch, and the temporaries at their most."""
    state_leaves = jax.tree.leaves(program.state)
    names = program.state_names or tuple(f"state {number}" for number in range(len(state_leaves)))
    parts = _parts(program, target.devices)
    fixed = [_given(name, "state", leaf, next(parts)) for name, leaf in zip(names, state_leaves, strict=True)]
    fixed += [_given("batch", "batch", leaf, next(parts)) for leaf, _ in program.leaves()]
    scopes = {scope.loop: scope for scope in share.scopes}
    temporary, live = temporaries(scopes, kernels, share.bytes_of)
    given = sum(one.bytes for one in fixed)
    largest = sorted([*fixed, *buffers(live, share.bytes_of)], key=lambda one: -one.bytes)
    return Memory(
        peak_bytes=round(given + temporary),
        limit_bytes=limit_bytes(target),
        buffers=tuple(largest[:50]),
    )


def _parts(program: Program, devices: int) -> Iterator[float]:
    """Yield which part of each leaf of the state, then of the batch, lies on one device."""
    if program.placement is not None:
        sizes = dict(program.placement.axes)
        for spec in program.placement.specs:
            yield 1.0 / math.prod(sizes[axis] for names in spec for axis in names)
        return
    yield from (1.0 for _ in jax.tree.leaves(program.state))
    yield from (1.0 if layout.axis is None else 1.0 / devices for _, layout in program.leaves())


def _given(name: str, use: Literal["state", "batch"], leaf: jax.ShapeDtypeStruct, part: float) -> Buffer:
    dtype = str(leaf.dtype).replace("float", "f").replace("uint", "u").replace("int", "s")
    size = math.ceil(leaf.size * leaf.dtype.itemsize * part)
    return Buffer(name, use, size, size, f"{dtype}[{','.join(map(str, leaf.shape))}]")
