"""`CompiledExecutable`: the error of a failed call names the cause, and says that the state is lost."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from anytpu.engine.executable import CompiledExecutable, _failure_text
from anytpu.errors import BackendError

SPEC = jax.ShapeDtypeStruct((), "float32")
COUNT = jax.ShapeDtypeStruct((), "int32")
FAILED = (
    "the call of a compiled program failed: XLA reports {!r}. The state passed to this call is lost: load saved "
    "weights into the model before you continue"
)


def fail(x: Any) -> Any:
    raise OSError("the disk is full")


def failing(state: Any, batch: Any) -> tuple:
    return state + jax.pure_callback(fail, SPEC, batch), {"loss": batch}


def failing_loop(state: Any, feed: Any, start: Any, count: Any) -> tuple:
    state, last = failing(state, feed)
    return state, last, last, start + count


def test_a_step_that_fails():
    executable = CompiledExecutable(jax.jit(failing).lower(SPEC, SPEC))
    with pytest.raises(BackendError) as caught:
        jax.block_until_ready(executable.step(np.float32(1), np.float32(2)))
    assert isinstance(caught.value.__cause__, jax.errors.JaxRuntimeError)
    assert str(caught.value) == FAILED.format(str(caught.value.__cause__).splitlines()[0])
    assert "the disk is full" in str(caught.value.__cause__)


def test_a_loop_that_fails():
    executable = CompiledExecutable(jax.jit(failing_loop).lower(SPEC, SPEC, COUNT, COUNT))
    with pytest.raises(BackendError) as caught:
        executable.steps(np.float32(1), np.float32(2), 0, 1)
    assert str(caught.value) == FAILED.format(str(caught.value.__cause__).splitlines()[0])


def test_only_the_first_line_is_quoted():
    first_line = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes."
    assert _failure_text(f"{first_line}\nAllocation type: heap\n") == FAILED.format(first_line)
    assert _failure_text("") == FAILED.format("")
