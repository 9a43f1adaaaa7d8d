"""`read_whole`, `written_whole`: the arguments of a step that must be read, and the results that must be written.

Idea: between two steps, arguments and results are in the main memory. An argument that a step computes with has to be
read once; a computed result has to be written once.

Rule: traffic that a compiler could avoid does not count. A table from which rows are gathered is not read whole. A
cache that is updated in place is neither read nor written whole. A result that is an argument is not written.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn, Literal

from anytpu.program.jaxprs import called_jaxpr

# Levels of need, in this order because the larger counts: not needed; passed on in place; read whole.
_NOT, _KEPT, _READ = 0, 1, 2
_IN_PLACE = ("scatter", "dynamic_update_slice")
_PARTS = ("gather", "dynamic_slice", "slice", "split")
_SAME = (
    "reshape",
    "squeeze",
    "expand_dims",
    "copy",
    "copy_p",
    "sharding_constraint",
    "reshard",
    "optimization_barrier",
)
# What these read and write is not certain, so nothing of it counts.
_OPAQUE = ("cond", "while", "pallas_call", "custom_linear_solve")


def read_whole(jaxpr: Jaxpr) -> list[bool]:
    """Return for each argument whether all of it has to be read.

    Args:
        jaxpr: a step without dead code.

    Example:
        >>> step = jax.make_jaxpr(lambda w, table, rows: (w * 2, table[rows]))
        >>> read_whole(step(jnp.zeros(4), jnp.zeros((100, 8)), jnp.zeros(3, "int32")).jaxpr)
        [True, False, True]
    """
    return [need == _READ for need in _needs(jaxpr, [_KEPT] * len(jaxpr.outvars))]


def written_whole(jaxpr: Jaxpr) -> list[bool]:
    """Return for each result whether all of it has to be written; a repeated result counts once.

    Example:
        >>> step = jax.make_jaxpr(lambda w, cache: (w, cache.at[0].set(1.0), w + cache))
        >>> written_whole(step(jnp.zeros(4), jnp.zeros(4)).jaxpr)
        [False, False, True]
    """
    return _written(jaxpr, {})


def _written(jaxpr: Jaxpr, known: dict[int, list[bool]]) -> list[bool]:
    """Compute `written_whole`, and analyse each jaxpr once."""
    made = {variable: equation for equation in jaxpr.eqns for variable in equation.outvars}
    # Reversed, so that the first place of a repeated result wins.
    first = {id(variable): place for place, variable in reversed(list(enumerate(jaxpr.outvars)))}
    return [
        first[id(variable)] == place and not isinstance(variable, Literal) and _is_made(variable, made, known)
        for place, variable in enumerate(jaxpr.outvars)
    ]


def _needs(jaxpr: Jaxpr, results: Sequence[int]) -> list[int]:
    """Return how each argument is needed, given how each result is needed."""
    needs: dict[Any, int] = collections.defaultdict(int)

    def need(values: Sequence[Any], levels: Sequence[int]) -> None:
        for variable, level in zip(values, levels, strict=True):
            if not isinstance(variable, Literal):
                needs[variable] = max(needs[variable], level)

    # Backwards, so that the needs of all users of a value are known before the equation that makes it.
    need(jaxpr.outvars, results)
    for equation in reversed(jaxpr.eqns):
        need(equation.invars, _operand_needs(equation, [needs[variable] for variable in equation.outvars]))
    return [needs[variable] for variable in jaxpr.invars]


def _operand_needs(equation: JaxprEqn, results: list[int]) -> list[int]:
    name, count, level = equation.primitive.name, len(equation.invars), max(results, default=_NOT)
    if name in _OPAQUE:
        return [_NOT] * count
    inner = called_jaxpr(equation)
    if inner is not None and (name != "scan" or equation.params["length"] > 0):
        return _needs(inner, results)
    if name.startswith(_IN_PLACE):
        return [level, *[_READ if level else _NOT] * (count - 1)]
    if name in _PARTS:
        return [_NOT, *[_READ if level else _NOT] * (count - 1)]
    if name in _SAME:
        return results if len(results) == count else [level, *[_NOT] * (count - 1)]
    return [_READ if level else _NOT] * count


def _is_made(variable: Any, made: dict[Any, JaxprEqn], known: dict[int, list[bool]]) -> bool:
    """Return whether a value is computed as a whole, rather than being an argument with a changed part."""
    equation = made.get(variable)
    if equation is None:
        return False
    name, place = equation.primitive.name, equation.outvars.index(variable)
    inner = called_jaxpr(equation)
    if inner is not None and name not in _OPAQUE:
        if id(inner) not in known:
            known[id(inner)] = _written(inner, known)
        return known[id(inner)][place]
    if name in _OPAQUE:
        return False
    if name in _SAME or name.startswith(_IN_PLACE):
        source = equation.invars[place if name == "optimization_barrier" else 0]
        return not isinstance(source, Literal) and _is_made(source, made, known)
    return True
