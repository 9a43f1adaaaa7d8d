from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

from anytpu.engine.measurements import ENOUGH_CALLS, Listener, listener_of
from anytpu.errors import SettingError
from anytpu.program.program import REPLICATED, Program
from anytpu.system.cores import Core

PROGRAM = Program("sum/train", lambda s, b: (s, b), jnp.zeros(()), jnp.zeros(4), REPLICATED)
VIRTUAL = (Core(0, "cpu", virtual=True), Core(1, "cpu", virtual=True))


@pytest.mark.parametrize(
    ("setting", "listens"), [("1", False), ("0", False), ("all", True), ("ALL", True), ("", False)]
)
def test_who_is_listened_to(monkeypatch: pytest.MonkeyPatch, setting: str, listens: bool):
    monkeypatch.setenv("ANYTPU_RECORD_RUNS", setting)
    assert (listener_of(PROGRAM, VIRTUAL) is not None) is listens


def test_a_setting_that_is_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ANYTPU_RECORD_RUNS", "sometimes")
    with pytest.raises(SettingError) as caught:
        listener_of(PROGRAM, VIRTUAL)
    assert str(caught.value) == (
        "ANYTPU_RECORD_RUNS must be 1 (runs on a TPU or GPU store their step time, the default), 0 (none does) or all "
        "(those on virtual cores too), not 'sometimes'"
    )


def test_calls_are_passed_on():
    reported: list[Any] = []
    listener = Listener(lambda steps, duration_s: reported.append((steps, duration_s)))
    listener(4, 0.5)
    listener(8, 1.0)
    assert reported == [(4, 0.5), (8, 1.0)]
    assert not listener.is_satisfied


def test_enough_is_enough():
    listener = Listener(lambda steps, duration_s: None)
    for _ in range(ENOUGH_CALLS):
        listener(1, 0.1)
    assert listener.is_satisfied


def test_a_listener_that_fails_is_dropped():
    reported: list[int] = []

    def fail(steps: int, duration_s: float) -> None:
        reported.append(steps)
        raise OSError("no space left on device")

    listener = Listener(fail)
    listener(4, 0.5)
    listener(4, 0.5)
    assert reported == [4]
    assert listener.is_satisfied
