"""Checks in a process with 8 devices: scatters of rows that a mesh of two axes does not divide."""

from __future__ import annotations

import functools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.sharding import PartitionSpec

import anytpu as tpu
from anytpu import program as programs
from anytpu.program import Placement, Program, spec_of
from anytpu.program.program import array_layouts
from mesh_checks import failures_of

WORDS = 20
MESHES = ({"data": 4, "model": 2}, {"data": 2, "model": 4})
PAIRS = ((MESHES[0], 9), (MESHES[0], 11), (MESHES[1], 9), (MESHES[1], 10))


def on_mesh(mesh: dict[str, int], layout: Any) -> tpu.TPUStrategy:
    resolver = tpu.TPUClusterResolver.from_address(tpu.system.Address("local", 8))
    return tpu.TPUStrategy(resolver, layout=layout, mesh=mesh)


def step(table: jax.Array, batch: dict[str, jax.Array]) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Return scatters of every kind, each one with rows in its indices or updates."""
    ids, x = batch["ids"], batch["x"]
    values, tokens, zeros = x @ table[:6], jnp.stack([ids, 2 * ids % WORDS, 3 * ids % WORDS], 1), jnp.zeros((WORDS, 8))
    half = jnp.where(x[0, 0] > 0, 1, 2)

    def lookup(ids: jax.Array) -> jax.Array:
        return jax.grad(lambda table: jnp.sin(table[ids]).sum())(table)

    outputs = {
        "add": zeros.at[ids].add(values),
        "multiply": (zeros + 1).at[ids].multiply(values),
        "max": zeros.at[ids].max(values),
        "set": zeros.at[ids].set(1.0),
        "count": jnp.bincount(ids, length=WORDS),
        "segments": jax.ops.segment_sum(values, ids, WORDS),
        "two indices": zeros.at[ids, 3 * ids % 8].add(x[:, 0]),
        "own rows": values.at[ids % len(x)].add(2.0),
        "each row": jax.vmap(lambda row, index: row.at[index % 8].add(1.0))(values, ids),
        "diagonal": jnp.zeros((len(x), 8)).at[jnp.arange(len(x)), ids % 8].add(x[:, 0]),
        "columns": jnp.zeros((5, len(x))).at[jnp.array([1, 3])].add(values[:, :2].T),
        "lookup": lookup(ids),
        "lookup of tokens": lookup(tokens),
        "lookup of tokens in one axis": lookup(tokens.reshape(-1)),
        "lookup of tokens by position": lookup(tokens.T),
        "lookup of all rows but one": lookup(ids[1:]),
        "labels": jax.grad(lambda x: jnp.take_along_axis(x @ table[:6], ids[:, None] % 8, 1).sum())(x),
        "loop": jax.lax.fori_loop(0, half, lambda _, sums: sums.at[ids].add(values), zeros),
        "branch": jax.lax.cond(half > 1, lambda: zeros.at[ids].add(values), lambda: zeros.at[ids].add(-values)),
    }
    return table + outputs["lookup"], outputs


def batch_of(rows: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(rows)
    return {"ids": draw.integers(1, WORDS, rows).astype("int32"), "x": draw.normal(size=(rows, 6))}


def assert_right(program: Program, strategy: tpu.TPUStrategy, table: np.ndarray, batch: dict[str, np.ndarray]) -> None:
    backend, (states, batches) = strategy.backend, array_layouts(program)
    put = jax.tree.map(backend.put, batch, batches)
    found = strategy.compile(program).step(backend.put(table, states), put)
    expected = step(jnp.asarray(table), jax.tree.map(jnp.asarray, batch))
    wrong = {
        name: float(np.abs(right - value).max())
        for name, right, value in zip(
            ["table", *sorted(expected[1])], jax.tree.leaves(expected), jax.tree.leaves(backend.get(found)), strict=True
        )
        if not np.allclose(value, right, rtol=1e-12, atol=1e-12)
    }
    assert not wrong, wrong


def check_program(mesh: dict[str, int], rows: int, from_file: bool = False) -> None:
    batch, table = batch_of(rows), np.random.default_rng(0).normal(size=(WORDS, 8))
    layouts = jax.tree.map(lambda _: programs.ROWS, batch)
    placement = Placement(tuple(mesh.items()), (((), ("model",)), (("data",),), (("data",), ())))
    program = Program("scatters", step, spec_of(table), spec_of(batch), layouts, placement=placement)
    if from_file:
        with tempfile.TemporaryDirectory() as folder:
            programs.write(program, Path(folder) / "scatters.anytpu")
            program = programs.read(Path(folder) / "scatters.anytpu")
    assert_right(program, on_mesh(mesh, "data"), table, batch)


class Tied(keras.layers.Layer):
    """A table of words that also makes the logits."""

    def build(self, shape: Any) -> None:
        self.table = self.add_weight(name="table", shape=(WORDS, 8), initializer="glorot_uniform")

    def call(self, ids: Any) -> Any:
        return keras.ops.mean(keras.ops.take(self.table, ids, axis=0), axis=1) @ keras.ops.transpose(self.table)


def network(tied: bool) -> keras.Model:
    keras.utils.set_random_seed(3)
    layers = keras.layers
    ends = [Tied()] if tied else [layers.Embedding(WORDS, 8), layers.Flatten(), layers.Dense(WORDS, name="d")]
    model = keras.Sequential([keras.Input((3,), dtype="int32"), *ends])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.5, momentum=0.5), loss, metrics=["accuracy"])
    return model


def outcome(model: keras.Model, rows: int) -> dict[str, Any]:
    draw = np.random.default_rng(rows)
    ids, labels = draw.integers(1, WORDS, (4 * rows + 1, 3)), draw.integers(0, WORDS, 4 * rows + 1)
    history = model.fit(ids, labels, batch_size=rows, epochs=2, shuffle=False, verbose=0).history
    logs = model.train_on_batch(ids[:rows], labels[:rows], return_dict=True)
    evaluated = model.evaluate(ids, labels, batch_size=rows, verbose=0, return_dict=True)
    predicted = model.predict(ids, batch_size=rows, verbose=0)
    return {"history": history, "logs": logs, "evaluated": evaluated, "predicted": predicted, "w": model.get_weights()}


def check_keras(mesh: dict[str, int], rows: int, tied: bool) -> None:
    keras.config.set_floatx("float64")
    expected = outcome(network(tied), rows)
    layout = {"table" if tied else "d/kernel": PartitionSpec("model") if tied else PartitionSpec(None, "model")}
    with on_mesh(mesh, layout).scope():
        model = network(tied)
    found = outcome(model, rows)
    # Keras computes in float32 in places, also under floatx float64.
    jax.tree.map(lambda right, value: np.testing.assert_allclose(value, right, 1e-6, 1e-6), expected, found)


CHECKS = {
    **{
        f"{rows} rows over {'x'.join(map(str, mesh.values()))}": functools.partial(check_program, mesh, rows)
        for mesh, rows in PAIRS
    },
    "12 rows over 4x2": functools.partial(check_program, MESHES[0], 12),
    "10 rows from a file": functools.partial(check_program, MESHES[0], 10, from_file=True),
    "Keras, embedding": functools.partial(check_keras, MESHES[0], 10, tied=False),
    "Keras, tied table": functools.partial(check_keras, MESHES[1], 11, tied=True),
}

if __name__ == "__main__":
    print(json.dumps(failures_of(CHECKS)))
