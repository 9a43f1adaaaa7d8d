"""`report`: looks up the renderer of a kind of record.

Idea: a record has a `show()` method, such as `plan.show()`. Its rendering code is on a higher floor, which this module
must not import. So renderers are found through the entry points of the group "anytpu.reports", one object for each kind
of record.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any, Literal, Protocol, overload

from anytpu.errors import BackendError

GROUP = "anytpu.reports"
"""The entry point group of reports."""


class Report(Protocol):
    """The protocol of the objects in the entry point group "anytpu.reports"."""

    def show(self, record: Any) -> None:
        """Print the record."""
        ...

    def to_html(self, record: Any, path: str | Path) -> Path:
        """Write the record as one HTML page."""
        ...

    def to_fragment(self, record: Any) -> str:
        """Return the record as HTML for a notebook."""
        ...

    def to_images(self, record: Any, folder: str | Path, form: Literal["svg", "png"]) -> list[Path]:
        """Write each plot of the record as a file."""
        ...


class RunReport(Report, Protocol):
    """A report that can also show a predicted run alone."""

    def show_timing(self, timing: Any) -> None:
        """Print a predicted run."""
        ...

    def to_trace(self, timing: Any, path: str | Path, image: Any = None) -> Path:
        """Write a predicted run as a trace; `image` is its program, or None."""
        ...


@overload
def report(kind: Literal["chip"]) -> RunReport: ...
@overload
def report(kind: str) -> Report: ...
def report(kind: str) -> Report:
    """Return the report for a kind of record ("plan", "chip").

    Raises:
        BackendError: no report is registered for the kind: the installation is incomplete.
    """
    for entry in importlib.metadata.entry_points(group=GROUP):
        if entry.name == kind:
            return entry.load()
    raise BackendError(f"nothing here shows a {kind}: install anytpu again, with pip install --force-reinstall anytpu")
