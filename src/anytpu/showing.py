"""`report`: who shows a record, found by name.

Idea: a record shows itself (`plan.show()`), and how it is shown stands on a higher floor, which this one does not
import. So reports are found through the entry points of the group "anytpu.reports", each an object for one kind of
record.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any, Literal, Protocol, overload

from anytpu.errors import BackendError

GROUP = "anytpu.reports"
"""The group of entry points in which reports are found."""


class Report(Protocol):
    """What an entry point of the group "anytpu.reports" is."""

    def show(self, record: Any) -> None:
        """Print the record."""
        ...

    def to_html(self, record: Any, path: str | Path) -> Path:
        """Write the record as one page."""
        ...

    def to_fragment(self, record: Any) -> str:
        """Return the record as HTML for a notebook."""
        ...

    def to_images(self, record: Any, folder: str | Path, form: Literal["svg", "png"]) -> list[Path]:
        """Write each plot of the record as a file."""
        ...


class RunReport(Report, Protocol):
    """Who also shows a predicted run by itself."""

    def show_timing(self, timing: Any) -> None:
        """Print a predicted run."""
        ...

    def to_trace(self, timing: Any, path: str | Path, image: Any = None) -> Path:
        """Write a predicted run, of a program that may be given, as a trace."""
        ...


@overload
def report(kind: Literal["chip"]) -> RunReport: ...
@overload
def report(kind: str) -> Report: ...
def report(kind: str) -> Report:
    """Return who shows records of a kind ("plan", "chip").

    Raises:
        BackendError: nobody does: the installation is incomplete.
    """
    for entry in importlib.metadata.entry_points(group=GROUP):
        if entry.name == kind:
            return entry.load()
    raise BackendError(f"nothing here shows a {kind}: install anytpu again, with pip install --force-reinstall anytpu")
