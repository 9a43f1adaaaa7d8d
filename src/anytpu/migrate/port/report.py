"""The report of a ported program: the changes as a diff, and the remaining work by line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from anytpu.migrate.port.finding import Finding, place_of
from anytpu.migrate.port.trial import Trial
from anytpu.report.terminal import hang

_COLOURS = {"+": "green", "-": "red", "@": "cyan"}
_ENDS = ("ran", "did not run", "had not ended", "only imported")
_MAX_OLD = 40


def diff_lines(old: str, new: str, name: str) -> list[str]:
    """Return a unified diff for `patch` and `git apply`; empty if nothing changes.

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
    """Print a diff, coloured on a terminal."""
    for line in lines:
        is_name = line.startswith(("--- ", "+++ "))
        style = "bold" if is_name else _COLOURS.get(line[:1], "")
        console.print(Text(line, style), soft_wrap=True)


def finding_lines(findings: Sequence[Finding], width: int = 80) -> list[str]:
    """Return findings, each with its line and the old code; advice stands once, below its last place.

    Args:
        findings: the findings to show; those of equal advice are shown together, where the first of them is.
        width: columns of the terminal.

    Example:
        >>> print(*finding_lines([Finding(7, "tf.placeholder", "write a step")]), sep="\\n")
          line 7  tf.placeholder
                  write a step
    """
    digits = max((len(str(finding.line)) for finding in findings), default=1)
    lines = []
    equal: dict[str, list[Finding]] = {}
    for finding in findings:
        equal.setdefault(finding.advice, []).append(finding)
    for finding in (finding for places in equal.values() for finding in places):
        start = f"  {f'cell {finding.cell}, ' if finding.cell else ''}line {finding.line:>{digits}}  "
        old = finding.old if len(finding.old) <= _MAX_OLD else f"{finding.old[: _MAX_OLD - 3]}..."
        is_last = finding is equal[finding.advice][-1]
        lines += [f"{start}{old}", *(hang(" " * len(start), finding.advice, width) if is_last else ())]
    return lines


def trial_lines(trial: Trial, width: int = 80) -> list[str]:
    """Return the result of a trial: that it ran, or its first failure beside the line that it came from.

    Example:
        >>> print(*trial_lines(Trial("KeyError: 'x'", line=7, old="a['x']", new="a['x']")), sep="\\n")
          line 7  a['x']
                  KeyError: 'x'
    """
    if not trial.error:
        if trial.seconds:
            return [f"  it had not ended after {trial.seconds} s, cut to a few steps; it had not failed until then"]
        return ["  it ran to its end, cut to a few steps, without a failure"]
    start = f"  {place_of(trial.line, trial.cell)}  "
    lines = [f"{start}{trial.old}"]
    if trial.new != trial.old:
        lines += hang(" " * len(start), f"ported: {trial.new}", width)
    listed = " (this line is listed to port by hand)" if trial.is_listed else ""
    return [*lines, *hang(" " * len(start), f"{trial.error}{listed}", width)]


def summary(files: int, changed: int, by_hand: int, written: bool, trials: tuple[int, ...] | None = None) -> str:
    """Return the result of porting in one line.

    Args:
        files: number of programs.
        changed: number of programs that change.
        by_hand: number of places to port by hand.
        written: whether the files were changed.
        trials: numbers of changed programs that ran, that failed, that had not ended, and that were not tried, since
            another one imports them; None if none was tried.

    Example:
        >>> summary(files=2, changed=1, by_hand=3, written=False)
        '1 of 2 programs would change; 3 places are left to port by hand; none was tried'
        >>> summary(files=1, changed=1, by_hand=0, written=True, trials=(0, 1))
        '1 of 1 program changed; nothing is left to port by hand; 1 did not run'
    """
    verb = "changed" if written else "would change"
    places = {0: "nothing is left", 1: "1 place is left"}.get(by_hand, f"{by_hand} places are left")
    counts = [f"{count} {text}" for count, text in zip(trials or (), _ENDS, strict=False) if count]
    tried = f"; {', '.join(counts)}" if counts else "; none was tried" if changed and trials is None else ""
    return f"{changed} of {files} {'program' if files == 1 else 'programs'} {verb}; {places} to port by hand{tried}"
