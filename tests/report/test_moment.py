from __future__ import annotations

import pytest

from anytpu.report import moment as words
from anytpu.report.moment import Moment


def test_steps_with_and_without_a_known_length():
    assert words.steps_text(Moment("training", step=1200, steps=9000)) == "step 1,200/9,000"
    assert words.steps_text(Moment("training", step=7)) == "step 7"


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (Moment("compiling"), "compiling"),
        (Moment("validating", per_second=5.0), "validating"),
        (Moment("training"), ""),
        (Moment("training", per_second=12345.6, unit="examples"), "12,346 examples/s"),
        (Moment("evaluating", per_second=3.0), "3 steps/s"),
    ],
)
def test_speed(moment: Moment, text: str):
    assert words.speed_text(moment) == text


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (Moment("training"), ""),
        (Moment("training", fraction=0.5, remaining_s=75.2), "1 min 15 s left"),
        (Moment("training", fraction=1.0, remaining_s=0.0, elapsed_s=4.2), "in 4.2 s"),
        (Moment("validating", fraction=1.0, elapsed_s=4.2), ""),
        (Moment("training", fraction=0.5, elapsed_s=4.2, finished=True), "in 4.2 s"),
    ],
)
def test_time(moment: Moment, text: str):
    assert words.time_text(moment) == text


def test_a_metric_that_is_not_a_number_is_shown_as_it_is():
    assert words.metrics_text(Moment("training", metrics={"loss": float("nan"), "big": 12345.0})) == (
        "loss nan  big 1.234e+04"
    )
