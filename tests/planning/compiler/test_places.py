from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp

from anytpu.planning.compiler.places import OperationPlace, is_users, operations
from compiler_samples import line_of


def test_files_of_the_user():
    assert is_users(__file__)
    assert not is_users(jax.__file__)
    assert not is_users(os.__file__)
    assert not is_users(str(operations.__code__.co_filename))


@jax.jit
def inner(x: Any) -> Any:
    with jax.named_scope("deep"):
        return jnp.tanh(x)


def outer(x: Any) -> Any:
    with jax.named_scope("layer"):
        return inner(x) + 1


def test_an_operation_inside_of_calls_keeps_its_layers_and_line():
    found = {operation.name: operation for operation in operations(jax.make_jaxpr(outer)(1.0))}
    line = line_of(inner.__wrapped__, "jnp.tanh")
    assert found["tanh"].place == OperationPlace("tanh", "layer/deep", f"{line} (inner)")
    assert str(found["tanh"].place) == f"the operation 'tanh' of the layer 'layer/deep', at {line} (inner)"
    file, number = line.rsplit(":", 1)
    assert found["tanh"].passes(file, int(number))
    assert found["tanh"].passes(file, int(line_of(outer, "inner(x)").rsplit(":", 1)[1]))
    assert not found["add"].passes(file, int(number))
