from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from PIL import Image, ImageFont

import plan_samples
from anytpu.errors import SettingError
from anytpu.report.plan import png, svg
from anytpu.report.plan.frame import along, place_labels
from anytpu.report.plan.pictures import common_drawings, system_drawings
from anytpu.report.plan.roofline import roofline
from anytpu.report.plan.shapes import COLOURS, Box, Dot, Drawing, Label, Line

SVG = "{http://www.w3.org/2000/svg}"
EVERY_SHAPE = Drawing(
    "all",
    "Every shape",
    "A box, a line, a dot, a label.",
    120,
    80,
    (
        Box(10, 10, 40, 20, "c0", title="a < b"),
        Line(((10, 60), (110, 60)), "c3", 4.0),
        Line(((10, 70), (110, 70)), "c3", 4.0, is_dashed=True),
        Dot(90, 20, 8, "c1"),
        Dot(90, 45, 8, "c1", is_hollow=True),
        Label(60, 50, "µ & <b>", "middle", size=12),
        Label(8, 70, "up", is_upright=True),
    ),
)


def texts(path: Path) -> list[str]:
    return [element.text or "" for element in ElementTree.parse(path).iter(f"{SVG}text")]


def test_svg_files(tmp_path: Path):
    paths = plan_samples.swept().to_svg(tmp_path / "plots")
    assert [path.name for path in paths] == [
        "step_time.svg",
        "cost_against_time.svg",
        "batch_speed.svg",
        "batch_memory.svg",
        "scaling_step_time.svg",
        "scaling_efficiency.svg",
        "v2-8_memory_by_buffer.svg",
        *(f"{name}_{plot}.svg" for name in ("v3-8", "v6e-8") for plot in SYSTEM_PLOTS),
    ]
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == sorted(path.name for path in paths)
    said = texts(tmp_path / "plots" / "step_time.svg")
    assert said[0] == "Step time"
    assert {"v2-8", "v3-8", "v6e-8", "does not fit: 1.12 GiB too much"} <= set(said)
    assert "v6e-8, fastest and cheapest" in texts(tmp_path / "plots" / "cost_against_time.svg")


SYSTEM_PLOTS = ("time_by_kind", "time_by_layer", "time_by_op", "memory_by_buffer", "roofline")


def test_png_files(tmp_path: Path):
    paths = plan_samples.one().to_png(tmp_path)
    assert [path.name for path in paths] == [f"v3-8_{plot}.png" for plot in SYSTEM_PLOTS]
    for path in paths:
        with Image.open(path) as picture:
            assert min(picture.size) > 200
            assert len(picture.getcolors(maxcolors=1 << 20) or []) > 20


def test_hostile_names_in_files(tmp_path: Path):
    for path in plan_samples.hostile().to_svg(tmp_path):
        assert path.parent == tmp_path
        tags = {element.tag.removeprefix(SVG) for element in ElementTree.parse(path).iter()}
        assert tags <= {"svg", "title", "desc", "rect", "polyline", "circle", "text"}
    assert len(plan_samples.hostile().to_png(tmp_path)) == 7


def test_operations_that_move_nothing_are_counted():
    one = plan_samples.one()["v3-8"]
    assert one.time is not None
    drawing = roofline(one)
    assert drawing is not None and "not shown" not in drawing.summary
    ops = tuple(dataclasses.replace(op, bytes=0.0) if op.name == "fusion.1" else op for op in one.time.ops)
    drawing = roofline(dataclasses.replace(one, time=dataclasses.replace(one.time, ops=ops)))
    assert drawing is not None
    assert drawing.summary.endswith("; 1 operation that moves nothing to memory is not shown.")
    words = {shape.text for shape in drawing.shapes if isinstance(shape, Label)}
    assert {"1 operation that moves nothing to memory is not shown", "FLOP/s"} <= words


def test_labels_keep_off_lines():
    lines = along([((100.0, 100.0), (300.0, 100.0))])
    (free,) = place_labels([(150.0, 100.0, "v3-8", "ink")])
    (moved,) = place_labels([(150.0, 100.0, "v3-8", "ink")], lines=lines)
    assert (free.x, free.y) == (159.0, 104.0)
    assert moved.y + 3 < 99 or moved.y - 13 > 101
    everywhere = along([((70.0, float(y)), (460.0, float(y))) for y in range(40, 240, 3)])
    assert [label.text for label in place_labels([(150.0, 100.0, "v3-8", "ink")], lines=everywhere)] == ["v3-8"]


@pytest.mark.parametrize("name", ["five", "one", "swept", "gpu"])
def test_every_shape_lies_on_its_sheet(name: str):
    plan = getattr(plan_samples, name)()
    drawings = [*common_drawings(plan), *(drawing for one in plan for drawing in system_drawings(one))]
    assert drawings
    faults = [
        (drawing.name, shape)
        for drawing in drawings
        for shape in drawing.shapes
        for x, y in ends(shape)
        if not (-0.5 <= x <= drawing.width + 0.5 and -0.5 <= y <= drawing.height + 0.5)
    ]
    assert faults == []


def ends(shape: Box | Line | Dot | Label) -> list[tuple[float, float]]:
    if isinstance(shape, Box):
        return [(shape.x, shape.y), (shape.x + shape.width, shape.y + shape.height)]
    if isinstance(shape, Line):
        return list(shape.points)
    if isinstance(shape, Dot):
        return [(shape.x - shape.radius, shape.y - shape.radius), (shape.x + shape.radius, shape.y + shape.radius)]
    try:
        font = ImageFont.truetype("DejaVuSans.ttf", 100)
    except OSError:
        return [(shape.x, shape.y)]
    width = font.getlength(shape.text) * shape.size / 100
    left = shape.x - {"start": 0.0, "middle": 0.5, "end": 1.0}[shape.anchor] * width
    return [(left, shape.y), (left + width, shape.y)]


def test_svg_of_every_shape():
    root = ElementTree.fromstring(svg.document(EVERY_SHAPE))
    assert [element.tag.removeprefix(SVG) for element in root] == [
        "title", "desc", "rect", "rect", "polyline", "polyline", "circle", "circle", "text", "text",
    ]  # fmt: skip
    assert root[0].text == "Every shape"
    assert (root[2].get("fill"), root[3].get("fill"), root[4].get("stroke")) == (
        COLOURS["paper"],
        COLOURS["c0"],
        COLOURS["c3"],
    )
    assert [element.text for element in root.iter(f"{SVG}text")] == ["µ & <b>", "up"]
    assert [element.text for element in root.iter(f"{SVG}title")] == ["Every shape", "a < b"]


def test_png_of_every_shape(tmp_path: Path):
    png.paint(EVERY_SHAPE, tmp_path / "all.png")
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
    pixel = picture.getpixel((round(x * png.SCALE), round(y * png.SCALE)))
    assert isinstance(pixel, tuple)
    return "#" + "".join(f"{part:02x}" for part in pixel)


def test_png_without_fonts_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(png, "_FONTS", (("no such font.ttf", "nor this.ttf"),))
    png._font.cache_clear()
    try:
        png.paint(EVERY_SHAPE, tmp_path / "all.png")
    finally:
        png._font.cache_clear()
    with Image.open(tmp_path / "all.png") as picture:
        letters = picture.crop((80, 80, 160, 105))
        assert min(letters.convert("L").getextrema()) < 100


def test_a_folder_that_cannot_be_made(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError) as error:
        plan_samples.one().to_png(tmp_path / "file")
    assert str(error.value) == f"the plots cannot be written to {str(tmp_path / 'file')!r}: File exists"
