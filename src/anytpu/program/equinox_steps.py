"""`pure_step_of`: a training step of Equinox as a function of (state, batch).

Idea: a step of Equinox returns the new model and optimizer state beside other results. A result with the structure and
the shapes of an argument is its new value. If several arguments match a result, the first takes it.

Rule: arrays are named by their path, from the step's own parameter: "model/layers/0/weight". An argument without a new
value is a part of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
from jax.tree_util import keystr, tree_flatten_with_path

from anytpu.errors import ProgramError
from anytpu.program.pure_step import PureStep, is_array, names_of_parameters


def inference_step(model: Any, *batch: Any) -> Any:
    """Return the outputs of a model, which computes one example, for each example of a batch."""
    return jax.vmap(model)(*batch)


def pure_step_of(
    name: str, step: Callable[..., Any], arguments: Sequence[Any], has_fixed_model: bool = False
) -> PureStep:
    """Return the pure form of a step.

    Args:
        name: name of the job, for errors.
        step: the user's step, not compiled.
        arguments: its arguments: modules, and trees of arrays or of `jax.ShapeDtypeStruct`.
        has_fixed_model: whether the first argument is a model that the step does not change.

    Raises:
        ProgramError: the step returns no argument anew.
    """
    parameters = names_of_parameters(step, len(arguments))
    # 1. Divide the arguments into their arrays and the rest, which is a part of the code.
    dynamic, static = zip(*(eqx.partition(argument, is_array) for argument in arguments), strict=True)

    def call(arrays: Sequence[Any]) -> Any:
        outputs = step(*(eqx.combine(*parts) for parts in zip(arrays, static, strict=True)))
        return eqx.filter(outputs, eqx.is_array)

    # 2. Find the arguments that the step returns anew: they are the state. The others are the batch.
    results = jax.eval_shape(call, dynamic)
    results = list(results) if isinstance(results, tuple | list) else [results]
    result_of_argument = {0: None} if has_fixed_model else _results_of_arguments(dynamic, results)
    if not result_of_argument:
        raise ProgramError(
            f"{name!r} returns none of its arguments anew. Return the new model and optimizer state from the step: "
            "return model, opt_state, loss"
        )
    # 3. Name the arrays of the state, and keep the form of each argument.
    state, rebuild = {}, {}
    for position in result_of_argument:
        leaves, structure = tree_flatten_with_path(dynamic[position])
        names = [_array_name(parameters[position], path) for path, _ in leaves]
        state |= dict(zip(names, (leaf for _, leaf in leaves), strict=True))
        rebuild[position] = names, structure
    batch = {
        parameters[position]: dynamic[position]
        for position in range(len(arguments))
        if position not in result_of_argument
    }
    batch = {parameter: arrays for parameter, arrays in batch.items() if jax.tree.leaves(arrays)}

    # 4. The pure step: put the arguments together, call the step, and take the new state out of its results.
    def pure(arrays: dict[str, Any], batch_arrays: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        merged = [batch_arrays.get(parameter, part) for parameter, part in zip(parameters, dynamic, strict=True)]
        for position, (names, structure) in rebuild.items():
            merged[position] = jax.tree.unflatten(structure, [arrays[array_name] for array_name in names])
        outputs = call(merged)
        listed = list(outputs) if isinstance(outputs, tuple | list) else [outputs]
        new = dict(arrays)
        for position, result_index in result_of_argument.items():
            if result_index is not None:
                new |= dict(zip(rebuild[position][0], jax.tree.leaves(listed[result_index]), strict=True))
        return new, [value for index, value in enumerate(listed) if index not in result_of_argument.values()]

    models = {position for position in result_of_argument if isinstance(arguments[position], eqx.Module)}
    kinds = {
        array_name: ("weights" if position in models else "slots")
        for position, (names, _) in rebuild.items()
        for array_name in names
    }
    return PureStep(pure, state, batch, kinds)


def _results_of_arguments(dynamic: Sequence[Any], results: Sequence[Any]) -> dict[int, int | None]:
    """Return the index of the result that is the new value of each argument."""
    free, result_of_argument = list(range(len(results))), dict[int, int | None]()
    for position, argument in enumerate(dynamic):
        leaves = jax.tree.leaves(argument)
        # A result with the shape of one array, such as the batch, is not its new value.
        fitting = [index for index in free if leaves and not is_array(argument) and _is_like(results[index], argument)]
        if fitting:
            result_of_argument[position] = fitting[0]
            free.remove(fitting[0])
    return result_of_argument


def _is_like(result: Any, argument: Any) -> bool:
    (new, new_structure), (old, structure) = jax.tree.flatten(result), jax.tree.flatten(argument)
    return new_structure == structure and _shapes(new) == _shapes(old)


def _shapes(leaves: Sequence[Any]) -> list[Any]:
    return [(leaf.shape, str(leaf.dtype)) for leaf in leaves]


def _array_name(parameter: str, path: Any) -> str:
    return "/".join([parameter, keystr(path, simple=True, separator="/")]) if path else parameter
