"""What is told of a command line before Keras is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from anytpu.cli import main
from anytpu.cli.parser import build_parser
from anytpu.cli.typed import check
from anytpu.errors import AnyTPUError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text("raise SystemExit('this file was loaded')\n")
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def error_of(*words: str) -> str:
    with pytest.raises(AnyTPUError) as caught:
        check(build_parser().parse_args(["plan", "train.py:create_model", *words]))
    return str(caught.value)


def test_what_is_right(folder: Path):
    words = "--tpu v5e-8,v4-8:cores,2xv5e-256 --html a.html --json folder/a.json --svg a/b --png folder"
    check(build_parser().parse_args(["plan", "net.mlir", *words.split()]))
    check(build_parser().parse_args(["plan", "net.mlir", "--tpu", "v3", "--scaling", "8,32"]))
    assert sorted(one.name for one in folder.iterdir()) == ["file", "folder", "train.py"]


def test_a_system(folder: Path):
    assert error_of("--tpu", "v2-8,v5-8").startswith(
        '\'v5-8\' is not a TPU that can be planned for. Did you mean "v5e-8" or "v5p-8"? The slices are '
    )


def test_prices(folder: Path):
    assert error_of("--prices", "none.csv") == (
        "the prices cannot be read from 'none.csv': No such file or directory. Give a CSV file whose first line is "
        "chip,usd_per_chip_hour,spot_usd_per_chip_hour,date"
    )


def test_files(folder: Path):
    assert error_of("--html", "no/such/plan.html") == (
        "--html no/such/plan.html: there is no folder 'no/such'; make it: mkdir -p no/such"
    )
    assert error_of("--json", "folder") == "--json folder is a folder; name a file in it: --json folder/plan.json"


def test_folders(folder: Path):
    assert error_of("--svg", "file/plots") == (
        f"--svg file/plots: {str(folder / 'file')!r} is not a folder; name a folder, which is created: --svg plots"
    )
    assert (
        error_of("--png", "file") == "--png file: 'file' is not a folder; name a folder, which is created: --png plots"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_places_that_must_not_be_written(folder: Path):
    (folder / "folder").chmod(0o500)
    assert error_of("--html", "folder/plan.html") == (
        "--html folder/plan.html cannot be written; name a file elsewhere: --html ~/plan.html"
    )
    assert error_of("--svg", "folder/plots") == (
        "--svg folder/plots cannot be written; name a folder elsewhere: --svg ~/plots"
    )


def test_it_comes_before_the_file_is_loaded(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["plan", "train.py:create_model", "--tpu", "v5e8"]) == 2
    assert capsys.readouterr().err.startswith("anytpu: 'v5e8' is not a TPU that can be planned for. Did you mean ")


def test_it_loads_neither_jax_nor_keras(folder: Path):
    code = (
        "import sys; from anytpu.cli import main; main(['plan', 'train.py:create_model', '--tpu', 'v5e8']); "
        "print([one for one in ('jax', 'keras') if one in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert run.stdout == "[]\n"
