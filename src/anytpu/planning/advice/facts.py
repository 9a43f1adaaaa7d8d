"""`Facts` and `ProposedChange`: properties of a program that advice needs beside its prediction, and a finding.

Idea: the traced step shows the type in which the user's program computes. The compiled step does not: a matrix unit
rounds float32 to bfloat16. Gradients of master weights are float32 in a program that computes in bfloat16.

Rule: a product at a higher precision than the default is intended, and does not count as float32.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from anytpu.errors import AnyTPUError
from anytpu.planning.advice.residuals import Residuals, residuals_of
from anytpu.planning.compiler.export import traced_jaxpr
from anytpu.planning.floor.work import PRODUCTS, product_flops
from anytpu.planning.jobs.job import batch_parts, weights_of
from anytpu.program.jaxprs import inner_jaxprs, level_of
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
        residuals: arrays that its forward pass keeps for its backward pass.
        batch_parts: number of parts into which the devices split the examples: fewer than the devices if a mesh also
            splits other things. None: one part a device.
        gathered_bytes: bytes that a device receives to gather each weight that a placement stores in shards over the
            mesh axes of the batch, as in FSDP: such a gather is meant.
    """

    weights: Shapes = dataclasses.field(default_factory=dict)
    is_model: bool = False
    is_placed: bool = False
    state_bytes: int = 0
    batch_bytes: int = 0
    float32_share: float | None = None
    residuals: Residuals = dataclasses.field(default_factory=Residuals)
    batch_parts: int | None = None
    gathered_bytes: frozenset[float] = frozenset()


@dataclasses.dataclass(frozen=True)
class ProposedChange:
    """A change to a program, before it is tried.

    Attributes:
        topic: one of the topics of `Advice`.
        text: the change, one sentence.
        evidence: the numbers that ask for it, one sentence.
        batch_size: the batch to try, or None.
        precision: the precision to try, or None.
        tpu: the system to try, or None.
        steps_per_execution: the number of steps a call to compute the gain for, or None.
    """

    topic: str
    text: str
    evidence: str
    batch_size: int | None = None
    precision: str | None = None
    tpu: str | None = None
    steps_per_execution: int | None = None


def facts_of(program: Program, is_model: bool, devices: int) -> Facts:
    """Return the facts of a program on so many devices, without those of its traced step if it cannot be traced."""
    leaves = jax.tree.leaves(program.state)
    known = Facts(
        weights=weights_of(program),
        is_model=is_model,
        is_placed=program.placement is not None,
        state_bytes=sum(map(_bytes, leaves)),
        batch_bytes=sum(map(_bytes, jax.tree.leaves(program.batch))),
        batch_parts=batch_parts(program, devices),
        gathered_bytes=frozenset(_gathered_bytes(program)),
    )
    try:
        jaxpr: ClosedJaxpr = traced_jaxpr(program)
    except AnyTPUError:
        return known
    residuals = residuals_of(jaxpr, len(leaves)) if program.mode == "train" else Residuals()
    return dataclasses.replace(known, float32_share=float32_share(jaxpr), residuals=residuals)


def _gathered_bytes(program: Program) -> Iterator[float]:
    """Yield the bytes that a device receives to gather each weight whose shards lie over the batch's mesh axes."""
    if program.placement is None:
        return
    sizes, leaves = dict(program.placement.axes), jax.tree.leaves(program.state)
    batch = {part for spec in program.placement.specs[len(leaves) :] for parts in spec for part in parts}
    for leaf, spec in zip(leaves, program.placement.specs, strict=False):
        parts = [part for parts in spec for part in parts]
        shards = math.prod(sizes[part] for part in parts if part in batch)
        others = math.prod(sizes[part] for part in parts if part not in batch)
        if shards > 1:
            yield _bytes(leaf) / others * (shards - 1) / shards


def float32_share(jaxpr: ClosedJaxpr) -> float | None:
    """Return the share of the FLOPs of products that multiply float32 at the default precision; None without products.

    Example:
        >>> traced = jax.make_jaxpr(lambda x: (x @ x).astype("bfloat16") @ x.astype("bfloat16"))(jnp.ones((4, 4)))
        >>> float32_share(traced)
        0.5
    """
    flops = collections.Counter[bool]()
    _count(jaxpr.jaxpr, 1, flops)
    total = flops.total()
    return flops[True] / total if total else None


def _count(jaxpr: Jaxpr, times: int, flops: collections.Counter[bool]) -> None:
    for equation in jaxpr.eqns:
        if equation.primitive.name in PRODUCTS:
            flops[_is_float32(equation)] += times * product_flops(equation)
        turns = equation.params["length"] if equation.primitive.name == "scan" else 1
        for inner in inner_jaxprs(equation):
            _count(level_of(inner), times * turns, flops)


def _is_float32(equation: JaxprEqn) -> bool:
    asked = equation.params["precision"]
    precisions = set(asked if isinstance(asked, tuple) else (asked,))
    types = {str(getattr(variable.aval, "dtype", "")) for variable in equation.invars}
    return types == {"float32"} and precisions <= {None, jax.lax.Precision.DEFAULT}


def _bytes(leaf: Any) -> int:
    return math.prod(leaf.shape) * getattr(leaf.dtype, "itemsize", 4)
