"""Choose a more special row of the table for a call, by its arguments."""

from __future__ import annotations

import re

import libcst as cst

from anytpu._replaced import Replacement
from anytpu.port.rules import rules
from anytpu.port.tree import Tree

_INTEGERS = re.compile(r"(^|\.|['\"])int(32|64)\b")


def variant(tree: Tree, name: str, call: cst.Call | None) -> Replacement | None:
    """Return the row for a call with certain arguments; None if there is no special one.

    A row "matmul(transpose_b)" is for calls with `transpose_b=True`. A row "linalg.band_part(-1, 0)" is for calls whose
    arguments after the first are these. A row "random.uniform(integers)" is for calls with an integer type.
    """
    if call is None:
        return None
    for argument in call.args:
        if argument.keyword is not None and tree.code(argument.value) != "False":
            row = rules().get(f"{name}({argument.keyword.value})")
            if row is not None:
                return row
    if any(_INTEGERS.search(tree.code(argument.value)) for argument in call.args):
        row = rules().get(f"{name}(integers)")
        if row is not None:
            return row
    rest = ", ".join(tree.code(argument.value) for argument in call.args[1:])
    return rules().get(f"{name}({rest})")
