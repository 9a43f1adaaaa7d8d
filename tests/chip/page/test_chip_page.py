from __future__ import annotations

import dataclasses
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from PIL import Image

import chip_page_samples
from anytpu.chip.isa.instructions import SetConfiguration
from anytpu.chip.isa.registers import Register
from anytpu.chip.page.diagram import block_diagram, traffic
from anytpu.chip.page.page import fragment, page, write_page
from anytpu.chip.page.pictures import drawings, roofline
from anytpu.chip.page.record import ChipPage
from anytpu.chip.page.time_plots import memory_map
from anytpu.errors import SettingError
from anytpu.report.drawing import files
from anytpu.report.drawing.shapes import Label, text_width
from page_reader import Reader, ends

NAMES = ["digits", "many", "bare", "hostile"]
PLOTS = ["chip", "timeline", "roofline", "unified_buffer", "weights_histogram"]


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
    assert scene["wave"]["weights"][0] == chip_page_samples.tile().weights[0, :8].tolist()


def test_what_a_page_says():
    text = " ".join(Reader(page(sample("digits"))).text.split())
    for said in (
        "A virtual chip: results are exact by the meaning of the instructions, times are predicted.",
        "Predicted by the time model, not measured: no such chip was run.",
        "Predicted latency51.3 µsa batch of 8",
        "Weights of the chip19.7 KiB76 KiB as float32, 3.85 times smaller",
        # The parts of the chip, and the numbers of one layer.
        "stands for (q - zero point) x scale: 256 integers in equal steps, and the zero point stands for 0.0.",
        "conv1smallestlargestscalezero pointinput-6.556.20.053weights of output 0-1.271.270.010result-6.556.20.053",
        "-6.55 becomes -128, 6.2 becomes 127, 0.0 becomes 3.",
        "real weightdivided by 0.01integerstands for-0.26800-26.80-27-0.27000-0.20400-20.40-20-0.20000",
        "The chip's weights take 76 KiB as float32 and 19.7 KiB here, 3.85 times smaller: a byte for each weight, and "
        "a scale and a bias for each output. For Inception, Google gives 91 MB and 23 MB.",
        # Its instructions, and one sum.
        "read_host_memory1 timeCopy the host's buffer to the Unified Buffer.read_weights3 timesRequest weights",
        "matrix_multiply1 timeMultiply rows by tiles, a plane of rows in each pass.convolve2 timesMultiply windows",
        "A number q that comes in stands for (q - 3) x 0.05, so 3 stands for 0.0, as in a blank part of an input.",
        "2useful multiply-adds, of the peak1.3 %",
        "Not in that time, as the host does it: softmax.",
        "softmaxon the hostsoftmax on the hoston the host: it divides one tensor by another",
        "3 layers; 3 left of the ridge at 1,349 multiply-adds a byte, where the Weight Memory is the limit.",
        "5 tensors, at most 245 KiB of 24 MiB.",
        "the numbers that come in are those of your first examples. The tile uses 9 of the array's rows. Those "
        "below the corner (1) add their products before the sums reach the accumulators.",
        "Checked: 64 of 64 sums that left the corner are those of its int32 matrix product.",
        "on 8 of them, the signal-to-quantization-noise ratio of the outputs is 28.4 dB.",
        "a tile comes from the Weight Memory in 1,349 cycles (34 GB/s)",
        "vector unit of 256 lanes256124 k",
    ):
        assert said in text, said


def test_what_is_not_known_is_not_there():
    text = Reader(page(sample("bare"))).text
    for missing in ("Roofline", "Real numbers as integers", "Systolic wave", "Weights as"):
        assert missing not in text
    assert "all 3" in text


def test_what_a_newcomer_reads_comes_first():
    order = [values["id"] for tag, values in Reader(page(sample("digits"))).elements if tag == "section"]
    assert order == [
        *("chip", "quantization", "listing", "units", "wave"),
        *("cycles", "timeline", "layers", "roofline", "memory"),
    ]


def test_bytes_on_the_arrows_are_those_of_the_instructions():
    found = traffic(sample("digits").image)
    rows = 2048 + 9 * 1568 + 2 * 8
    assert (found.tiles, found.numbers, found.sums) == (12 * 65536, rows * 256, rows * 1024)
    image, scaled = sample("digits").image, 2048 + 1568 + 8
    for units in (8, 1):  # a gate writes a part of each row, and takes its sums
        parts = (SetConfiguration(Register.OUT_PITCH, 8), SetConfiguration(Register.OUT_UNITS, units))
        found = traffic(dataclasses.replace(image, instructions=(*parts, *image.instructions)))
        assert (found.taken, found.results) == (scaled * units * 128, (scaled + 1568) * units * 32)
    words = [label.text for label in block_diagram(sample("digits")).shapes if isinstance(label, Label)]
    assert {"in 196 KiB", "out 256 B", "768 KiB", "3.95 MiB", "15.8 MiB"} <= set(words)


def test_a_sum_is_worked_to_its_end():
    one, held = sample("digits"), chip_page_samples.tile().finished
    text = " ".join(Reader(page(one)).text.split())
    found = re.search(r"One sum to its end: row (\d+) in column (\d+)", text)
    assert found and held
    row, column = int(found[1]), int(found[2])
    total, bias = int(held.sums[row, column]), int(held.bias[column])
    assert f"in the accumulator{total:,}plus the bias, {bias:,}{total + bias:,}times the multiplier, 0.004" in text
    result = int(held.results[row, column])
    assert f"clipped to 3 and 127{result}{result:,} is what the activation unit wrote to the Unified Buffer." in text
    assert f"It stands for {(result - 3) * 0.05:.4g}." in text


def test_a_long_program_is_folded():
    one, text = sample("digits"), page(sample("steps"))
    assert "lstm (800 parts)" in text and text.count('data-title="MACs"') == 2 and "<details>" not in text
    apart = [dataclasses.replace(one.layers[n % 4], name=f"layer{n}", title=f"layer{n}") for n in range(450)]
    text = page(dataclasses.replace(one, layers=tuple(apart)))
    assert "the other 376 layers" in text and "50 more layers not shown." in text


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
    assert all(drawn in rule[1] for drawn in ("#wave .sideways", "#units [data-unit]", ".player"))


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
    assert [drawing.name for drawing in drawings(sample("bare"))] == ["chip", "timeline"]


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
    assert {"ridge: 1,349", "91.8 TOPS", "multiply-adds a byte of weights (logarithmic)"} <= set(words)
    assert {"conv1", "conv2", "dense"} <= set(words)


def test_plots_for_a_telephone_are_drawn_for_its_width():
    one = chip_page_samples.digits()
    named = tuple(dataclasses.replace(part, name=f"{part.name}_with_a_name_that_is_long") for part in one.timing.parts)
    run = dataclasses.replace(one.timing, parts=named)
    drawn = [
        block_diagram(one, narrow=True),
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
    assert text.count('<div class="wide">') == text.count('<div class="narrow">') == 3


def test_a_program_without_work_for_the_chip():
    for text in (page(chip_page_samples.idle()), fragment(chip_page_samples.idle())):
        assert "<p>This program has no work for the chip: none of its instructions takes a cycle.</p>" in text
        assert "examples/s" not in text and "TOPS" not in text and "Counters" not in text


def test_each_picture_of_times_says_that_they_are_predicted():
    shown = {drawing.name: drawing for drawing in drawings(chip_page_samples.digits())}
    for name in ("timeline", "roofline", "unified_buffer"):
        labels = [shape.text for shape in shown[name].shapes if isinstance(shape, Label)]
        assert any("predicted" in text.lower() for text in (shown[name].title, *labels)), name
