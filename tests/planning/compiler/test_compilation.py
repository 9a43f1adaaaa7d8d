from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from anytpu import _env
from anytpu.errors import CompilerMissingError, PlanError
from anytpu.planning.compiler import CompiledProgram, OutOfMemory, compile_program
from anytpu.planning.compiler.compilation import key_of
from anytpu.planning.compiler.request import request_of
from anytpu.planning.records.target import target_named
from anytpu.program import of
from compiler_samples import (
    SQUARE,
    decomposed,
    eigenvalues,
    foreign,
    large,
    line_of,
    program_of,
    slow,
    sorting_kernel,
    train,
)
from program_samples import per_replica

V3 = target_named("v3-8")
HOW = "Write that part with other operations of jax.numpy, or compute it outside of the step."


def compiled(program: Any, target: str = "v3-8", **settings: Any) -> CompiledProgram:
    answer = compile_program(program, target_named(target), **settings)
    assert isinstance(answer, CompiledProgram)
    return answer


def test_a_program_compiles_as_it_would_run_and_comes_from_the_disk_then(cache_folder: Path):
    program = program_of(train)
    first = compiled(program)
    assert first.hlo.startswith("HloModule ")
    assert "num_partitions=8" in first.hlo and "all-reduce(" in first.hlo
    assert "f32[8,64]" in first.hlo, "the batch is not split over the 8 cores"
    assert "input_output_alias={ {0}: (0, {}" in first.hlo, "the state is not donated"
    assert first.alias_bytes == 64 * 64 * 4 * 2  # a row of 64 takes 128 lanes
    assert first.argument_bytes > first.alias_bytes and first.code_bytes > 0 and first.peak_bytes
    assert first.compiler == f"libtpu {_env.libtpu_version()}" and first.compile_s > 0
    assert re.search(r'op_name="[^"]*/jvp\(dense\)/', first.hlo), "the layers are lost"
    assert "compiler_samples.py" in first.hlo, "the source lines are lost"
    assert not first.from_cache
    second = compiled(program_of(train))
    assert second.from_cache and second.hlo == first.hlo
    assert not compiled(program, use_cache=False).from_cache
    (entry,) = cache_folder.iterdir()
    entry.write_bytes(entry.read_bytes()[:-7])
    assert not compiled(program).from_cache


def test_a_schedule_has_the_collectives_and_the_memory_and_no_cycles():
    program = program_of(train)
    schedule, code = compiled(program, stage="schedule"), compiled(program)
    assert "all-reduce(" in schedule.hlo and "estimated_cycles" in code.hlo
    assert "estimated_cycles" not in schedule.hlo
    assert schedule.argument_bytes == code.argument_bytes
    assert schedule.code_bytes == 0
    assert compiled(program, stage="schedule").from_cache


def test_another_target_or_option_is_another_answer():
    program = program_of(train)
    compiled(program)
    assert not compiled(program, "v2-8").from_cache
    assert not compiled(program, options={"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1"}).from_cache


def test_rows_that_the_devices_do_not_divide():
    answer = compiled(program_of(train, batch=jax.ShapeDtypeStruct((60, 64), "float32")))
    assert "f32[8,64]" in answer.hlo


def test_per_replica_code_has_real_collectives():
    answer = compiled(per_replica(8).program)
    assert "num_partitions=8" in answer.hlo and "all-reduce(" in answer.hlo


def sharded(state: Any, batch: Any) -> Any:
    """One step of a layer whose weights lie in parts on all devices and are gathered where they are used."""

    def loss(weights: Any) -> Any:
        whole = jax.lax.with_sharding_constraint(weights, PartitionSpec(None, "model"))
        return jnp.mean(jax.lax.with_sharding_constraint(batch @ whole, PartitionSpec("data", "model")) ** 2)

    value, slope = jax.value_and_grad(loss)(state)
    return state - 0.1 * slope, value


def explicit(state: Any, batch: Any) -> Any:
    def loss(weights: Any) -> Any:
        return jnp.mean((batch @ jax.sharding.reshard(weights, PartitionSpec(None, "model"))) ** 2)

    value, slope = jax.value_and_grad(loss)(state)
    return state - 0.1 * slope, value


@pytest.mark.parametrize(
    ("step", "kind", "target"),
    [
        (sharded, AxisType.Auto, "v5e-8"),
        (explicit, AxisType.Explicit, "v5e-8"),
        (sharded, AxisType.Auto, "v4-8:cores"),
    ],
)
def test_shardings_of_its_own(step: Any, kind: AxisType, target: str):
    mesh = AbstractMesh((4, 2), ("data", "model"), axis_types=(kind, kind))

    def spec(shape: tuple[int, ...], *parts: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, "bfloat16", sharding=NamedSharding(mesh, PartitionSpec(*parts)))

    answer = compiled(of(step, (spec((1024, 512), "data", "model"), spec((256, 1024), "data"))), target)
    assert "bf16[256,256]" in answer.hlo, "the weights do not lie in eight parts"
    assert "all-gather" in answer.hlo
    assert "reduce-scatter" in answer.hlo or "all-reduce" in answer.hlo


def test_what_does_not_fit_is_an_answer_that_is_kept():
    program = program_of(large, state=jax.ShapeDtypeStruct((2**16, 2**16), "float32"))
    for from_cache in (False, True):
        answer = compile_program(program, V3)
        assert isinstance(answer, OutOfMemory)
        assert answer.needed_bytes > 16 * 2**30 > answer.limit_bytes > 15 * 2**30
        assert answer.said.startswith("RESOURCE_EXHAUSTED: ")
        assert answer.from_cache == from_cache


@pytest.mark.parametrize(
    ("step", "text", "expected"),
    [
        (
            foreign,
            "ffi_call",
            "The TPU compiler refuses 'foreign/train' for v3-8: Custom emitter for lapack_sgesdd_ffi not found. It is "
            f"about the operation 'ffi_call' of the layer 'outer/decompose', at {{line}} (foreign). {HOW}",
        ),
        (
            eigenvalues,
            "eigvals",
            "The TPU compiler refuses 'eigenvalues/train' for any TPU: MLIR translation rule for primitive 'eig' not "
            "found for platform tpu. It is about the operation 'eig' of the layer 'spectrum', at {line} (eigenvalues). "
            + HOW,
        ),
        (
            sorting_kernel,
            "jnp.sort",
            "The TPU compiler refuses 'sorting_kernel/train' for TPU v3: Unimplemented primitive in Pallas TPU "
            "lowering for tc: sort. It is about the operation 'sort', at {line} (sorting_kernel.<locals>.kernel). "
            + HOW,
        ),
    ],
)
def test_an_operation_that_the_compiler_refuses(step: Any, text: str, expected: str):
    with pytest.raises(PlanError) as error:
        compile_program(program_of(step), V3)
    assert str(error.value) == expected.format(line=line_of(step, text))


def test_an_option_that_the_compiler_does_not_know():
    with pytest.raises(PlanError) as error:
        compile_program(program_of(train), V3, options={"xla_tpu_nonsense": "1"})
    assert str(error.value) == (
        "The TPU compiler does not take these options: No such compile option: 'xla_tpu_nonsense'. Change or leave out "
        "what options= says."
    )


def test_a_compiler_that_crashes(capfd: pytest.CaptureFixture[str]):
    """libtpu 0.0.42.1 ends on a failed check of its own; a newer one may compile this, and is fine too."""
    with jax.enable_x64(True):
        program = program_of(decomposed)
        try:
            compile_program(program, V3)
        except PlanError as error:
            first, words, last = str(error).split("\n")
            assert first == (
                "The TPU compiler was ended by SIGABRT while it compiled 'decomposed/train' for v3-8. Its last words:"
            )
            assert words.startswith("F") and " Check failed: " in words
            assert last == (
                "Your program is not harmed. Try another batch size or another TPU, or another compiler: "
                "pip install --upgrade 'anytpu[plan]'"
            )
    assert capfd.readouterr() == ("", "")
    assert compiled(program_of(train)).code_bytes > 0


def test_no_compiler(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "libtpu", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CompilerMissingError) as error:
        compile_program(program_of(train), V3)
    assert str(error.value) == "The TPU compiler, libtpu, is not installed: pip install 'anytpu[plan]'"


def key(
    target: str = "v3-8", options: dict[str, str] | None = None, libtpu: str = "0.0.42.1", batch: Any = SQUARE
) -> str:
    request = request_of(program_of(train, batch=batch), target_named(target), options or {})
    return key_of(request, libtpu)


def test_the_same_question_has_the_same_key():
    assert key() == key()


def test_every_part_of_the_question_counts():
    keys = [
        key(),
        key("v2-8"),
        key("v3-32"),
        key(options={"xla_tpu_scoped_vmem_limit_kib": "65536"}),
        key(options={"xla_tpu_scoped_vmem_limit_kib": "98304"}),
        key(libtpu="0.0.51"),
        key(batch=jax.ShapeDtypeStruct((128, 64), "float32")),
    ]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LIBTPU_INIT_ARGS", "--xla_tpu_enable_latency_hiding_scheduler=false"),
        ("LIBTPU_INIT_ARGS", "--xla_tpu_enable_latency_hiding_scheduler=true"),
        ("XLA_IR_DEBUG", "1"),
        ("MEGASCALE_NUM_SLICES", "2"),
    ],
)
def test_what_the_environment_tells_the_compiler_counts(name: str, value: str, monkeypatch: pytest.MonkeyPatch):
    before = key()
    monkeypatch.setenv(name, value)
    assert _env.compiler_environment()[name] == value
    assert key() != before
    monkeypatch.delenv(name)
    assert key() == before


def test_what_does_not_reach_the_compiler_does_not_count(monkeypatch: pytest.MonkeyPatch):
    """XLA_FLAGS are those of this process: the compiler's own are LIBTPU_INIT_ARGS, and options."""
    before = key()
    for name, value in (("XLA_FLAGS", "--xla_force_host_platform_device_count=8"), ("JAX_LOG_COMPILES", "1")):
        monkeypatch.setenv(name, value)
        assert name not in _env.compiler_environment()
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    assert key() == before


def test_the_version_of_jax_counts(monkeypatch: pytest.MonkeyPatch):
    before = key()
    monkeypatch.setattr(jax, "__version__", "0.99.0")
    assert key() != before


def test_a_compiler_that_takes_too_long():
    """The last one here, for it ends the child that the others share."""
    with pytest.raises(PlanError) as error:
        compile_program(program_of(slow), V3, timeout_s=0.25)
    assert str(error.value) == (
        "The TPU compiler took longer than 0.25 s to compile 'slow/train' for v3-8, and was ended. Give it more with "
        "timeout_s=0.5 (--timeout 0.5): its schedule takes a tenth of the time of its code. Or "
        "plan less at a time: layers that are alike compile once inside a jax.lax.scan."
    )
