"""`digest`: the identity of a program, the same in the plan and in the run.

Idea: two programs that take the same arrays may compute differently, in bfloat16 or with another activation. So the
identity is made of the shapes, and of the number of operations of each kind with results of each type.

Rule: it is the same in every process, and does not depend on names, on the order of operations or on source lines. It
costs one more tracing of the step, once for each Program.
"""

from __future__ import annotations

import collections
import hashlib
import json
from collections.abc import Iterator

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr

from anytpu.planning.tracing import TRACING
from anytpu.program.jaxprs import inner_jaxprs, level_of
from anytpu.program.lowering import one_device_step
from anytpu.program.placed import inside, placed_specs
from anytpu.program.program import Layout, Program
from anytpu.program.remembered import Remembered

_KEPT: Remembered[str] = Remembered()


def digest(program: Program) -> str:
    """Return the identity of a program: the shapes and types of its state and batch, its mode, its operations.

    Raises:
        ProgramError: the step cannot be traced.

    Example:
        >>> digest(program) == digest(dataclasses.replace(program, name="another name"))
        True
    """
    with TRACING:
        return _KEPT.get(program) or _KEPT.keep(program, _digest(program))


def _digest(program: Program) -> str:
    leaves = [
        *((leaf.shape, str(leaf.dtype), "state") for leaf in jax.tree.leaves(program.state)),
        *((leaf.shape, str(leaf.dtype), _axis(layout)) for leaf, layout in program.leaves()),
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


def _axis(layout: Layout) -> str:
    return f"batch {layout.axis}"
