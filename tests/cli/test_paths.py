"""Paths on the command line that name no file, or not the right one: one true sentence, and no wait for a pipe."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import anytpu
from anytpu.cli import main

REASONS = {
    "pipe": "Is a named pipe",
    "broken": "Is a link to 'nowhere', which does not exist",
    "loop": "Too many levels of symbolic links",
    "device": "Is a device",
    "long": "File name too long",
    "closed": "Permission denied",
}
"""What is wrong with a path, by its kind, as far as every command says the same."""
STABLEHLO = "The StableHLO file '{name}' cannot be "
PROGRAM = "The program file '{name}' cannot be read: "
SCRIPT = "'{name}' cannot be read: {why}; name a function in a file, like train.py:create_model"
PRICES = " Give a CSV file whose first line is chip,usd_per_chip_hour,spot_usd_per_chip_hour,date"
ARRAY = "'{name}' cannot be read as an array: {why}; np.save('{name}', x) writes one"
NO_ARRAY = "'{name}' is not an array file, .npy or .npz; np.save('{name}', x) writes one"
NO_PROGRAM = "'{name}' is not a program file: it is not a zip file. Program files are written by anytpu.program.write."
NO_CHIP = NO_PROGRAM.replace("anytpu.program.write", "ChipProgram.save or anytpu chip compile")
NO_SCRIPT = "{name}: SyntaxError: source code string cannot contain null bytes; --traceback shows the whole traceback"
NO_SOURCE = "{name} is not text (invalid or missing encoding declaration); name a Python program or a notebook"

READ = [
    (
        ["plan", "{name}"],
        ".mlir",
        STABLEHLO + "read: {why}.",
        STABLEHLO + "used. It is not StableHLO: line 1, column 2: unexpected character.",
    ),
    (["plan", "{name}"], ".anytpu", PROGRAM + "{why}.", NO_PROGRAM),
    (["plan", "{name}:f"], ".py", SCRIPT, NO_SCRIPT),
    (["plan", "{name}"], ".py", SCRIPT, "name the function of {name} that returns the model, like {name}:create_model"),
    (
        ["plan", "right.mlir", "--prices", "{name}"],
        ".csv",
        "the prices cannot be read from '{name}': {why}." + PRICES,
        "the prices cannot be read from '{name}': it is not text." + PRICES,
    ),
    (["compare", "{name}:f"], ".py", SCRIPT.replace("train.py:create_model", "bench.py:job"), NO_SCRIPT),
    (["port", "{name}"], ".py", "cannot read '{name}': {why}", NO_SOURCE),
    (["port", "{name}"], ".ipynb", "cannot read '{name}': {why}", NO_SOURCE),
    (
        ["chip", "compile", "{name}", "--calibration", "right.npy", "-o", "out.tpu"],
        ".anytpu",
        PROGRAM + "{why}.",
        NO_PROGRAM,
    ),
    (["chip", "compile", "{name}:f", "-o", "out.tpu"], ".py", SCRIPT, NO_SCRIPT),
    (["chip", "compile", "right.py:f", "--calibration", "{name}"], ".npy", ARRAY, NO_ARRAY),
    (["chip", "run", "{name}", "--input", "right.npy"], ".tpu", PROGRAM + "{why}.", NO_CHIP),
    (["chip", "run", "right.tpu", "--input", "{name}"], ".npy", ARRAY, NO_ARRAY),
    (["chip", "run", "right.tpu", "--input", "right.npy", "--labels", "{name}"], ".npy", ARRAY, NO_ARRAY),
    (["chip", "time", "{name}"], ".tpu", PROGRAM + "{why}.", NO_CHIP),
    (
        ["chip", "asm", "{name}", "-o", "out.tpu"],
        ".s",
        "'{name}' cannot be read: {why}",
        "'{name}' cannot be read: it is not text",
    ),
    (["chip", "disasm", "{name}"], ".tpu", PROGRAM + "{why}.", NO_CHIP),
    (["chip", "report", "{name}"], ".tpu", PROGRAM + "{why}.", NO_CHIP),
]
"""Each path that is read: what is typed, its suffix, the error of what cannot be read, and that of binary content."""

WRITTEN = [
    (["plan", "right.mlir", "--html", "{name}"], "plan.html"),
    (["plan", "right.mlir", "--json", "{name}"], "plan.json"),
    (["compare", "--json", "{name}"], "comparison.json"),
    (["chip", "compile", "right.py:f", "-o", "{name}"], "model.tpu"),
    (["chip", "compile", "right.py:f", "--onnx", "{name}"], "model.onnx"),
    (["chip", "run", "right.tpu", "--input", "right.npy", "-o", "{name}"], "y.npy"),
    (["chip", "time", "right.tpu", "--json", "{name}"], "time.json"),
    (["chip", "time", "right.tpu", "--trace", "{name}"], "trace.json"),
    (["chip", "asm", "right.s", "-o", "{name}"], "model.tpu"),
    (["chip", "disasm", "right.tpu", "-o", "{name}"], "program.s"),
    (["chip", "report", "right.tpu", "--html", "{name}"], "chip.html"),
]
"""Each file that is written, and the name that an error proposes."""

FOLDERS = [
    ["plan", "right.mlir", "--svg", "{name}"],
    ["plan", "right.mlir", "--png", "{name}"],
    ["chip", "report", "right.tpu", "--svg", "{name}"],
    ["chip", "report", "right.tpu", "--png", "{name}"],
]
"""Each folder that is written into."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("right.py").write_text("def f():\n    return 1\n")
    Path("right.mlir").write_text(jax.jit(lambda x: 2 * x).lower(np.zeros(3, np.float32)).as_text())
    Path("right.s").write_text("halt\n")
    np.save("right.npy", np.zeros((2, 3), np.float32))
    anytpu.chip.assemble("halt").save("right.tpu")
    return tmp_path


def named(kind: str, suffix: str) -> str:
    """Make what a kind of path names, and return its name."""
    name = f"{kind}{suffix}"
    if kind == "pipe":
        os.mkfifo(name)
    elif kind == "long":
        return f"{'a' * 300}{suffix}"
    elif kind == "closed":
        Path(name).touch(0)
    elif kind != "missing":
        Path(name).symlink_to({"broken": "nowhere", "loop": name, "device": "/dev/zero"}[kind])
    return name


def error_of(capsys: pytest.CaptureFixture[str], words: list[str], name: str) -> str:
    """Return the one line that a command says before it ends with status 2."""
    assert main([word.format(name=name) for word in words]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line != "reading the model"]
    assert len(said) == 1
    return said[0].removeprefix("anytpu: ")


def kinds() -> list[str]:
    """Return the kinds of paths that this user can meet: root may read everything."""
    return [kind for kind in REASONS if kind != "closed" or os.geteuid() != 0]


@pytest.mark.parametrize(("words", "suffix", "unreadable", "binary"), READ)
def test_paths_that_are_read(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], suffix: str, unreadable: str, binary: str
):
    for kind in kinds():
        name = named(kind, suffix)
        assert error_of(capsys, words, name) == unreadable.format(name=name, why=REASONS[kind])
    Path(f"binary{suffix}").write_bytes(b"\x00\xff\xfe" * 100)
    assert error_of(capsys, words, f"binary{suffix}") == binary.format(name=f"binary{suffix}")
    Path(f"folder{suffix}").mkdir()
    no_programs = "the folder '{name}' has no programs: it needs a file *.py or *.ipynb"
    expected = no_programs if words[0] == "port" else unreadable
    told = expected.format(name=f"folder{suffix}", why="Is a directory")
    assert error_of(capsys, words, f"folder{suffix}") == told


@pytest.mark.parametrize(("words", "example"), WRITTEN)
def test_files_that_are_written(folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], example: str):
    option = words[words.index("{name}") - 1]
    for kind in ("pipe", "loop", "long"):
        name = named(kind, Path(example).suffix)
        assert error_of(capsys, words, name) == (
            f"{option} {name} cannot be written: {REASONS[kind]}; name another file: {option} {example}"
        )


@pytest.mark.parametrize("words", FOLDERS)
def test_folders_that_are_written_into(folder: Path, capsys: pytest.CaptureFixture[str], words: list[str]):
    option = words[-2]
    for kind in ("pipe", "broken", "loop", "device"):
        name = named(kind, "")
        assert error_of(capsys, words, name) == (
            f"{option} {name}: '{name}' is not a folder; name a folder, which is created: {option} plots"
        )
    name = named("long", "")
    assert error_of(capsys, words, name) == (
        f"{option} {name} cannot be made: File name too long; name another: {option} plots"
    )


def test_port_passes_over_what_is_no_file(folder: Path, capsys: pytest.CaptureFixture[str]):
    Path(".#right.py").symlink_to("me@here.1234")  # an editor's lock
    os.mkfifo("pipe.py")
    assert main(["port", "."]) == 0
    assert capsys.readouterr().out == "0 of 1 program would change; nothing is left to port by hand\n"
