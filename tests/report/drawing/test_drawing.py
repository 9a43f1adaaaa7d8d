from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from PIL import Image

from anytpu.report.drawing import files, svg
from anytpu.report.drawing.axes import along, place_labels
from anytpu.report.drawing.shapes import COLOURS, Dot, Drawing, Label, Polyline, Rectangle

SVG = "{http://www.w3.org/2000/svg}"
EVERY_SHAPE = Drawing(
    "all",
    "Every shape",
    "A box, a line, a dot, a label.",
    120,
    80,
    (
        Rectangle(10, 10, 40, 20, "c0", title="a < b"),
        Polyline(((10, 60), (110, 60)), "c3", 4.0),
        Polyline(((10, 70), (110, 70)), "c3", 4.0, is_dashed=True),
        Dot(90, 20, 8, "c1"),
        Dot(90, 45, 8, "c1", is_hollow=True),
        Label(60, 50, "µ & <b>", "middle", size=12),
    ),
)


def test_svg_of_every_shape():
    root = ElementTree.fromstring(svg.document(EVERY_SHAPE))
    assert [element.tag.removeprefix(SVG) for element in root] == [
        "title", "desc", "rect", "rect", "polyline", "polyline", "circle", "circle", "text",
    ]  # fmt: skip
    assert root[0].text == "Every shape"
    assert (root[2].get("fill"), root[3].get("fill"), root[4].get("stroke")) == (
        COLOURS["paper"],
        COLOURS["c0"],
        COLOURS["c3"],
    )
    assert [element.text for element in root.iter(f"{SVG}text")] == ["µ & <b>"]
    assert [element.text for element in root.iter(f"{SVG}title")] == ["Every shape", "a < b"]


def test_png_of_every_shape(tmp_path: Path):
    files.paint(EVERY_SHAPE, tmp_path / "all.png")
    with Image.open(tmp_path / "all.png") as picture:
        assert picture.size == (240, 160)
        at = {name: colour(picture, x, y) for name, (x, y) in POINTS.items()}
    assert at == {
        "paper": COLOURS["paper"],
        "box": COLOURS["c0"],
        "line": COLOURS["c3"],
        "dash": COLOURS["c3"],
        "gap": COLOURS["paper"],
        "disc": COLOURS["c1"],
        "ring's middle": COLOURS["paper"],
        "ring": COLOURS["c1"],
    }


POINTS = {
    "paper": (2, 2),
    "box": (30, 20),
    "line": (100, 60),
    "dash": (12, 70),
    "gap": (17, 70),
    "disc": (90, 20),
    "ring's middle": (90, 45),
    "ring": (96.5, 45),
}


def colour(picture: Image.Image, x: float, y: float) -> str:
    pixel = picture.getpixel((round(x * files.SCALE), round(y * files.SCALE)))
    assert isinstance(pixel, tuple)
    return "#" + "".join(f"{part:02x}" for part in pixel)


def test_png_without_fonts_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(files, "_FONTS", (("no such font.ttf", "nor this.ttf"),))
    files._font.cache_clear()
    try:
        files.paint(EVERY_SHAPE, tmp_path / "all.png")
    finally:
        files._font.cache_clear()
    with Image.open(tmp_path / "all.png") as picture:
        letters = picture.crop((80, 80, 160, 105))
        assert min(letters.convert("L").getextrema()) < 100


def test_labels_keep_off_lines():
    lines = along([((100.0, 100.0), (300.0, 100.0))])
    (free,) = place_labels([(150.0, 100.0, "v3-8", "ink")])
    (moved,) = place_labels([(150.0, 100.0, "v3-8", "ink")], lines=lines)
    assert (free.x, free.y) == (159.0, 104.0)
    assert moved.y + 3 < 99 or moved.y - 13 > 101
    everywhere = along([((70.0, float(y)), (460.0, float(y))) for y in range(40, 240, 3)])
    assert [label.text for label in place_labels([(150.0, 100.0, "v3-8", "ink")], lines=everywhere)] == ["v3-8"]
