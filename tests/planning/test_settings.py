"""What holds for every prediction of a plan: its numbers are checked."""

from __future__ import annotations

import pytest

from anytpu.errors import SettingError
from anytpu.planning.jobs.settings import PlanSettings, check_positive_integer


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"steps_per_execution": 0}, "steps_per_execution must be a positive integer, not 0"),
        ({"examples": -5}, "examples must be a positive integer, not -5"),
        ({"epochs": 1.5}, "epochs must be a positive integer, not 1.5"),
        ({"examples": True}, "examples must be a positive integer, not True"),
        ({"input_examples_per_s": 0.0}, "input_examples_per_s must be a positive number, not 0.0"),
        ({"timeout_s": -1}, "timeout_s must be a positive number, not -1"),
        ({"timeout_s": float("nan")}, "timeout_s must be a positive number, not nan"),
        ({"timeout_s": float("inf")}, "timeout_s must be a positive number, not inf"),
        ({"timeout_s": "60"}, "timeout_s must be a positive number, not '60'"),
        ({"timeout_s": None}, "timeout_s must be a positive number, not None"),
        ({"progress": "x"}, "progress must be a function of one line of text, such as print, not 'x'"),
        ({"options": "a=b"}, "options must be names and strings, such as {'xla_name': '1'}, not 'a=b'"),
        ({"options": {1: "1"}}, "options must be names and strings, such as {'xla_name': '1'}, not {1: '1'}"),
        ({"options": {"a": 1}}, "options must be names and strings, such as {'xla_name': '1'}, not {'a': 1}"),
    ],
)
def test_bad_numbers(settings, says):
    with pytest.raises(SettingError) as raised:
        PlanSettings(**settings)
    assert str(raised.value) == says


def test_none_is_no_number():
    check_positive_integer("batch_size", None)
    assert PlanSettings().examples is None
