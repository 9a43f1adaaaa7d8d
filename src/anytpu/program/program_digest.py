"""`program_digest`: the identity of a step, without lowering it.

Idea: a checkpoint outlives versions of JAX that order the same operations in another way, so the operations of the
trace are counted.

Rule: checkpoints hold program digests, so their values must not change.
"""

from __future__ import annotations

import collections
import hashlib
import json
from collections.abc import Iterator

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr

from anytpu.program.jaxprs import inner_jaxprs, level_of
from anytpu.program.lowering import TRACING, one_device_step
from anytpu.program.placed import inside, placed_specs
from anytpu.program.program import Program
from anytpu.program.remembered import Remembered

_DIGESTS: Remembered[str] = Remembered()


def program_digest(program: Program) -> str:
    """Return the digest of a program: the shapes and types of its state and batch, its mode, its operations.

    It is the same in every process, and does not depend on names, the order of operations or source lines. It costs one
    more tracing of the step, once for each Program.

    Raises:
        ProgramError: the step cannot be traced.

    Example:
        >>> program_digest(program) == program_digest(dataclasses.replace(program, name="another name"))
        True
    """
    with TRACING:
        return _DIGESTS.get(program) or _DIGESTS.keep(program, _program_digest(program))


def _program_digest(program: Program) -> str:
    leaves = [
        *((leaf.shape, str(leaf.dtype), "state") for leaf in jax.tree.leaves(program.state)),
        *((leaf.shape, str(leaf.dtype), f"batch {layout.axis}") for leaf, layout in program.leaves()),
    ]
    step = one_device_step(program)
    with inside(program.placement):
        # A fresh function object: JAX's cache would return the jaxpr that a backend traced under its own switches.
        traced = jax.make_jaxpr(lambda state, batch: step(state, batch))(*placed_specs(program))
    counts = sorted(collections.Counter(_operations(traced)).items())
    text = json.dumps([program.mode, program.replicas, leaves, counts])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _operations(jaxpr: ClosedJaxpr | Jaxpr) -> Iterator[str]:
    """Yield each operation with the types of its results, inner ones included: "dot_general bfloat16"."""
    for equation in level_of(jaxpr).eqns:
        types = (str(getattr(variable.aval, "dtype", "")) for variable in equation.outvars)
        yield " ".join([equation.primitive.name, *types])
        for inner in inner_jaxprs(equation):
            yield from _operations(inner)
