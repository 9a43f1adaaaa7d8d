"""A step that reads a value of its trace: JAX's error names the user's function, its file and its line."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import anytpu as tpu


def branch(x):
    return x if x.sum() > 0 else -x


def convert(x):
    return np.asarray(x)


class Branch:
    def __call__(self, x):
        return branch(x)


@pytest.mark.parametrize(
    ("step", "written"),
    [
        (branch, branch),
        (convert, convert),
        (functools.partial(branch), branch),
        (Branch(), Branch.__call__),
        (Branch().__call__, Branch.__call__),
    ],
)
def test_the_error_names_the_users_line(step, written):
    with pytest.raises((jax.errors.TracerBoolConversionError, jax.errors.TracerArrayConversionError)) as caught:
        tpu.connect("virtual", cores=2).run(step, args=(jnp.ones(2),))
    line = written.__code__.co_firstlineno
    assert f"while tracing the function {written.__name__} at {__file__}:{line} for" in str(caught.value)


def test_a_step_that_wraps_itself():
    def step(x):
        return x + 1

    step.__wrapped__ = step  # pyright: ignore[reportFunctionMemberAccess]
    assert tpu.connect("virtual", cores=1).run(step, args=(jnp.ones(2),)).tolist() == [2, 2]
