"""A program's page in a browser, headless: it moves as it should, fits its window, asks for nothing, complains of
nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import chip_page_samples
from anytpu.chip.page import page
from anytpu.chip.page.multiplication import wave_of
from browser import BROWSER, Seen, browse, look_at

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt-get install chromium")

WIDTHS = (1400, 400)
NAMES = ["digits", "hostile", "many", "bare", "steps"]
# The outer page looks into frames, one after another, and plays with what it finds there as a reader would.
HARNESS = """<!doctype html><body><script>
const seen = {}, sleep = ms => new Promise(done => setTimeout(done, ms));
const words = (page, where) => [...page.querySelectorAll(where)].map(one => one.textContent);

function layout(page, frame) {
  const root = page.documentElement;
  const scrolls = one => one.closest(".sideways, .scroll, pre") && !one.matches(".sideways, .scroll, pre");
  const wide = [...page.querySelectorAll("body *")]
    .filter(one => one.getBoundingClientRect().right > root.clientWidth + 1 && !scrolls(one));
  return { width: root.clientWidth, needs: root.scrollWidth, height: root.scrollHeight,
    ready: page.querySelector("main").dataset.ready,
    wide: wide.slice(0, 5).map(one => one.outerHTML.slice(0, 120)), alerted: !!frame.contentWindow.alerted,
    title: page.title, images: page.images.length,
    paper: getComputedStyle(page.querySelector("main")).backgroundColor };
}

async function wave(page) {
  const root = page.querySelector("#wave .player");
  if (!root) return null;
  const slider = root.querySelector("input"), click = what => root.querySelector(`[data-do=${what}]`).click();
  const shown = () => ({ at: +root.dataset.at, said: words(page, "#wave .readout")[0], value: +slider.value,
    sums: words(page, "#wave .wave-sum"), weights: words(page, "#wave .wave-weight") });
  const found = { start: shown(), steps: [], last: +slider.max };
  click("first"); found.first = shown();
  for (let at = 0; at <= found.last; at++) { found.steps.push(shown()); click("next"); }
  click("back"); found.back = shown();
  slider.value = 12; slider.dispatchEvent(new page.defaultView.Event("input")); found.slid = shown();
  click("first"); click("play"); await sleep(1700); found.playing = shown();
  click("play"); await sleep(1000); found.paused = shown();
  found.aria = slider.getAttribute("aria-valuetext");
  found.checked = words(page, "#wave .checked")[0];
  return found;
}

function units(page) {
  const root = page.querySelector("#units .player"), found = {};
  for (const at of [0, 22, 64, 512]) {
    root.querySelector("input").value = at;
    root.querySelector("input").dispatchEvent(new page.defaultView.Event("input"));
    found[at] = words(page, "#units .said-of");
  }
  return found;
}

function listing(page) {
  const search = page.querySelector("#listing input"), found = {};
  for (const wanted of ["", "sync", "no such thing"]) {
    search.value = wanted;
    search.dispatchEvent(new page.defaultView.Event("input"));
    found[wanted] = [words(page, "#listing .count")[0], words(page, "#listing pre")[0].split("\\n").length];
  }
  return found;
}

async function run() {
  for (const [name, address, width] of PAGES) {
    const frame = document.createElement("iframe");
    Object.assign(frame, { width, height: 900, src: address });
    await new Promise(done => { frame.onload = done; document.body.append(frame); });
    const page = frame.contentDocument;
    seen[name] = layout(page, frame);
    if (PLAYS.includes(name)) Object.assign(seen[name], { wave: await wave(page), units: units(page),
      listing: listing(page) }, { after: layout(page, frame) });
  }
  const out = document.createElement("pre");
  out.id = "seen";
  out.textContent = JSON.stringify(seen);
  document.body.append(out);
}
console.log("the harness speaks");
run();
</script>"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("pages")
    for name in NAMES:
        page.write_page(getattr(chip_page_samples, name)(), folder / f"{name}.html")
    frames = [(f"{name} {width}", f"{name}.html", width) for name in NAMES for width in WIDTHS]
    plays = ["digits 1400", "digits 400", "many 1400"]
    text = HARNESS.replace("PAGES", json.dumps(frames)).replace("PLAYS", json.dumps(plays))
    return look_at(folder, text, time_ms=60000)


def test_no_page_is_wider_than_its_window(seen: Seen):
    assert len(seen.pages) == len(NAMES) * len(WIDTHS)
    assert {
        name: page["wide"] for name, page in seen.pages.items() if page["wide"] or page["needs"] > page["width"]
    } == {}
    assert {page["width"] for page in seen.pages.values()} == set(WIDTHS)
    after = [page["after"] for page in seen.pages.values() if "after" in page]
    assert len(after) == 3 and all(page["needs"] <= page["width"] and not page["wide"] for page in after)


def test_a_long_program_is_short_on_a_telephone(seen: Seen):
    assert seen.pages["steps 400"]["height"] < 6000


def test_every_page_starts_without_a_complaint(seen: Seen):
    assert {page["ready"] for page in seen.pages.values()} == {"yes"}
    assert len(seen.said) == 1 and "the harness speaks" in seen.said[0]


def test_no_page_asks_for_anything(seen: Seen):
    assert set(seen.asked) == {("pages.test", f"/{name}.html") for name in NAMES}
    assert {page["images"] for page in seen.pages.values()} == {0}


def test_it_is_light_where_its_reader_is(seen: Seen):
    assert {page["paper"] for page in seen.pages.values()} == {"rgb(255, 255, 255)"}


def test_hostile_names_run_nothing(seen: Seen):
    hostile = seen.pages["hostile 1400"]
    assert not hostile["alerted"]
    assert hostile["title"] == f"{chip_page_samples.EVIL} on the first TPU".replace("\x07", "\ufffd")


def expected(cycle: int) -> tuple[list[str], list[str]]:
    """Return the sums in the cells and in the accumulators at the end of a cycle, by the definition of the array."""
    wave = wave_of(chip_page_samples.digits().first_tile)  # type: ignore[arg-type]
    size, stream = len(wave.weights), cycle - len(wave.weights)
    cells, done = [], []
    for k in range(size):
        for m in range(size):
            vector = stream - k - m
            inside = 0 <= vector < size
            cells.append(str(int(wave.numbers[vector, : k + 1] @ wave.weights[: k + 1, m])) if inside else "")
    for vector in range(size):
        for m in range(size):
            is_done = vector + size - 1 + m <= stream
            done.append(str(int(wave.numbers[vector] @ wave.weights[:, m])) if is_done else "")
    return cells, done


@pytest.mark.parametrize("name", ["digits 1400", "digits 400"])
def test_the_wave_steps_to_the_right_numbers(seen: Seen, name: str):
    found = seen.pages[name]["wave"]
    assert found["last"] == 8 + 8 + 8 + 8 - 2 - 1
    for cycle, step in enumerate(found["steps"]):
        cells, done = expected(cycle)
        assert (step["at"], step["value"]) == (cycle, cycle)
        assert step["sums"] == cells + done, cycle
    wave = wave_of(chip_page_samples.digits().first_tile)  # type: ignore[arg-type]
    assert found["steps"][7]["weights"] == [str(weight) for weight in wave.weights.ravel()]
    assert found["steps"][-1]["sums"][64:] == [str(number) for number in (wave.numbers @ wave.weights).ravel()]
    assert found["checked"] == "Checked: 64 of 64 sums that left the corner are those of its int32 matrix product."
    assert found["steps"][0]["said"] == (
        "Cycle 1 of 30: the tile is shifted in, row by row from above (1 of 8); 0 of 64 sums are done."
    )
    assert found["steps"][-1]["said"] == "Cycle 30 of 30: 1 of 64 cells multiply and add; 64 of 64 sums are done."


def test_the_wave_plays_and_pauses(seen: Seen):
    found = seen.pages["digits 1400"]["wave"]
    assert found["start"]["at"] == 16 and found["first"]["at"] == 0
    assert found["back"]["at"] == 28 and found["slid"]["at"] == 12
    assert 3 <= found["playing"]["at"] <= 5
    assert found["paused"]["at"] == found["playing"]["at"]
    assert found["aria"] == found["paused"]["said"]


def test_three_units_do_the_same_product(seen: Seen):
    found = seen.pages["digits 1400"]["units"]
    assert found["0"] == ["0 operations, 0 of 512 multiply-adds, 0 numbers read"] * 3
    assert found["22"][2] == "22 operations, 512 of 512 multiply-adds, 64 numbers read"
    assert found["64"][1] == "64 operations, 512 of 512 multiply-adds, 576 numbers read"
    assert found["512"] == [
        "512 operations, 512 of 512 multiply-adds, 1,024 numbers read",
        "64 operations, 512 of 512 multiply-adds, 576 numbers read",
        "22 operations, 512 of 512 multiply-adds, 64 numbers read",
    ]


def test_the_listing_is_searched(seen: Seen):
    assert seen.pages["digits 1400"]["listing"] == {
        "": ["25 lines", 25],
        "sync": ["3 of 25 lines", 3],
        "no such thing": ["0 of 25 lines", 1],
    }


def test_it_is_dark_where_its_reader_is(tmp_path: Path):
    path = page.write_page(chip_page_samples.digits(), tmp_path / "chip.html")
    picture = tmp_path / "chip.png"
    flags = ("--blink-settings=preferredColorScheme=0", "--window-size=1000,1700", "--virtual-time-budget=2000")
    browse(tmp_path, *flags, f"--screenshot={picture}", path.as_uri())
    with Image.open(picture) as shot:
        pixels = np.asarray(shot.convert("RGB"))
    colours, counts = np.unique(pixels.reshape(-1, 3), axis=0, return_counts=True)
    assert tuple(colours[counts.argmax()]) == (20, 25, 31)
    assert 0.1 < 1 - counts.max() / counts.sum() < 0.5 and len(colours) > 500
