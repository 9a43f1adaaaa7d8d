"""Checks of the command line of `anytpu plan` before anything is loaded: options of a command, names, paths."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from anytpu.cli import main
from anytpu.cli.entry import build_parser
from anytpu.errors import AnyTPUError
from anytpu.planning.commands.options import check_typed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "plan scaling net.mlir --cores 8,32 --tpu v3-8,v4-8",
            "argument --tpu: must be one chip without a core mode, such as v3, not 'v3-8,v4-8'; plan other slices by "
            "name: anytpu plan --tpu v4-8:cores,v4-32:cores; see `anytpu plan scaling --help`",
        ),
        (
            "plan scaling net.mlir --cores 8,32 --tpu v4-8:cores",
            "argument --tpu: must be one chip without a core mode, such as v3, not 'v4-8:cores'; plan other slices by "
            "name: anytpu plan --tpu v4-8:cores,v4-32:cores; see `anytpu plan scaling --help`",
        ),
        (
            "plan scaling net.mlir --tpu v3",
            "the following arguments are required: --cores; see `anytpu plan scaling --help`",
        ),
        (
            "plan scaling net.mlir --cores 8 --sweep-batch 64",
            "anytpu plan scaling does not take --sweep-batch 64; see `anytpu plan scaling --help`",
        ),
        (
            "plan batch net.mlir --advise --html a.html",
            "anytpu plan batch does not take --advise --html a.html; see `anytpu plan batch --help`",
        ),
        ("plan ways net.mlir --infer", "anytpu plan ways does not take --infer; see `anytpu plan ways --help`"),
        (
            "plan answers gemma3_1b",
            "the following arguments are required: --batch; see `anytpu plan answers --help`",
        ),
        (
            "plan compare-cores net.mlir --json a.json",
            "anytpu plan compare-cores does not take --json a.json; see `anytpu plan compare-cores --help`",
        ),
        (
            "plan net.mlir --check old.lock --lock new.lock",
            "argument --lock: not allowed with argument --check; see `anytpu plan --help`",
        ),
        (
            "plan net.mlir --tolerance 5",
            "--tolerance is that of a comparison with a lock; name the lock: --check plan.lock",
        ),
        ("plan net.mlir --check none.lock", "there is no lock 'none.lock'; write it: anytpu plan ... --lock none.lock"),
    ],
)
def test_what_a_command_does_not_take(words: str, message: str, capsys: pytest.CaptureFixture[str]):
    assert main(words.split()) == 2
    assert capsys.readouterr().err == f"anytpu: {message}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text("raise SystemExit('this file was loaded')\n")
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def typed_error(*words: str) -> str:
    with pytest.raises(AnyTPUError) as caught:
        check_typed(build_parser().parse_args(["plan", "train.py:create_model", *words]))
    return str(caught.value)


def test_what_is_right(folder: Path):
    words = "--tpu v5e-8,v4-8:cores,2xv5e-256 --html a.html --json folder/a.json --svg a/b --png folder"
    check_typed(build_parser().parse_args(["plan", "net.mlir", *words.split()]))
    check_typed(build_parser().parse_args(["plan scaling", "net.mlir", "--tpu", "v3", "--cores", "8,32"]))
    assert sorted(path.name for path in folder.iterdir()) == ["file", "folder", "train.py"]


def test_a_system(folder: Path):
    assert typed_error("--tpu", "v2-8,v5-8").startswith(
        '\'v5-8\' is not a TPU that can be planned for. Did you mean "v5e-8" or "v5p-8"? The slices are '
    )


def test_prices(folder: Path):
    assert typed_error("--prices", "none.csv") == (
        "the prices cannot be read from 'none.csv': No such file or directory. Give a CSV file whose first line is "
        "chip,usd_per_chip_hour,spot_usd_per_chip_hour,date"
    )


def test_files(folder: Path):
    assert typed_error("--html", "no/such/plan.html") == (
        "--html no/such/plan.html: there is no folder 'no/such'; make it: mkdir -p no/such"
    )
    assert typed_error("--lock", "no/plan.lock") == (
        "--lock no/plan.lock: there is no folder 'no'; make it: mkdir -p no"
    )
    assert typed_error("--json", "folder") == "--json folder is a folder; name a file in it: --json folder/plan.json"


def test_folders(folder: Path):
    assert typed_error("--svg", "file/plots") == (
        f"--svg file/plots: {str(folder / 'file')!r} is not a folder; name a folder, which is created: --svg plots"
    )
    assert (
        typed_error("--png", "file")
        == "--png file: 'file' is not a folder; name a folder, which is created: --png plots"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_places_that_must_not_be_written(folder: Path):
    (folder / "folder").chmod(0o500)
    assert typed_error("--html", "folder/plan.html") == (
        "--html folder/plan.html cannot be written; name a file elsewhere: --html ~/plan.html"
    )
    assert typed_error("--svg", "folder/plots") == (
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
