from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from PIL import Image

import plan_samples
from anytpu.errors import SettingError
from anytpu.planning.page.pictures import common_drawings, roofline, system_drawings
from anytpu.report.drawing.shapes import Label
from page_reader import ends

SVG = "{http://www.w3.org/2000/svg}"


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


@pytest.mark.parametrize("name", ["five", "one", "swept", "bare", "floors"])
def test_every_shape_lies_on_its_sheet(name: str):
    plan = getattr(plan_samples, name)()
    drawings = [*common_drawings(plan), *(drawing for prediction in plan for drawing in system_drawings(prediction))]
    assert drawings
    faults = [
        (drawing.name, shape)
        for drawing in drawings
        for shape in drawing.shapes
        for x, y in ends(shape)
        if not (-0.5 <= x <= drawing.width + 0.5 and -0.5 <= y <= drawing.height + 0.5)
    ]
    assert faults == []


def test_a_folder_that_cannot_be_made(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError) as error:
        plan_samples.one().to_png(tmp_path / "file")
    assert str(error.value) == f"the plots cannot be written to {str(tmp_path / 'file')!r}: File exists"
