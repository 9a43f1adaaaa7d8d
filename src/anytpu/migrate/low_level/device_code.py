"""Parts of functions that run on the cores: `repeat`, `while_loop`, `outside_compilation` and `bfloat16_scope`.

Idea: a training loop in Python calls the device for each step; a loop on the device needs no calls. The body may be a
pure function of arrays, or change Keras models and optimizers. Changed variables are part of the loop carry.

Rule: inside a function that runs on the cores, a loop is a part of the function. Outside, it runs on one core, as
`rewrite` does. The number of iterations is an argument of the compiled loop, so another number compiles nothing. The
host is called once for each core, when the values are computed, in unspecified order.
"""

from __future__ import annotations

import contextlib
import functools
import numbers
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax.core import Tracer

from anytpu import _keras
from anytpu._calls import explain_arguments
from anytpu.errors import SettingError, SettingTypeError
from anytpu.migrate.low_level.sharding import rewrite
from anytpu.program.program import spec_of
from anytpu.strategy.assignments import write_back
from anytpu.strategy.replicas import ReplicaScope, current_replica

_Values = tuple[Any, ...]


@explain_arguments
def repeat(n: Any, body: Callable, inputs: Sequence[Any] | None = None) -> list[Any]:
    """Run a function n times on the device, each time on the values that it returned before.

    Args:
        n: number of iterations, at least 0; an integer or an integer scalar.
        body: takes as many values as `inputs` has, and returns as many, of the same shapes and types. It may return a
            single value in a list or not.
        inputs: the values of the first iteration: arrays, or trees of arrays. None means no values: the body changes
            Keras variables and returns None.

    Returns:
        A list with the values after the last iteration.

    Raises:
        SettingError: `n` is not an integer of at least 0, or the values returned by the body differ in form from its
            arguments.

    Example:
        >>> float(repeat(10, lambda x: x + 2.0, [1.0])[0])
        21.0
    """
    _check_count(n)
    body = _checked_body(body, "repeat")
    if current_replica() is None:
        return rewrite(functools.partial(_repeat, body), [n, *_listed(inputs, "inputs")]) or []
    return _repeat(body, n, *_listed(inputs, "inputs"))


@explain_arguments
def while_loop(condition: Callable, body: Callable, inputs: Sequence[Any] | None = None) -> list[Any]:
    """Run a function on the device while a condition holds, each time on the values that it returned before.

    Args:
        condition: takes the values, and returns one boolean.
        body: as in `repeat`.
        inputs: as in `repeat`.

    Returns:
        A list with the first values for which the condition does not hold.

    Raises:
        SettingError: the condition does not return a boolean, or the values returned by the body differ in form from
            its arguments.

    Example:
        >>> int(while_loop(lambda x: x < 100, lambda x: x * 2, [3])[0])
        192
    """
    _checked_body(condition, "while_loop")
    body = _checked_body(body, "while_loop")
    if current_replica() is None:
        return rewrite(functools.partial(_while, condition, body), _listed(inputs, "inputs")) or []
    return _while(condition, body, *_listed(inputs, "inputs"))


def _repeat(body: Callable, n: Any, *inputs: Any) -> list[Any]:
    iterate, carry, variables = _iteration(body, inputs)
    return _write_back(jax.lax.fori_loop(0, n, lambda _, carry: iterate(carry), carry), variables)


def _while(condition: Callable, body: Callable, *inputs: Any) -> list[Any]:
    iterate, carry, variables = _iteration(body, inputs)

    def holds(carry: Any) -> Any:
        values, state = carry
        with ReplicaScope(list(zip(variables, state, strict=True)), _keras.stateless_scope()):
            result = jnp.asarray(condition(*values))
        if result.shape != ():
            raise SettingError(
                f"the condition of tpu.while_loop must return one boolean, not an array of shape {result.shape}: "
                "take .any() or .all() of it"
            )
        return result.astype(bool)

    return _write_back(jax.lax.while_loop(holds, iterate, carry), variables)


def _iteration(body: Callable, inputs: _Values) -> tuple[Callable, tuple[_Values, list[Any]], list[Any]]:
    """Return an iteration as a pure function, the initial carry, and the Keras variables that the body changes."""
    values = jax.tree.map(jnp.asarray, inputs)
    outer = _keras.stateless_scope()
    # 1. Trace the body once, to find the variables that it changes and to check the form of its results.
    scope = ReplicaScope([], outer)

    def trace(*arguments: Any) -> _Values:
        with scope:
            return _returned(body(*arguments))

    specs = jax.eval_shape(trace, *values)
    _check_form(values, specs)
    variables = [variable for variable, _ in scope.written()]

    # 2. The iteration reads the variables from the carry, and returns their new values in it.
    def iterate(carry: tuple[_Values, list[Any]]) -> tuple[_Values, list[Any]]:
        values, state = carry
        scope = ReplicaScope(list(zip(variables, state, strict=True)), outer)
        with scope:
            new = _returned(body(*values))
        return jax.tree.map(jnp.asarray, new), [scope.held(variable) for variable in variables]

    return iterate, (values, [variable.value for variable in variables]), variables


def _write_back(carry: tuple[_Values, list[Any]], variables: list[Any]) -> list[Any]:
    """Write the final values of the variables, and return the other values of the carry."""
    values, state = carry
    for variable, value in zip(variables, state, strict=True):
        write_back(variable, value)
    return list(values)


def _returned(outputs: Any) -> _Values:
    if outputs is None:
        return ()
    return tuple(outputs) if type(outputs) in (list, tuple) else (outputs,)


def _listed(inputs: Any, name: str) -> list[Any]:
    if inputs is None:
        return []
    if not isinstance(inputs, list | tuple):
        raise SettingTypeError(f"{name} must be a list of arrays, or of trees of arrays, or None, not {inputs!r}")
    return list(inputs)


def _check_count(n: Any) -> None:
    is_array = isinstance(n, jax.Array) or hasattr(n, "dtype")
    is_integer = jnp.issubdtype(n.dtype, jnp.integer) and n.shape == () if is_array else isinstance(n, numbers.Integral)
    if not is_integer or isinstance(n, bool) or (not isinstance(n, Tracer) and n < 0):
        raise SettingError(f"n must be an integer of at least 0, or an integer scalar, not {n!r}")


def _checked_body(body: Any, name: str) -> Callable:
    if not callable(body):
        raise SettingTypeError(f"tpu.{name} runs a function on the device, and {body!r} is not a function")
    return body


def _check_form(values: _Values, specs: _Values) -> None:
    """Reject a body whose results differ in form from its arguments."""
    takes, returns = ([_kind(tree) for tree in trees] for trees in (values, specs))
    if len(takes) != len(returns):
        raise SettingError(
            f"the body of a loop on the device must return as many values as it takes: it takes {len(takes)} and "
            f"returns {len(returns)}"
        )
    for index, (before, after) in enumerate(zip(takes, returns, strict=True)):
        if before != after:
            raise SettingError(
                f"the body of a loop on the device must return values of the same form as its arguments: "
                f"inputs[{index}] is {before[0]}, and it returns {after[0]}"
            )


def _kind(tree: Any) -> tuple[str, Any]:
    leaves, structure = jax.tree.flatten(tree)
    return ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves) or "nothing", structure


@explain_arguments
def outside_compilation(computation: Callable, *args: Any, returns: Any = None) -> Any:
    """Call a Python function on the host, from a function that runs on the cores.

    Args:
        computation: takes the values of `args` as NumPy arrays. It may print, write files, use any library.
        args: arrays, numbers, or trees of them.
        returns: an example of the value that `computation` returns: a tree of arrays or `jax.ShapeDtypeStruct` of the
            same shapes and types. None if it returns nothing.

    Returns:
        The value that `computation` returns, or None.

    Example:
        >>> import math
        >>> gamma = lambda x: outside_compilation(lambda x: np.float32(math.gamma(x)), x, returns=np.float32(0))
        >>> float(rewrite(gamma, [5.0])[0])
        24.0
    """
    if returns is None:

        def call(*values: Any) -> None:
            computation(*values)

        jax.debug.callback(call, *args)
        return None
    return jax.pure_callback(computation, spec_of(returns), *args, vmap_method="sequential")


@contextlib.contextmanager
def bfloat16_scope() -> Iterator[None]:
    """Return a scope in which new Keras layers keep their variables in float32 and compute in bfloat16.

    It calls `keras.mixed_precision.set_dtype_policy("mixed_bfloat16")`, and restores the policy afterwards. The
    variables' gradients are float32.

    Example:
        >>> with bfloat16_scope():
        ...     layer = keras.layers.Dense(2)
        >>> layer.variable_dtype, layer.compute_dtype
        ('float32', 'bfloat16')
    """
    previous = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        yield
    finally:
        keras.config.set_dtype_policy(previous)
