"""Conversion of a whole-batch step function to a `Program`, for a strategy with a layout.

Idea: a layout splits one model over the cores. So the step of `run_steps` is written for the global batch, like a step
for `jax.jit`: `step(state, batch) -> (state, outputs)`. It runs once, not once on each replica.

Rule: a step that names shardings of its inputs (`jax.jit(in_shardings=...)`, `jax.shard_map`) keeps them, also if they
replicate all. Any other is placed by the layout of the strategy. A constraint in the step places a value inside of it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from anytpu.errors import DataError, ProgramError, SettingError
from anytpu.program.makers import of
from anytpu.program.placed import inside, placed_specs
from anytpu.program.program import Placement, Program, Tree, spec_of
from anytpu.program.step_shardings import CONSTRAINT, step_shardings
from anytpu.strategy.arguments import ArgumentForm, promoted_state, with_weak_types
from anytpu.strategy.modules import unwrap_static_leaves, wrap_static_leaves


def whole_program(name: str, fn: Any, form: ArgumentForm, own: Tree, layout: Any) -> tuple[Program, Tree]:
    """Return the Program of a whole-batch step, and the specs of its state in the dtypes that the step gives to it.

    Args:
        name: name of the function.
        fn: the step, `(state, batch) -> (state, outputs)`.
        form: the form of its arguments without the state.
        own: specs of the state.
        layout: the `sharding.ModelLayout` of the strategy.

    Raises:
        SettingError: the step has no state.
        DataError: the batch is split over replicas.
        ProgramError: the step does not return (state, outputs), or a sharding is not supported.
    """
    if own is None:
        raise SettingError(
            f"{name} runs on each replica, and layout={layout.name!r} splits one model over the cores: use whole-batch "
            "code. Train a Keras model with fit, or call run_steps with state= and a step(state, batch) of the global "
            "batch"
        )
    if any(split.axis is not None for split in form.layouts()):
        raise DataError(
            f"the iterator yields batches that are split over replicas, and layout={layout.name!r} takes the global "
            "batch: use iter(dataset)"
        )

    def step(state: Tree, arrays: list[Any]) -> tuple[Tree, Tree]:
        args, kwargs = unwrap_static_leaves(form.rebuilt(form.typed(arrays)))
        return wrap_static_leaves(fn(unwrap_static_leaves(with_weak_types(state, own)), *args, **kwargs))

    step.__name__ = name
    # Constraints that only name mesh axes refer to the mesh of the layout.
    with inside(Placement(layout.axes, ())):
        try:
            if any(spec.weak_type for spec in jax.tree.leaves(own)):
                result = jax.eval_shape(step, spec_of(own), form.specs())
                own = promoted_state(own, result[0]) if isinstance(result, tuple) else own
            program = of(step, (spec_of(own), form.specs()))
        except ValueError as error:
            if "Explicit" not in str(error):
                raise
            raise ProgramError(
                f"the step {name!r} names a mesh with axes of jax.sharding.AxisType.Explicit, and the mesh of "
                f"layout={layout.name!r} has axes of AxisType.Auto: make the mesh with "
                f"axis_types=(jax.sharding.AxisType.Auto,) * {len(layout.axes)}, and use "
                "jax.lax.with_sharding_constraint in place of jax.sharding.reshard"
            ) from error
    # Without a placement, the strategy places the program by its layout.
    return (program if _names_shardings(program) else dataclasses.replace(program, placement=None)), own


def _names_shardings(program: Program) -> bool:
    """Return whether a step names shardings of its inputs or its new state, beside constraints."""
    with inside(program.placement):
        # JAX has this trace already: the maker of the Program made it.
        requests = step_shardings(jax.make_jaxpr(program.step)(*placed_specs(program)))
    return any(
        request is not None and request.source != CONSTRAINT for request in (*requests.inputs, *requests.outputs)
    )
