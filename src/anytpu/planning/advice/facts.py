"""`Facts`: properties of a program that advice needs beside its prediction."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr

from anytpu.errors import AnyTPUError
from anytpu.planning.advice.products import float32_share
from anytpu.planning.advice.saved import Saved, saved_of
from anytpu.planning.compiler.export import traced_jaxpr
from anytpu.planning.job import batch_parts, weights_of
from anytpu.program.leaves import leaf_names
from anytpu.program.program import Program

Shapes = Mapping[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Facts:
    """Properties of a program that advice needs.

    Attributes:
        weights: shape of each leaf of the state, by its name: "conv1/kernel".
        is_model: whether it is a Keras model; advice then uses Keras's names.
        is_placed: whether it brings its own mesh.
        state_bytes: bytes of the state, by its shapes.
        batch_bytes: bytes of a batch over all devices, by its shapes.
        float32_share: share of the products' FLOPs that multiply float32 at the default precision, 0 to 1; None if it
            is not known.
        saved: arrays that its forward pass keeps for its backward pass.
        batch_parts: number of parts into which the devices split the examples: fewer than the devices if a mesh also
            splits other things. None: one part a device.
        batch_axes: axis of the examples in each leaf of the batch, by the leaf's name.
    """

    weights: Shapes = dataclasses.field(default_factory=dict)
    is_model: bool = False
    is_placed: bool = False
    state_bytes: int = 0
    batch_bytes: int = 0
    float32_share: float | None = None
    saved: Saved = dataclasses.field(default_factory=Saved)
    batch_parts: int | None = None
    batch_axes: Mapping[str, int] = dataclasses.field(default_factory=dict)


def facts_of(program: Program, is_model: bool, devices: int) -> Facts:
    """Return the facts of a program on so many devices, without those of its traced step if it cannot be traced."""
    leaves = jax.tree.leaves(program.state)
    axes = zip(leaf_names(program.batch, "batch"), (layout.axis for _, layout in program.leaves()), strict=True)
    known = Facts(
        weights=weights_of(program),
        is_model=is_model,
        is_placed=program.placement is not None,
        state_bytes=sum(map(_bytes, leaves)),
        batch_bytes=sum(map(_bytes, jax.tree.leaves(program.batch))),
        batch_parts=batch_parts(program, devices),
        batch_axes={name: axis for name, axis in axes if axis is not None},
    )
    try:
        jaxpr: ClosedJaxpr = traced_jaxpr(program)
    except AnyTPUError:
        return known
    saved = saved_of(jaxpr, len(leaves)) if program.mode == "train" else Saved()
    return dataclasses.replace(known, float32_share=float32_share(jaxpr), saved=saved)


def _bytes(leaf: Any) -> int:
    return math.prod(leaf.shape) * getattr(leaf.dtype, "itemsize", 4)
