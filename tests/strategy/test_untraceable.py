"""A step that reads a value of its trace: JAX's error names the user's function, its file and its line."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import anytpu as tpu


def branch(x):
    return x if x.sum() > 0 else -x


def convert(x):
    return np.asarray(x)


@pytest.mark.parametrize("step", [branch, convert])
def test_the_error_names_the_users_line(step):
    with pytest.raises((jax.errors.TracerBoolConversionError, jax.errors.TracerArrayConversionError)) as caught:
        tpu.connect("virtual", cores=2).run(step, args=(jnp.ones(2),))
    line = step.__code__.co_firstlineno
    assert f"while tracing the function {step.__name__} at {__file__}:{line} for" in str(caught.value)
