"""Keras and anytpu compile the same small programs again and again here: XLA's results are kept from test to test."""

import pathlib

import jax
import pytest


@pytest.fixture(autouse=True, scope="session")
def compile_each_program_once(request: pytest.FixtureRequest):
    before = jax.config.jax_compilation_cache_dir, jax.config.jax_persistent_cache_min_compile_time_secs
    jax.config.update("jax_compilation_cache_dir", str(request.config.cache.mkdir("xla")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    yield
    jax.config.update("jax_compilation_cache_dir", before[0])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", before[1])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # `Variable.numpy()` of Keras 3.15 does this with NumPy 2; its `__array__` takes no `copy`.
    keras_numpy = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")
    for item in items:
        if item.path.parent == pathlib.Path(__file__).parent:
            item.add_marker(keras_numpy)
