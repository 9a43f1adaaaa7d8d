"""A JAX function as a Program.

Idea: a function `step(state, batch) -> (state, outputs)` is a Program except for the shapes.

Rule: the function is whole-batch code. Batch leaves with examples are split over the cores along the example axis
(`batch_axes`), and the others are replicated. This affects only the speed, since XLA partitions whole-batch code. Code
with its own shardings keeps them (`placed`).
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import Any

import jax
import numpy as np

from anytpu.errors import ProgramError
from anytpu.program.batch_axes import batch_layout, with_rows
from anytpu.program.placed import (
    axes_text,
    check_divides,
    inside,
    over_mesh,
    placement_of,
    spread_over,
    this_kind,
    whole_state,
)
from anytpu.program.program import Placement, Program, Tree, leaf_names, spec_of
from anytpu.program.refusals import OTHER_MESH, check_result, explained
from anytpu.program.step_shardings import StepShardings, step_shardings


class FunctionMaker:
    """Makes a Program from a JAX function `step(state, batch) -> (state, outputs)`."""

    def claims(self, job: Any) -> bool:
        """Return whether the job is a function, a method, a partial or a `jax.jit` result, but no other callable."""
        if type(job).__module__.partition(".")[0] in ("flax", "equinox"):
            return False  # Their compiled steps have the attributes of `jax.stages.Wrapped`: see `frameworks`.
        return inspect.isroutine(job) or isinstance(job, functools.partial | jax.stages.Wrapped)

    def make(
        self,
        job: Any,
        input_specs: Any,
        mode: str,
        tensors: bool,
        *,
        batch_size: int | None = None,
        precision: str | None = None,
        batch_axis: Tree = None,
    ) -> Program:
        """Make the Program.

        Args:
            job: the step.
            input_specs: the pair (state, batch): trees of arrays or of `jax.ShapeDtypeStruct`. Their shardings over a
                mesh with named axes, and those that the step requests for its inputs, become the program's placement.
            mode: "train" or "infer".
            tensors: keep the arrays of the state as `program.tensors`.
            batch_size: number of rows for each split leaf of the batch; None: as in `input_specs`.
            precision: None; a function computes in the precision of its code.
            batch_axis: the example axis, for all leaves of the batch or a tree with one for each; see `batch_layout`.
                None: the axis that the sharding of the batch splits over a data axis, or else axis 0.

        Raises:
            ProgramError: the specs are missing or have another form. The step does not take (state, batch), or does
                not return (state, outputs) with a state of the same form. A precision is requested, a sharding is not
                supported, or `batch_axis` does not fit the batch.
        """
        # 1. Check the arguments.
        name = f"{_name(job)}/{mode}"
        _check_is_step(name, job, input_specs)
        examples = _state_and_batch(name, input_specs)
        if precision is not None:
            raise ProgramError(_precision_message(name, precision))
        state, _ = _specs(name, examples)
        _check_takes_two(name, job)
        # 2. Trace the step with the shardings of the inputs.
        first = placement_of(name, *examples)
        describe_batch = functools.partial(_batch, name, examples[1], batch_size, batch_axis)
        batch, layout, note = describe_batch(first)
        step, result, placement = _traced(name, job, state, batch, first)
        # 3. Add the shardings that the step requests. They may change the batch; then trace again.
        if any((*step.inputs, *step.outputs)):
            placement = placement_of(name, *examples, step, device=placement.device if placement else None)
            before = batch
            batch, layout, note = describe_batch(placement)
            if batch != before:
                step, result, placement = _traced(name, job, state, batch, placement)
        check_result(name, state, result)
        # 4. Complete the placement, and note its assumptions.
        if placement is None and step.meshes:
            placement = spread_over(step.meshes[0], state, batch, layout)
            placement = dataclasses.replace(placement, assumption=_inner_mesh(placement))
            note = f"{note} {placement.assumption}".strip()
        elif placement is not None:
            note = f"{note} {whole_state(name, examples[0], step, placement)}".strip()
        if placement is not None:
            check_divides(name, state, batch, placement)
        return Program(
            name=name,
            step=job,
            state=state,
            batch=batch,
            layout=layout,
            mode=mode,
            state_names=leaf_names(state, "state"),
            tensors=_tensors(name, examples[0], state) if tensors else None,
            placement=placement,
            notes=(*filter(None, [note]), *_notes(state, batch, placement, step)),
        )


FUNCTION_MAKER = FunctionMaker()
"""The entry point "function" of the group "anytpu.programs"."""

_HOW = "anytpu.program.of(step, input_specs=(state, batch))"


_STEP = """\
A step takes that pair and returns one, step(state, batch) -> (state, outputs):
    def step(weights, x):
        return weights - 0.1 * x.mean(0), {"mean": x.mean()}"""


def _briefly(value: Any) -> str:
    """Return a short description of a value, without its content."""
    kind = type(value).__name__
    return f"a {kind} of {len(value)}" if isinstance(value, tuple | list | dict) else f"an object of type {kind}"


def _name(job: Any) -> str:
    return _name(job.func) if isinstance(job, functools.partial) else job.__name__


def _state_and_batch(name: str, input_specs: Any) -> tuple[Tree, Tree]:
    if input_specs is None:
        raise ProgramError(
            f"The function of {name!r} does not define the shapes of its inputs. Pass examples of them, arrays or "
            f"jax.ShapeDtypeStruct: {_HOW}."
        )
    if isinstance(input_specs, tuple | list) and any(map(_is_of_framework, input_specs)):
        raise ProgramError(
            f"The function of {name!r} gets modules of Flax NNX or Equinox. Compile it as they do, with nnx.jit or "
            "eqx.filter_jit: @nnx.jit above it."
        )
    if not isinstance(input_specs, tuple | list) or len(input_specs) != 2:
        raise ProgramError(
            f"input_specs of {name!r} must be a pair, the tree of the state and the tree of the batch, not "
            f"{_briefly(input_specs)}: {_HOW}. {_STEP}"
        )
    return input_specs[0], input_specs[1]


def _is_of_framework(value: Any) -> bool:
    modules = {cls.__module__ for cls in type(value).__mro__}
    return bool(modules & {"flax.nnx.module", "equinox._module._module"})


def _specs(name: str, examples: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
    for which, tree in zip(("state", "batch"), examples, strict=True):
        for leaf_name, leaf in zip(leaf_names(tree, which), jax.tree.leaves(tree), strict=True):
            if isinstance(leaf, jax.ShapeDtypeStruct):
                continue
            try:
                jax.eval_shape(lambda leaf: leaf, leaf)
            except TypeError as error:
                raise ProgramError(
                    f"{leaf_name!r} in the {which} of {name!r} must be an array or a jax.ShapeDtypeStruct, not "
                    f"{leaf!r}."
                ) from error
    return spec_of(examples[0]), spec_of(examples[1])


def _batch(
    name: str, example: Tree, batch_size: int | None, batch_axis: Tree, placement: Placement | None
) -> tuple[Tree, Tree, str]:
    """Return the specs of the batch with the requested rows, its layout, and a sentence on assumptions."""
    batch = spec_of(example)
    layout, note = batch_layout(name, batch, placement, batch_axis, batch_size)
    if batch_size is not None:
        batch = with_rows(name, batch, layout, batch_size)
    return batch, layout, note


def _traced(
    name: str, job: Any, state: Tree, batch: Tree, placement: Placement | None
) -> tuple[StepShardings, Any, Placement | None]:
    """Trace the step, and return its requested shardings, the specs of its result, and the placement of the trace.

    Raises:
        ProgramError: the step names a missing mesh, or uses a JAX setting that only the outermost jit may use.
            Also raised if an axis of a leaf is not divisible by its devices.
    """
    if placement is not None:
        check_divides(name, state, batch, placement)
    try:
        traced, result, placement = _in_its_mesh(job, state, batch, placement)
    except (RuntimeError, ValueError, TypeError) as error:
        if (ours := explained(name, error)) is None:
            raise
        raise ours from error
    step = step_shardings(traced)
    if step.has_memory_layout:
        raise ProgramError(
            f"The step of {name!r} asks jax.jit for an order of dimensions in memory (a Format with a Layout), which "
            "the TPU compiler chooses. Give in_shardings and out_shardings a NamedSharding alone."
        )
    return step, result, placement


def _in_its_mesh(job: Any, state: Tree, batch: Tree, placement: Placement | None) -> tuple[Any, Any, Placement | None]:
    """Trace the step over a mesh with the kind of devices that the step itself names, if it names any.

    JAX demands that a `shard_map` has the mesh of its context, kind of devices included. So this tries the kinds in
    turn: that of the inputs, none, and that of this machine.
    """
    if placement is None:
        return *jax.make_jaxpr(job, return_shape=True)(state, batch), None
    candidates = [placement, *(dataclasses.replace(placement, device=kind) for kind in (None, this_kind()))]
    for count, candidate in enumerate(candidates, 1):
        try:
            with inside(candidate):
                return *jax.make_jaxpr(job, return_shape=True)(*over_mesh(candidate, state, batch)), candidate
        except ValueError as error:
            if OTHER_MESH not in str(error) or count == len(candidates):
                raise
    raise AssertionError


def _inner_mesh(placement: Placement) -> str:
    return (
        f"The step names a mesh ({axes_text(placement.axes)}) and does not say how its inputs do: its state is whole "
        "on each device, its examples are split over all axes that divide them. Give the specs shardings to change "
        "that."
    )


def _notes(state: Tree, batch: Tree, placement: Placement | None, step: StepShardings) -> list[str]:
    """Return the notes on the shardings of state and batch."""
    notes = []
    names, specs = leaf_names(batch, "batch"), placement.specs if placement else ()
    whole = [
        leaf_name
        for leaf_name, leaf, spec in zip(names, jax.tree.leaves(batch), specs[len(specs) - len(names) :], strict=False)
        if leaf.shape and not any(spec)
    ]
    if placement is not None and placement.devices > 1 and len(whole) == len(names):
        notes.append(
            f"No leaf of the batch is split over the mesh ({axes_text(placement.axes)}): each device takes all of it. "
            "Give its specs a sharding to split it."
        )
    kept = [flag for flag in step.donated[: len(jax.tree.leaves(state))] if not flag]
    if kept and step.is_jitted:
        notes.append(
            "The new state takes the memory of the old one, as anytpu runs a step. By jax.jit alone that needs "
            "donate_argnums=0; without it the state takes its memory twice."
        )
    return notes


def _check_is_step(name: str, job: Any, input_specs: Any) -> None:
    """Reject a function without arguments: it makes a model, and was passed instead of its result."""
    if input_specs is not None:
        return
    try:
        inspect.signature(job).bind()
    except (TypeError, ValueError):
        return
    raise ProgramError(
        f"The function of {name!r} can be called without arguments, so it is not a step(state, batch). If it makes a "
        f"model, pass the model: {_name(job)}()."
    )


def _check_takes_two(name: str, job: Any) -> None:
    try:
        signature = inspect.signature(job)
    except ValueError:
        return  # A function written in C has no signature to check.
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise ProgramError(
            f"The step of {name!r} must take two arguments, step(state, batch), and it takes {signature}. Fix the "
            "others with functools.partial."
        ) from error


def _precision_message(name: str, precision: str) -> str:
    return (
        f"The function of {name!r} computes in the precision that it is written in, and cannot be changed to "
        f"precision={precision!r}. Cast inside it, x.astype(jnp.{precision}), or give it state and batch of that type."
    )


def _tensors(name: str, state: Tree, specs: Tree) -> Tree:
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(state)):
        raise ProgramError(
            f"The values of the state of {name!r} were asked for (tensors=True), and input_specs gives only their "
            "shapes. Pass the arrays themselves."
        )
    return jax.tree.map(lambda x, spec: x if isinstance(x, jax.Array) else np.asarray(x, spec.dtype), state, specs)
