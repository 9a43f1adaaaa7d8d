"""Writing of drawings to files, named after the drawings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from anytpu.errors import SettingError
from anytpu.report.drawing import svg
from anytpu.report.drawing.shapes import Drawing, titled


def write(drawings: Sequence[Drawing], folder: str | Path, form: Literal["svg", "png"]) -> list[Path]:
    """Write each drawing to a folder, which is created if missing, and return the paths.

    Raises:
        SettingError: the files cannot be written.
    """
    target = Path(folder)
    paths = [target / f"{drawing.name}.{form}" for drawing in drawings]
    try:
        target.mkdir(parents=True, exist_ok=True)
        for drawing, path in zip(drawings, paths, strict=True):
            _write(titled(drawing), path, form)
    except OSError as error:
        raise SettingError(f"the plots cannot be written to {str(folder)!r}: {error.strerror or error}") from error
    return paths


def _write(drawing: Drawing, path: Path, form: Literal["svg", "png"]) -> None:
    if form == "svg":
        path.write_text(svg.document(drawing), encoding="utf-8")
        return
    from anytpu.report.drawing.png import paint

    paint(drawing, path)
