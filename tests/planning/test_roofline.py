from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

import anytpu as tpu
from anytpu.errors import ProgramError
from anytpu.planning.input_wait import waiting_for_input
from anytpu.planning.records import OpTime, StepTime
from anytpu.planning.roofline import roofline_time
from anytpu.planning.roofline.estimate import WIDTH, machine_of
from anytpu.planning.roofline.fusing import kernels_of
from anytpu.planning.roofline.node import scopes_of
from anytpu.planning.roofline.pricing import dot_sizes, padding_factor
from anytpu.planning.roofline.reductions import all_reduce_s
from anytpu.planning.roofline.share import lowered_module
from anytpu.planning.target import target_named
from anytpu.program.program import REPLICA_AXIS, REPLICATED, ROWS, Program
from anytpu.system.chips import CHIPS
from anytpu.system.topologies import slice_sizes
from anytpu.units import GIB

V3, V5E = target_named("v3-8"), target_named("v5e-1")
DISPATCH = "host dispatch"
ROW_BYTES = 4 * 512


def spec(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def training(rows: int = 64) -> Program:
    """Return one step of gradient descent on two layers of 512 x 512."""

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope("first"):
            hidden = jax.nn.relu(x @ weights[0])
        with jax.named_scope("second"):
            return ((hidden @ weights[1]) ** 2).mean()

    def step(weights: Any, x: Any) -> tuple[Any, Any]:
        value, slopes = jax.value_and_grad(loss)(weights, x)
        return jax.tree.map(lambda w, s: w - 0.1 * s, weights, slopes), value

    return Program("sgd/train", step, [spec(512, 512)] * 2, spec(rows, 512), ROWS, state_names=("first", "second"))


def inference(step: Any, *state: jax.ShapeDtypeStruct, batch: Any = None) -> Program:
    given = spec(8, 128) if batch is None else batch
    return Program("it/infer", step, list(state), given, jax.tree.map(lambda _: ROWS, given), mode="infer")


def products(time: StepTime) -> list[OpTime]:
    return [op for op in time.ops if op.kind == "matmul"]


def test_a_product_is_counted_exactly():
    program = inference(lambda state, x: (state, x @ state[0]), spec(128, 256))
    time, _ = roofline_time(program, V5E)
    (op,) = products(time)
    assert op.flops == 2 * 8 * 128 * 256
    assert op.bytes == 4 * (8 * 128 + 128 * 256 + 8 * 256)
    assert (op.opcode, op.bound, op.priced_by) == ("dot", "memory", "roofline")


def test_a_large_product_is_bound_by_the_matrix_units():
    program = inference(lambda state, x: (state, x @ state[0]), spec(4096, 4096), batch=spec(4096, 4096))
    (op,) = products(roofline_time(program, V5E)[0])
    assert op.bound == "compute"
    assert op.time_s > 2 * 4096**3 / V5E.flops_per_s


def test_it_says_what_it_is():
    time, _ = roofline_time(training(), V3)
    assert time.step_s == pytest.approx(sum(op.time_s for op in time.ops))
    assert time.interval_s == (time.step_s / WIDTH, time.step_s * WIDTH)
    assert time.evidence == (
        "a roofline estimate from the program's operations and bytes, without the TPU's compiler; beside that, such "
        "estimates were 0.69 to 1.41 times as long on 21 pairs of a program and a chip. For a prediction: pip install "
        "'anytpu[plan]'",
    )
    assert time.unpriced == ()


def test_the_host_and_the_input_are_in_it():
    alone, _ = roofline_time(training(), V3)
    shared, _ = roofline_time(training(), V3, steps_per_execution=100)
    (dispatch,) = [op for op in alone.ops if op.name == DISPATCH]
    assert (dispatch.kind, dispatch.priced_by) == ("host", "published measurements")
    assert alone.step_s - shared.step_s == pytest.approx(0.99 * dispatch.time_s)
    late = waiting_for_input(roofline_time(training(), V3)[0], 64.0, 64)
    assert late.step_s == pytest.approx(1.0)
    early = waiting_for_input(roofline_time(training(), V3)[0], 1e12, 64)
    assert early.step_s == pytest.approx(alone.step_s)


def test_layers_and_the_backward_pass_are_named():
    where = {(op.layer, op.is_backward) for op in products(roofline_time(training(), V3)[0])}
    assert where == {("first", False), ("second", False), ("first", True), ("second", True)}


def test_lines_of_the_program_are_named():
    (op,) = products(roofline_time(inference(lambda state, x: (state, x @ state[0]), spec(128, 256)), V5E)[0])
    path, line = op.source.rsplit(":", 1)
    assert Path(path).name == "test_roofline.py"
    assert int(line) == test_lines_of_the_program_are_named.__code__.co_firstlineno + 1


def test_each_device_does_its_part():
    alone = sum(op.flops for op in roofline_time(training(64), V5E)[0].ops)
    shared = sum(op.flops for op in roofline_time(training(64), V3)[0].ops)
    assert alone == 2 * 64 * 512 * 512 * 5  # No gradient of the input.
    assert shared == alone / 8


def test_rows_that_the_devices_do_not_divide_are_rounded_up():
    shared = sum(op.flops for op in roofline_time(training(65), V3)[0].ops)
    assert shared == 2 * 9 * 512 * 512 * 5


def test_gradients_are_added_up_over_the_devices():
    time, _ = roofline_time(training(), V3)
    gradients = next(op for op in time.ops if op.name == "all-reduce gradients")
    assert gradients.bytes == 2 * 512 * 512 * 4
    assert gradients.time_s == all_reduce_s(2 * 512 * 512 * 4, V3)
    assert (gradients.kind, gradients.bound, gradients.is_backward) == ("collective", "network", True)


def test_inference_needs_no_network():
    program = inference(lambda state, x: (state, jax.nn.softmax(x @ state[0])), spec(128, 256))
    assert all(op.kind != "collective" for op in roofline_time(program, V3)[0].ops)


def test_one_device_needs_no_network():
    assert all(op.kind != "collective" for op in roofline_time(training(), V5E)[0].ops)


def test_larger_slices_take_longer_to_add_up():
    few_bytes = [all_reduce_s(4, target_named(name)) for name in ("v3-8", "v3-32", "v3-512")]
    assert few_bytes == sorted(few_bytes)
    assert all_reduce_s(1e9, target_named("v5e-8")) > 2 * 7 / 8 * 1e9 / (4 * 50e9)


def test_what_several_slices_exchange_is_listed():
    said = (
        "the data center's network between slices: what they exchange is priced as if they were one slice, and takes "
        "longer"
    )
    assert roofline_time(training(), target_named("2xv5e-8"))[0].unpriced == (said,)
    assert roofline_time(training(), target_named("v5e-16"))[0].unpriced == ()


def test_per_replica_code():
    def step(weight: Any, x: Any) -> tuple[Any, Any]:
        slope = jax.grad(lambda w: ((x @ w) ** 2).mean())(weight)
        return weight - jax.lax.psum(slope, REPLICA_AXIS), {"rows": jnp.float32(x.shape[0])}

    program = Program("own/train", step, spec(512, 256), spec(8, 16, 512), ROWS, replicas=8)
    time, _ = roofline_time(program, V3)
    assert sum(op.flops for op in time.ops) == 2 * 2 * 16 * 512 * 256
    assert max(op.bytes for op in time.ops if op.kind == "collective") == 512 * 256 * 4


def test_loops_are_multiplied():
    def step(state: Any, x: Any) -> tuple[Any, Any]:
        return state, jax.lax.scan(lambda carry, w: (jnp.tanh(carry @ w), None), x, state[0])[0]

    time, _ = roofline_time(inference(step, spec(7, 128, 128)), V5E)
    (op,) = products(time)
    assert (op.count, op.flops) == (7, 7 * 2 * 8 * 128 * 128)
    assert op.time_s >= 7 * 4 * 128 * 128 / V5E.hbm_bytes_per_s
    assert op.bytes < 7 * 2 * 4 * 128 * 128  # A turn reads its own weights, not those of all turns.


def test_nested_loops_are_multiplied():
    def inner(x: Any, w: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda _, y: y @ w, x)

    def step(state: Any, x: Any) -> tuple[Any, Any]:
        return state, jax.lax.scan(lambda carry, w: (inner(carry, w), None), x, state[0])[0]

    (op,) = products(roofline_time(inference(step, spec(5, 128, 128)), V5E)[0])
    assert op.count == 15


def test_a_loop_that_depends_on_values_is_said():
    def step(state: Any, x: Any) -> tuple[Any, Any]:
        return state, jax.lax.while_loop(lambda y: y.sum() < 9.0, lambda y: y @ state[0], x)

    time, _ = roofline_time(inference(step, spec(128, 128)), V5E)
    assert products(time)[0].count == 1
    assert len(time.unpriced) == 1
    assert time.unpriced[0].endswith(": a loop whose number of turns is not fixed before it runs; counted once")


def test_of_branches_the_dearest_counts():
    def step(state: Any, x: Any) -> tuple[Any, Any]:
        return state, jax.lax.cond(x.sum() > 0, lambda: x @ state[0], lambda: x @ state[0] @ state[0] @ state[0])

    time, _ = roofline_time(inference(step, spec(128, 128)), V5E)
    assert sum(op.flops for op in time.ops) == 3 * 2 * 8 * 128 * 128


def test_what_is_not_known_is_listed():
    def step(state: Any, x: Any) -> tuple[Any, Any]:
        return state, jnp.linalg.qr(x)[0]

    time, _ = roofline_time(inference(step, batch=spec(64, 64)), V5E)
    assert any(text.endswith("is not known to a roofline; only its bytes are counted") for text in time.unpriced)


def test_element_wise_operations_become_one_kernel():
    def step(state: Any, x: Any) -> tuple[Any, Any]:
        return state, jnp.tanh(jnp.exp(x * 2 + 1) - 3)

    time, _ = roofline_time(inference(step, batch=spec(256, 512)), V5E)
    op, host = time.ops
    assert (op.kind, op.bytes) == ("vector", 2 * 256 * ROW_BYTES)
    assert host.name == DISPATCH


def test_what_follows_a_product_is_computed_with_it():
    def step(state: Any, x: Any) -> tuple[Any, Any]:
        return state, jax.nn.relu(x @ state[0] + 1)

    op, _ = roofline_time(inference(step, spec(512, 512), batch=spec(256, 512)), V5E)[0].ops
    assert op.bytes == (256 + 512 + 256) * ROW_BYTES


def test_a_sum_of_many_is_written_once():
    def step(state: Any, x: Any) -> tuple[Any, Any]:
        for weight in state:
            x = x + jnp.tanh(x @ weight)
        return state, x

    few, many = (
        sum(op.bytes for op in roofline_time(inference(step, *[spec(512, 512)] * n, batch=spec(64, 512)), V5E)[0].ops)
        for n in (4, 8)
    )
    assert many < 2.1 * few


def test_a_gather_reads_rows_only():
    def step(state: Any, tokens: Any) -> tuple[Any, Any]:
        return state, state[0][tokens]

    program = inference(step, spec(100_000, 512), batch=spec(32, dtype=jnp.int32))
    time, _ = roofline_time(program, V5E)
    assert sum(op.bytes for op in time.ops) < 4 * 32 * ROW_BYTES


def test_a_program_file_is_taken_whole(tmp_path: Path):
    path = tmp_path / "step.anytpu"
    tpu.program.write(training(), path)
    loaded = tpu.program.of(str(path))
    time, memory = roofline_time(loaded, V3)
    assert sum(op.flops for op in time.ops) == pytest.approx(2 * 8 * 512 * 512 * 5)
    assert max(op.bytes for op in time.ops if op.kind == "collective") == 2 * 512 * 512 * 4
    assert any(text.startswith("the step could not be traced for the rows of one device") for text in time.unpriced)
    assert memory.peak_bytes > 2 * 512 * 512 * 4


def test_a_program_with_shardings_of_its_own():
    mesh = AbstractMesh((4, 2), ("data", "model"))

    def placed(*shape: int, over: PartitionSpec) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, over))

    def step(weight: Any, x: Any) -> tuple[Any, Any]:
        return weight, jnp.tanh(x @ weight)

    state = placed(512, 1024, over=PartitionSpec(None, "model"))
    program = tpu.program.of(step, (state, placed(256, 512, over=PartitionSpec("data"))), mode="infer")
    time, memory = roofline_time(program, V3)
    assert sum(op.flops for op in time.ops) == 2 * 256 * 512 * 1024 / 8
    assert {(buffer.use, buffer.bytes) for buffer in memory.buffers} >= {
        ("state", 512 * 1024 * 4 // 2),
        ("batch", 256 * 512 * 4 // 4),
    }
    assert time.unpriced == (
        "the program brings shardings of its own: each device is taken to do an even part, and what the devices "
        "exchange is not priced",
    )


def test_memory_holds_the_state_the_batch_and_what_the_backward_pass_needs():
    def step(weights: Any, x: Any) -> tuple[Any, Any]:
        def loss(weights: Any) -> Any:
            y = x
            for weight in weights:
                y = jnp.tanh(y @ weight)
            return (y**2).sum()

        return jax.tree.map(lambda w, s: w - s, weights, jax.grad(loss)(weights)), jnp.float32(0)

    program = Program("deep/train", step, [spec(512, 512)] * 10, spec(8192, 512), ROWS)
    _, memory = roofline_time(program, V5E)
    state, batch, activations = 10 * 512 * ROW_BYTES, 8192 * ROW_BYTES, 10 * 8192 * ROW_BYTES
    assert state + batch + activations <= memory.peak_bytes < state + batch + 1.4 * activations
    assert memory.limit_bytes == 16125 * 2**20
    assert memory.fits
    uses = {buffer.use for buffer in memory.buffers}
    assert uses == {"state", "batch", "temporary"}
    sizes = [buffer.bytes for buffer in memory.buffers]
    assert sizes == sorted(sizes, reverse=True)


def test_inference_keeps_no_activations():
    def step(weights: Any, x: Any) -> tuple[Any, Any]:
        y = x
        for weight in weights:
            y = jnp.tanh(y @ weight)
        return weights, y.sum()

    program = inference(step, *[spec(512, 512)] * 10, batch=spec(8192, 512))
    _, memory = roofline_time(program, V5E)
    assert memory.peak_bytes < 10 * 512 * ROW_BYTES + 4 * 8192 * ROW_BYTES


def test_what_does_not_fit_is_said():
    program = inference(lambda state, x: (state, x @ state[0]), spec(70_000, 70_000), batch=spec(8, 70_000))
    _, memory = roofline_time(program, V5E)
    assert not memory.fits
    assert memory.missing_bytes == memory.peak_bytes - memory.limit_bytes


def test_arrays_that_every_device_holds_are_whole_there():
    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        return state, batch["x"] @ batch["table"]

    given = {"x": spec(64, 512), "table": spec(512, 512)}
    program = Program("table/infer", step, [], given, {"x": ROWS, "table": REPLICATED}, mode="infer")
    (op,) = products(roofline_time(program, V3)[0])
    assert op.bytes == (8 + 512 + 8) * ROW_BYTES


def test_products_are_padded_to_the_matrix_unit():
    program = inference(lambda state, x: (state, x @ state[0]), spec(128, 10))
    node = next(node for scope in scopes_of(lowered_module(program))[0] for node in scope.nodes if node.flops)
    assert dot_sizes(node) == (8, 128, 10)
    assert padding_factor(node, 128) == 8 * 128 * 128 / (8 * 128 * 10)
    assert padding_factor(node, 1) == 1.0


def test_batched_products_have_the_sizes_of_one():
    program = inference(lambda state, x: (state, jnp.einsum("bhqd,bhkd->bhqk", x, x)), batch=spec(4, 2, 32, 64))
    node = next(node for scope in scopes_of(lowered_module(program))[0] for node in scope.nodes if node.flops)
    assert dot_sizes(node) == (32, 64, 32)


@pytest.mark.parametrize("chip", ["v2", "v3", "v4", "v5e", "v5p", "v6e", "v7x"])
def test_every_chip_is_known(chip: str):
    target = target_named(f"{chip}-{min(slice_sizes(chip))}")
    machine = machine_of(target)
    assert machine.rate("bf16") == target.flops_per_s
    assert machine.rate("bf16x3") == target.flops_per_s / 3
    assert machine.rate("s8") >= machine.rate("bf16")
    time, memory = roofline_time(training(), target)
    assert time.step_s > 0
    assert memory.limit_bytes <= CHIPS[chip].hbm_bytes / CHIPS[chip].replicas * 1.01


def test_a_core_of_v4_alone_has_half_of_the_chips_memory():
    _, memory = roofline_time(training(), target_named("v4-8:cores"))
    assert memory.limit_bytes / GIB == pytest.approx(15.25, abs=0.006)


def test_kernels_have_no_input_among_them():
    (scope,), unknown = scopes_of(lowered_module(training()))
    kernels = kernels_of(scope)
    assert unknown == []
    assert {kernel.root.opcode for kernel in kernels}.isdisjoint({"parameter", "constant"})
    assert sum(sum(kernel.product.flops.values()) for kernel in kernels if kernel.product) == 2 * 64 * 512 * 512 * 5


def test_a_step_that_calls_python_back_is_refused():
    def step(state: Any, x: Any) -> tuple[Any, Any]:
        jax.debug.print("{}", x.sum())
        return state, x

    with pytest.raises(ProgramError, match="calls back into Python"):
        roofline_time(inference(step), V3)


def test_a_program_is_not_run():
    program = training()
    assert dataclasses.replace(program).tensors is None
    roofline_time(program, V3)
