"""The built package: its documentation pages, and a README that a package index can show."""

from __future__ import annotations

import email
import subprocess
import sys
import zipfile

import pytest

from source_tree import ROOT

sys.path.insert(0, str(ROOT))
from hatch_build import RELATIVE_LINK, index_text

README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return zipfile.ZipFile(next(folder.glob("*.whl")))


def test_wheel_carries_the_pages(wheel: zipfile.ZipFile):
    pages = {f"anytpu/{path.relative_to(ROOT)}" for path in (ROOT / "docs").rglob("*.md")}
    assert pages <= set(wheel.namelist())
    assert "anytpu/py.typed" in wheel.namelist()


def test_readme_of_the_wheel_has_no_relative_links(wheel: zipfile.ZipFile):
    name = next(name for name in wheel.namelist() if name.endswith("METADATA"))
    metadata = email.message_from_bytes(wheel.read(name))
    assert metadata["Description-Content-Type"] == "text/markdown"
    content = metadata.get_payload(decode=True)
    assert isinstance(content, bytes)
    readme = content.decode()
    assert readme == index_text(README, "")
    assert RELATIVE_LINK.search(readme) is None


def test_links_without_an_address():
    text = "![a picture](docs/demo.svg)\n[05](examples/05.py) [Stopping](docs/stopping.md) [docs/plan.md](docs/plan.md)"
    assert index_text(text, "") == "\n05 Stopping (`anytpu docs stopping`) `anytpu docs plan`"


def test_links_with_an_address():
    text = "![a picture](docs/demo.svg) [05](examples/05.py) [JAX](https://docs.jax.dev)"
    assert index_text(text, "https://example.org/anytpu") == (
        "![a picture](https://example.org/anytpu/raw/main/docs/demo.svg) "
        "[05](https://example.org/anytpu/blob/main/examples/05.py) [JAX](https://docs.jax.dev)"
    )


def test_files_that_the_readme_links_to_exist():
    missing = [link["target"] for link in RELATIVE_LINK.finditer(README) if not (ROOT / link["target"]).exists()]
    assert missing == []
