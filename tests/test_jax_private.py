"""Each private name of JAX that is used is named here, and a JAX without it fails here first."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import jaxpr_as_fun
from jax.interpreters import mlir, partial_eval

from anytpu import _env, _jax
from anytpu.strategy.uneven.agreement import AxisSize


def test_a_trace_is_noticed():
    inside = []
    jax.eval_shape(lambda x: inside.append(_jax.is_tracing()) or x, jax.ShapeDtypeStruct((), "float32"))
    assert (inside, _jax.is_tracing()) == ([True], False)


def test_an_array_becomes_as_weak():
    array = _jax.as_weak(jax.device_put(np.ones(2, "float32"), jax.devices()[0]))
    assert (array.weak_type, array.dtype, array.committed, array.tolist()) == (True, "float32", True, [1.0, 1.0])


def test_a_value_under_vmap_is_a_batch_tracer():
    seen: list[Any] = []

    def look(x: Any, same: Any) -> Any:
        seen.extend([x, _jax.is_mapped(x), _jax.is_mapped(same)])
        return x

    jax.vmap(look, in_axes=(0, None))(jnp.zeros(2), jnp.zeros(2))
    assert type(seen[0]).__name__ == "BatchTracer", (
        f"JAX {jax.__version__} names the values under vmap {type(seen[0]).__name__}, and `_jax.is_mapped` "
        "knows by the name BatchTracer which values differ between replicas"
    )
    assert getattr(seen[0], "batch_dim", None) == 0, (
        f"JAX {jax.__version__} has no BatchTracer.batch_dim, by which `_jax.is_mapped` knows a value that is mapped"
    )
    assert seen[1:] == [True, False]


@pytest.mark.parametrize("primitive", [lax.conv_general_dilated_p, lax.dot_general_p])
def test_the_tables_of_lowerings_are_there(primitive: Any):
    tables = getattr(mlir, "_lowerings", {}), getattr(mlir, "_platform_specific_lowerings", {}).get("cpu", {})
    rules = [getattr(table.get(primitive), "rule", None) for table in tables]
    assert any(map(callable, rules)), (
        f"JAX {jax.__version__} has no rule of {primitive} in mlir._lowerings or in "
        'mlir._platform_specific_lowerings["cpu"], by which engine/kernels.py lowers what it does not rewrite'
    )
    assert _jax.cpu_lowering(primitive) in rules


def test_jax_knows_whether_its_devices_are_started():
    from jax._src import xla_bridge

    assert isinstance(xla_bridge.backends_are_initialized(), bool), (
        f"JAX {jax.__version__} has no jax._src.xla_bridge.backends_are_initialized, by which `_jax.has_started` knows "
        "whether the platform can still be chosen"
    )
    jax.devices()
    assert _jax.has_started()


def test_a_child_can_parse_xla_flags():
    command = [sys.executable, "-P", "-c", _jax.PARSE_FLAGS]
    child = subprocess.run(command, env=_env.trial_environment(), capture_output=True, text=True)
    assert child.returncode == 0, f"jaxlib {version('jaxlib')} cannot run {_jax.PARSE_FLAGS!r}: {child.stderr}"


def test_dead_code_is_removed_from_a_jaxpr():
    dce_jaxpr = getattr(partial_eval, "dce_jaxpr", None)
    assert callable(dce_jaxpr), (
        f"JAX {jax.__version__} has no jax.interpreters.partial_eval.dce_jaxpr, by which planning/shardings finds "
        "the arguments that a result depends on"
    )
    jaxpr = jax.make_jaxpr(lambda x, y: (x @ x, x + y)[1])(jnp.zeros((2, 2)), jnp.zeros((2, 2))).jaxpr
    kept, _ = dce_jaxpr(jaxpr, [True], instantiate=True)
    assert [equation.primitive.name for equation in kept.eqns] == ["add"]
    assert len(kept.invars) == 2


def test_the_code_of_a_kernel_can_be_read():
    from jax.extend.mlir import ir
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mosaic.python import tpu

    names = [(ir, "MLIRError"), (_jax_mlir_ext, "register_dialects"), (tpu, "register_dialect")]
    assert all(hasattr(module, name) for module, name in names), (
        f"the jaxlib of JAX {jax.__version__} cannot read the code of Pallas kernels as planning/timing/mosaic.py does"
    )
    with _jax.kernel_context():
        module = ir.Module.parse("func.func @kernel(%x: memref<8x128xf32, #tpu.memory_space<vmem>>) { return }")
    assert "#tpu.memory_space<vmem>" in str(module)


def test_the_text_of_a_program_has_its_constants():
    mask = np.arange(64, dtype="int8").reshape(8, 8)
    compiled = jax.jit(lambda x: x + mask).lower(jax.ShapeDtypeStruct((8, 8), "int8")).compile()
    assert "{ 56, 57, 58, 59, 60, 61, 62, 63 }" in _jax.text_with_constants(compiled), (
        f"the jaxlib of JAX {jax.__version__} prints no constants, by which planning/compiler/child.py knows the mask "
        "of attention"
    )


def test_the_races_of_the_kernel_interpreter():
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call
    from jax._src.pallas.mosaic.interpret.race_detection_state import RaceDetectionState

    assert hasattr(interpret_pallas_call, "races") and RaceDetectionState.races_found is False
    assert _jax.kernel_has_race() is False


def test_a_sum_of_python_numbers_can_be_replaced():
    def folded(fold: Any, total: Any) -> Any:
        with _jax.numbers_summed("replica", total):
            trace: Any = jax.make_jaxpr(lambda: fold("replica"), axis_env=[("replica", AxisSize(4))])
            return trace().jaxpr.outvars[0].val

    numbers = [2, 2.0, np.int32(2), np.float32(2)]
    for total, expected in ((lambda number, _: None, 8), (lambda number, _: None if number == 1 else number + 9, 11)):
        sums = [folded(lambda axis, number=number: lax.psum(number, axis), total) for number in numbers]
        assert [*sums, 4 * folded(lambda axis: lax.pmean(2, axis), total)] == pytest.approx([expected] * 5), (
            f"JAX {jax.__version__} sums numbers elsewhere than in lax.parallel._psum, by which a step knows the sum "
            "of its replicas' numbers of rows"
        )
    assert lax.psum(jnp.ones(3), ()).shape == (3,)


def test_the_maximum_of_nothing_can_be_had():
    with _jax.extremes_of_nothing():
        found = [jnp.max(jnp.zeros((0, 2)), axis=0).tolist(), float(jnp.zeros(0).min()), float(jnp.max(jnp.ones(1)))]
    assert found == [[-np.inf, -np.inf], np.inf, 1.0], (
        f"JAX {jax.__version__} reduces elsewhere than in reductions._reduction, where the maximum of no rows is -inf"
    )
    with pytest.raises(ValueError, match="zero-size array"):
        jnp.max(jnp.zeros((0, 3)))


def test_a_trace_for_another_axis_size_of_the_same_value_is_not_reused():
    calls: list[int] = []

    @jax.jit
    def inner(x: Any) -> Any:
        calls.append(1)
        return lax.psum(x, "replica")

    for _ in range(2):
        jax.make_jaxpr(inner, axis_env=[("replica", AxisSize(4))])(1.0)
    assert len(calls) == 2, f"JAX {jax.__version__} compares the sizes of axes by value when it looks for a trace"


CLIENTS = """
import socket, sys, threading
from jaxlib import _jax as native
from anytpu import _jax

with socket.create_server(("127.0.0.1", 0)) as probe:
    port = probe.getsockname()[1]
service = _jax.coordination_service(f"127.0.0.1:{port}", 2, 3600)
other = native.get_distributed_runtime_client(f"127.0.0.1:{port}", 1, init_timeout=60, shutdown_on_destruction=False)
thread = threading.Thread(target=other.connect)
thread.start()
_jax.listen_for_collectives("127.0.0.1")
client = _jax.connect_client(f"127.0.0.1:{port}", 2, 0, 60, 3600)
thread.join()
client.key_value_set_bytes("folder/a", b"1")
print(other.key_value_dir_get_bytes("folder/"))
client.key_value_delete("folder/")
print(client.key_value_dir_get_bytes("folder/"))
try:
    client.wait_at_barrier("end", 200)
except Exception as error:
    print(str(error)[:17], "timed out task names:\\n1\\n" in str(error))
from jax._src import distributed, xla_bridge
state = distributed.global_state
print(state.process_id, state.num_processes, state.client is client)
print(xla_bridge._backend_factories["cpu"].factory.__name__)
_jax.forget_client()
print(state.client)
other.shutdown()
"""


def test_clients_of_a_coordination_service():
    # In a process of its own: a client exists once, and this process has started its devices.
    environment = _env.trial_environment()
    child = subprocess.run(
        [sys.executable, "-c", CLIENTS], env=environment, capture_output=True, text=True, timeout=300
    )
    assert child.returncode == 0, f"JAX {jax.__version__} has other names for its coordination service: {child.stderr}"
    assert child.stdout.splitlines() == [
        "[('folder/a', b'1')]",
        "[]",
        "DEADLINE_EXCEEDED True",
        "0 2 True",
        "cpu_client",
        "None",
    ]


def test_the_clusters_of_jax_have_names():
    from jax._src import clusters

    names = {kind.name for kind in clusters.ClusterEnv._cluster_types}
    assert {"slurm", "ompi", "gketpu", "gcetpu"} <= names, f"JAX {jax.__version__} names its clusters {names}"
    assert _jax.cluster("slurm", None, 1) is None


def test_weak_types():
    assert _jax.as_weak(jnp.float32(1)).weak_type
    assert jax.eval_shape(jax.vmap(_jax.as_weak), jnp.ones(3)).weak_type
    found = [_jax.is_weak(value) for value in (1, 1.0, jnp.asarray(1.0), True, jnp.float32(1), np.float64(1))]
    assert found == [True, True, True, False, False, False]


def test_a_trace_loses_its_references():
    def count(x: Any) -> Any:
        reference = jax.new_ref(x)
        jax.grad(lambda y: reference.__setitem__(..., lax.stop_gradient(reference[...] + y)) or y)(x)
        return jax.freeze(reference)

    pure = _jax.without_references(jax.make_jaxpr(count)(1.0))
    assert not pure.effects, f"JAX {jax.__version__} keeps references, which train/outside.py takes out of a step"
    assert jaxpr_as_fun(pure)(1.0) == [2.0]
