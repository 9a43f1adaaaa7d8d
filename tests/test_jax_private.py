"""Each private name of JAX that is used is named here, and a JAX without it fails here first."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core.primitives import while_p
from jax.interpreters import mlir, partial_eval

from anytpu.program.mapped import is_mapped
from anytpu.strategy.padded.folds import AxisSize


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


def test_dead_code_is_removed_from_a_jaxpr():
    dce_jaxpr = getattr(partial_eval, "dce_jaxpr", None)
    assert callable(dce_jaxpr), (
        f"JAX {jax.__version__} has no jax.interpreters.partial_eval.dce_jaxpr, by which planning/floor leaves out "
        "what no result depends on"
    )
    jaxpr = jax.make_jaxpr(lambda x, y: (x @ x, x + y)[1])(jnp.zeros((2, 2)), jnp.zeros((2, 2))).jaxpr
    kept, _ = dce_jaxpr(jaxpr, [True], instantiate=True)
    assert [equation.primitive.name for equation in kept.eqns] == ["add"]
    assert len(kept.invars) == 2


def test_the_lowering_of_loops_and_its_mark_are_there():
    rule = getattr(mlir._lowerings.get(while_p), "rule", None)
    assert callable(rule), (
        f"JAX {jax.__version__} has no mlir._lowerings[while_p].rule, the plain lowering that engine/kernels.py falls "
        "back on"
    )
    with set_xla_metadata(xla_cpu_small_call="true"):
        marked = jax.jit(lambda x: x + 1).lower(1.0).as_text()
    assert 'xla_cpu_small_call = "true"' in marked


def test_the_code_of_a_kernel_can_be_read():
    from jaxlib.mlir import ir
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mosaic.python import tpu

    names = [(ir, "MLIRError"), (_jax_mlir_ext, "register_dialects"), (tpu, "register_dialect")]
    assert all(hasattr(module, name) for module, name in names), (
        f"the jaxlib of JAX {jax.__version__} cannot read the code of Pallas kernels as planning/timing/mosaic.py does"
    )


def test_psum_of_a_python_number_multiplies_it_by_the_size_of_the_axis():
    def folded(fold: Any) -> Any:
        trace: Any = jax.make_jaxpr(lambda: fold("replica"), axis_env=[("replica", AxisSize(4))])
        return trace().jaxpr.outvars[0].val

    numbers = [2, 2.0, np.int32(2), np.float32(2)]
    values = [folded(lambda axis, number=number: lax.psum(number, axis)) for number in numbers]
    values += [folded(lambda axis: lax.pmean(8, axis)), folded(lambda axis: lax.psum(1, axis))]
    assert values == [2018, 2018, 2018, 2018, 8 * 1009 / 4, 4], (
        f"JAX {jax.__version__} does not convert the size of an axis to the type of the number in _const(example, "
        "size), by which strategy/padded/folds.py finds the numbers that psum multiplies by it"
    )
