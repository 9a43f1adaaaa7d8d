"""Checks of the command line of `anytpu plan` before anything is loaded: options of a question, names, paths."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from anytpu.cli import main
from anytpu.cli.entry import build_parser
from anytpu.errors import AnyTPUError
from anytpu.planning.commands.plan import SYSTEMS, names
from anytpu.planning.commands.questions import UNUSED_OPTIONS, check_question, check_typed


def error_of(capsys: pytest.CaptureFixture[str], words: str) -> str:
    assert main(["plan", "net.mlir", *words.split()]) == 2
    return capsys.readouterr().err.splitlines()[-1].removeprefix("anytpu: ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--scaling 8,32 --tpu v3-8,v4-8",
            "--scaling plans larger slices of one TPU, but --tpu names 2: v3-8, v4-8; run one command per TPU: "
            "--tpu v3 --scaling 8,32",
        ),
        (
            "--scaling 8,32 --tpu v4-8:cores",
            "--scaling takes a chip without a core mode, not 'v4-8:cores'; plan the slices by name instead: "
            "--tpu v4-8:cores,v4-32:cores",
        ),
        (
            "--scaling 8,32 --sweep-batch 64",
            "--scaling plans the batch of --batch, grown with each slice: --sweep-batch does not apply; leave it "
            "out, or leave out --scaling",
        ),
        (
            "--max-batch --advise --prices p.csv --html a.html",
            "--max-batch prints the largest batch that fits: --prices, --advise, --html do not apply; leave them "
            "out, or leave out --max-batch",
        ),
        (
            "--ways --infer --html a.html",
            "--ways prints the training step with each change: --infer, --html do not apply; leave them out, or leave "
            "out --ways",
        ),
        (
            "--check --json a.json",
            "--check compares one training step on 1 core and on many: --json does not apply; leave it out, or leave "
            "out --check",
        ),
        (
            "--check --lock plan.lock --tolerance 5",
            "--check compares one training step on 1 core and on many: --tolerance, --lock do not apply; leave them "
            "out, or leave out --check",
        ),
        (
            "--max-batch --check plan.lock --lock plan.lock",
            "--max-batch prints the largest batch that fits: --check, --lock do not apply; leave them out, or leave "
            "out --max-batch",
        ),
        (
            "--check old.lock --lock new.lock",
            "--check old.lock compares with a lock, and --lock new.lock writes one; run one command for each",
        ),
        ("--tolerance 5", "--tolerance is that of a comparison with a lock; name the lock: --check plan.lock"),
        ("--check none.lock", "there is no lock 'none.lock'; write it: anytpu plan ... --lock none.lock"),
    ],
)
def test_what_a_question_leaves_aside(words: str, message: str, capsys: pytest.CaptureFixture[str]):
    assert error_of(capsys, words) == message


@pytest.mark.parametrize(
    "words",
    [
        *("--advise --html a.html", "--scaling 8 --batch 8 --json a", "--scaling 8 --tpu v3", "--max-batch --infer"),
        *("--check a.lock --html a.html --tolerance 5", "--scaling 8 --check a.lock", "--advise --lock a.lock"),
    ],
)
def test_what_has_a_part_in_the_answer(words: str):
    check_question(build_parser().parse_args(["plan", "net.mlir", *words.split()]), names(SYSTEMS))


def test_each_name_is_one_of_an_option():
    typed = vars(build_parser().parse_args(["plan", "net.mlir"]))
    assert {*UNUSED_OPTIONS, *(name for each in UNUSED_OPTIONS.values() for name in each)} <= set(typed)


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
    check_typed(build_parser().parse_args(["plan", "net.mlir", "--tpu", "v3", "--scaling", "8,32"]))
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
