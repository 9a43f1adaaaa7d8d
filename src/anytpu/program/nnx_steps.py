"""`pure_step_of`: a training step of Flax NNX as a function of (state, batch).

Idea: a step of NNX changes the modules and optimizers that it gets. `nnx.split` separates their arrays from their
structure. The pure step merges both, calls the user's step, and splits again.

Rule: all objects are split together, so that an array that two of them share is one array. Arrays are named by their
path, from the step's own parameter: "model/layers/0/kernel". A step that adds or removes arrays is refused.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from anytpu import _jax
from anytpu.errors import ProgramError
from anytpu.program.pure_step import PureStep, is_array, names_of_parameters


def pure_step_of(name: str, step: Callable[..., Any], arguments: Sequence[Any]) -> PureStep:
    """Return the pure form of a step.

    Args:
        name: name of the job, for errors.
        step: the user's step, not compiled; it takes NNX objects and arrays.
        arguments: its arguments: NNX objects, trees of arrays or of `jax.ShapeDtypeStruct`, and constants.

    Raises:
        ProgramError: no argument is an NNX object, or the step changes the structure of one.
    """
    parameters = names_of_parameters(step, len(arguments))
    objects = {place: value for place, value in enumerate(arguments) if nnx.graph.is_graph_node(value)}
    if not objects:
        raise ProgramError(
            f"{name!r} gets no NNX object. Give the arguments of the step as input_specs, the model and the optimizer "
            "included: input_specs=(model, optimizer, x, y)"
        )
    # 1. Split the objects into their structure and a flat list of variables, each with a name.
    graph, split = nnx.split(tuple(objects.values()))
    flat = nnx.to_flat_state(split)
    owners = [parameters[place] for place in objects]
    paths = [(owners[int(str(path[0]))], *path[1:]) for path, _ in flat]
    names = ["/".join(map(str, path)) for path in paths]
    values = [variable.get_value() for _, variable in flat]
    # 2. A state has plain arrays. Random keys become their numbers, and keys again inside the step.
    keys = {key: _jax.key_implementation(value) for key, value in zip(names, values, strict=True) if _is_key(value)}
    batch = {
        parameters[place]: value
        for place, value in enumerate(arguments)
        if place not in objects and jax.tree.leaves(value) and all(map(is_array, jax.tree.leaves(value)))
    }

    # 3. The pure step: make the objects of the arrays, call the user's step, and read the changed variables.
    def pure(state: dict[str, Any], batch_arrays: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        arrays = [_as_key(state[array_name], keys.get(array_name)) for array_name in names]
        pairs = [(path, variable.replace(array)) for (path, variable), array in zip(flat, arrays, strict=True)]
        merged = nnx.merge(graph, nnx.from_flat_state(pairs))
        live = dict(zip(objects, merged, strict=True))
        called = [live.get(place, batch_arrays.get(parameters[place], value)) for place, value in enumerate(arguments)]
        with _named_layers(merged):
            outputs = step(*called)
        after = nnx.to_flat_state(nnx.split(merged)[1])
        # A compiled loop carries the state, so its structure must not change.
        _check_structure(name, [path for path, _ in flat], [path for path, _ in after], paths)
        new = [variable.get_value() for _, variable in after]
        return {array_name: _key_data(value) for array_name, value in zip(names, new, strict=True)}, outputs

    state = {array_name: _spec(value) for array_name, value in zip(names, values, strict=True)}
    has_adapters = any(isinstance(variable, nnx.LoRAParam) for _, variable in flat)
    kinds = {key: _kind(variable, has_adapters) for key, (_, variable) in zip(names, flat, strict=True)}
    return PureStep(pure, state, batch, kinds)


def training_step_of(name: str, loss: Callable[..., Any]) -> Callable[..., Any]:
    """Return the step `(model, optimizer, *batch) -> outputs` of a loss.

    Args:
        name: name of the job, for errors.
        loss: function `(model, *batch) -> scalar`, or -> (scalar, other outputs).
    """

    def train_step(model: Any, optimizer: Any, *batch: Any) -> Any:
        shape = nnx.eval_shape(loss, model, *batch)
        has_aux = isinstance(shape, tuple)
        if (has_aux and len(shape) != 2) or getattr(shape[0] if has_aux else shape, "shape", None) != ():
            raise ProgramError(f"the loss of {name!r} must return a scalar, or a pair (scalar, other outputs)")
        value, gradients = nnx.value_and_grad(loss, has_aux=has_aux)(model, *batch)
        optimizer.update(model, gradients)
        return value

    return train_step


def _kind(variable: Any, has_adapters: bool) -> str:
    if isinstance(variable, nnx.Param):
        return "weights" if isinstance(variable, nnx.LoRAParam) or not has_adapters else "frozen"
    if type(variable).__name__ in ("OptArray", "OptVariable", "OptState"):
        return "slots"
    return "frozen" if isinstance(variable, nnx.BatchStat | nnx.RngState) else "other"


def _is_key(value: Any) -> bool:
    return jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def _as_key(array: Any, implementation: Any) -> Any:
    return array if implementation is None else jax.random.wrap_key_data(array, impl=implementation)


def _key_data(value: Any) -> Any:
    return jax.random.key_data(value) if _is_key(value) else value


def _spec(value: Any) -> Any:
    """Return an array, or the spec of it; of a random key those of its numbers."""
    if not _is_key(value):
        return value
    return jax.eval_shape(jax.random.key_data, value) if isinstance(value, jax.ShapeDtypeStruct) else _key_data(value)


def _check_structure(name: str, before: list[Any], after: list[Any], paths: list[Any]) -> None:
    if before == after:
        return
    added = [path for path in after if path not in before]
    removed = ["/".join(map(str, own)) for path, own in zip(before, paths, strict=True) if path not in after]
    change = f"adds {'/'.join(map(str, added[0][1:]))!r}" if added else f"removes {removed[0]!r}"
    raise ProgramError(
        f"{name!r} changes the structure of its modules: it {change}. Make every array in the module's __init__, and "
        "return other results from the step"
    )


_PATH = "_anytpu_path"


@contextlib.contextmanager
def _named_layers(objects: Iterable[Any]) -> Iterator[None]:
    """Let the operations of each module carry its path, such as "layers/0", while a step is traced.

    The path is an attribute of the modules: transforms such as `nnx.grad` copy them with their attributes.
    """
    # Python looks `__call__` up in the class, so the wrapper is a method of each class, and the path an attribute.
    modules = [(path, module) for value in objects for path, module in nnx.iter_modules(value)]
    for path, module in modules:
        setattr(module, _PATH, "/".join(map(str, path)))
    called = {type(module) for _, module in modules if callable(module)}
    before = {cls: vars(cls).get("__call__") for cls in called}
    outer = ""

    def named(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def call_in_scope(self: Any, *arguments: Any, **settings: Any) -> Any:
            nonlocal outer
            around, path = outer, vars(self).get(_PATH, "")
            inner = path.removeprefix(f"{around}/") if around else path
            if not inner or path == around:
                return call(self, *arguments, **settings)
            outer = path
            try:
                with jax.named_scope(inner):
                    return call(self, *arguments, **settings)
            finally:
                outer = around

        return call_in_scope

    try:
        for cls in called:
            cls.__call__ = named(cls.__call__)
        yield
    finally:
        for cls, call in before.items():
            if call is None:
                del cls.__call__
            else:
                cls.__call__ = call
