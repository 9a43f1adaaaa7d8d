"""Rendering of a drawing as PNG with Pillow: no browser, no display, no further package.

Idea: everything is painted at a multiple of the final size and reduced once, which smooths every edge.

Rule: text uses a sans serif font of the system if there is one. Pillow's own font has little more than ASCII, so "µ"
becomes "u" with it.
"""

from __future__ import annotations

import functools
import itertools
import math
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from anytpu.report.drawing.shapes import COLOURS, Box, Dot, Drawing, Label, Line

SCALE = 2
"""Pixels per point of the drawing, in each direction."""

_OVERSAMPLING = 2
_PEN = SCALE * _OVERSAMPLING
_FONTS = (
    ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf"),
    ("LiberationSans-Regular.ttf", "LiberationSans-Bold.ttf"),
    ("NotoSans-Regular.ttf", "NotoSans-Bold.ttf"),
    ("Arial.ttf", "Arial Bold.ttf"),
    ("arial.ttf", "arialbd.ttf"),
)
_PLAIN = str.maketrans({"µ": "u", "·": ","})
_DASH, _GAP = 5.0, 4.0


def paint(drawing: Drawing, path: Path) -> None:
    """Write a drawing as a PNG file.

    Raises:
        OSError: the file cannot be written.
    """
    size = (round(drawing.width * _PEN), round(drawing.height * _PEN))
    image = Image.new("RGB", size, COLOURS["paper"])
    for shape in drawing.shapes:
        if isinstance(shape, Box):
            _box(image, shape)
        elif isinstance(shape, Line):
            _line(image, shape)
        elif isinstance(shape, Dot):
            _dot(image, shape)
        else:
            _label(image, shape)
    image.reduce(_OVERSAMPLING).save(path, "PNG")


def _box(image: Image.Image, box: Box) -> None:
    ends = [value * _PEN for value in (box.x, box.y, box.x + box.width, box.y + box.height)]
    if ends[2] - ends[0] >= 1:
        ImageDraw.Draw(image).rounded_rectangle(ends, 1.5 * _PEN, _colour(box.colour, box.opacity))


def _line(image: Image.Image, line: Line) -> None:
    pieces = _dashes(line.points) if line.is_dashed else [line.points]
    for piece in pieces:
        ends = [(x * _PEN, y * _PEN) for x, y in piece]
        ImageDraw.Draw(image).line(ends, COLOURS[line.colour], round(line.width * _PEN), joint="curve")


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
    ends = [(value + side * dot.radius) * _PEN for side in (-1, 1) for value in (dot.x, dot.y)]
    draw, colour = ImageDraw.Draw(image, "RGB"), _colour(dot.colour, dot.opacity)
    if dot.is_hollow:
        draw.ellipse(ends, None, colour, 2 * _PEN)
    else:
        draw.ellipse(ends, colour)


def _label(image: Image.Image, label: Label) -> None:
    font, has_unicode = _font(round(label.size * _PEN), label.is_bold)
    text = label.text if has_unicode else label.text.translate(_PLAIN)
    anchor = {"start": "ls", "middle": "ms", "end": "rs"}[label.anchor]
    colour = COLOURS[label.colour]
    if not label.is_upright:
        position = (label.x * _PEN, label.y * _PEN)
        ImageDraw.Draw(image).text(position, text, colour, font, anchor)
        return
    left, top, right, bottom = (math.ceil(edge) for edge in font.getbbox(text, anchor="ls"))
    sheet = Image.new("L", (right - left, bottom - top), 0)
    ImageDraw.Draw(sheet).text((-left, -top), text, 255, font, "ls")
    turned = sheet.rotate(90, expand=True)
    # The text runs upwards, so its anchor along the line becomes a vertical offset.
    x, y = (
        label.x * _PEN + top,
        label.y * _PEN - {"start": 1.0, "middle": 0.5, "end": 0.0}[label.anchor] * turned.height,
    )
    image.paste(colour, (round(x), round(y)), turned)


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
