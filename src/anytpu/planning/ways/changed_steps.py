"""Changes of a Program that need nothing of its framework: rematerialisation, and optimizer slots in bfloat16.

Rule: a changed Program takes and returns trees of the same structure. Only whole-batch code without shardings of its
own is changed; a layout places the result.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

from anytpu.errors import ProgramError
from anytpu.program.lowering import TRACING
from anytpu.program.program import Program, Tree, state_names
from anytpu.program.rematerialising import Remat, rematerialised


def rematerialised_program(program: Program, remat: Remat) -> Program:
    """Return a training step that computes parts of its forward pass again.

    Args:
        program: the program.
        remat: the part that it computes again.

    Raises:
        ProgramError: it is code for one replica, or has shardings of its own.
    """
    if program.replicas is not None:
        raise ProgramError("a step for one replica cannot be rematerialised here; use jax.checkpoint in it")
    if program.placement is not None:
        raise ProgramError("a step with shardings of its own cannot be rematerialised here; use jax.checkpoint in it")
    with TRACING:
        trace, result = jax.make_jaxpr(lambda state, batch: program.step(state, batch), return_shape=True)(
            program.state, program.batch
        )
    again = jaxpr_as_fun(rematerialised(trace, len(jax.tree.leaves(program.state)), remat))
    structure = jax.tree.structure(result)

    def step(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        return jax.tree.unflatten(structure, again(*jax.tree.leaves((state, batch))))

    return dataclasses.replace(program, step=step)


def with_narrow_slots(program: Program) -> Program:
    """Return a training step that stores its float32 optimizer slots as bfloat16, and computes in float32.

    Scalars, such as the learning rate, keep their type. So do the slots of embedding tables: a step changes few of
    their rows, and this would cast them all.

    Raises:
        ProgramError: the slots of the program are not known, or none is float32.

    Example:
        >>> specs = [jax.ShapeDtypeStruct((4,), "float32"), jax.ShapeDtypeStruct((4,), "float32")]
        >>> program = Program("step", lambda s, b: (s, b), specs, (), (), state_kinds=("weights", "slots"))
        >>> [leaf.dtype.name for leaf in with_narrow_slots(program).state]
        ['float32', 'bfloat16']
    """
    leaves, structure = jax.tree.flatten(program.state)
    if "slots" not in program.state_kinds:
        raise ProgramError("it is not known which arrays of the state are optimizer slots, or there are none")
    narrow = [
        kind == "slots" and leaf.dtype == jnp.float32 and bool(leaf.shape) and name not in program.tables
        for kind, leaf, name in zip(program.state_kinds, leaves, state_names(program), strict=True)
    ]
    if not any(narrow):
        raise ProgramError("no optimizer slot is a float32 array")

    def cast(state: Tree, dtype: Any) -> Tree:
        values = zip(jax.tree.leaves(state), narrow, strict=True)
        return structure.unflatten([value.astype(dtype) if is_narrow else value for value, is_narrow in values])

    def step(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        new, outputs = program.step(cast(state, jnp.float32), batch)
        return cast(new, jnp.bfloat16), outputs

    specs = [
        jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16) if is_narrow else leaf
        for leaf, is_narrow in zip(leaves, narrow, strict=True)
    ]
    return dataclasses.replace(program, step=step, state=structure.unflatten(specs), tensors=None)
