from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from anytpu.errors import PlanError
from anytpu.planning.compiler.request import request_of
from anytpu.planning.records.target import target_named
from compiler_samples import SQUARE, line_of, program_of, train


@pytest.fixture(autouse=True)
def with_64_bits():
    with jax.enable_x64(True):
        yield


def test_a_leaf_of_float64_is_named():
    with pytest.raises(PlanError) as error:
        request_of(program_of(train, batch=jax.ShapeDtypeStruct((64, 64), "float64")), target_named("v3-8"), {})
    assert str(error.value) == (
        "'batch' of the program 'train/train' is float64[64,64]. No TPU computes with it; XLA would do so in software, "
        "many times slower. Use float32, or leave JAX's 64 bits off: unset JAX_ENABLE_X64."
    )


def widening(state: Any, batch: Any) -> Any:
    with jax.named_scope("sums"):
        return state, jnp.sum(batch.astype("float64"), 0).astype("float32")


def test_an_operation_in_float64_is_named_by_layer_and_line():
    with pytest.raises(PlanError) as error:
        request_of(program_of(widening), target_named("v3-8"), {})
    assert str(error.value) == (
        "The program 'widening/train' computes float64[64,64], in the operation 'convert_element_type' of the layer "
        f"'sums', at {line_of(widening, 'astype')} (widening). No TPU computes with it; XLA would do so in software, "
        "many times slower. Use float32, or leave JAX's 64 bits off: unset JAX_ENABLE_X64."
    )


def test_float32_beside_64_bits_and_scalars_are_fine():
    request = request_of(program_of(train, batch=SQUARE), target_named("v3-8"), {})
    assert request.wide
