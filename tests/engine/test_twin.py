"""The twin: a handle is good for passing on and for `get`, and raises on anything else."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anytpu.engine import Loop
from anytpu.engine.twin import Handle, TwinBackend
from anytpu.errors import HandleError
from anytpu.program import REPLICATED
from anytpu.system.topologies import row_of_cores
from engine.samples import counting
from error_texts import error_text

NOT_AN_ARRAY = "a handle is not an array: pass it on as it is, or open it with backend.get(handle)"

MISUSES: dict[str, Callable] = {
    "float": float,
    "int": int,
    "complex": complex,
    "bool": bool,
    "len": len,
    "iter": iter,
    "tuple": tuple,
    "index": lambda handle: [1, 2, 3][handle],
    "item": lambda handle: handle[0],
    "set item": lambda handle: operator.setitem(handle, 0, 1),
    "contains": lambda handle: 1 in handle,
    "format": lambda handle: f"{handle:.3f}",
    "add": lambda handle: handle + 1,
    "add from the right": lambda handle: 1 + handle,
    "subtract": lambda handle: handle - handle,
    "multiply": lambda handle: 2.0 * handle,
    "divide": lambda handle: handle / 2,
    "power": lambda handle: handle**2,
    "matrix product": lambda handle: handle @ handle,
    "negate": operator.neg,
    "abs": abs,
    "round": round,
    "equal": lambda handle: handle == 1,
    "unequal": lambda handle: handle != 1,
    "less": lambda handle: handle < 1,
    "at least": lambda handle: handle >= 1,
    "set an attribute": lambda handle: setattr(handle, "shape", ()),
    "math": math.sqrt,
}
LIBRARIES: dict[str, tuple[Callable, str]] = {
    "numpy": (np.asarray, "__array_struct__"),
    "numpy copy": (np.array, "__array_struct__"),
    "numpy sum": (np.sum, "sum"),
    "numpy scalar": (np.float32, "__array_struct__"),
    "add to numpy": (lambda handle: np.ones(2) + handle, "__array_struct__"),
    "jax": (jnp.asarray, "aval"),
    "jax where": (lambda handle: jnp.where(True, handle, 1), "__jax_array__"),
    "add to jax": (lambda handle: jnp.ones(2) + handle, "__jax_array__"),
    "device_put": (jax.device_put, "__jax_array__"),
    "block_until_ready": (jax.block_until_ready, "block_until_ready"),
    "device_get": (jax.device_get, "copy_to_host_async"),
}
"""What NumPy and JAX do with an object that may be an array, and the attribute that they look for first."""


@pytest.fixture
def twin() -> TwinBackend:
    return TwinBackend(row_of_cores(8, kind="twin").cores)


text_of = functools.partial(error_text, kind=HandleError)


@pytest.mark.parametrize("name", MISUSES)
def test_a_handle_is_not_an_array(twin: TwinBackend, name: str):
    assert text_of(MISUSES[name], twin.put(np.ones(3, "float32"), REPLICATED)) == NOT_AN_ARRAY


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_handle_is_no_array_to_libraries_either(twin: TwinBackend, name: str):
    use, attribute = LIBRARIES[name]
    expected = f"a handle has no {attribute!r}: pass it on as it is, or open it with backend.get(handle)"
    assert text_of(use, twin.put(np.ones(3, "float32"), REPLICATED)) == expected


@pytest.mark.parametrize("use", [jnp.sum, jax.jit(lambda x: x)], ids=["sum", "jit"])
def test_a_handle_is_no_argument_of_a_jax_function(twin: TwinBackend, use: Callable):
    with pytest.raises(TypeError, match="Handle"):
        use(twin.put(np.ones(3, "float32"), REPLICATED))


@pytest.mark.parametrize("name", ["shape", "dtype", "copy", "block_until_ready", "is_ready", "nbytes", "_value"])
def test_a_handle_has_no_attributes(twin: TwinBackend, name: str):
    handle = twin.put(np.ones(3), REPLICATED)
    expected = f"a handle has no {name!r}: pass it on as it is, or open it with backend.get(handle)"
    assert text_of(getattr, handle, name) == expected
    assert text_of(hasattr, handle, name) == expected


def test_a_handle_can_be_passed_on(twin: TwinBackend):
    handle = twin.put(np.arange(3), REPLICATED)
    held = {handle: "by identity"}
    assert held[jax.tree.leaves({"a": [handle]})[0]] == "by identity"
    assert twin.put(handle, REPLICATED) is handle
    assert repr(handle).startswith("<anytpu.engine.handles.Handle object at ")
    assert twin.get({"a": [handle]})["a"][0].tolist() == [0, 1, 2]


def test_it_copies_in_and_out(twin: TwinBackend):
    array = np.zeros(3, "float32")
    handle = twin.put(array, REPLICATED)
    array[0] = 1
    got = twin.get(handle)
    got[1] = 1
    assert twin.get(handle).tolist() == [0, 0, 0]


def test_only_its_own_handles(twin: TwinBackend):
    sample = counting()
    expected = "expected a handle of this backend, not ndarray: use backend.put"
    executable, state = twin.compile(sample.program), twin.put(sample.state, REPLICATED)
    assert text_of(executable.step, state, sample.batch) == expected
    assert text_of(twin.get, {"x": np.ones(2)}) == expected
    assert np.asarray(twin.get(state)["rows"]) == 0


def test_a_state_is_gone_even_where_the_program_does_not_use_it(twin: TwinBackend):
    sample = counting()
    state, batch = twin.put(sample.state, REPLICATED), twin.put(sample.batch, REPLICATED)
    _, outputs = twin.compile(sample.program).step(state, batch)
    expected = (
        "this handle is invalid, because it was the state of a call, which consumed it: use the state that the call "
        "returned"
    )
    assert text_of(twin.get, state) == expected
    assert text_of(twin.compile(sample.program).step, state, batch) == expected
    assert isinstance(outputs["loss"], Handle)


def test_a_loop_gives_handles(twin: TwinBackend):
    sample = counting()
    executable = twin.compile(sample.program, Loop(2, "batches", guard="loss"))
    feed = twin.put(jax.tree.map(lambda leaf: np.stack([leaf] * 2), sample.batch), REPLICATED)
    done = executable.steps(twin.put(sample.state, REPLICATED), feed, 0, 2)
    leaves = jax.tree.leaves((done.state, done.last, done.every, done.bad_steps))
    assert {type(leaf) for leaf in leaves} == {Handle}
    assert done.count == 2
