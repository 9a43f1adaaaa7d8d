"""The variables that a fragment of a program reads and writes."""

from __future__ import annotations

import libcst as cst
import pytest

from anytpu.migrate.port.tree import Tree
from anytpu.migrate.port.variables import reads, writes


@pytest.mark.parametrize(
    ("code", "read", "written"),
    [
        ("y = x; z = [x for x in xs]", {"x", "xs"}, {"y", "z"}),
        ("z = [x for x in xs if x > low]", {"xs", "low"}, {"z"}),
        ("f = lambda x: x + y", {"y"}, {"f"}),
        ("def f(x, y=z):\n    w = x\n    return w + v", {"z", "v"}, {"f"}),
        ("class A(B):\n    x = y", {"B", "y"}, {"A"}),
        ("x += y", {"x", "y"}, {"x"}),
        ("a[i].b = c", {"a", "i", "c"}, set()),
        ("for i in range(n):\n    total = total + i", {"range", "n", "total", "i"}, {"i", "total"}),
        ("import os as p, sys", set(), {"p", "sys"}),
    ],
)
def test_what_a_fragment_reads_and_writes(code: str, read: set[str], written: set[str]):
    tree = Tree(cst.parse_module(code + "\n"))
    assert (reads(tree, tree.module), writes(tree, tree.module)) == (read, written)
