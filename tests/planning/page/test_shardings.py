"""The report of layouts, on layouts made by hand."""

import dataclasses

import pytest

from anytpu.errors import SettingError
from anytpu.planning.page.shardings import SHARDINGS_REPORT
from plan_samples import layouts


def test_compiled_layouts_are_rows_and_the_others_have_their_reasons(capsys):
    layouts().show()
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "Layouts of net/train by the time of a step, predicted"
    rows = [line for line in lines if line.lstrip()[:2] in ("1 ", "3 ")]
    assert [row.split()[1] for row in rows] == ["tensor=2", "data"]
    assert "no fit" in rows[1]
    assert " 1. examples over data; 1 array over model; w ('model',)." in lines
    assert "fsdp (300 ms): not compiled, because 2 layouts have a shorter estimate." in lines
    assert lines[-1] == "A note."


def test_layouts_of_which_none_was_compiled_have_no_table(capsys):
    found = layouts()
    estimated = [candidate for candidate in found.candidates if candidate.prediction is None]
    dataclasses.replace(found, candidates=tuple(estimated)).show()
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "Layouts of net/train by the time of a step, predicted",
        "In brackets: estimates without the compiler.",
        "fsdp (300 ms): not compiled, because 2 layouts have a shorter estimate.",
        "A note.",
    ]


def test_a_notebook_gets_a_table():
    page = layouts()._repr_html_()
    assert page.count("<tr>") == 3
    assert '<td data-title="layout">tensor=2</td>' in page
    assert page.endswith("<p>A note.</p></div>")


def test_a_table_has_a_page_and_no_plots(tmp_path):
    path = layouts().to_html(tmp_path / "layouts.html")
    assert layouts()._repr_html_() in path.read_text(encoding="utf-8")
    with pytest.raises(SettingError) as error:
        SHARDINGS_REPORT.to_images(layouts(), tmp_path, "svg")
    caption = SHARDINGS_REPORT.caption(layouts())
    assert str(error.value) == f"{caption}: a table has no plots; write its page: to_html(path)"
