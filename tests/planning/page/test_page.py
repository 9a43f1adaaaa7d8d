from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import plan_samples
from anytpu.errors import SettingError
from anytpu.planning.page.page import fragment, page
from anytpu.planning.records import Plan
from page_reader import Reader

NAMES = ["five", "one", "swept", "hostile", "bare", "floors"]


def sample(name: str) -> Plan:
    return getattr(plan_samples, name)()


@pytest.mark.parametrize("name", NAMES)
def test_it_is_whole_and_by_itself(name: str):
    text = page(sample(name))
    reader = Reader(text)
    assert (reader.faults, reader.open) == ([], [])
    assert len(text.encode()) < 3_000_000
    assert {tag for tag, _ in reader.elements} & {"script", "link", "img", "iframe", "object", "base", "form"} == set()
    addresses = reader.attributes("href", "src", "srcset", "action", "poster", "xlink:href")
    assert [address for address in addresses if not address.startswith("#")] == []
    style = text[text.index("<style>") : text.index("</style>")]
    assert re.findall(r"url\(|@import|https?:", style) == []


@pytest.mark.parametrize("write", [page, fragment])
@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str, write: Callable[[Plan], str]):
    reader = Reader(write(sample(name)))
    assert reader.attributes("href")
    assert set(reader.attributes("href")) <= {f"#{name}" for name in reader.attributes("id")}


def test_the_policy_forbids_scripts_and_requests():
    assert (
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\"/>"
    ).replace("'", "&#x27;") in page(plan_samples.one())


def test_hostile_names_stay_text():
    reader = Reader(page(plan_samples.hostile()))
    evil = plan_samples.hostile().job.replace("\x07", "\ufffd")
    assert reader.text.count(evil) > 20
    assert [values for _, values in reader.elements for name in values if name.startswith("on")] == []
    assert [tag for tag, _ in reader.elements if tag in ("script", "img")] == []


def test_the_load_of_a_host():
    text = Reader(page(plan_samples.pods())).text
    assert "Load of one host" in text
    for cells in ["v6e-64 16 4,150 596 MiB/s 1.2 %", "2xv6e-256 128 3,900 560 MiB/s"]:
        assert re.search(r"\s*".join(map(re.escape, cells.split())), text)
    assert "Load of one host" not in Reader(page(plan_samples.one())).text


def test_what_a_page_says():
    text = Reader(page(plan_samples.five())).text
    # No window breaks a percentage from its number.
    assert "3.3\u00a0% below" in text
    text = text.replace("\u00a0", " ")
    for said in (
        "Plan of resnet50/train",
        "training, 2,048 examples a step, 1,281,167 examples an epoch, 90 epochs",
        "Predicted, not measured; by the TPU compiler (libtpu 0.0.51).",
        "263 ms226 to 302 ms",
        "v2-8: does not fit: a device needs 8.6 GiB of 7.48 GiB, 1.12 GiB too much; the largest batch that fits is ",
        "4 chips, 8 cores (v3:2x2)retired",
        "v3-8: Retired: not sold to new users.",
        "v7x-8: No price is known.",
        "Operations under the roofline of a device",
        "Raise the batch to 2,048.",
        "Tried with batch_size=2048: 121 ms a step, 1.18 times the examples a second.",
        "custom-call.3: a Pallas kernel without cost_estimate",
        "ResNet-50 at 2,048 images on v3-8, published 122 ms: predicted 118 ms, 3.3 % below.",
        "The batch is split as 256 examples a chip.",
        "MFU = FLOPs of the matrix products and convolutions, rematerialised ones not counted again / (step time x "
        "peak rate), of one device.",
        "Prices: the clouds' catalogue, read in 2026-03.",
        "27 more",
    ):
        assert said in text, said


def test_a_sweep_has_its_curves():
    text = page(plan_samples.swept())
    titles = re.findall("<figcaption>([^<]*)</figcaption>", text)
    assert titles[:6] == [
        "Step time",
        "Cost against time of a run",
        "Examples a second over the batch",
        "Memory of a device over the batch",
        "Step time over the devices",
        "Efficiency over the devices",
    ]
    assert "<title>v3-2048, 524,288 a step: 279 ms, 240 to 321 ms</title>" in text
    assert "<title>v2-8, 2,048 a step: 115 %, 1.12 GiB too much</title>" in text


def test_a_calibration_that_changes_the_sum_is_said():
    plan = plan_samples.one()
    one = plan["v3-8"]
    assert one.time is not None
    time = dataclasses.replace(one.time, step_s=1.1 * one.time.step_s)
    said = (
        "The operations add up to 263 ms; calibration with published measurements of this chip corrects this to 289 ms."
    )
    assert said not in page(plan)
    assert said in page(dataclasses.replace(plan, predictions=(dataclasses.replace(one, time=time),)))


def test_a_hundred_thousand_operations_stay_small():
    one = plan_samples.one()["v3-8"]
    assert one.time is not None and one.memory is not None
    time = dataclasses.replace(one.time, ops=one.time.ops * 2500)
    memory = dataclasses.replace(one.memory, buffers=one.memory.buffers * 2000)
    text = page(Plan("large", (dataclasses.replace(one, time=time, memory=memory),)))
    assert len(text.encode()) < 3_000_000
    assert "11,988 more, the first 388 of them" in text


def test_a_fragment_is_a_piece_of_a_page():
    text = plan_samples.five()._repr_html_()
    assert text == fragment(plan_samples.five())
    reader = Reader(text)
    assert (reader.faults, reader.open) == ([], [])
    assert reader.elements[0] == ("div", {"class": "anytpu-report"})
    assert {tag for tag, _ in reader.elements} & {"html", "body", "script", "section"} == set()


def test_it_is_written(tmp_path: Path):
    path = plan_samples.one().to_html(tmp_path / "plan.html")
    assert path == tmp_path / "plan.html"
    assert path.read_text(encoding="utf-8") == page(plan_samples.one())


def test_a_place_that_cannot_be_written(tmp_path: Path):
    path = tmp_path / "missing" / "plan.html"
    with pytest.raises(SettingError) as error:
        plan_samples.one().to_html(path)
    assert str(error.value) == f"the page cannot be written to {str(path)!r}: No such file or directory"


def test_a_floor_says_so_and_is_in_no_plot():
    text = page(plan_samples.floors())
    for words in (
        "a lower bound, not a forecast",
        "&gt;= 263 ms",
        "at least 263 ms a step",
        "&lt;= 7,801",
        "&gt;= $32.84",
    ):
        assert words in text
    assert "This is a floor, not a forecast." in text
    assert "at least 8.6 GiB, of 7.48 GiB." in text
    for words in ("Fastest", "Cheapest", "Where the time goes", "roofline", "does not fit."):
        assert words not in text
    mixed = dataclasses.replace(plan_samples.five(), predictions=(*plan_samples.five(), *plan_samples.floors()))
    assert (mixed.fastest, mixed.cheapest) == (mixed.predictions[4], mixed.predictions[3])
    assert page(mixed).count("<svg") == page(plan_samples.five()).count("<svg")


def test_an_extrapolated_prediction_says_so():
    (one,) = plan_samples.one()
    assert "extrapolated" in page(Plan("job", (dataclasses.replace(one, basis="extrapolated"),)))
