"""The agreement between `anytpu run` and the program that it restarts: an exit status and a file.

Idea: a program that saved its run on a signal ends with `STOPPED_STATUS`. A host that ends because another one did has
saved nothing, and ends with `LOST_STATUS`. The file that `ANYTPU_STEP_FILE` names gets
the step of its newest checkpoint. So a failure that repeats without progress can be told from others.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from anytpu import _env

STOPPED_STATUS = 75
"""Exit status of a program that saved its run and can be started again: EX_TEMPFAIL of sysexits.h."""
LOST_STATUS = 69
"""Exit status of a host that ends because of another one, or because it lost the others: EX_UNAVAILABLE."""


def report_step(step: int) -> None:
    """Tell `anytpu run`, if this process runs under it, the step of the newest checkpoint."""
    path = _env.step_file()
    if path is not None:
        written = path.with_suffix(".new")
        # The replacement is atomic: a process that is killed here leaves the old step or the new one, never no step.
        with contextlib.suppress(OSError):
            written.write_text(str(step))
            written.replace(path)


def reported_step(path: Path) -> int | None:
    """Return the step in the file that a program reported to, or None."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
