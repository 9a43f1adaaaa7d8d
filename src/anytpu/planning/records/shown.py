"""`ShownRecord`: a record with a report: it is printed, shown by a notebook, and written as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

from anytpu.errors import SettingError
from anytpu.files.replacing import write_text
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
        return write_record(json.dumps(self.to_record(), indent=1) + "\n", path, self.noun)

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows."""
        return report(self.report_name).to_fragment(self)


def write_record(text: str, path: str | Path, noun: str) -> Path:
    """Write the text of a record to a file, which is replaced, and return its path.

    Args:
        text: the text.
        path: the file.
        noun: name of the record in the error: "the layouts".

    Raises:
        SettingError: the file cannot be written.
    """
    place = Path(path)
    try:
        write_text(place, text)
    except OSError as error:
        raise SettingError(f"{noun} cannot be written to {str(path)!r}: {error.strerror or error}") from error
    return place
