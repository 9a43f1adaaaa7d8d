"""`ported`: one program, from the old text to the new one."""

from __future__ import annotations

import ast
import dataclasses
import re
import warnings

import libcst as cst

from anytpu.errors import PortError
from anytpu.port.calls import plan_arguments, plan_calls, plan_methods
from anytpu.port.edits import Edits
from anytpu.port.finding import Finding
from anytpu.port.imports import name_for_anytpu, plan_imports, plan_new_imports
from anytpu.port.loops import plan_loops
from anytpu.port.resolvers import plan_resolvers
from anytpu.port.sessions import plan_sessions
from anytpu.port.tape import plan_tapes
from anytpu.port.tree import Tree

_PLANS = (
    plan_tapes,
    plan_loops,
    plan_sessions,
    plan_resolvers,
    plan_arguments,
    plan_calls,
    plan_methods,
    plan_imports,
)
"""In this order: the patterns first, then each name that none of them has taken."""


_NESTS = re.compile(r"too many (?:statically )?nested|too many levels of indentation")


@dataclasses.dataclass(frozen=True)
class Ported:
    """A program, before and after.

    Attributes:
        old: its text as it was.
        new: its text as it is to be.
        findings: what its author has to look at, by line of the old text.
    """

    old: str
    new: str
    findings: tuple[Finding, ...] = ()

    @property
    def is_changed(self) -> bool:
        """True when there is something to write."""
        return self.old != self.new

    @property
    def by_hand(self) -> tuple[Finding, ...]:
        """The lines that were left as they were."""
        return tuple(one for one in self.findings if one.kind == "by hand")


def ported(text: str, name: str = "this program") -> Ported:
    """Rewrite the TPU calls of a TensorFlow program to ours.

    A program that names nothing of TensorFlow's stays as it is, so that porting twice changes nothing.

    Args:
        text: a Python program.
        name: what errors call it.

    Raises:
        PortError: it cannot be parsed.

    Example:
        >>> print(ported("import tensorflow as tf\\nstrategy = tf.distribute.get_strategy()").new)
        import anytpu as tpu
        strategy = tpu.get_strategy()
    """
    try:
        return _ported(text, name)
    except (RecursionError, MemoryError) as error:
        raise PortError(_too_deep(name)) from error


def _ported(text: str, name: str) -> Ported:
    module = _parsed(text, name)
    if "tensorflow" not in text:
        return Ported(text, text)
    tree = Tree(module)
    edits = Edits(tree, name_for_anytpu(tree))
    for plan in _PLANS:
        plan(edits)
    edits.apply()  # what the new lines name is known once they are made
    plan_new_imports(edits)
    return Ported(text, edits.apply().code, tuple(sorted(edits.findings)))


def _parsed(text: str, name: str) -> cst.Module:
    error = _error_of_python(text)
    if error is not None and _NESTS.search(error.msg):
        raise PortError(_too_deep(name, error.lineno))  # libcst would run out of its stack, and end the process.
    try:
        return cst.parse_module(text)
    except cst.ParserSyntaxError as other:
        line, what = other.raw_line, other.message.partition("\n")[0]
        if error is not None:  # Python's own words are plainer
            line, what = error.lineno, error.msg
        raise PortError(
            f"{name}, line {line}: {what.rstrip('.')}; a program has to be Python 3 to be ported"
        ) from other


def _error_of_python(text: str) -> SyntaxError | None:
    """Return what Python's own parser complains of; it knows how deep it may go."""
    try:
        with warnings.catch_warnings(action="ignore"):
            ast.parse(text)
    except SyntaxError as error:
        return error
    except ValueError as error:  # a null character
        return SyntaxError(str(error))
    return None


def _too_deep(name: str, line: int | None = None) -> str:
    where = f"{name}, line {line}" if line else name
    return f"{where}: it nests too deeply to be read; split what is nested into parts with names of their own"
