"""No GPU is needed: what XLA makes for the CPU goes through the same function as what it makes for a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from anytpu.errors import PlanError, TPUNotFoundError
from anytpu.planning import gpu, runs
from anytpu.planning.estimated import on_gpu
from anytpu.planning.gpus import GPUS, gpu_of_kind
from anytpu.planning.hlo import parse
from anytpu.planning.records import Memory, StepTime
from anytpu.planning.roofline.compiled import compiled_ops, hidden_products
from anytpu.planning.wish import Wish
from anytpu.program.program import ROWS, Program

H100 = gpu_of_kind("NVIDIA H100 80GB HBM3")


def spec(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


@pytest.fixture(scope="module")
def predicted() -> tuple[StepTime, Memory, float]:
    """Return what is predicted for a step of two layers, three turns of a loop among it."""

    def loss(weights: Any, x: Any) -> Any:
        with jax.named_scope("first"):
            hidden = jnp.tanh(x @ weights[0])
        with jax.named_scope("looped"):
            hidden = jax.lax.fori_loop(0, 3, lambda _, y: jnp.tanh(y @ weights[1]), hidden)
        return (hidden**2).mean()

    def step(weights: Any, x: Any) -> tuple[Any, Any]:
        value, slopes = jax.value_and_grad(loss)(weights, x)
        return jax.tree.map(lambda w, s: w - 0.1 * s, weights, slopes), value

    program = Program("sgd/train", step, [spec(256, 256)] * 2, spec(128, 256), ROWS)
    return gpu.predict_on(program, jax.devices("cpu")[:1], H100)


def test_products_in_loops_are_multiplied(predicted: tuple[StepTime, Memory, float]):
    time, _, _ = predicted
    # Forward 1 + 3, of the weights 1 + 3, of the input of the loop 3.
    assert sum(op.flops for op in time.ops) == 11 * 2 * 128 * 256 * 256


def test_it_says_what_it_is(predicted: tuple[StepTime, Memory, float]):
    time, _, _ = predicted
    assert time.step_s == pytest.approx(sum(op.time_s for op in time.ops))
    assert time.interval_s == (time.step_s / gpu.WIDTH, time.step_s * gpu.WIDTH)
    assert time.evidence == (
        "a roofline over the kernels that XLA made for this GPU, with the peak rates of its data sheet; not fitted on "
        "measurements of GPUs",
    )
    assert time.unpriced[-1] == "the host's dispatch: not in a roofline"
    assert all(op.priced_by == "roofline" and op.time_s > 0 for op in time.ops)
    assert {op.layer for op in time.ops if op.flops} == {"first", "looped"}


def test_a_plan_on_a_gpu_knows_the_steps_and_the_input(
    predicted: tuple[StepTime, Memory, float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("ANYTPU_RECORD_RUNS", "1")
    cpu = jax.devices("cpu")[:1]
    # The seam: this machine's GPUs, as which its CPU stands in.
    monkeypatch.setattr(gpu, "_devices", lambda: cpu)
    monkeypatch.setattr(gpu, "gpu_of_kind", lambda kind: H100)
    program = Program("mean/train", lambda s, b: (s, (b @ b.T).mean()), spec(), spec(128, 256), ROWS)
    wish = Wish(steps_per_execution=50, input_examples_per_s=64.0)
    found = on_gpu(program, gpu.target(), wish)
    assert found.time is not None
    assert found.time.step_s == 2.0
    assert found.time.ops[-1].kind == "input"
    assert found.time.unpriced[-1] == "the host's dispatch, once in 50 steps: not in a roofline"
    forecast = runs.forecast_for(runs.digest(program), "gpu", 1)
    assert forecast is not None and forecast.step_s < 1e-3


def test_float32_is_multiplied_as_tf32(predicted: tuple[StepTime, Memory, float]):
    assert predicted[2] == H100.tf32_flops_per_s


def test_memory_is_what_the_compiler_allocates(predicted: tuple[StepTime, Memory, float]):
    _, memory, _ = predicted
    state, batch = 2 * 256 * 256 * 4, 128 * 256 * 4
    assert memory.peak_bytes >= state + batch
    assert memory.fits
    assert {(buffer.use, buffer.bytes) for buffer in memory.buffers} >= {("state", state // 2), ("batch", batch)}


def test_a_product_takes_at_least_what_its_bytes_and_operations_take(predicted: tuple[StepTime, Memory, float]):
    for op in predicted[0].ops:
        assert op.time_s >= op.bytes / H100.hbm_bytes_per_s
        assert op.time_s >= op.flops / H100.tf32_flops_per_s


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA A10G", "A10G"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 3090", "RTX 3090"),
    ],
)
def test_device_kinds(kind: str, name: str):
    assert gpu_of_kind(kind).name == name


def test_an_unknown_gpu():
    with pytest.raises(PlanError) as caught:
        gpu_of_kind("NVIDIA GeForce GTX 970")
    assert str(caught.value) == (
        "the peak rates of the GPU 'NVIDIA GeForce GTX 970' are not known, so no roofline can be drawn for it; those "
        "that are: B200, GH200, H200, H100 PCIe, H100 NVL, H100, A100-SXM4-80GB, A100 80GB PCIe, A100, L40S, L4, A10G, "
        "A10, T4, V100, RTX 4090, RTX 3090. Plan for a TPU instead, such as tpu='v5e-8' (--tpu v5e-8)"
    )


def test_rates_are_sound():
    for one in GPUS:
        assert one.f32_flops_per_s <= one.tf32_flops_per_s <= one.f16_flops_per_s
        assert one.bf16_flops_per_s <= one.f16_flops_per_s
        assert 1e11 < one.hbm_bytes_per_s < 1e13
        machine = gpu.machine_of(one)
        assert machine.rate("bf16x3") == one.bf16_flops_per_s / 3
        assert machine.multiplied_as("bf16", ["f32", "f32"]) == "tf32"
        assert machine.multiplied_as("bf16x6", ["f32", "f32"]) == "f32"
        assert machine.multiplied_as("bf16", ["bf16", "bf16"]) == "bf16"


@pytest.mark.skipif(any(device.platform == "gpu" for device in jax.devices()), reason="this machine has a GPU")
def test_without_a_gpu():
    with pytest.raises(TPUNotFoundError) as caught:
        gpu.target()
    assert str(caught.value) == (
        "tpu='gpu' plans for the NVIDIA GPU of this machine, and JAX finds none here: install the GPU's driver and pip "
        "install 'anytpu[gpu]', or plan for a TPU, such as tpu='v5e-8' (--tpu v5e-8), for which none has to be at hand"
    )


# As XLA writes a module for a GPU, cut down: a product by cuBLAS, fusions that slice and that update, an all-reduce.
GPU_TEXT = """HloModule jit_step, is_scheduled=true, num_partitions=2

%sliced (p0: f32[10,64,64], p1: s32[]) -> f32[64,64] {
  %p0 = f32[10,64,64]{2,1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  %slice = f32[1,64,64]{2,1,0} dynamic-slice(%p0, %p1, %zero, %zero), dynamic_slice_sizes={1,64,64}
  ROOT %flat = f32[64,64]{1,0} bitcast(%slice)
}

%updated (q0: f32[10,64,64], q1: f32[1,64,64], q2: s32[]) -> f32[10,64,64] {
  %q0 = f32[10,64,64]{2,1,0} parameter(0)
  %q1 = f32[1,64,64]{2,1,0} parameter(1)
  %q2 = s32[] parameter(2)
  %none = s32[] constant(0)
  ROOT %update = f32[10,64,64]{2,1,0} dynamic-update-slice(%q0, %q1, %q2, %none, %none)
}

ENTRY %main (a: f32[10,64,64], b: f32[64,64], i: s32[], u: f32[1,64,64]) -> (f32[64,64], f32[10,64,64]) {
  %a = f32[10,64,64]{2,1,0} parameter(0)
  %b = f32[64,64]{1,0} parameter(1)
  %i = s32[] parameter(2)
  %u = f32[1,64,64]{2,1,0} parameter(3)
  %taken = f32[64,64]{1,0} fusion(%a, %i), kind=kLoop, calls=%sliced
  %gemm = (f32[64,64]{1,0}, s8[128]{0}) custom-call(%taken, %b), custom_call_target="__cublas$gemm", METADATA
  %product = f32[64,64]{1,0} get-tuple-element(%gemm), index=0
  %own = f32[64,64]{1,0} custom-call(%product), custom_call_target="mine", metadata={op_name="jit(step)/mine"}
  %start = f32[64,64]{1,0} all-reduce-start(%own), to_apply=%sliced
  %done = f32[64,64]{1,0} all-reduce-done(%start)
  %kept = f32[10,64,64]{2,1,0} fusion(%a, %u, %i), kind=kLoop, calls=%updated
  ROOT %result = (f32[64,64]{1,0}, f32[10,64,64]{2,1,0}) tuple(%done, %kept)
}
""".replace("METADATA", 'metadata={op_name="jit(step)/jvp(dense)/dot_general"}')


def test_what_a_gpu_module_is_priced_by():
    hidden = {"jit(step)/jvp(dense)/dot_general": {"tf32": 2.0 * 64**3}}
    ops, unpriced = compiled_ops(parse(GPU_TEXT), gpu.machine_of(H100), hidden)
    by_name = {op.name: op for op in ops}
    matrix = 64 * 64 * 4
    assert by_name["taken"].bytes == 2 * matrix + 4  # The slice, not what it was cut out of.
    assert by_name["kept"].bytes == 2 * matrix + 4
    assert (by_name["gemm"].kind, by_name["gemm"].flops, by_name["gemm"].layer) == ("matmul", 2.0 * 64**3, "dense")
    assert unpriced == [
        "own: a custom call whose operations nobody counts; only its bytes are priced",
        "start: all-reduce-start; the network between GPUs is not priced",
    ]
    assert set(by_name) == {"taken", "gemm", "own", "kept"}


def test_products_of_one_path_are_shared_by_its_calls():
    text = GPU_TEXT.replace(
        "  %own = ",
        '  %again = f32[64,64]{1,0} custom-call(%taken, %b), custom_call_target="__cublas$gemm", '
        'metadata={op_name="jit(step)/jvp(dense)/dot_general"}\n  %own = ',
    )
    hidden = {"jit(step)/jvp(dense)/dot_general": {"tf32": 100.0}}
    ops, _ = compiled_ops(parse(text), gpu.machine_of(H100), hidden)
    assert [op.flops for op in ops if op.flops] == [50.0, 50.0]


def test_hidden_products_of_a_module():
    def step(x: Any, w: Any) -> Any:
        with jax.named_scope("dense"):
            return x @ w

    lowered = jax.jit(step).lower(spec(8, 16), spec(16, 32))
    module = parse(lowered.compiler_ir("hlo").as_hlo_module().to_string())
    assert hidden_products(module, gpu.machine_of(H100)) == {"jit(step)/dense/dot_general": {"tf32": 2.0 * 8 * 16 * 32}}
