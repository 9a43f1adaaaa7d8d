"""A ported program as one reads it: what changes, as a diff, and what is left to do, by line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from anytpu.port.finding import Finding
from anytpu.report.terminal import hang

_COLOURS = {"+": "green", "-": "red", "@": "cyan"}
_MOST_OLD = 40


def diff_lines(old: str, new: str, name: str) -> list[str]:
    """Return a unified diff, which `patch` and `git apply` understand; empty when nothing changes.

    Example:
        >>> print(*diff_lines("a\\nb\\n", "a\\nc\\n", "x.py"), sep="\\n")
        --- x.py
        +++ x.py
        @@ -1,2 +1,2 @@
         a
        -b
        +c
    """
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), name, name, lineterm="")
    return list(lines)


def print_diff(console: Console, lines: Iterable[str]) -> None:
    """Print a diff; a terminal gets it in colours."""
    for line in lines:
        is_name = line.startswith(("--- ", "+++ "))
        style = "bold" if is_name else _COLOURS.get(line[:1], "")
        console.print(Text(line, style), soft_wrap=True)


def finding_lines(findings: Sequence[Finding], width: int = 80) -> list[str]:
    """Return findings, each with its line, what stands there, and under it what to type.

    Args:
        findings: what to show.
        width: columns of the terminal.

    Example:
        >>> print(*finding_lines([Finding(7, "tf.placeholder", "write a step")]), sep="\\n")
          line 7  tf.placeholder
                  write a step
    """
    digits = max((len(str(one.line)) for one in findings), default=1)
    lines = []
    for one in findings:
        start = f"  line {one.line:>{digits}}  "
        old = one.old if len(one.old) <= _MOST_OLD else f"{one.old[: _MOST_OLD - 3]}..."
        lines += [f"{start}{old}", *hang(" " * len(start), one.advice, width)]
    return lines


def summary(files: int, changed: int, by_hand: int, written: bool) -> str:
    """Return what became of the programs in one line.

    Example:
        >>> summary(files=2, changed=1, by_hand=3, written=False)
        '1 of 2 programs would change; 3 places are left to port by hand'
    """
    verb = "changed" if written else "would change"
    places = {0: "nothing is left", 1: "1 place is left"}.get(by_hand, f"{by_hand} places are left")
    return f"{changed} of {files} {'program' if files == 1 else 'programs'} {verb}; {places} to port by hand"
