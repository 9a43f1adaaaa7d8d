"""A JAX function as a Program.

Idea: whoever writes `step(state, batch) -> (state, outputs)` has a Program already, but for the shapes.

Rule: the function is whole-batch code. The leaves of the batch that hold examples are split over the cores along the
axis of the examples (`batch_axes`), the others are held by all; that is a matter of speed only, since XLA partitions
whole-batch code. Code that brings shardings of its own is laid by those (`placed`).
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
from anytpu.program.contract import check_result
from anytpu.program.jax_refusals import OTHER_MESH, explained
from anytpu.program.leaves import leaf_names
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
from anytpu.program.program import Placement, Program, Tree, spec_of
from anytpu.program.step_shardings import StepShardings, step_shardings


class FunctionMaker:
    """Makes a Program of a JAX function `step(state, batch) -> (state, outputs)`."""

    def claims(self, job: Any) -> bool:
        """Return whether the job is a function, a method, a partial or what `jax.jit` returns; no other callable."""
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
                mesh with named axes, and those that the step asks for its inputs, become the program's placement.
            mode: "train" or "infer".
            tensors: keep the arrays of the state as `program.tensors`.
            batch_size: rows to put in the place of those of each leaf of the batch that is split; None: as it is.
            precision: None; a function has the precision that it is written in.
            batch_axis: the axis along which examples lie, for all leaves of the batch or a tree with one for each; see
                `batch_layout`. None: the axis that the sharding of the batch splits over a data axis, else axis 0.

        Raises:
            ProgramError: the specs are missing or of another form, or the step does not take (state, batch) and return
                (state, outputs) with a state of the same form, or a precision is asked for; or a sharding cannot be
                followed, or batch_axis does not fit the batch.
        """
        name = f"{_name(job)}/{mode}"
        given = _state_and_batch(name, input_specs)
        if precision is not None:
            raise ProgramError(_one_precision(name, precision))
        state, _ = _specs(name, given)
        _check_takes_two(name, job)
        first = placement_of(name, *given)
        asked = _Asked(batch_size, batch_axis)
        batch, layout, said = _batch(name, given[1], first, asked)
        step, result, placement = _traced(name, job, state, batch, first)
        if any((*step.inputs, *step.outputs)):
            placement = placement_of(name, *given, step, device=placement.device if placement else None)
            before = batch
            batch, layout, said = _batch(name, given[1], placement, asked)
            if batch != before:
                step, result, placement = _traced(name, job, state, batch, placement)
        check_result(name, state, result)
        if placement is None and step.meshes:
            placement = spread_over(step.meshes[0], state, batch, layout)
            said = f"{said} {_inner_mesh(placement)}".strip()
        elif placement is not None:
            said = f"{said} {whole_state(name, given[0], step, placement)}".strip()
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
            tensors=_tensors(name, given[0], state) if tensors else None,
            placement=placement,
            notes=(*filter(None, [said]), *_notes(state, batch, placement, step)),
        )


@dataclasses.dataclass(frozen=True)
class _Asked:
    """What is asked of the batch: its rows, and the axis along which they lie; None where nothing is."""

    batch_size: int | None
    batch_axis: Tree


FUNCTION_MAKER = FunctionMaker()
"""The entry point "function" of the group "anytpu.programs"."""

_HOW = "anytpu.program.of(step, input_specs=(state, batch))"


_STEP = """\
A step takes that pair and returns one, step(state, batch) -> (state, outputs):
    def step(weights, x):
        return weights - 0.1 * x.mean(0), {"mean": x.mean()}"""


def _briefly(value: Any) -> str:
    """Return what a value is, without what is in it."""
    kind = type(value).__name__
    return f"a {kind} of {len(value)}" if isinstance(value, tuple | list | dict) else f"one {kind}"


def _name(job: Any) -> str:
    return _name(job.func) if isinstance(job, functools.partial) else job.__name__


def _state_and_batch(name: str, input_specs: Any) -> tuple[Tree, Tree]:
    if input_specs is None:
        raise ProgramError(
            f"The function of {name!r} does not know the shapes that it will be given. Pass examples of them, arrays "
            f"or jax.ShapeDtypeStruct: {_HOW}."
        )
    if not isinstance(input_specs, tuple | list) or len(input_specs) != 2:
        raise ProgramError(
            f"input_specs of {name!r} must be a pair, the tree of the state and the tree of the batch, not "
            f"{_briefly(input_specs)}: {_HOW}. {_STEP}"
        )
    return input_specs[0], input_specs[1]


def _specs(name: str, given: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
    for which, tree in zip(("state", "batch"), given, strict=True):
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
    return spec_of(given[0]), spec_of(given[1])


def _batch(name: str, given: Tree, placement: Placement | None, asked: _Asked) -> tuple[Tree, Tree, str]:
    """Return the specs of the batch with the rows asked for, its layout, and a sentence on what was assumed."""
    batch = spec_of(given)
    layout, said = batch_layout(name, batch, placement, asked.batch_axis, asked.batch_size)
    if asked.batch_size is not None:
        batch = with_rows(name, batch, layout, asked.batch_size)
    return batch, layout, said


def _traced(
    name: str, job: Any, state: Tree, batch: Tree, placement: Placement | None
) -> tuple[StepShardings, Any, Placement | None]:
    """Trace the step, and return what it asks for, the specs of what it returns, and the placement it was traced in.

    Raises:
        ProgramError: it names a mesh that is not there, or asks JAX for what only the outermost jit may ask; or the
            devices do not divide an axis of a leaf.
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
    """Trace the step over a mesh of the kind of devices that the step names itself, if it names any."""
    if placement is None:
        return *jax.make_jaxpr(job, return_shape=True)(state, batch), None
    tries = [placement, *(dataclasses.replace(placement, device=kind) for kind in (None, this_kind()))]
    for number, one in enumerate(tries, 1):
        try:
            with inside(one):
                return *jax.make_jaxpr(job, return_shape=True)(*over_mesh(one, state, batch)), one
        except ValueError as error:
            if OTHER_MESH not in str(error) or number == len(tries):
                raise
    raise AssertionError


def _inner_mesh(placement: Placement) -> str:
    return (
        f"The step lies on a mesh ({axes_text(placement.axes)}) and does not say how its inputs do: its state is whole "
        "on each device, its examples are split over all axes that divide them. Give the specs shardings to change "
        "that."
    )


def _notes(state: Tree, batch: Tree, placement: Placement | None, step: StepShardings) -> list[str]:
    """Return what has to be said of how state and batch lie."""
    said = []
    names, specs = leaf_names(batch, "batch"), placement.specs if placement else ()
    whole = [
        of
        for of, leaf, spec in zip(names, jax.tree.leaves(batch), specs[len(specs) - len(names) :], strict=False)
        if leaf.shape and not any(spec)
    ]
    if placement is not None and placement.devices > 1 and len(whole) == len(names):
        said.append(
            f"No leaf of the batch is split over the mesh ({axes_text(placement.axes)}): each device takes all of it. "
            "Give its specs a sharding to split it."
        )
    kept = [flag for flag in step.donated[: len(jax.tree.leaves(state))] if not flag]
    if kept and step.is_jitted:
        said.append(
            "The new state takes the memory of the old one, as anytpu runs a step. By jax.jit alone that needs "
            "donate_argnums=0; without it the state takes its memory twice."
        )
    return said


def _check_takes_two(name: str, job: Any) -> None:
    try:
        signature = inspect.signature(job)
    except ValueError:
        return  # Written in C: it has no signature to look at.
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise ProgramError(
            f"The step of {name!r} must take two arguments, step(state, batch), and it takes {signature}. Fix the "
            "others with functools.partial."
        ) from error


def _one_precision(name: str, precision: str) -> str:
    return (
        f"The function of {name!r} computes in the precision that it is written in, and cannot be made again with "
        f"precision={precision!r}. Cast inside it, x.astype(jnp.{precision}), or give it state and batch of that type."
    )


def _tensors(name: str, state: Tree, specs: Tree) -> Tree:
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(state)):
        raise ProgramError(
            f"The values of the state of {name!r} were asked for (tensors=True), and input_specs gives only their "
            "shapes. Pass the arrays themselves."
        )
    return jax.tree.map(lambda x, spec: x if isinstance(x, jax.Array) else np.asarray(x, spec.dtype), state, specs)
