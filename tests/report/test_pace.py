from __future__ import annotations

from anytpu.report.pace import WINDOW_S, StepRate


def test_nothing_is_known_before_two_calls_have_ended():
    pace = StepRate()
    assert pace.steps_per_s is None
    pace.note(1.0, 10)
    assert pace.steps_per_s is None


def test_the_first_call_compiles_and_does_not_count():
    pace = StepRate()
    pace.note(60.0, 10)
    pace.note(61.0, 20)
    assert pace.steps_per_s == 10


def test_notes_out_of_order_are_dropped():
    pace = StepRate()
    for now_s, steps in [(1.0, 10), (3.0, 30), (2.0, 20), (4.0, 25), (3.0, 40)]:
        pace.note(now_s, steps)
    assert pace.steps_per_s == 10


def test_only_the_last_seconds_count():
    pace = StepRate()
    pace.note(0.0, 1)
    pace.note(1.0, 1001)
    for second in range(2, 30):
        pace.note(float(second), 1001 + 10 * second)
    assert pace.steps_per_s == 10
    assert WINDOW_S < 28
