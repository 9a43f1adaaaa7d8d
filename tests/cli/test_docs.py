from __future__ import annotations

import re

import pytest

from anytpu.cli.docs import pages
from anytpu.cli.entry import main
from source_tree import ROOT

NAMED = re.compile(r"anytpu docs (\w+)")


def test_a_page_in_a_pipe_is_markdown(capsys: pytest.CaptureFixture[str]):
    for name in ("getting_a_tpu", "docs/getting_a_tpu.md"):
        assert main(["docs", name]) == 0
        assert capsys.readouterr().out == (ROOT / "docs/getting_a_tpu.md").read_text(encoding="utf-8")


def test_the_pages_are_listed(capsys: pytest.CaptureFixture[str]):
    assert main(["docs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len([*(ROOT / "docs").rglob("*.md")])
    assert [line.split() for line in lines if line.startswith("plan ")] == [["plan", "Planning", "a", "run"]]
    assert any(line.startswith("decisions/0013-planning ") for line in lines)


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (
            "getting_tpu",
            "there is no page 'getting_tpu'; did you mean `anytpu docs getting_a_tpu`? `anytpu docs` lists the pages",
        ),
        ("qqq", "there is no page 'qqq'; `anytpu docs` lists the pages"),
    ],
)
def test_a_page_that_does_not_exist(page: str, message: str, capsys: pytest.CaptureFixture[str]):
    assert main(["docs", page]) == 2
    assert capsys.readouterr().err == f"anytpu: {message}\n"


def test_messages_name_pages_that_exist():
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "src/anytpu").rglob("*.py")]
    named = {name for source in sources for name in NAMED.findall(source)}
    assert "getting_a_tpu" in named
    assert named <= pages().keys()


def test_the_pages_of_an_installed_package(tmp_path):
    package = tmp_path / "site-packages/anytpu"
    (package / "docs/decisions").mkdir(parents=True)
    for name in ("docs/plan.md", "docs/decisions/0001-dependencies.md"):
        (package / name).write_text("# A title\n")
    assert pages(package) == {
        "plan": package / "docs/plan.md",
        "decisions/0001-dependencies": package / "docs/decisions/0001-dependencies.md",
    }
