"""`ShownRecord`: a record with a report: it is printed, shown by a notebook, and written as a page and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

from anytpu.report import output
from anytpu.showing import report


class ShownRecord:
    """A record with a report.

    Attributes:
        report_name: name of its report, as `showing.report` takes it.
        noun: name of the record in an error: "the layouts".
    """

    report_name: ClassVar[str]
    noun: ClassVar[str]

    def to_record(self) -> dict[str, Any]:
        """Return every field as JSON values: numbers, strings, lists and dictionaries."""
        raise NotImplementedError

    def show(self) -> None:
        """Print it."""
        report(self.report_name).show(self)

    def to_json(self, path: str | Path) -> Path:
        """Write it as JSON and return its path.

        Raises:
            SettingError: the file cannot be written.
        """
        return output.write(json.dumps(self.to_record(), indent=1) + "\n", path, self.noun)

    def to_html(self, path: str | Path) -> Path:
        """Write it as one HTML page that needs no network and no script, and return its path.

        Raises:
            SettingError: the file cannot be written.
        """
        return report(self.report_name).to_html(self, path)

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows."""
        return report(self.report_name).to_fragment(self)
