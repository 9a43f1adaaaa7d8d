"""Options that a question of `anytpu plan` would leave aside are refused, before anything is loaded."""

from __future__ import annotations

import pytest

from anytpu.cli import main
from anytpu.cli.parser import build_parser
from anytpu.cli.plan import SYSTEMS, names
from anytpu.cli.questions import UNUSED_OPTIONS, check_question


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
            "--check --json a.json",
            "--check compares one training step on 1 core and on many: --json does not apply; leave it out, or leave "
            "out --check",
        ),
    ],
)
def test_what_a_question_leaves_aside(words: str, message: str, capsys: pytest.CaptureFixture[str]):
    assert error_of(capsys, words) == message


@pytest.mark.parametrize(
    "words", ["--advise --html a.html", "--scaling 8 --batch 8 --json a", "--scaling 8 --tpu v3", "--max-batch --infer"]
)
def test_what_has_a_part_in_the_answer(words: str):
    check_question(build_parser().parse_args(["plan", "net.mlir", *words.split()]), names(SYSTEMS))


def test_each_name_is_one_of_an_option():
    typed = vars(build_parser().parse_args(["plan", "net.mlir"]))
    assert {*UNUSED_OPTIONS, *(name for each in UNUSED_OPTIONS.values() for name in each)} <= set(typed)
