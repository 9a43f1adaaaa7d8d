"""Options that a question of `anytpu plan` would leave aside are refused, before anything is loaded."""

from __future__ import annotations

import pytest

from anytpu.cli import main
from anytpu.cli.parser import build_parser
from anytpu.cli.plan import SYSTEMS, names
from anytpu.cli.questions import LEFT_ASIDE, check_question


def error_of(capsys: pytest.CaptureFixture[str], words: str) -> str:
    assert main(["plan", "net.mlir", *words.split()]) == 2
    return capsys.readouterr().err.splitlines()[-1].removeprefix("anytpu: ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--scaling 8,32 --tpu v3-8,v4-8",
            "--scaling plans larger slices of one TPU, and --tpu names 2: v3-8, v4-8; name one, and ask for each: "
            "--tpu v3 --scaling 8,32",
        ),
        (
            "--scaling 8,32 --tpu v4-8:cores",
            "--scaling takes the chip alone, and 'v4-8:cores' says how its cores run; plan the slices by name instead: "
            "--tpu v4-8:cores,v4-32:cores",
        ),
        (
            "--scaling 8,32 --sweep-batch 64",
            "--scaling plans the batch of --batch, grown with each slice: --sweep-batch has no part in it; leave it "
            "out, or ask without --scaling",
        ),
        (
            "--max-batch --advise --prices p.csv --html a.html",
            "--max-batch prints the largest batch that fits: --prices, --advise, --html have no part in it; leave them "
            "out, or ask without --max-batch",
        ),
        (
            "--check --json a.json",
            "--check compares one training step on 1 core and on many: --json has no part in it; leave it out, or ask "
            "without --check",
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
    assert {*LEFT_ASIDE, *(name for each in LEFT_ASIDE.values() for name in each)} <= set(typed)
