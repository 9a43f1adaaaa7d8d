from __future__ import annotations

import itertools
import signal

import pytest

from anytpu.launch.supervision import GRACE_S, SAVE_S, ProcessEnd, Supervision

KILL, TERM, INT = signal.SIGKILL, signal.SIGTERM, signal.SIGINT


def test_all_succeed():
    launch = Supervision(2)
    assert launch.after_ends([ProcessEnd(1, 0)], 0.0) is None
    assert (launch.running, launch.deadline_s) == ({0}, None)
    assert launch.after_ends([ProcessEnd(0, 0)], 100.0) is None
    assert (launch.running, launch.failure, launch.exit_status) == (set(), None, 0)


def test_a_failure_ends_the_others():
    launch = Supervision(3)
    assert launch.after_ends([ProcessEnd(1, 3)], 10.0) == TERM
    assert launch.deadline_s == 10.0 + GRACE_S
    assert launch.after_ends([ProcessEnd(0, -TERM)], 11.0) is None
    assert launch.at_deadline(10.0 + GRACE_S) == KILL
    assert launch.deadline_s is None
    assert launch.after_ends([ProcessEnd(2, -KILL)], 14.0) is None
    assert (launch.failure, launch.has_failed, launch.exit_status) == (ProcessEnd(1, 3), True, 3)


def test_a_run_that_was_saved_lets_the_others_save():
    launch = Supervision(2)
    assert launch.after_ends([ProcessEnd(0, 75)], 10.0) is None
    assert launch.deadline_s == 10.0 + SAVE_S
    assert launch.at_deadline(40.0) == TERM
    assert launch.deadline_s == 40.0 + GRACE_S
    assert launch.at_deadline(43.0) == KILL
    assert launch.deadline_s is None
    assert (launch.failure, launch.has_failed, launch.exit_status) == (ProcessEnd(0, 75), False, 75)


def test_a_frozen_process_is_killed_soon_after_the_others_lost_it():
    launch = Supervision(3)
    assert launch.after_ends([ProcessEnd(0, 69)], 30.0) is None
    assert launch.after_ends([ProcessEnd(2, 69)], 30.1) is None
    assert launch.deadline_s == 30.0 + GRACE_S
    assert launch.at_deadline(33.0) == KILL
    assert launch.deadline_s is None
    assert launch.after_ends([ProcessEnd(1, -KILL)], 33.1) is None
    assert (launch.failure, launch.has_failed, launch.exit_status) == (ProcessEnd(0, 69), False, 69)


def test_the_cause_of_a_lost_process_may_end_after_it():
    launch = Supervision(3)
    assert launch.after_ends([ProcessEnd(0, 69)], 10.0) is None
    assert launch.after_ends([ProcessEnd(1, 1)], 10.1) == TERM
    assert launch.after_ends([ProcessEnd(2, 2)], 10.2) is None
    assert (launch.failure, launch.has_failed, launch.exit_status) == (ProcessEnd(1, 1), True, 1)


@pytest.mark.parametrize("number", [INT, TERM])
@pytest.mark.parametrize("status", [75, 69, -1, 129])
def test_a_signal_is_passed_on_once(number: int, status: int):
    status = {-1: -number, 129: 128 + number}.get(status, status)
    launch = Supervision(2)
    assert launch.after_signal(number) == number
    assert launch.deadline_s is None
    assert launch.after_ends([ProcessEnd(1, status)], 10.0) is None
    assert launch.deadline_s == 10.0 + SAVE_S
    assert launch.at_deadline(40.0) == KILL
    assert launch.deadline_s is None
    assert (launch.failure, launch.has_failed) == (None, False)
    assert launch.exit_status == (status if status >= 0 else 128 + number)


def test_a_failure_after_a_signal_is_a_failure():
    launch = Supervision(2)
    launch.after_signal(TERM)
    assert launch.after_ends([ProcessEnd(1, 1)], 10.0) is None
    assert (launch.failure, launch.has_failed, launch.exit_status) == (ProcessEnd(1, 1), True, 1)


def test_a_second_signal_kills():
    for first, second in itertools.product((INT, TERM), repeat=2):
        launch = Supervision(2)
        launch.after_signal(first)
        assert launch.after_signal(second) == KILL
        assert launch.killed == (0, 1)
        launch.after_ends([ProcessEnd(1, -KILL)], 10.0)
        assert (launch.failure, launch.has_failed, launch.exit_status) == (None, False, 128 + KILL)


def test_a_failure_before_the_second_signal_arrived_is_a_failure():
    launch = Supervision(2)
    launch.after_signal(INT)
    launch.after_signal(INT)
    launch.after_ends([ProcessEnd(0, 1)], 10.0)
    assert (launch.failure, launch.has_failed) == (ProcessEnd(0, 1), True)


def test_a_signal_after_a_failure_kills():
    launch = Supervision(2)
    launch.after_ends([ProcessEnd(1, 1)], 10.0)
    assert launch.after_signal(INT) == KILL


@pytest.mark.parametrize(
    ("statuses", "first"),
    [
        ((1, 2), 0),
        ((-signal.SIGABRT, 1), 1),
        ((1, -KILL), 1),
        ((75, -signal.SIGABRT), 1),
        ((69, 1), 1),
        ((69, -signal.SIGABRT), 1),
        ((75, 69), 1),
        ((0, 75), 1),
        ((-signal.SIGSEGV, -KILL), 0),
    ],
)
def test_the_cause_among_ends_that_were_noticed_together(statuses: tuple[int, int], first: int):
    launch = Supervision(3)
    launch.after_ends([ProcessEnd(index, status) for index, status in enumerate(statuses)], 0.0)
    assert launch.first == ProcessEnd(first, statuses[first])


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (7, "failed with exit status 7"),
        (75, "stopped to be started again, exit status 75"),
        (69, "ended because of another process, exit status 69"),
        (-11, "was killed by SIGSEGV"),
        (-45, "was killed by signal 45"),
    ],
)
def test_the_text_of_an_end(status: int, text: str):
    assert str(ProcessEnd(0, status)) == text
