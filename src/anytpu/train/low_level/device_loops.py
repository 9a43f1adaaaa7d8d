"""`repeat` and `while_loop`: loops that run on the device, inside the one compiled step.

Idea: a training loop in Python asks the device for one step after the other; on the device it asks nobody. The body may
be a pure function of arrays, or change Keras models and optimizers: what it changes is carried from turn to turn.

Rule: inside a function that runs on the cores they are a part of it; outside they run on one core, as `rewrite` does,
and the number of turns is an argument of the compiled loop, so that another number compiles nothing.
"""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from anytpu import _keras
from anytpu.errors import SettingError, SettingTypeError
from anytpu.strategy.assignments import write_back
from anytpu.strategy.replicas import ReplicaScope, current_replica
from anytpu.train.low_level.sharding import rewrite

_Values = tuple[Any, ...]


def repeat(n: Any, body: Callable, inputs: Sequence[Any] | None = None) -> list[Any]:
    """Run a function n times on the device, each time on what it returned the time before.

    Args:
        n: how many times; a number, or an integer scalar.
        body: takes as many values as `inputs` has, and returns as many, of the same shapes and types; one value as it
            is or in a list.
        inputs: the values of the first turn: arrays, or trees of them. None means none: the body changes Keras
            variables and returns None.

    Returns:
        A list with the values after the last turn.

    Raises:
        SettingError: `n` is no whole number from 0 up, or the body returns something of another form than it takes.

    Example:
        >>> float(repeat(10, lambda x: x + 2.0, [1.0])[0])
        21.0
    """
    _check_turns(n)
    body = _checked_body(body, "repeat")
    if current_replica() is None:
        return rewrite(functools.partial(_repeat, body), [n, *_listed(inputs, "inputs")]) or []
    return _repeat(body, n, *_listed(inputs, "inputs"))


def while_loop(condition: Callable, body: Callable, inputs: Sequence[Any] | None = None) -> list[Any]:
    """Run a function on the device as long as a condition holds, each time on what it returned the time before.

    Args:
        condition: takes the values, and returns one truth value.
        body: as in `repeat`.
        inputs: as in `repeat`.

    Returns:
        A list with the values for which the condition does not hold.

    Raises:
        SettingError: the condition returns no truth value, or the body something of another form than it takes.

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
    turn, carry, variables = _turns(body, inputs)
    return _settled(jax.lax.fori_loop(0, n, lambda _, carry: turn(carry), carry), variables)


def _while(condition: Callable, body: Callable, *inputs: Any) -> list[Any]:
    turn, carry, variables = _turns(body, inputs)

    def goes_on(carry: Any) -> Any:
        values, state = carry
        with ReplicaScope(list(zip(variables, state, strict=True)), _keras.stateless_scope()):
            answer = jnp.asarray(condition(*values))
        if answer.shape != ():
            raise SettingError(
                f"the condition of tpu.while_loop must return one truth value, not an array of shape {answer.shape}: "
                "take .any() or .all() of it"
            )
        return answer.astype(bool)

    return _settled(jax.lax.while_loop(goes_on, turn, carry), variables)


def _turns(body: Callable, inputs: _Values) -> tuple[Callable, tuple[_Values, list[Any]], list[Any]]:
    """Return a turn of the loop as a pure function, what it starts from, and the Keras variables that it changes."""
    values = jax.tree.map(jnp.asarray, inputs)
    outer = _keras.stateless_scope()
    # Once abstractly: which variables does the body change, and does it return what it takes?
    scope = ReplicaScope([], outer)

    def one_turn(*given: Any) -> _Values:
        with scope:
            return _returned(body(*given))

    specs = jax.eval_shape(one_turn, *values)
    _check_form(values, specs)
    variables = [variable for variable, _ in scope.written()]

    def turn(carry: tuple[_Values, list[Any]]) -> tuple[_Values, list[Any]]:
        values, state = carry
        scope = ReplicaScope(list(zip(variables, state, strict=True)), outer)
        with scope:
            new = _returned(body(*values))
        return jax.tree.map(jnp.asarray, new), [scope.held(variable) for variable in variables]

    return turn, (values, [variable.value for variable in variables]), variables


def _settled(carry: tuple[_Values, list[Any]], variables: list[Any]) -> list[Any]:
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
        raise SettingTypeError(f"{name} must be a list of arrays, or of trees of them, or None, not {inputs!r}")
    return list(inputs)


def _check_turns(n: Any) -> None:
    is_array = isinstance(n, jax.Array) or hasattr(n, "dtype")
    is_whole = jnp.issubdtype(n.dtype, jnp.integer) and n.shape == () if is_array else isinstance(n, numbers.Integral)
    if not is_whole or isinstance(n, bool) or (not isinstance(n, Tracer) and n < 0):
        raise SettingError(f"n must be a whole number from 0 up, or an integer scalar, not {n!r}")


def _checked_body(body: Any, name: str) -> Callable:
    if not callable(body):
        raise SettingTypeError(f"tpu.{name} runs a function on the device, and {body!r} is none")
    return body


def _check_form(values: _Values, specs: _Values) -> None:
    """Raise unless the body returns what it takes."""
    takes, returns = ([_kind(one) for one in trees] for trees in (values, specs))
    if len(takes) != len(returns):
        raise SettingError(
            f"the body of a loop on the device must return as many values as it takes: it takes {len(takes)} and "
            f"returns {len(returns)}"
        )
    for index, (before, after) in enumerate(zip(takes, returns, strict=True)):
        if before != after:
            raise SettingError(
                f"the body of a loop on the device must return values of the form that it takes: inputs[{index}] is "
                f"{before[0]}, and it returns {after[0]}"
            )


def _kind(tree: Any) -> tuple[str, Any]:
    leaves, structure = jax.tree.flatten(tree)
    return ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves) or "nothing", structure
