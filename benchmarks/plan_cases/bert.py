"""BERT-large pre-training, phase 2, as the MLPerf submissions for TPUs trained it.

Idea: per-core code joined by sums, as TPUEstimator and TPUStrategy made it.

Rule: bfloat16 activations, float32 weights; dropout draws its numbers inside the fusions that use them, as TensorFlow's
random_uniform did; attention is the plain product, with the softmax's sum divided out after it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from plan_cases.case import Built
from plan_cases.optimizers import Optimizer, adam
from plan_cases.placing import mesh_of, placed, spec

LAMB = adam(3.5e-4, 0.9, 0.999, 0.01, is_lamb=True)


@dataclasses.dataclass(frozen=True)
class Bert:
    """A training run of BERT.

    Attributes:
        batch: sequences of all cores.
        replicas: cores.
        length: tokens of a sequence.
        predictions: masked tokens of a sequence.
        reduce_dtype: in which the gradients are summed over the cores.
        optimizer: how weights are updated.
        layers: how many.
        width: features between layers.
        heads: of attention.
    """

    batch: int
    replicas: int
    length: int = 512
    predictions: int = 76
    reduce_dtype: Any = jnp.float32
    optimizer: Optimizer = LAMB
    layers: int = 24
    width: int = 1024
    heads: int = 16

    def build(self) -> Built:
        """Return the step over all cores, and its specs."""
        mesh = mesh_of(replica=self.replicas)
        weights = jax.eval_shape(self.weights)
        state = {"weights": weights, "slots": jax.eval_shape(self.optimizer.start, weights)}
        rows = {
            "tokens": self.length,
            "segments": self.length,
            "positions": self.predictions,
            "masked": self.predictions,
        }
        batch = {name: spec(mesh, (self.batch, size), jnp.int32, "replica") for name, size in rows.items()}
        batch["follows"] = spec(mesh, (self.batch,), jnp.int32, "replica")
        step = jax.shard_map(self.step, mesh=mesh, in_specs=(P(), P("replica")), out_specs=(P(), P()), check_vma=False)
        return step, (placed(mesh, state), batch)

    def weights(self) -> dict[str, Any]:
        """Return the weights, float32."""
        width, hidden = self.width, 4 * self.width

        def dense(*shape: int, outs: int = 1) -> dict[str, jax.Array]:
            return {"kernel": jnp.zeros(shape), "bias": jnp.zeros(shape[-outs:])}

        def norm() -> dict[str, jax.Array]:
            return {"scale": jnp.ones(width), "offset": jnp.zeros(width)}

        by_head = (width, self.heads, width // self.heads)

        def layer() -> dict[str, Any]:
            attention = {name: dense(*by_head, outs=2) for name in ("query", "key", "value")}
            ends = {"out": dense(width, width), "norm": norm(), "norm_2": norm()}
            return attention | ends | {"up": dense(width, hidden), "down": dense(hidden, width)}

        return {
            "tokens": jnp.zeros((30522, width)),
            "places": jnp.zeros((512, width)),
            "segments": jnp.zeros((2, width)),
            "norm": norm(),
            "layers": [layer() for _ in range(self.layers)],
            "pool": dense(width, width),
            "follows": dense(width, 2),
            "transform": dense(width, width) | norm(),
            "bias": jnp.zeros(30522),
        }

    def parameters(self) -> int:
        """Return the number of parameters."""
        return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(self.weights)))

    def step(self, state: Any, batch: Any) -> tuple[Any, Any]:
        """Train on one core's sequences."""
        loss, gradients = jax.value_and_grad(self.loss)(state["weights"], batch)
        narrow = jax.tree.map(lambda g: g.astype(self.reduce_dtype), gradients)
        gradients = jax.tree.map(lambda g: g.astype(jnp.float32), lax.psum(narrow, "replica"))
        norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(gradients)))
        gradients = jax.tree.map(lambda g: g * jnp.minimum(1.0, 1.0 / norm), gradients)
        weights, slots = self.optimizer.update(state["weights"], gradients, state["slots"])
        return {"weights": weights, "slots": slots}, {"loss": lax.psum(loss, "replica")}

    def loss(self, weights: Any, batch: Any) -> jax.Array:
        """Return this core's share of the loss: masked tokens, and whether a sentence follows."""
        x = self._embedded(weights, batch)
        for layer in weights["layers"]:
            x = self._layer(x, layer)
        chosen = jnp.take_along_axis(x, batch["positions"][..., None], 1)
        transform = weights["transform"]
        y = _normed(jax.nn.gelu(_dense(chosen, transform)), transform)
        logits = (y @ weights["tokens"].T.astype(y.dtype)).astype(jnp.float32) + weights["bias"]
        pooled = jnp.tanh(_dense(x[:, 0], weights["pool"]))
        follows = _dense(pooled, weights["follows"]).astype(jnp.float32)
        return (_cross_entropy(logits, batch["masked"]) + _cross_entropy(follows, batch["follows"])) / self.replicas

    def _embedded(self, weights: Any, batch: Any) -> jax.Array:
        x = jnp.take(weights["tokens"], batch["tokens"], axis=0)
        x += jax.nn.one_hot(batch["segments"], 2) @ weights["segments"]
        x += weights["places"][: self.length]
        return _dropped(_normed(x.astype(jnp.bfloat16), weights["norm"]))

    def _layer(self, x: jax.Array, weights: Any) -> jax.Array:
        x = _normed(x + _dropped(_dense(self._attended(x, weights), weights["out"])), weights["norm"])
        y = _dense(jax.nn.gelu(_dense(x, weights["up"])), weights["down"])
        return _normed(x + _dropped(y), weights["norm_2"])

    def _attended(self, x: jax.Array, weights: Any) -> jax.Array:
        def of(name: str) -> jax.Array:
            kernel, bias = weights[name]["kernel"].astype(x.dtype), weights[name]["bias"].astype(x.dtype)
            return jnp.einsum("bsd,dhk->bshk", x, kernel) + bias

        q = of("query") * (self.width // self.heads) ** -0.5
        scores = jnp.einsum("bthk,bfhk->bhft", of("key"), q).astype(jnp.float32)
        scores = jnp.exp(scores - lax.stop_gradient(scores.max(-1, keepdims=True)))
        total = scores.sum(-1)
        kept = _dropped(scores.astype(x.dtype))
        y = jnp.einsum("bhft,bthk->bfhk", kept, of("value")) / total.transpose(0, 2, 1)[..., None].astype(x.dtype)
        return y.reshape(*x.shape[:2], self.width)


def _dense(x: jax.Array, weights: Any) -> jax.Array:
    return x @ weights["kernel"].astype(x.dtype) + weights["bias"].astype(x.dtype)


def _normed(x: jax.Array, weights: Any) -> jax.Array:
    wide = x.astype(jnp.float32)
    mean = wide.mean(-1, keepdims=True)
    wide = (wide - mean) * lax.rsqrt(jnp.mean((wide - mean) ** 2, -1, keepdims=True) + 1e-12)
    return (wide * weights["scale"] + weights["offset"]).astype(jnp.bfloat16)


def _dropped(x: jax.Array) -> jax.Array:
    drawn = lax.rng_uniform(jnp.bfloat16(0), jnp.bfloat16(1), x.shape)
    return x * (drawn >= 0.1).astype(x.dtype) * jnp.asarray(1 / 0.9, x.dtype)


def _cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    hot = jax.nn.one_hot(targets, logits.shape[-1], dtype=logits.dtype)
    return -jnp.mean(jnp.sum(jax.nn.log_softmax(logits) * hot, -1))
