"""StableHLO text: what it declares, and that it can be called."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from anytpu.errors import ProgramError
from anytpu.program.stablehlo import parse

W, X = np.arange(8, dtype="float32").reshape(4, 2), np.arange(12, dtype="float32").reshape(3, 4)


def product(w, x):
    h = jax.nn.relu(x @ w)
    return h, jax.lax.erf_inv(h.mean(0) / 1e3)


def text_of(function, *arguments, **options) -> str:
    return jax.jit(function, **options).lower(*arguments).as_text()


def body(argument: str = "tensor<2xf32>", name: str = "main") -> str:
    return f"func.func @{name}(%a: {argument}) -> {argument} {{ return %a : {argument} }}"


def error_of(content: str | bytes) -> str:
    with pytest.raises(ProgramError) as caught:
        parse(content.encode() if isinstance(content, str) else content)
    return str(caught.value)


@pytest.mark.parametrize("how", ["lowered", "with locations", "exported", "bytecode"])
def test_what_jax_writes(how: str):
    lowered = jax.jit(product).lower(W, X)
    exported = jax.export.export(jax.jit(product), platforms=["tpu"])
    texts = {
        "lowered": lambda: lowered.as_text().encode(),
        "with locations": lambda: lowered.as_text(debug_info=True).encode(),
        "exported": lambda: exported(W, X).mlir_module().encode(),
        "bytecode": lambda: bytecode(lowered),
    }
    module = parse(texts[how]())
    assert [(argument.spec.shape, argument.spec.dtype.name) for argument in module.arguments] == [
        ((4, 2), "float32"),
        ((3, 4), "float32"),
    ]
    assert [result.shape for result in module.results] == [(3, 2), (2,)]
    assert module.mesh == ()
    for given, expected in zip(module.exported.call(W, X), product(W, X), strict=True):
        np.testing.assert_allclose(given, expected, rtol=1e-6)


def bytecode(lowered) -> bytes:
    from jax.interpreters import mlir

    return mlir.module_to_bytecode(lowered.compiler_ir("stablehlo"))


def test_it_runs_inside_of_a_jit_and_is_lowered_for_a_tpu():
    module = parse(text_of(product, W, X).encode())
    both = jax.jit(lambda w, x: module.exported.call(w, x + 1)[0])
    np.testing.assert_allclose(both(W, X), product(W, X + 1)[0], rtol=1e-6)
    assert "tanh" not in jax.export.export(both, platforms=["tpu"])(W, X).mlir_module()


def test_memory_that_a_result_takes():
    module = parse(text_of(lambda s, x: (x * 2, s - x.sum()), W, X, donate_argnums=0).encode())
    assert [argument.becomes for argument in module.arguments] == [1, None]


MESH = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))


def laid_out(constrain: bool) -> str:
    def step(w, x):
        y = x @ w
        return jax.lax.with_sharding_constraint(y, NamedSharding(MESH, PartitionSpec("data"))) if constrain else y

    specs = [
        jax.ShapeDtypeStruct(shape, "float32", sharding=NamedSharding(MESH, PartitionSpec(*spec)))
        for shape, spec in (((4, 8), (None, "model")), ((16, 4), (("data", "model"),)))
    ]
    return jax.export.export(jax.jit(step), platforms=["tpu"])(*specs).mlir_module()


@pytest.mark.parametrize("constrain", [False, True])
def test_a_mesh(constrain: bool):
    module = parse(laid_out(constrain).encode())
    assert module.mesh == (("data", 4), ("model", 2))
    assert [argument.sharding for argument in module.arguments] == [((), ("model",)), (("data", "model"), ())]
    assert module.exported.nr_devices == (8 if constrain else 1)
    if not constrain:
        w, x = np.ones((4, 8), "float32"), np.ones((16, 4), "float32")
        np.testing.assert_array_equal(module.exported.call(w, x)[0], x @ w)


def test_the_one_function_that_is_public():
    helper = body(name="helper").replace("func.func", "func.func private")
    module = parse(f"module {{ {helper} {body(name='forward')} }}".encode())
    assert module.exported.call(jnp.ones(2))[0].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("functions", "listed"), [(body(name="a") + body(name="b"), "'a', 'b'"), ("", "none")], ids=["two", "none"]
)
def test_no_main_function(functions: str, listed: str):
    assert error_of(f"module {{ {functions} }}") == (
        f"It has no function named 'main', and no single public one; its functions are {listed}."
    )


def test_no_stablehlo():
    assert error_of("hello") == (
        "It is not StableHLO: line 1, column 1: custom op 'hello' is unknown (tried 'builtin.hello' as well)."
    )
    assert error_of(b"\xff\x00") == "It is not StableHLO: line 1, column 1: unexpected character."
    whole = text_of(product, W, X)
    cut = whole[: whole.index("stablehlo.dot_general") + 24]
    assert error_of(cut) == f"It is not StableHLO: line 3, column {len(cut.splitlines()[2])}: expected ','."
    assert error_of(bytecode(jax.jit(product).lower(W, X))[:200]).startswith("It is not StableHLO: ")


def test_another_dialect():
    addition = "%b = arith.addf %a, %a : tensor<2xf32>"
    assert error_of(
        f"func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {{ {addition} return %b : tensor<2xf32> }}"
    ) == ("It is MLIR, and not StableHLO: it has the operation 'arith.addf'. Lower it to StableHLO first.")


@pytest.mark.parametrize("type_", ["tensor<?x2xf32>", "tensor<*xf32>"])
def test_a_size_that_is_left_open(type_: str):
    assert error_of(body(type_)) == (
        f"Its argument 0 is {type_}, which has a dynamic size, and a TPU program has static shapes. Lower it again "
        "for arrays of fixed shapes, the batch included."
    )


def test_types_that_no_array_has():
    assert error_of(body("i32")) == "Its argument 0 is i32; a program takes and returns tensors."
    assert error_of(body("tensor<2xi17>")) == "Its argument 0 is tensor<2xi17>, and JAX has no arrays of i17."
    assert error_of(body("tensor<2xf64>")) == (
        "Its argument 0 is tensor<2xf64>, and JAX computes with 32 bits in this process: set JAX_ENABLE_X64=1, or call "
        'jax.config.update("jax_enable_x64", True) first.'
    )


@pytest.mark.parametrize("name", ["i1", "ui8", "i32", "f16", "bf16", "complex<f32>", "f8E4M3FN"])
def test_types(name: str):
    module = parse(body(f"tensor<2x{name}>").encode())
    (spec,) = module.results
    (out,) = module.exported.call(jnp.zeros(2, spec.dtype))
    assert out.dtype == spec.dtype


def test_how_the_older_partitioner_lays_out():
    argument = 'tensor<8xf32> {mhlo.sharding = "{devices=[8]<=[8]}"}'
    assert error_of(f"func.func @main(%a: {argument}) -> tensor<8xf32> {{ return %a : tensor<8xf32> }}") == (
        "Its argument 0 is sharded by mhlo.sharding, which XLA's older partitioner reads. Lower it again with "
        'jax.config.update("jax_use_shardy_partitioner", True), which writes sdy.sharding.'
    )


def test_meshes_that_cannot_be_kept():
    meshes = 'sdy.mesh @a = <["x"=4]> sdy.mesh @b = <["x"=8]>'
    assert error_of(f"module {{ {meshes} {body()} }}") == "It names 2 meshes of devices, and a program has one."
    split = 'tensor<8xf32> {sdy.sharding = #sdy.sharding<@a, [{"x":(1)2}]>}'
    function = f"func.func @main(%a: {split}) -> tensor<8xf32> {{ return %a : tensor<8xf32> }}"
    assert error_of(f'module {{ sdy.mesh @a = <["x"=4]> {function} }}') == (
        'Its argument 0 is sharded by #sdy.sharding<@a, [{"x":(1)2}]>, which splits an axis of the mesh in parts.'
    )
