"""Saves that a busy machine does not postpone."""

import pytest

from anytpu.train.checkpoint import saver


@pytest.fixture(autouse=True)
def saves_are_not_postponed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let saves take a minute before one is postponed: beside other work, one of some tests took a second."""
    monkeypatch.setattr(saver, "_FREE_S", 60.0)
