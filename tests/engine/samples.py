"""The Programs of the battery: each sees its rows, its replica or its types in a way of its own."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from anytpu.program import REPLICA_AXIS, REPLICATED, ROWS, Layout, Placement, Program, of, spec_of
from program_samples import Sample


def rows_of(*shape: int, seed: int = 0) -> np.ndarray:
    """Return random rows, none of them zero, so that one too many shows in every sum."""
    return np.random.default_rng(seed).uniform(0.5, 1.5, size=shape).astype("float32")


def _counting(state: Any, batch: Any) -> Any:
    x, y = batch["x"], batch["y"]
    spread = jnp.mean(jnp.square(x - jnp.mean(x, 0)))
    state = {"sum": state["sum"] + jnp.sum(x) + spread, "rows": state["rows"] + len(x)}
    return state, {"loss": jnp.mean(x), "most": jnp.max(y), "twice": 2 * x, "rows": jnp.int32(len(y))}


def counting(rows: int = 8) -> Sample:
    """Whole-batch code whose every output would differ if a pad row reached it; it takes and gives uint8, too."""
    state = {"sum": np.float32(0), "rows": np.int32(0)}
    batch = {"x": rows_of(rows, 3), "y": np.arange(rows, dtype="uint8")}
    return Sample(of(_counting, (state, batch)), state, batch)


def _descent(state: Any, batch: Any) -> Any:
    def loss(w: Any) -> Any:
        return jnp.mean((jnp.tanh(batch["x"] @ w["in"]) @ w["out"] - batch["y"]) ** 2)

    value, slope = jax.value_and_grad(loss)(state["w"])
    speed = jax.tree.map(lambda v, g: 0.9 * v - 0.1 * g, state["speed"], slope)
    w = jax.tree.map(jnp.add, state["w"], speed)
    return {"w": w, "speed": speed, "step": state["step"] + 1}, {"loss": value, "step": state["step"]}


def descent(rows: int = 8) -> Sample:
    """Whole-batch code: a step of gradient descent with momentum on a small network."""
    w = {"in": rows_of(3, 4, seed=1), "out": rows_of(4, seed=2)}
    state = {"w": w, "speed": jax.tree.map(np.zeros_like, w), "step": np.int32(0)}
    batch = {"x": rows_of(rows, 3), "y": rows_of(rows, seed=3)}
    return Sample(of(_descent, (state, batch)), state, batch)


def _watched(state: Any, batch: Any) -> Any:
    return {"sum": state["sum"] + jnp.sum(batch)}, {"loss": jnp.sum(batch)}


def watched(rows: int = 8) -> Sample:
    """Whole-batch code whose loss and state are not finite when the batch is not."""
    state, batch = {"sum": np.float32(0)}, rows_of(rows)
    return Sample(of(_watched, (state, batch)), state, batch)


def _many_types(state: Any, batch: Any) -> Any:
    parts = [jnp.sum(leaf.astype("float32")) for leaf in jax.tree.leaves(batch)]
    total = sum(parts).astype("float16")
    changed = {"half": state["half"] + total.astype("bfloat16"), "flag": ~state["flag"], "byte": state["byte"] + 1}
    return changed, {"total": total, "even": batch["count"] % 2 == 0, "pixels": batch["pixels"] + 1}


def many_types(rows: int = 8) -> Sample:
    """Whole-batch code on uint8, bfloat16, int32 and bool."""
    state = {"half": np.asarray(jnp.ones(2, "bfloat16")), "flag": np.array([True, False]), "byte": np.int8(3)}
    batch = {
        "pixels": np.arange(rows * 2, dtype="uint8").reshape(rows, 2),
        "half": np.asarray(jnp.linspace(0, 1, rows, dtype="bfloat16")),
        "count": np.arange(rows, dtype="int32"),
        "is_seen": np.arange(rows) % 3 == 0,
    }
    return Sample(of(_many_types, (state, batch)), state, batch)


def _trees(state: Any, batch: Any) -> Any:
    (first, nothing), last = state
    images, [weights, _] = batch["given"]
    state = ((first + jnp.sum(images * weights[:, None]), nothing), {"last": last["last"] * batch["scale"]})
    return state, [(jnp.sum(weights), None), {"nested": {"scale": batch["scale"]}}]


def trees(rows: int = 8) -> Sample:
    """Whole-batch code on tuples, lists, dicts and None, with a leaf of the batch that is not split."""
    state = ((np.float32(0), None), {"last": np.float32(1)})
    batch = {"given": (rows_of(rows, 2), [rows_of(rows, seed=1), None]), "scale": np.float32(2)}
    return Sample(of(_trees, (state, batch)), state, batch)


def _silent(state: Any, batch: Any) -> Any:
    return [state[0] + jnp.sum(batch)], {}


def silent(rows: int = 8) -> Sample:
    """Whole-batch code with nothing to report."""
    state, batch = [np.float32(0)], rows_of(rows)
    return Sample(of(_silent, (state, batch)), state, batch)


def _stateless(state: Any, batch: Any) -> Any:
    return state, (jnp.sum(batch["x"]), None)


def stateless(rows: int = 8) -> Sample:
    """Whole-batch code without a state, and with None among its outputs."""
    batch = {"x": rows_of(rows), "y": None}
    return Sample(of(_stateless, ((), batch)), (), batch)


def _columns(state: Any, batch: Any) -> Any:
    return state + jnp.sum(batch["x"]), {"columns": jnp.float32(batch["x"].shape[1]), "sums": jnp.sum(batch["x"], 0)}


def columns(size: int = 8) -> Sample:
    """Whole-batch code whose batch is split along axis 1."""
    state, batch = np.float32(0), {"x": rows_of(2, size)}
    program = Program("columns/train", _columns, spec_of(state), spec_of(batch), {"x": Layout(1)})
    return Sample(program, state, batch)


def _promoting(state: Any, batch: Any) -> Any:
    half = state["half"] + jnp.float32(1)
    return {"half": half, "weak": jnp.where(jnp.sum(batch) > 0, 1.5, 2.5), "number": 7}, {"weak": 3 * 1.0}


def promoting(rows: int = 8) -> Sample:
    """Whole-batch code that returns its state in wider and in weaker types than it was given, and Python numbers."""
    state = {"half": np.asarray(jnp.bfloat16(1)), "weak": np.float32(0), "number": np.int32(0)}
    batch = rows_of(rows)
    return Sample(Program("promoting/train", _promoting, spec_of(state), spec_of(batch), ROWS), state, batch)


def _together(state: Any, batch: Any) -> Any:
    rows, scale = batch
    mine, index = jnp.sum(rows) * scale, jax.lax.axis_index(REPLICA_AXIS)
    total = jax.lax.psum(mine, REPLICA_AXIS)
    outputs = {"mine": mine, "index": index, "all": jax.lax.all_gather(mine, REPLICA_AXIS), "fixed": 1.0}
    return {"sum": state["sum"] + total, "most": jnp.maximum(state["most"], jax.lax.pmax(mine, REPLICA_AXIS))}, outputs


def together(replicas: int = 8) -> Sample:
    """Per-replica code joined by psum, pmax, axis_index and all_gather, with a leaf that every replica gets whole."""
    state = {"sum": np.float32(1), "most": np.float32(0)}
    batch = (rows_of(replicas, 2, 3), np.float32(0.5))
    layout = (ROWS, REPLICATED)
    program = Program("together/train", _together, spec_of(state), spec_of(batch), layout, replicas=replicas)
    return Sample(program, state, batch)


def _gradients(state: Any, batch: Any) -> Any:
    loss, slope = jax.value_and_grad(lambda w: jnp.sum((batch @ w) ** 2))(state)
    return state - 0.01 * jax.lax.psum(slope, REPLICA_AXIS), {"loss": loss, "own": slope}


def gradients(replicas: int = 8) -> Sample:
    """Per-replica code that sums its gradients: `psum(grad(loss)(w))`."""
    state, batch = rows_of(3, seed=1), rows_of(replicas, 2, 3)
    program = Program("gradients/train", _gradients, spec_of(state), spec_of(batch), ROWS, replicas=replicas)
    return Sample(program, state, batch)


def _differing(state: Any, batch: Any) -> Any:
    return {"same": state["same"] + 1, "layer": {"bias": state["layer"]["bias"] + jnp.sum(batch)}}, {}


def differing(replicas: int = 8) -> Sample:
    """Per-replica code whose new state differs between the replicas: an error."""
    state = {"same": np.float32(0), "layer": {"bias": np.float32(0)}}
    batch = rows_of(replicas, 2)
    program = Program("differing/train", _differing, spec_of(state), spec_of(batch), ROWS, replicas=replicas)
    return Sample(program, state, batch)


MESHES = {8: (("data", 4), ("model", 2)), 3: (("data", 3), ("model", 1)), 1: (("data", 1), ("model", 1))}
"""A mesh of two axes for each number of cores."""

_ALL = ("data", "model")
_LAYOUTS = {
    # The weights "in" and "out", then the examples.
    "data": ((), (), (_ALL,)),
    "fsdp": ((_ALL,), (_ALL,), (_ALL,)),
    "tensor": (((), ("model",)), (("model",),), (("data",),)),
}


def _network(state: Any, batch: Any, constrain: Any) -> Any:
    def loss(w: Any) -> Any:
        hidden = constrain(jnp.tanh(batch["x"] @ w["in"]))
        return jnp.mean((hidden @ w["out"] - batch["y"]) ** 2), hidden

    (value, hidden), slope = jax.value_and_grad(loss, has_aux=True)(state["w"])
    speed = jax.tree.map(lambda v, g: 0.9 * v - 0.1 * g, state["speed"], slope)
    w = jax.tree.map(jnp.add, state["w"], speed)
    return {"w": w, "speed": speed, "step": state["step"] + 1}, {"loss": value, "hidden": hidden}


def placed(layout: str, cores: int, rows: int = 24) -> tuple[Sample, Sample]:
    """Whole-batch code over a mesh of two axes, with a constraint inside; and the same without any placement.

    Args:
        layout: "data", "fsdp" or "tensor".
        cores: number of cores: 8, 3 or 1.
        rows: number of examples, which may leave a remainder over the cores.
    """
    w = {"in": 0.1 * rows_of(48, 24, seed=1), "out": 0.1 * rows_of(24, seed=2)}
    state = {"w": w, "speed": jax.tree.map(np.zeros_like, w), "step": np.int32(0)}
    batch = {"x": rows_of(rows, 48), "y": rows_of(rows, seed=3)}
    first, last, examples = _LAYOUTS[layout]
    hidden = PartitionSpec(examples[0], "model" if layout == "tensor" else None)

    def step(state: Any, batch: Any) -> Any:
        return _network(state, batch, lambda x: jax.lax.with_sharding_constraint(x, hidden))

    specs = (first, last, (), first, last, examples, examples)
    plain = Program("network/train", lambda s, b: _network(s, b, lambda x: x), spec_of(state), spec_of(batch), _BOTH)
    over_mesh = dataclasses.replace(plain, step=step, placement=Placement(MESHES[cores], specs))
    return Sample(over_mesh, state, batch), Sample(plain, state, batch)


_BOTH = {"x": ROWS, "y": ROWS}


def mapped(cores: int) -> tuple[Sample, Sample]:
    """Whole-batch code with a `jax.shard_map` over two mesh axes; and the same in plain code."""
    state, batch = rows_of(48, 24, seed=1), rows_of(24, 48)
    rows, columns = PartitionSpec("data", None), PartitionSpec(None, "model")

    def shard(w: Any, x: Any) -> Any:
        product = x @ w
        index = jax.lax.axis_index("data") * jax.lax.axis_size("model") + jax.lax.axis_index("model")
        return product, jax.lax.psum(jnp.sum(product * product), ("data", "model")), index[None, None]

    def step(w: Any, x: Any) -> Any:
        over = jax.shard_map(
            shard, in_specs=(columns, rows), out_specs=(PartitionSpec("data", "model"), PartitionSpec(), cells)
        )
        slope = jax.grad(lambda w: over(w, x)[1])(w)
        product, total, index = over(w, x)
        return w - 1e-4 * slope, {"product": product, "total": total, "index": index}

    def plain_step(w: Any, x: Any) -> Any:
        slope = jax.grad(lambda w: jnp.sum((x @ w) ** 2))(w)
        index = jnp.arange(cores, dtype="int32").reshape([size for _, size in MESHES[cores]])
        return w - 1e-4 * slope, {"product": x @ w, "total": jnp.sum((x @ w) ** 2), "index": index}

    cells = PartitionSpec("data", "model")
    plain = Program("mapped/train", plain_step, spec_of(state), spec_of(batch), ROWS)
    placement = Placement(MESHES[cores], (((), ("model",)), (("data",),)))
    return Sample(dataclasses.replace(plain, step=step, placement=placement), state, batch), Sample(plain, state, batch)


WHOLE_BATCH = {
    "counting": counting,
    "descent": descent,
    "watched": watched,
    "many_types": many_types,
    "trees": trees,
    "silent": silent,
    "stateless": stateless,
    "columns": columns,
}
PER_REPLICA = {"together": together, "gradients": gradients}
EVERY = {**WHOLE_BATCH, **PER_REPLICA}
"""What every backend runs and every platform is lowered for; `promoting` and `differing` break the contract."""
