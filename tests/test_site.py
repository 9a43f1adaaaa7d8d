"""The documentation site: every page is in its menu, every public name and every error class is on a page."""

from __future__ import annotations

import importlib
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import anytpu
from source_tree import ROOT, modules

sys.path.insert(0, str(ROOT / "website"))
from docstrings import as_markdown_spans
from pages import write_pages


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("pages")
    write_pages(folder)
    return {path.relative_to(folder).with_suffix("").as_posix(): path.read_text() for path in folder.rglob("*.md")}


def test_every_page_is_in_a_menu(pages: dict[str, str]):
    listed = {"index"}
    for name, text in pages.items():
        folder = name.rpartition("/")[0]
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```$", text, re.M | re.S):
            entries = [re.sub(r".*<(.*)>", r"\1", line) for line in block.splitlines() if not line.startswith(":")]
            listed |= {f"{folder}/{entry}".lstrip("/") for entry in entries}
    assert pages.keys() == listed


def test_links_of_pages_lead_to_pages(pages: dict[str, str]):
    for name, text in pages.items():
        for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)\.md", text):
            assert str((Path("/") / name).parent.joinpath(f"{target}.md").resolve().with_suffix(""))[1:] in pages, name


def test_every_public_name_is_on_one_page(pages: dict[str, str]):
    shown = [name for text in pages.values() for name in re.findall(r"^\.\. auto\w+:: anytpu\.(\S+)$", text, re.M)]
    assert len(shown) == len({*shown})
    assert {*anytpu._MODULES} <= {*shown}
    for part in ("chip", "embedding", "pipeline", "program", "system"):
        for name in importlib.import_module(f"anytpu.{part}").__all__:
            assert name in anytpu.__all__ or any(f"## {part}.{name}\n" in text for text in pages.values()), name


def test_errors_are_found_by_their_texts(pages: dict[str, str]):
    page = pages["troubleshooting"]
    classes = re.findall(r"^class (\w+)", modules()["anytpu.errors"].text, re.M)
    assert re.findall(r"^## (\w+)$", page, re.M) == classes
    assert "- `<name> must be a positive integer, or None for <meaning_of_none>, not <count>`" in page
    # About 80 of 1,180 calls have no literal text.
    assert page.count("\n- ") > 1050


def test_marks_of_markdown_in_a_docstring():
    lines = ["`Dataset`s of `x_`, **kw and name_ | other", ">>> `a` * b_"]
    as_markdown_spans(None, "function", "f", None, None, lines)
    assert lines == ["``Dataset``\\ s of ``x_``, \\*\\*kw and name\\_ \\| other", ">>> `a` * b_"]


def test_links_that_lead_nowhere(tmp_path: Path):
    broken_links = runpy.run_path(str(ROOT / "scripts/site"))["broken_links"]
    links = ["b.html#here", "b.html#there", "c.html", "#no", "https://example.org", "style.css"]
    (tmp_path / "a.html").write_text("".join(f"<a href='{link}'>" for link in links))
    (tmp_path / "b.html").write_text("<p id=here>")
    (tmp_path / "style.css").write_text("")
    assert broken_links(tmp_path) == ["a.html: b.html#there", "a.html: c.html", "a.html: #no"]


def test_a_script_runs_with_the_packages_of_the_environment(tmp_path: Path):
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/in_venv.py", tmp_path / "scripts")
    script = tmp_path / "scripts/site"
    script.write_text("from in_venv import in_venv\nin_venv('docs', 'json', 'no_such_module')\nprint('went on')")

    def run() -> tuple[str, str, int]:
        done = subprocess.run([sys.executable, script, "--fast"], capture_output=True, text=True, check=False)
        return done.stdout, done.stderr, done.returncode

    text = (
        "No module named 'no_such_module': site needs the dependency group docs. In the repository, type:\n"
        "    make demo    # it makes .venv, if there is none\n"
        "    .venv/bin/python -m pip install --upgrade pip\n"
        "    .venv/bin/python -m pip install --group docs\n"
    )
    assert run() == ("", text, 1)
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "of .venv: $@"')
    python.chmod(0o755)
    assert run() == (f"of .venv: {script} --fast\n", "", 0)


def test_only_the_package_is_uploaded():
    told = runpy.run_path(str(ROOT / "scripts/release"))["PUBLISH"].format(version="1.2")
    assert "*" not in told
    assert told.endswith("upload dist/anytpu-1.2-py3-none-any.whl dist/anytpu-1.2.tar.gz")


@pytest.mark.battery
def test_the_site_is_built_without_a_warning():
    pytest.importorskip("furo")
    run = subprocess.run([sys.executable, "scripts/site"], cwd=ROOT, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, ""), run.stdout + run.stderr
