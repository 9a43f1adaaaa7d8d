from __future__ import annotations

import dataclasses
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from PIL import Image

import chip_page_samples
from anytpu.chip.page.page import fragment, page, write_page
from anytpu.chip.page.pictures import cycles_by_layer, drawings, noise_by_layer, roofline, weights_by_layer
from anytpu.chip.page.record import ChipPage
from anytpu.chip.page.time_plots import memory_map
from anytpu.errors import SettingError
from anytpu.report.drawing import files
from anytpu.report.drawing.shapes import Label, text_width
from page_reader import Reader, ends

NAMES = ["digits", "many", "bare", "hostile"]
PLOTS = [
    "timeline",
    "cycles_by_layer",
    "roofline",
    "unified_buffer",
    "weights_by_layer",
    "weights_histogram",
    "noise_by_layer",
]


def sample(name: str) -> ChipPage:
    return getattr(chip_page_samples, name)()


def scripts(text: str) -> list[tuple[str, str]]:
    return re.findall(r"<script([^>]*)>(.*?)</script>", text, re.DOTALL)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_whole_and_by_itself(name: str):
    text = page(sample(name))
    reader = Reader(text)
    assert (reader.faults, reader.open) == ([], [])
    assert len(text.encode()) < 4_000_000
    assert {tag for tag, _ in reader.elements} & {"link", "img", "iframe", "object", "base", "form"} == set()
    assert set(reader.attributes("href")) <= {f"#{name}" for name in reader.attributes("id")}
    assert reader.attributes("src", "srcset", "action", "poster", "xlink:href") == []
    assert re.findall(r"url\(|@import|https?:", text[text.index("<style>") : text.index("</style>")]) == []
    assert [values for _, values in reader.elements for name in values if name.startswith("on")] == []


def test_the_policy_lets_one_script_run():
    text = page(sample("hostile"))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy
    assert re.fullmatch(
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-[A-Za-z0-9+/]{43}='",
        policy[1].replace("&#x27;", "'"),
    )
    found = scripts(text)
    assert [attributes for attributes, _ in found] == [' type="application/json" id="anytpu-chip"', ""]
    assert "fetch(" not in found[1][1] and "innerHTML" not in found[1][1]


def test_the_scene_says_what_the_records_say():
    one = sample("hostile")
    scene = json.loads(scripts(page(one))[0][1])
    assert scene["timeline"]["parts"][0] == chip_page_samples.EVIL
    assert scene["timeline"]["cycles"] == one.timing.cycles
    assert [level["name"] for level in scene["timeline"]["levels"]] == ["weight FIFO", "Unified Buffer"]
    assert scene["timeline"]["instructions"]["14"] == ("convolve address=0, accumulator=0, rows=1568, repeat=9")
    assert scene["wave"]["weights"][0] == chip_page_samples.tile().weights[0, :8].tolist()


def test_what_a_page_says():
    text = " ".join(Reader(page(sample("digits"))).text.split())
    for said in (
        "A virtual chip: results are exact by the meaning of the instructions, times are predicted.",
        "Predicted by the time model, not measured: no such chip was run.",
        "Predicted latency51.3 µsa batch of 8",
        "75.6 KiB as float32, 3.76 times",
        "2useful multiply-adds, of the peak1.3 %",
        "Not in that time, as the host does it: softmax.",
        "softmaxon the hostsoftmax on the hoston the host: it divides one tensor by another",
        "3 layers; 3 left of the ridge at 1,349 multiply-adds a byte, where the Weight Memory is the limit.",
        "5 tensors, at most 245 KiB of 24 MiB.",
        "the numbers that come in are those of your first examples. The tile uses 9 of the array's rows: the sums that "
        "leave the corner are those of its 8 rows. The rows below it (1) add their products before the sums reach the "
        "accumulators.",
        "Checked: 64 of 64 sums that left the corner are those of its int32 matrix product.",
        "on 8 of them, the signal-to-quantization-noise ratio of the outputs is 28.4 dB.",
        "a tile comes from the Weight Memory in 1,349 cycles (34 GB/s)",
        "vector unit of 256 lanes256124 k",
    ):
        assert said in text, said


def test_what_is_not_known_is_not_there():
    text = Reader(page(sample("bare"))).text
    for missing in ("Roofline", "Quantization", "Systolic wave", "Weights"):
        assert missing not in text
    assert "all 3" in text


def test_numbers_that_were_drawn_are_said_to_be():
    one = sample("digits")
    tile = dataclasses.replace(chip_page_samples.tile(), is_example=False, is_half=True)
    text = page(dataclasses.replace(one, first_tile=tile, summary=None))
    assert "drawn at random, as the program keeps no example (of their 16 bits, the low bytes). The tile" in text
    assert "The program was loaded from a file, which has no record of its error against the float32 model." in text


def test_a_long_listing_is_cut_and_says_so():
    one = sample("digits")
    image = dataclasses.replace(one.image, instructions=one.image.instructions * 400)
    reader = Reader(page(dataclasses.replace(one, image=image)))
    assert "the first 6,000 of 10,000" in reader.text
    assert "program.disassemble() returns all of them." in reader.text


def test_what_a_script_draws_is_hidden_without_scripts():
    text = page(chip_page_samples.digits())
    rule = re.search(r"@media \(scripting: none\) \{(.*?)\n\}", text, re.DOTALL)
    assert rule is not None
    assert all(
        drawn in rule[1] for drawn in ("#timeline .stage", "#wave .sideways", "#units [data-unit] svg", ".player")
    )


def test_a_fragment_needs_no_script():
    text = fragment(sample("hostile"))
    reader = Reader(text)
    assert (reader.faults, reader.open) == ([], [])
    assert reader.elements[0] == ("div", {"class": "anytpu-report"})
    assert {tag for tag, _ in reader.elements} & {"html", "body", "script", "canvas"} == set()


def test_it_is_written(tmp_path: Path):
    path = write_page(sample("digits"), tmp_path / "chip.html")
    assert path.read_text(encoding="utf-8") == page(sample("digits"))
    with pytest.raises(SettingError) as error:
        write_page(sample("digits"), tmp_path / "missing" / "chip.html")
    missing = str(tmp_path / "missing" / "chip.html")
    assert str(error.value) == f"the page cannot be written to {missing!r}: No such file or directory"


@pytest.mark.parametrize("form", ["svg", "png"])
def test_every_plot_is_a_file(tmp_path: Path, form):
    paths = files.write(drawings(sample("digits")), tmp_path / "plots", form)
    assert [path.name for path in paths] == [f"{plot}.{form}" for plot in PLOTS]
    for path in paths:
        if form == "svg":
            assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"
        else:
            with Image.open(path) as picture:
                assert len(picture.getcolors(maxcolors=1 << 20) or []) > 20
    assert [drawing.name for drawing in drawings(sample("bare"))] == ["timeline"]


@pytest.mark.parametrize("name", NAMES)
def test_every_shape_lies_on_its_sheet(name: str):
    faults = [
        (drawing.name, shape)
        for drawing in drawings(sample(name))
        for shape in drawing.shapes
        for x, y in ends(shape)
        if not (-0.5 <= x <= drawing.width + 0.5 and -0.5 <= y <= drawing.height + 0.5)
    ]
    assert faults == []


def test_the_ridge_and_the_peak_are_where_they_belong():
    drawing = next(drawing for drawing in drawings(sample("digits")) if drawing.name == "roofline")
    words = [shape.text for shape in drawing.shapes if hasattr(shape, "text")]
    assert {"ridge: 1,349", "91.8 TOPS", "multiply-adds for each byte of weights read (logarithmic)"} <= set(words)
    assert {"conv1", "conv2", "dense"} <= set(words)


def test_plots_for_a_telephone_are_drawn_for_its_width():
    one = chip_page_samples.digits()
    named = tuple(dataclasses.replace(part, name=f"{part.name}_with_a_name_that_is_long") for part in one.timing.parts)
    run = dataclasses.replace(one.timing, parts=named)
    drawn = [
        cycles_by_layer(run, narrow=True),
        noise_by_layer(one.layers, narrow=True),
        weights_by_layer(one.layers, narrow=True),
        roofline(run, narrow=True),
        memory_map(run, one.image, narrow=True),
    ]
    for drawing in drawn:
        assert drawing is not None and drawing.width == 360
        for label in (shape for shape in drawing.shapes if isinstance(shape, Label)):
            width = text_width(label.text, label.size)
            left = label.x - {"start": 0, "middle": width / 2, "end": width}[label.anchor]
            assert label.size >= 11 and left >= -12 and left + width <= 372, label
    text = page(one)
    assert text.count('<div class="wide">') == text.count('<div class="narrow">') == 5


def test_a_program_without_work_for_the_chip():
    for text in (page(chip_page_samples.idle()), fragment(chip_page_samples.idle())):
        assert "<p>This program has no work for the chip: none of its instructions takes a cycle.</p>" in text
        assert "examples/s" not in text and "TOPS" not in text and "Counters" not in text


def test_each_picture_of_times_says_that_they_are_predicted():
    shown = {drawing.name: drawing for drawing in drawings(chip_page_samples.digits())}
    for name in ("timeline", "cycles_by_layer", "roofline", "unified_buffer"):
        labels = [shape.text for shape in shown[name].shapes if isinstance(shape, Label)]
        assert any("predicted" in text.lower() for text in (shown[name].title, *labels)), name
