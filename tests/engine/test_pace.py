import pytest

from anytpu.engine.pace import CallPace


def test_a_fixed_pace_is_kept_up_to_a_boundary():
    pace = CallPace(fixed=50)
    pace.measured(50, 10.0)
    assert [pace.next_steps(300), pace.next_steps(20)] == [50, 20]
    assert not pace.is_measuring


def test_the_first_call_runs_one_step_and_is_waited_for():
    pace = CallPace()
    assert pace.is_measuring
    assert pace.next_steps(1000) == 1


def test_a_call_aims_at_a_quarter_of_a_second():
    pace = CallPace()
    pace.measured(64, 64 * 1e-3)
    assert pace.next_steps(10_000) == 250
    assert not pace.is_measuring


def test_it_grows_eightfold_at_most():
    pace = CallPace()
    asked = []
    for _ in range(4):
        steps = pace.next_steps(10_000)
        asked.append(steps)
        pace.measured(steps, steps * 1e-6)
    assert asked == [1, 8, 64, 512]


def test_one_short_call_does_not_slow_the_next():
    pace = CallPace()
    pace.measured(400, 400 * 1e-4)
    pace.measured(1, 1e-4)
    assert pace.next_steps(10_000) == 2500


def test_a_slow_step_runs_alone():
    pace = CallPace()
    pace.measured(1, 3.0)
    assert pace.next_steps(100) == 1


@pytest.mark.parametrize(("duration_s", "step_s"), [(2.0, 0.1), (0.2, 0.02)])
def test_a_call_that_was_done_early_can_only_lower_the_estimate(duration_s, step_s):
    pace = CallPace()
    pace.measured(10, 1.0)
    pace.measured(10, duration_s, is_exact=False)
    assert pace.step_s == pytest.approx(step_s)
