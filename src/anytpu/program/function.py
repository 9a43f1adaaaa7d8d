"""A JAX function as a Program.

Idea: whoever writes `step(state, batch) -> (state, outputs)` has a Program already, but for the shapes.

Rule: the function is whole-batch code. A leaf of the batch that has as many rows as the first one that has any is split
over the cores, the others are held by all; that is a matter of speed only, since XLA partitions whole-batch code.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import jax
import numpy as np

from anytpu.errors import ProgramError
from anytpu.program.contract import check_result
from anytpu.program.leaves import leaf_names
from anytpu.program.placed import inside, placed_specs, placement_of
from anytpu.program.program import REPLICATED, ROWS, Layout, Program, Tree, spec_of


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
    ) -> Program:
        """Make the Program.

        Args:
            job: the step.
            input_specs: the pair (state, batch): trees of arrays or of `jax.ShapeDtypeStruct`. Shardings of the latter
                over a mesh with named axes become the program's placement.
            mode: "train" or "infer".
            tensors: keep the arrays of the state as `program.tensors`.
            batch_size: rows to put in the place of those of each leaf of the batch that is split; None: as it is.
            precision: None; a function has the precision that it is written in.

        Raises:
            ProgramError: the specs are missing or of another form, or the step does not take (state, batch) and return
                (state, outputs) with a state of the same form, or a precision is asked for.
        """
        name = f"{_name(job)}/{mode}"
        given = _state_and_batch(name, input_specs)
        if precision is not None:
            raise ProgramError(_one_precision(name, precision))
        state, batch = _specs(name, given)
        placement = placement_of(name, *given)
        layout = _layout(batch)
        if batch_size is not None:
            batch = _with_rows(name, batch, layout, batch_size)
        _check_takes_two(name, job)
        program = Program(
            name=name,
            step=job,
            state=state,
            batch=batch,
            layout=layout,
            mode=mode,
            state_names=leaf_names(state, "state"),
            tensors=_tensors(name, given[0], state) if tensors else None,
            placement=placement,
        )
        with inside(placement):
            check_result(name, state, jax.eval_shape(job, *placed_specs(program)))
        return program


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
            try:
                jax.eval_shape(lambda leaf: leaf, leaf)
            except TypeError as error:
                raise ProgramError(
                    f"{leaf_name!r} in the {which} of {name!r} must be an array or a jax.ShapeDtypeStruct, not "
                    f"{leaf!r}."
                ) from error
    return spec_of(given[0]), spec_of(given[1])


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


def _with_rows(name: str, batch: Tree, layout: Tree, batch_size: int) -> Tree:
    """Return the specs of a batch with other rows in the leaves that are split."""
    if ROWS not in jax.tree.leaves(layout):
        raise ProgramError(
            f"The batch of {name!r} has no rows to make {batch_size} of: each of its leaves is a scalar. Leave "
            "batch_size out."
        )

    def resized(leaf: jax.ShapeDtypeStruct, of_leaf: Layout) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((batch_size, *leaf.shape[1:]), leaf.dtype) if of_leaf == ROWS else leaf

    return jax.tree.map(resized, batch, layout)


def _one_precision(name: str, precision: str) -> str:
    return (
        f"The function of {name!r} computes in the precision that it is written in, and cannot be made again with "
        f"precision={precision!r}. Cast inside it, x.astype(jnp.{precision}), or give it state and batch of that type."
    )


def _layout(batch: Tree) -> Tree:
    sizes = [leaf.shape[0] for leaf in jax.tree.leaves(batch) if leaf.shape]
    return jax.tree.map(lambda leaf: ROWS if leaf.shape and leaf.shape[0] == sizes[0] else REPLICATED, batch)


def _tensors(name: str, state: Tree, specs: Tree) -> Tree:
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(state)):
        raise ProgramError(
            f"The values of the state of {name!r} were asked for (tensors=True), and input_specs gives only their "
            "shapes. Pass the arrays themselves."
        )
    return jax.tree.map(lambda x, spec: x if isinstance(x, jax.Array) else np.asarray(x, spec.dtype), state, specs)
