"""Arguments of calls: find one, and add one. Expressions in parentheses."""

from __future__ import annotations

from typing import Any

import libcst as cst

from anytpu.migrate.port import old_api
from anytpu.migrate.port.signatures import names_by_position

_LOOSE = cst.BinaryOperation | cst.IfExp | cst.Comparison | cst.BooleanOperation


def argument_of(call: cst.Call, function: str, *names: str) -> Any:
    """Return an argument of a call by one of its names; None if it is missing.

    Args:
        call: the call.
        function: the old name of its function, whose record has the positions; "" for keywords alone.
        names: names of the argument, also those that it had in TensorFlow 1.
    """
    recorded = {old_api.public_name(function, is_first=is_first) or "" for is_first in (False, True)}
    positions = [names_by_position(old_api.parameters(name)) for name in recorded]
    for index, argument in enumerate(call.args):
        own = [keyword_of(argument)] if argument.keyword else [at[index] for at in positions if index < len(at)]
        if not set(own).isdisjoint(names):
            return argument
    return None


def keyword_of(argument: cst.Arg) -> str:
    """Return the keyword of an argument; "" for one by position."""
    return argument.keyword.value if argument.keyword is not None else ""


def with_keyword(argument: cst.Arg, name: str) -> cst.Arg:
    """Return an argument by keyword instead of position."""
    equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return argument.with_changes(keyword=cst.Name(name), equal=equal)


def with_argument(call: Any, name: str, value: cst.BaseExpression) -> Any:
    """Return a call with a keyword argument more, in the place of one of the same name."""
    kept = [argument for argument in call.args if keyword_of(argument) != name]
    last = [kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)] if kept else []
    return call.with_changes(args=[*kept[:-1], *last, with_keyword(cst.Arg(value), name)])


def plain_assignment(updated: Any, left: cst.BaseExpression) -> cst.Assign:
    """Return `x = left / y` for `x /= y`."""
    operator = getattr(cst, type(updated.operator).__name__.removesuffix("Assign"))()
    value = in_parentheses(updated.value) if isinstance(updated.value, _LOOSE) else updated.value
    return cst.Assign([cst.AssignTarget(updated.target)], cst.BinaryOperation(left, operator, value))


def lambda_in_parentheses(function: Any) -> Any:
    """Return a function as it can be called: a lambda in parentheses."""
    return in_parentheses(function) if isinstance(function, cst.Lambda) else function


def in_parentheses(expression: Any) -> Any:
    """Return an expression in parentheses, once."""
    return expression if expression.lpar else expression.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
