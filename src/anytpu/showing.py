"""`report`: looks up the renderer of a kind of record.

Idea: a record has a `show()` method, such as `plan.show()`. Its rendering code is on a higher floor, which this module
must not import. So renderers are loaded by name (`_by_name.py`), one object for each kind of record.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Protocol, overload

from anytpu import _by_name


class Report(Protocol):
    """The protocol of a renderer."""

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
    """Return the report for a kind of record ("plan", "chip")."""
    return _by_name.load(f"{kind} report")
