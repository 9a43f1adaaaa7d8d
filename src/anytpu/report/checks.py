"""`SystemCheck`: the result of a check of the installation or machine, and a command that helps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Literal

from rich.console import Console
from rich.text import Text

from anytpu.report.terminal import hang

Status = Literal["ok", "optional", "warning", "failed"]
"""ok: as expected; optional: missing, but not needed; warning: works, with a problem; failed: does not work."""

_COLOURS = {"ok": "green", "optional": "dim", "warning": "yellow", "failed": "bold red"}
_STATUS_WIDTH, _NAME_WIDTH = 9, 15


@dataclasses.dataclass(frozen=True)
class SystemCheck:
    """The result of one check.

    Attributes:
        status: "ok", "optional", "warning" or "failed".
        name: the subject of the check, in one or two words.
        finding: the finding, as a sentence without its full stop.
        command: the command to type next, or None if there is nothing to do.
    """

    status: Status
    name: str
    finding: str
    command: str | None = None


def print_check(console: Console, check: SystemCheck) -> None:
    """Print a check: its status, its name, the finding, and the command to type."""
    for line in check_lines(check, console.width):
        console.print(line, soft_wrap=True)


def check_lines(check: SystemCheck, width: int = 80) -> list[Text]:
    """Return a check as lines; only the finding is wrapped, never the command.

    Args:
        check: the check to show.
        width: columns of the terminal.

    Example:
        >>> [line.plain for line in check_lines(SystemCheck("warning", "disk", "1 GiB free", "df -h"))]
        ['warning  disk           1 GiB free', '                        type: df -h']
    """
    start = f"{check.status:<{_STATUS_WIDTH}}{check.name:<{_NAME_WIDTH}}"
    lines = [Text(line) for line in hang(start, check.finding, width)]
    lines[0].stylize(_COLOURS[check.status], 0, len(check.status))
    if check.command:
        lines.append(Text(f"{' ' * len(start)}type: {check.command}"))
    return lines


def summary(checks: Iterable[SystemCheck]) -> str:
    """Return the count of each status.

    Example:
        >>> summary([SystemCheck("ok", "disk", ""), SystemCheck("ok", "memory", ""), SystemCheck("failed", "step", "")])
        '2 ok, 1 failed'
    """
    statuses = [check.status for check in checks]
    counts = {"ok": "ok", "optional": "optional", "warning": "warnings", "failed": "failed"}
    counts["warning"] = "warning" if statuses.count("warning") == 1 else "warnings"
    return ", ".join(f"{statuses.count(s)} {word}" for s, word in counts.items() if s in statuses)
