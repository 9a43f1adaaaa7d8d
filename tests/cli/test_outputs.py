"""The folder that a command writes to; tests/planning/commands/test_options.py has the messages about rights."""

from __future__ import annotations

from pathlib import Path

import pytest

from anytpu.cli.outputs import check_file, check_folder, check_suffix, write_text
from anytpu.errors import SettingError


def test_what_was_left_out_or_is_right(tmp_path: Path):
    check_file("--json", None, "a.json")
    check_file("--json", tmp_path / "a.json", "a.json")
    check_folder("--svg", None)
    check_folder("--svg", tmp_path / "a" / "b")
    check_suffix("-o", None, (".tpu",), "a program")
    check_suffix("-o", tmp_path / "a.npz", (".npy", ".npz"), "a result")
    assert not list(tmp_path.iterdir())


def test_a_folder_in_place_of_a_file(tmp_path: Path):
    with pytest.raises(SettingError) as caught:
        check_file("--trace", tmp_path, "trace.json")
    assert str(caught.value) == f"--trace {tmp_path} is a folder; name a file in it: --trace {tmp_path}/trace.json"


@pytest.mark.parametrize(("typed", "meant"), [("a.csv", "a.npy"), ("out", "out.npy"), (".", "x.npy")])
def test_a_name_that_ends_otherwise(typed: str, meant: str):
    with pytest.raises(SettingError) as caught:
        check_suffix("-o", Path(typed), (".npy", ".npz"), "a result")
    assert str(caught.value) == (
        f"-o {typed}: a result is written to a file whose name ends in .npy or .npz: -o {meant}"
    )


def test_a_text_that_cannot_be_written(tmp_path: Path):
    with pytest.raises(SettingError) as caught:
        write_text(tmp_path, "")
    assert str(caught.value) == f"'{tmp_path}' cannot be written: Is a directory; name another file"
