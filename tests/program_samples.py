"""Programs of every kind, with values to run them on, for every test that needs one."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from anytpu.program import REPLICA_AXIS, REPLICATED, ROWS, Program, of, spec_of

Moments = collections.namedtuple("Moments", ["count", "mean"])


@dataclasses.dataclass(frozen=True)
class Sample:
    """A Program, and a state and a batch of its shapes."""

    program: Program
    state: Any
    batch: Any


def _rows(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def _linear(state: Any, batch: Any) -> Any:
    loss, slope = jax.value_and_grad(lambda w: jnp.mean((batch["x"] @ w - batch["y"]) ** 2))(state["w"])
    return {"w": state["w"] - 0.1 * slope, "steps": state["steps"] + 1}, {"loss": loss}


def linear() -> Sample:
    """Whole-batch code: one step of linear regression."""
    state = {"w": np.ones(3, "float32"), "steps": np.int32(0)}
    batch = {"x": _rows(8, 3), "y": _rows(8)}
    return Sample(of(_linear, (state, batch)), state, batch)


def many_types() -> Sample:
    """Leaves of float32, bfloat16, int8, uint8, bool and a typed random key."""

    def many_types(state: Any, batch: Any) -> Any:
        key, used = jax.random.split(state["key"])
        noise = jax.random.normal(used, batch.shape)
        half = state["half"] + jnp.sum(batch.astype("float32") / 255 + noise).astype("bfloat16")
        state = {"key": key, "half": half, "byte": state["byte"] + 1, "flags": ~state["flags"]}
        return state, (half, batch > 127)

    state = {
        "key": jax.random.key(7),
        "half": jnp.ones(2, "bfloat16"),
        "byte": np.int8(3),
        "flags": np.array([True, False]),
    }
    batch = np.arange(16, dtype="uint8").reshape(4, 4) * 15
    return Sample(of(many_types, (state, batch)), state, batch)


def nested() -> Sample:
    """Trees of dicts, lists, tuples, None and a NamedTuple, and no outputs at all."""

    def nested(state: Any, batch: Any) -> Any:
        moments, rest = state
        mean = moments.mean + jnp.mean(batch["x"][0])
        return (Moments(moments.count + 1, mean), [rest[0] * batch["scale"], None, {}]), {}

    state = (Moments(np.int32(0), np.float32(0)), [np.float32(2), None, {}])
    batch = {"x": [_rows(4, 2), None], "scale": np.float32(3)}
    return Sample(of(nested, (state, batch)), state, batch)


def adam() -> Sample:
    """optax's Adam, whose state is a tree of NamedTuples."""
    optimizer = optax.adam(0.1)

    def adam(state: Any, batch: Any) -> Any:
        weights, moments = state
        loss, slope = jax.value_and_grad(lambda w: jnp.mean((batch @ w) ** 2))(weights)
        updates, moments = optimizer.update(slope, moments)
        return (optax.apply_updates(weights, updates), moments), loss

    weights, batch = jnp.ones(3), _rows(8, 3)
    state = (weights, optimizer.init(weights))
    return Sample(of(adam, (state, batch)), state, batch)


def _replica(state: Any, batch: Any) -> Any:
    rows, scale = batch
    total = jax.lax.psum(jnp.sum(rows), REPLICA_AXIS)
    return {"sum": state["sum"] + total * scale}, {"mine": jnp.sum(rows), "index": jax.lax.axis_index(REPLICA_AXIS)}


def per_replica(replicas: int = 4) -> Sample:
    """Per-replica code with a psum, a batch leaf that is split and one that is not."""
    state, batch = {"sum": np.float32(1)}, (_rows(replicas, 2, 3), np.float32(0.5))
    layout = (ROWS, REPLICATED)
    program = Program("replica/train", _replica, spec_of(state), spec_of(batch), layout, replicas=replicas)
    return Sample(program, state, batch)


def without_batch() -> Sample:
    """Per-replica code whose batch has no leaves."""

    def step(state: Any, batch: Any) -> Any:
        return state + jax.lax.psum(1, REPLICA_AXIS), jax.lax.axis_index(REPLICA_AXIS)

    state = np.int32(0)
    return Sample(Program("count/train", step, spec_of(state), (), (), replicas=3), state, ())


SAMPLES = {
    "linear": linear,
    "many_types": many_types,
    "nested": nested,
    "adam": adam,
    "per_replica": per_replica,
    "one_replica": lambda: per_replica(1),
    "without_batch": without_batch,
}


def assert_same_bits(got: Any, expected: Any) -> None:
    """Assert that two trees have the same leaves, bit for bit; their containers may differ."""
    got, expected = jax.tree.leaves(got), jax.tree.leaves(expected)
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        one, other = plain(one), plain(other)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()


def plain(leaf: Any) -> np.ndarray:
    """Return an array as NumPy's, a typed random key as its words."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(leaf))
    return np.asarray(leaf)
