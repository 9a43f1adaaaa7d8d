"""A warning of Keras that every test of this folder may meet."""

import pathlib

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # `Variable.numpy()` of Keras 3.15 does this with NumPy 2; its `__array__` takes no `copy`.
    keras_numpy = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")
    for item in items:
        if item.path.parent == pathlib.Path(__file__).parent:
            item.add_marker(keras_numpy)
