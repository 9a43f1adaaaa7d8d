"""Writing of drawings to files, named after the drawings: as SVG, or painted with Pillow as PNG.

Idea: a PNG is painted at a multiple of its size and reduced once, which smooths every edge. It needs no browser.

Rule: text of a PNG uses a sans serif font of the system if there is one. Pillow's own font has little more than ASCII,
so "µ" becomes "u" with it.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from PIL import Image, ImageDraw, ImageFont

from anytpu.files.replacing import replaced, write_text
from anytpu.report.drawing import svg
from anytpu.report.drawing.shapes import COLOURS, Dot, Drawing, Label, Polyline, Rectangle, titled
from anytpu.report.output import explained

SCALE = 2
"""Pixels per point of the drawing, in each direction."""

_OVERSAMPLING = 2
_PIXELS_PER_POINT = SCALE * _OVERSAMPLING
_FONTS = (
    ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf"),
    ("LiberationSans-Regular.ttf", "LiberationSans-Bold.ttf"),
    ("NotoSans-Regular.ttf", "NotoSans-Bold.ttf"),
    ("Arial.ttf", "Arial Bold.ttf"),
    ("arial.ttf", "arialbd.ttf"),
)
_PLAIN = str.maketrans({"µ": "u", "·": ","})
_DASH, _GAP = 5.0, 4.0


def write(drawings: Sequence[Drawing], folder: str | Path, form: Literal["svg", "png"]) -> list[Path]:
    """Write each drawing to a folder, which is created if missing, and return the paths.

    Raises:
        SettingError: the files cannot be written.
    """
    with explained("the plots", folder):
        target = Path(folder)
        paths = [target / f"{drawing.name}.{form}" for drawing in drawings]
        target.mkdir(parents=True, exist_ok=True)
        for drawing, path in zip(drawings, paths, strict=True):
            _write(titled(drawing), path, form)
    return paths


def _write(drawing: Drawing, path: Path, form: Literal["svg", "png"]) -> None:
    if form == "svg":
        write_text(path, svg.document(drawing))
    else:
        with replaced(path) as unfinished:
            paint(drawing, unfinished)


def paint(drawing: Drawing, path: Path) -> None:
    """Write a drawing as a PNG file.

    Raises:
        OSError: the file cannot be written.
    """
    size = (round(drawing.width * _PIXELS_PER_POINT), round(drawing.height * _PIXELS_PER_POINT))
    image = Image.new("RGB", size, COLOURS["paper"])
    for shape in drawing.shapes:
        if isinstance(shape, Rectangle):
            _box(image, shape)
        elif isinstance(shape, Polyline):
            _line(image, shape)
        elif isinstance(shape, Dot):
            _dot(image, shape)
        else:
            _label(image, shape)
    image.reduce(_OVERSAMPLING).save(path, "PNG")


def _box(image: Image.Image, box: Rectangle) -> None:
    ends = [value * _PIXELS_PER_POINT for value in (box.x, box.y, box.x + box.width, box.y + box.height)]
    if ends[2] - ends[0] >= 1:
        ImageDraw.Draw(image).rounded_rectangle(ends, 1.5 * _PIXELS_PER_POINT, _colour(box.colour, box.opacity))


def _line(image: Image.Image, line: Polyline) -> None:
    pieces = _dashes(line.points) if line.is_dashed else [line.points]
    for piece in pieces:
        ends = [(x * _PIXELS_PER_POINT, y * _PIXELS_PER_POINT) for x, y in piece]
        ImageDraw.Draw(image).line(ends, COLOURS[line.colour], round(line.width * _PIXELS_PER_POINT), joint="curve")


def _dashes(points: tuple[tuple[float, float], ...]) -> list[tuple[tuple[float, float], ...]]:
    """Return the dashes of a line, each as its two ends."""
    dashes = []
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        length = math.hypot(x1 - x0, y1 - y0)
        for index in range(math.ceil(length / (_DASH + _GAP))):
            ends = (index * (_DASH + _GAP), min(index * (_DASH + _GAP) + _DASH, length))
            dashes.append(tuple((x0 + (x1 - x0) * at / length, y0 + (y1 - y0) * at / length) for at in ends))
    return dashes


def _dot(image: Image.Image, dot: Dot) -> None:
    ends = [(value + side * dot.radius) * _PIXELS_PER_POINT for side in (-1, 1) for value in (dot.x, dot.y)]
    draw, colour = ImageDraw.Draw(image, "RGB"), _colour(dot.colour, dot.opacity)
    if dot.is_hollow:
        draw.ellipse(ends, None, colour, 2 * _PIXELS_PER_POINT)
    else:
        draw.ellipse(ends, colour)


def _label(image: Image.Image, label: Label) -> None:
    font, has_unicode = _font(round(label.size * _PIXELS_PER_POINT), label.is_bold)
    text = label.text if has_unicode else label.text.translate(_PLAIN)
    anchor = {"start": "ls", "middle": "ms", "end": "rs"}[label.anchor]
    position = (label.x * _PIXELS_PER_POINT, label.y * _PIXELS_PER_POINT)
    ImageDraw.Draw(image).text(position, text, COLOURS[label.colour], font, anchor)


def _colour(name: str, opacity: float) -> tuple[int, int, int]:
    """Return a colour blended with the paper colour by its opacity."""
    parts = zip(_rgb(COLOURS[name]), _rgb(COLOURS["paper"]), strict=True)
    red, green, blue = (round(opacity * over + (1 - opacity) * under) for over, under in parts)
    return red, green, blue


def _rgb(written: str) -> tuple[int, ...]:
    return tuple(int(written[start : start + 2], 16) for start in (1, 3, 5))


@functools.cache
def _font(size: int, is_bold: bool) -> tuple[ImageFont.FreeTypeFont, bool]:
    """Return a font of a size, and whether it has more than ASCII."""
    for names in _FONTS:
        try:
            return ImageFont.truetype(names[is_bold], size), True
        except OSError:
            continue
    default = ImageFont.load_default(size)
    assert isinstance(default, ImageFont.FreeTypeFont)
    return default, False
