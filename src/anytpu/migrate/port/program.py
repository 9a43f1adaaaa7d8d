"""`ported`: rewrite the text of one program."""

from __future__ import annotations

import ast
import dataclasses
import re
import warnings

import libcst as cst

from anytpu.errors import PortError
from anytpu.migrate.port.edits import Edits
from anytpu.migrate.port.finding import Finding
from anytpu.migrate.port.imports import IMPORTS_KERAS, name_for_anytpu, plan_new_imports
from anytpu.migrate.port.plans import PLANS
from anytpu.migrate.port.tree import Tree

_KERAS_3 = re.compile(r"\bkeras\.ops\b|from keras import (.*\W)?ops\b")
_NESTS = re.compile(r"too many (?:statically )?nested|too many levels of indentation")


@dataclasses.dataclass(frozen=True)
class Ported:
    """A program, before and after.

    Attributes:
        old: the old text.
        new: the rewritten text.
        findings: lines for the author to check, sorted by line of the old text.
        cells: for a notebook, the line in the old text that stands before each code cell.
    """

    old: str
    new: str
    findings: tuple[Finding, ...] = ()
    cells: tuple[int, ...] = ()

    @property
    def is_changed(self) -> bool:
        """True if the new text differs from the old one."""
        return self.old != self.new

    @property
    def by_hand(self) -> tuple[Finding, ...]:
        """The findings of lines that the author must change."""
        return tuple(finding for finding in self.findings if finding.kind == "by hand")

    def cell_and_line(self, line: int) -> tuple[int, int]:
        """Return the cell of a line of the old text, and its line in that cell; cell 0 for a program."""
        cell = sum(start < line for start in self.cells)
        return cell, line - self.cells[cell - 1] if cell else line


def ported(text: str, name: str = "this program") -> Ported:
    """Rewrite the TPU calls of a TensorFlow program to ours.

    A program without names of TensorFlow or Keras 2 is unchanged, so porting twice equals porting once.

    Args:
        text: a Python program.
        name: the program's name in error texts.

    Raises:
        PortError: the program cannot be parsed.

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
    if "tensorflow" not in text and ("anytpu" in text or not IMPORTS_KERAS.search(text)):
        return Ported(text, text)
    tree = Tree(module)
    edits = Edits(tree, name_for_anytpu(tree))
    is_new = "tensorflow" not in text and _KERAS_3.search(text)
    for plan in () if is_new else PLANS:
        plan(edits)
    new = edits.apply()  # a first pass: applying the edits records the packages that they use
    is_of_keras = "tensorflow" not in text
    plan_new_imports(edits, new.code if is_of_keras or new.code != text else "")
    return Ported(text, edits.apply().code, tuple(sorted(edits.findings)))


def _parsed(text: str, name: str) -> cst.Module:
    error = _python_syntax_error(text)
    if error is not None and _NESTS.search(error.msg):
        raise PortError(_too_deep(name, error.lineno))  # libcst would overflow the C stack and end the process
    try:
        return cst.parse_module(text)
    except cst.ParserSyntaxError as other:
        line, reason = other.raw_line, other.message.partition("\n")[0]
        if error is not None:  # Python's message is plainer than libcst's
            line, reason = error.lineno, error.msg
        raise PortError(
            f"{name}, line {line}: {reason.rstrip('.')}; a program has to be Python 3 to be ported"
        ) from other


def _python_syntax_error(text: str) -> SyntaxError | None:
    """Return the error of Python's own parser, which limits nesting safely, or None."""
    try:
        with warnings.catch_warnings(action="ignore"):
            ast.parse(text)
    except SyntaxError as error:
        return error
    except ValueError as error:  # a null character
        return SyntaxError(str(error))
    return None


def _too_deep(name: str, line: int | None = None) -> str:
    position = f"{name}, line {line}" if line else name
    return f"{position}: the code nests too deeply to be parsed; split it into named parts"
