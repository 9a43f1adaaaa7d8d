"""The kernels of tables in the engine: the same numbers as XLA's, and where they are used."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from anytpu.embedding.assigned_tables import BackwardPasses
from anytpu.embedding.row_optimizers import row_optimizer
from anytpu.embedding.rows import Bags, TableArrays, look_up, look_up_to_train
from anytpu.engine.foreign import why_not
from anytpu.engine.kernels import fast_kernels
from anytpu.engine.virtual import VirtualBackend
from anytpu.program import lower, of
from anytpu.system.topologies import row_of_cores
from engine.kernel_switch import compiled

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")
needs_kernels = pytest.mark.skipif(why_not() is not None, reason=f"XLA computes everything here: {why_not()}")

OPTIMIZERS = {
    "SGD": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "nesterov": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "Adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "Adam": lambda: keras.optimizers.Adam(0.1, beta_1=0.8, beta_2=0.9),
    "clipvalue": lambda: keras.optimizers.Adam(0.1, clipvalue=0.2),
    "Ftrl": lambda: keras.optimizers.Ftrl(
        0.1, -0.4, 0.2, 0.01, 0.02, l2_shrinkage_regularization_strength=0.03, beta=0.1
    ),
}
ROWS, WIDTH = 200, 9


def step(optimizer: Any, rows: Any, slots: Any, number: Any, features: Any, slopes: Any) -> Any:
    """Return the sums of each feature, and the table and the slots after a step."""
    table = TableArrays(rows, tuple(slots), jnp.float32(0.1), number)
    bags = [Bags(*feature) for feature in features]
    results: Any
    results, pull = jax.vjp(lambda table: look_up_to_train(optimizer, BackwardPasses(), table, bags), table)
    (new,) = pull([slope * result for slope, result in zip(slopes, results, strict=True)])
    return results, new.rows, new.slots


def operands(optimizer: Any, dtype: str = "float32") -> tuple:
    random = np.random.default_rng(0)
    arrays = [(random.random((ROWS, WIDTH)) + 0.1).astype(dtype) for _ in range(1 + len(optimizer.slots))]
    features = []
    for bags, size in ((30, 6), (7, 1)):
        ids = random.integers(-3, ROWS + 3, (bags, size)) // random.choice([1, 20], (bags, size))
        weights = random.normal(size=(bags, size)) * (random.random((bags, size)) < 0.8)
        features.append((ids.astype("int32"), weights.astype(dtype)))
    slopes = [random.normal(size=(len(ids), WIDTH)).astype(dtype) for ids, _ in features]
    return arrays[0], arrays[1:], np.asarray(3, dtype), features, slopes


def text(function: Any, *arguments: Any) -> str:
    return jax.jit(lambda *values: function(*values)).lower(*arguments).as_text()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_numbers_are_those_of_xla(name: str):
    optimizer = row_optimizer(OPTIMIZERS[name]())
    values = operands(optimizer)
    train = functools.partial(step, optimizer)
    ours, own = (jax.tree.leaves(compiled(train, *values, fast=fast)) for fast in (True, False))
    for one, other in zip(ours, own, strict=True):
        np.testing.assert_allclose(one, other, rtol=3e-5, atol=3e-6)


@needs_kernels
def test_a_step_is_one_call_for_each_feature_and_one_update():
    optimizer = row_optimizer("adam")
    values = operands(optimizer)
    train = functools.partial(step, optimizer)
    with fast_kernels():
        fast = text(train, *values)
    assert fast.count("@anytpu_row_sums") == 2
    assert fast.count("@anytpu_row_update") == 1
    assert "anytpu_row" not in text(train, *values)


@needs_kernels
def test_clipping_by_the_norm_and_float64_stay_with_xla():
    optimizer = row_optimizer(keras.optimizers.Adam(0.1, clipnorm=1.0))
    with fast_kernels():
        assert "anytpu_row_update" not in text(functools.partial(step, optimizer), *operands(optimizer))
    optimizer = row_optimizer("adam")
    with jax.enable_x64(True), fast_kernels():
        assert "anytpu_row" not in text(functools.partial(step, optimizer), *operands(optimizer, "float64"))


@needs_kernels
def test_derivatives_and_batches_have_the_plain_form():
    rows, _, _, ((ids, weights), _), _ = operands(row_optimizer("sgd"))

    def loss(rows: Any, weights: Any) -> Any:
        return (look_up(rows, Bags(ids, weights)) ** 2).sum()

    def each(rows: Any, weights: Any) -> Any:
        return jax.vmap(lambda weights: look_up(rows, Bags(ids, weights)))(weights)

    for function, values in ((jax.grad(loss, (0, 1)), weights), (each, np.stack([weights, 2 * weights]))):
        ours, own = (jax.tree.leaves(compiled(function, rows, values, fast=fast)) for fast in (True, False))
        for one, other in zip(ours, own, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@needs_kernels
def test_a_loop_updates_the_table_in_place():
    """The executable of a loop of steps has no temporary of the table's size."""
    optimizer = row_optimizer("adam")
    _, _, _, features, slopes = operands(optimizer)
    table = np.zeros((20_000, WIDTH), "float32")

    def steps(arrays: Any) -> Any:
        def body(number: Any, arrays: Any) -> Any:
            _, rows, slots = step(optimizer, arrays[0], arrays[1:], number + 1, features, slopes)
            return [rows, *slots]

        return jax.lax.fori_loop(0, 3, body, arrays)

    with fast_kernels():
        lowered = jax.jit(steps, donate_argnums=0).lower([jnp.asarray(table) for _ in range(3)])
    memory = lowered.compile().memory_analysis()
    assert memory is not None
    assert memory.alias_size_in_bytes >= 3 * table.nbytes
    assert memory.temp_size_in_bytes < table.nbytes


@needs_kernels
def test_what_travels_has_no_foreign_call():
    optimizer = row_optimizer("adam")
    rows, slots, _, features, slopes = operands(optimizer)

    def train(state: Any, batch: Any) -> Any:
        _, rows, slots = step(optimizer, state["rows"], state["slots"], jnp.int32(1), features, batch["slopes"])
        return {"rows": rows, "slots": list(slots)}, {}

    program = of(train, ({"rows": rows, "slots": slots}, {"slopes": slopes}))
    VirtualBackend(row_of_cores(1).cores).compile(program)
    assert "anytpu_row" not in lower(program, "cpu").mlir_module()
