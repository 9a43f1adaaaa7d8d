"""`write_record`: a record as a JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anytpu.errors import SettingError
from anytpu.files.replacing import write_text


def write_record(fields: Mapping[str, Any], path: str | Path, name: str) -> Path:
    """Write the fields of a record, and return the path.

    Args:
        fields: JSON values.
        path: the file; it is replaced.
        name: name of the record for the error: "the layouts".

    Raises:
        SettingError: the file cannot be written.
    """
    place = Path(path)
    try:
        write_text(place, json.dumps(fields, indent=1) + "\n")
    except OSError as error:
        raise SettingError(f"{name} cannot be written to {str(path)!r}: {error.strerror or error}") from error
    return place
