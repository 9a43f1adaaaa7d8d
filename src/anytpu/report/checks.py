"""`Check`: one thing that was looked at, how it is, and what to type about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Literal

from rich.console import Console
from rich.text import Text

from anytpu.report.terminal import hang

Status = Literal["ok", "optional", "warning", "failed"]
"""ok: as it should be; optional: not there, and not needed; warning: works, but something is in the way; failed: does
not work."""

_COLOURS = {"ok": "green", "optional": "dim", "warning": "yellow", "failed": "bold red"}
_STATUS_WIDTH, _NAME_WIDTH = 9, 15


@dataclasses.dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        status: how it is.
        name: what was looked at, in one or two words.
        found: what was found, in a sentence without the last full stop.
        command: what to type next, or None when there is nothing to do.
    """

    status: Status
    name: str
    found: str
    command: str | None = None


def print_check(console: Console, check: Check) -> None:
    """Print a check: "ok", "optional", "warning" or "failed", its name, what was found, what to type."""
    for line in check_lines(check, console.width):
        console.print(line, soft_wrap=True)


def check_lines(check: Check, width: int = 80) -> list[Text]:
    """Return a check as lines; only what was found is wrapped, a command stays in one piece.

    Args:
        check: what to show.
        width: columns of the terminal.

    Example:
        >>> [line.plain for line in check_lines(Check("warning", "disk", "1 GiB free", "df -h"))]
        ['warning  disk           1 GiB free', '                        type: df -h']
    """
    start = f"{check.status:<{_STATUS_WIDTH}}{check.name:<{_NAME_WIDTH}}"
    lines = [Text(line) for line in hang(start, check.found, width)]
    lines[0].stylize(_COLOURS[check.status], 0, len(check.status))
    if check.command:
        lines.append(Text(f"{' ' * len(start)}type: {check.command}"))
    return lines


def summary(checks: Iterable[Check]) -> str:
    """Return the count of each status.

    Example:
        >>> summary([Check("ok", "disk", ""), Check("ok", "memory", ""), Check("failed", "step", "")])
        '2 ok, 1 failed'
    """
    statuses = [check.status for check in checks]
    counts = {"ok": "ok", "optional": "optional", "warning": "warnings", "failed": "failed"}
    counts["warning"] = "warning" if statuses.count("warning") == 1 else "warnings"
    return ", ".join(f"{statuses.count(s)} {word}" for s, word in counts.items() if s in statuses)
