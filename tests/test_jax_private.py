"""Each private name of JAX that is used is named here, and a JAX without it fails here first."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core.primitives import while_p
from jax.interpreters import mlir

from anytpu.strategy.replicas import is_mapped


def test_a_value_under_vmap_is_a_batch_tracer():
    seen: list[Any] = []

    def look(x: Any, same: Any) -> Any:
        seen.extend([x, is_mapped(x), is_mapped(same)])
        return x

    jax.vmap(look, in_axes=(0, None))(jnp.zeros(2), jnp.zeros(2))
    assert type(seen[0]).__name__ == "BatchTracer", (
        f"JAX {jax.__version__} names the values under vmap {type(seen[0]).__name__}, and strategy/replicas.is_mapped "
        "knows by the name BatchTracer which values differ between replicas"
    )
    assert getattr(seen[0], "batch_dim", None) == 0, (
        f"JAX {jax.__version__} has no BatchTracer.batch_dim, by which is_mapped knows a value that is mapped"
    )
    assert seen[1:] == [True, False]


def test_the_table_of_lowerings_is_there():
    lowerings = getattr(mlir, "_lowerings", {})
    rule = getattr(lowerings.get(lax.conv_general_dilated_p), "rule", None)
    assert callable(rule), (
        f"JAX {jax.__version__} has no mlir._lowerings[lax.conv_general_dilated_p].rule, the plain lowering that "
        "engine/kernels.py falls back on"
    )


def test_the_lowering_of_products_for_the_cpu_is_there():
    of_cpu = getattr(mlir, "_platform_specific_lowerings", {}).get("cpu", {})
    assert callable(getattr(of_cpu.get(lax.dot_general_p), "rule", None)), (
        f'JAX {jax.__version__} has no mlir._platform_specific_lowerings["cpu"][lax.dot_general_p].rule, the plain '
        "lowering that engine/kernels.py falls back on"
    )


def test_a_lowered_program_gives_its_hlo_with_paths_and_lines():
    def twice(x: Any) -> Any:
        with jax.named_scope("layer"):
            return x @ x

    computation: Any = jax.jit(twice).lower(jnp.zeros((2, 2))).compiler_ir("hlo")
    text = computation.as_hlo_module().to_string()
    assert 'op_name="jit(twice)/layer/dot_general"' in text, (
        f"JAX {jax.__version__} does not write paths into the text of an HLO module, by which planning/roofline knows "
        "the layer of an operation"
    )
    assert "FileNames" in text and "StackFrames" in text


def test_the_lowering_of_loops_and_its_mark_are_there():
    rule = getattr(mlir._lowerings.get(while_p), "rule", None)
    assert callable(rule), (
        f"JAX {jax.__version__} has no mlir._lowerings[while_p].rule, the plain lowering that engine/kernels.py falls "
        "back on"
    )
    with set_xla_metadata(xla_cpu_small_call="true"):
        marked = jax.jit(lambda x: x + 1).lower(1.0).as_text()
    assert 'xla_cpu_small_call = "true"' in marked
