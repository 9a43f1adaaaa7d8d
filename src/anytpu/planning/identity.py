"""`digest`: what a program is known by, in the plan and in the run.

Idea: two programs that take the same arrays may compute quite differently, in bfloat16 or with another activation. So
what a program is known by are its shapes, and how many operations of each kind give results of each type.

Rule: it is the same in every process, and does not depend on names, on the order of operations or on source lines. It
costs one more tracing of the step, once for each Program.
"""

from __future__ import annotations

import collections
import hashlib
import json
import weakref
from collections.abc import Iterator

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr

from anytpu.planning.tracing import TRACING
from anytpu.program.lowering import one_device_step
from anytpu.program.placed import inside, placed_specs
from anytpu.program.program import Layout, Program

_KEPT_PROGRAMS = 16
_KEPT: list[tuple[weakref.ref[Program], str]] = []


def digest(program: Program) -> str:
    """Return what a program is known by: the shapes and types of its state and batch, its mode, its operations.

    Raises:
        ProgramError: the step cannot be traced.

    Example:
        >>> digest(program) == digest(dataclasses.replace(program, name="another name"))
        True
    """
    with TRACING:
        for kept, known in _KEPT:
            if kept() is program:
                return known
        found = _digest(program)
        _KEPT.append((weakref.ref(program), found))
        del _KEPT[:-_KEPT_PROGRAMS]
        return found


def _digest(program: Program) -> str:
    leaves = [
        *((leaf.shape, str(leaf.dtype), "state") for leaf in jax.tree.leaves(program.state)),
        *((leaf.shape, str(leaf.dtype), _axis(layout)) for leaf, layout in program.leaves()),
    ]
    step = one_device_step(program)
    with inside(program.placement):
        # A fresh function object: JAX's cache would hand back what a backend traced under a switch of its own.
        traced = jax.make_jaxpr(lambda state, batch: step(state, batch))(*placed_specs(program))
    counts = sorted(collections.Counter(_operations(traced)).items())
    text = json.dumps([program.mode, program.replicas, leaves, counts])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _operations(jaxpr: ClosedJaxpr | Jaxpr) -> Iterator[str]:
    """Yield each operation with the types of its results: "dot_general bfloat16"; those inside others too."""
    level = jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr
    for equation in level.eqns:
        types = (str(getattr(variable.aval, "dtype", "")) for variable in equation.outvars)
        yield " ".join([equation.primitive.name, *types])
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if isinstance(inner, ClosedJaxpr | Jaxpr):
                    yield from _operations(inner)


def _axis(layout: Layout) -> str:
    return f"batch {layout.axis}"
