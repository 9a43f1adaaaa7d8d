"""A plan's page in a browser, headless: what it asks for, what it complains of, how wide it is, how it looks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

import plan_samples
from browser import BROWSER, Seen, browse, look_at

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt-get install chromium")

WIDTHS = (1280, 390)
# Each frame loads the page; sandboxed without allow-scripts, it runs none. The outer page may read all of them.
FRAMES = """<!doctype html><body><script>
console.log("the harness speaks");
const seen = {};
function look(name, frame) {
  const page = frame.contentDocument, root = page.documentElement;
  page.querySelectorAll("details").forEach(one => { one.open = true; });
  const isWide = one => one.getBoundingClientRect().right > root.clientWidth + 1;
  const wide = [...page.querySelectorAll("body *")].filter(isWide);
  seen[name] = {
    width: root.clientWidth, needs: root.scrollWidth, height: root.scrollHeight, title: page.title,
    wide: wide.slice(0, 5).map(one => one.outerHTML.slice(0, 120)),
    scripts: page.scripts.length, plots: page.querySelectorAll("svg").length, alerted: !!frame.contentWindow.alerted,
    tables: [...page.querySelectorAll("table")].filter(one => one.getBoundingClientRect().height > 0).length,
  };
  if (Object.keys(seen).length == PAGES.length) {
    const out = document.createElement("pre");
    out.id = "seen";
    out.textContent = JSON.stringify(seen);
    document.body.append(out);
  }
}
for (const [name, address, width, scripts] of PAGES) {
  const frame = document.createElement("iframe");
  frame.width = width;
  frame.height = 900;
  if (!scripts) frame.sandbox = "allow-same-origin";
  frame.onload = () => look(name, frame);
  frame.src = address;
  document.body.append(frame);
}
</script>"""


def look_with_and_without_scripts(folder: Path, names: list[str]) -> Seen:
    """Open pages of a folder at each width, with scripts and without."""
    frames = [
        (f"{name} {width} {'with' if scripts else 'without'}", f"{name}.html", width, scripts)
        for name in names
        for width in WIDTHS
        for scripts in (True, False)
    ]
    return look_at(folder, FRAMES.replace("PAGES", json.dumps(frames)), time_ms=20000)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("pages")
    names = ["five", "swept", "hostile", "bare", "floors"]
    for name in names:
        getattr(plan_samples, name)().to_html(folder / f"{name}.html")
    return look_with_and_without_scripts(folder, names)


def test_no_page_is_wider_than_its_window(seen: Seen):
    assert len(seen.pages) == 20
    assert {name: page["wide"] for name, page in seen.pages.items() if page["needs"] > page["width"]} == {}
    assert {name: page["wide"] for name, page in seen.pages.items() if page["wide"]} == {}
    assert {page["width"] for page in seen.pages.values()} == set(WIDTHS)


def test_no_page_asks_for_anything(seen: Seen):
    pages = ("five", "swept", "hostile", "bare", "floors")
    assert set(seen.asked) == {("pages.test", f"/{name}.html") for name in pages}


def test_no_page_has_a_script_or_an_error(seen: Seen):
    assert len(seen.said) == 1 and "the harness speaks" in seen.said[0]
    assert {page["scripts"] for page in seen.pages.values()} == {0}


def test_pages_are_the_same_without_scripts(seen: Seen):
    for name, page in seen.pages.items():
        if name.endswith(" with"):
            assert page == seen.pages[f"{name}out"]
    assert seen.pages["swept 1280 without"]["plots"] == 8
    assert seen.pages["five 390 without"]["tables"] > 20
    assert seen.pages["hostile 390 without"]["title"].startswith("Plan of </style></title><script>alert('x')</script>")


def test_what_a_bad_page_would_show(tmp_path: Path):
    (tmp_path / "bad.html").write_text(
        '<!doctype html><title>bad</title><div style="width:2000px">wide</div><img src="http://evil.test/x.png">'
        "<script>window.alerted = 1; console.error('a complaint')</script>"
    )
    seen = look_with_and_without_scripts(tmp_path, ["bad"])
    for page in seen.pages.values():
        assert page["needs"] > page["width"] and page["wide"]
        assert page["scripts"] == 1
    assert [seen.pages[f"bad 390 {scripts}"]["alerted"] for scripts in ("with", "without")] == [True, False]
    assert set(seen.asked) == {("pages.test", "/bad.html"), ("evil.test", "/x.png")}
    assert [line for line in seen.said if "a complaint" in line]


@pytest.mark.parametrize(
    ("flags", "paper"), [((), (255, 255, 255)), (("--blink-settings=preferredColorScheme=0",), (20, 25, 31))]
)
def test_it_is_light_or_dark(tmp_path: Path, flags: tuple[str, ...], paper: tuple[int, int, int]):
    path = plan_samples.swept().to_html(tmp_path / "plan.html")
    picture = tmp_path / "plan.png"
    browse(tmp_path, *flags, "--window-size=1280,2400", f"--screenshot={picture}", path.as_uri())
    with Image.open(picture) as shot:
        assert shot.size == (1280, 2400)
        colours = shot.convert("RGB").getcolors(maxcolors=1 << 22) or []
    most = max(colours)
    assert most[1] == paper
    # Paper alone would be a page that shows nothing.
    assert 0.02 < 1 - most[0] / (1280 * 2400) < 0.5
    assert len(colours) > 200
