"""A warning of Keras that every test of this folder may meet, and saves that a busy machine does not postpone."""

import pathlib

import pytest

from anytpu.train.checkpoint import saver


@pytest.fixture(autouse=True)
def saves_are_not_postponed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let saves take a minute before one is postponed: beside other work, one of some tests took a second."""
    monkeypatch.setattr(saver, "_FREE_S", 60.0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # `Variable.numpy()` of Keras 3.15 does this with NumPy 2; its `__array__` takes no `copy`.
    keras_numpy = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")
    for item in items:
        if item.path.parent == pathlib.Path(__file__).parent:
            item.add_marker(keras_numpy)
