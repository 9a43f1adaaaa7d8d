"""What the host computes: any number of rows, and the same again after it was written down as JSON and arrays."""

from __future__ import annotations

import dataclasses
import json
import re
import tracemalloc
from typing import Any

import anytpu  # noqa: F401  # isort: skip
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anytpu import program
from anytpu.chip.graph.nodes import HostStep, Network
from anytpu.chip.image.serialization import RecordDecoder, RecordEncoder
from anytpu.chip.network import foreign, read
from anytpu.chip.network.operations import compute
from anytpu.errors import ChipError


def network_of(function: Any, *inputs: np.ndarray, rows: int = 8) -> Network:
    def step(state: Any, batch: Any) -> Any:
        return state, function(*batch)

    made = program.of(step, ((), tuple(one[:rows] for one in inputs)), tensors=True)
    return read(dataclasses.replace(made, mode="infer"))


def written(step: HostStep) -> tuple[dict[str, Any], list[Any], list[np.ndarray]]:
    encoder = RecordEncoder()
    return encoder.fields(step), json.loads(json.dumps(encoder.steps)), encoder.arrays


def read_again(described: dict[str, Any], steps: list[Any], arrays: list[np.ndarray]) -> HostStep:
    return RecordDecoder(arrays, steps, 2**20, 1).record(HostStep, described)


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


INDICES = np.random.default_rng(0).integers(0, 9, (11, 4)).astype(np.int32)
TABLE = values(9, 5)
CASES = {
    "softmax": (jax.nn.softmax, values(11, 6)),
    "log softmax": (jax.nn.log_softmax, values(11, 6)),
    "embedding": (lambda x: jnp.asarray(TABLE)[x], INDICES),
    "sort": (lambda x: jnp.sort(x, axis=-1), values(11, 6)),
    "search": (lambda x: jnp.argmax(x, axis=-1), values(11, 6)),
    "transpose": (lambda x: jnp.swapaxes(x, 1, 2), values(11, 3, 4)),
    "product of activations": (lambda x: jnp.einsum("bij,bkj->bik", x, x), values(11, 3, 4)),
    "reduce window": (lambda x: jnp.cumsum(x, axis=1), values(11, 6)),
    "divide": (lambda x: x / (1 + jnp.sum(x * x, -1, keepdims=True)), values(11, 6)),
    "add": (lambda x: x + jnp.asarray(values(3, 4)), values(11, 3, 4)),
    "one hot": (lambda x: jax.nn.one_hot(x, 9), INDICES),
    "remainder": (lambda x: (x % 3) // 2 + (x << 1), INDICES),
    "top": (lambda x: jax.lax.top_k(x, 2)[0], values(11, 6)),
    "repeated channels": (lambda x: jnp.repeat(x, 2, axis=2), values(11, 3, 4)),
    "reversed channels": (lambda x: x[..., ::-1], values(11, 3, 4)),
    "picked channels": (lambda x: x[..., jnp.array([2, 0])], values(11, 3, 4)),
}


@pytest.mark.parametrize("name", CASES)
def test_any_number_of_rows(name: str):
    function, x = CASES[name]
    network = network_of(function, x)
    (step,) = network.nodes
    assert isinstance(step, HostStep)
    want = np.asarray(function(x))
    got = compute(step, [x.reshape(11, *network.shapes["input"])])
    assert got.shape == (11, *network.shapes[step.output])
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got.reshape(want.shape), want, rtol=1e-5, atol=1e-6)

    np.testing.assert_array_equal(compute(read_again(*written(step)), [x.reshape(11, *x.shape[1:])]), got)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_products_of_small_integers_are_summed_in_the_dtype_of_the_result(dtype: str):
    ends = np.iinfo(dtype)
    x, weights = (np.random.default_rng(n).integers(ends.min, ends.max, (11, 11)).astype(dtype) for n in (1, 2))
    for function in (
        lambda x: jax.lax.dot(x, weights, preferred_element_type=jnp.int32),
        lambda x: jnp.einsum("bi,bi->b", x, jnp.flip(x, 1), preferred_element_type=jnp.int32),
    ):
        (step,) = network_of(function, x).nodes
        assert isinstance(step, HostStep)
        made = compute(step, [x.reshape(11, 1, 1, 11)])
        np.testing.assert_array_equal(made.reshape(11, -1), np.asarray(function(x)).reshape(11, -1))


@pytest.mark.parametrize("name", ["softmax", "log softmax", "embedding", "sort", "search", "transpose"])
def test_steps_have_names(name: str):
    (step,) = network_of(*CASES[name]).nodes
    assert isinstance(step, HostStep) and step.kind == name


PARTS = {"name": "concatenate", "operands": ["a"] * 10_000, "attributes": {"dimension": 0}}
SPREAD = {"name": "reduce", "operands": ["a", {"array": 0}], "attributes": {"reducer": "add", "dimensions": []}}
CRAFTED = {
    "more parts than the result has": (PARTS, "10000 parts do not make (8, 1000)"),
    "a reduction that begins with many": (SPREAD, "a reduction that begins with (1, 8, 1000)"),
}


@pytest.mark.parametrize("name", CRAFTED)
def test_a_crafted_operation_takes_no_more_memory_than_its_result(name: str):
    described, message = CRAFTED[name]
    (step,) = network_of(lambda x: jnp.sort(x, axis=-1), values(8, 1000)).nodes
    assert isinstance(step, HostStep)
    fields, (whole,), _ = written(step)
    taken = whole["arguments"][0]["name"]
    described = {**whole["operations"][0], **described, "number": 0}
    described["operands"] = [taken if one == "a" else one for one in described["operands"]]
    whole["operations"] = [described]
    crafted = read_again(fields, [whole], [values(1, 8, 1000)])
    tracemalloc.start()
    try:
        with pytest.raises(ChipError) as caught:
            compute(crafted, [values(8, 1, 1, 1000)])
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()
    assert str(caught.value) == (
        f"The host's step {step.name!r} cannot be computed (ValueError: {message}): its operations make no sense. "
        "Compile the program again."
    )


OTHER = "an operation whose text does not make float32 [8, 6]"
MADE = {
    "another shape": ("tensor<9x6xf32>", OTHER),
    "another dtype": ("tensor<8x6xi32>", OTHER),
    "more": (
        "tensor<8x6xf32>, tensor<99999999xf32>",
        "an operation 'stablehlo.custom_call', which makes more than [8, 6]",
    ),
}


@pytest.mark.parametrize("name", MADE)
def test_an_operation_whose_text_makes_something_else(name: str):
    made, message = MADE[name]
    kinds, values = f"({made})", ", ".join(f"%0#{index}" for index in range(made.count("tensor")))
    text = f"""\
func.func public @main(%a: tensor<8x6xf32>) -> {kinds} {{
  %0:{made.count("tensor")} = stablehlo.custom_call @lapack_s(%a) : (tensor<8x6xf32>) -> {kinds}
  return {values} : {made}
}}
"""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        foreign.check(text, (8, 6), np.dtype("float32"), 0)


def test_an_operation_may_make_as_much_as_it_takes():
    """Eigenvalues come with what is left of the matrix, which may be larger than `_FREE_NUMBERS`."""
    rows = np.ones((2, 800), np.float32)
    network = network_of(lambda x: jnp.linalg.eigvalsh(x[:, :, None] * x[:, None, :]), rows, rows=2)
    steps = [node for node in network.nodes if isinstance(node, HostStep)]
    assert [read_again(*written(step)).output for step in steps] == [step.output for step in steps] != []


def test_operations_side_by_side_are_one_step():
    def function(x: Any) -> Any:
        y = jax.nn.softmax(x) * jnp.sort(x)
        return jnp.cumsum(y, axis=-1) / (1 + jnp.max(y, axis=-1, keepdims=True))

    network = network_of(function, values(11, 6))
    assert [type(node) for node in network.nodes] == [HostStep]


def test_constants_are_written_small():
    (step,) = network_of(lambda x: jnp.sort(x * x, axis=-1) * 2 + 1, values(1, 600)).nodes[-1:]
    assert isinstance(step, HostStep)
    _, _, held = written(step)
    assert sum(array.nbytes for array in held) < 100


def test_no_rows_give_no_rows():
    network = network_of(jax.nn.softmax, values(11, 6))
    (step,) = network.nodes
    assert isinstance(step, HostStep)
    assert compute(step, [np.zeros((0, 1, 1, 6), np.float32)]).shape == (0, 1, 1, 6)
