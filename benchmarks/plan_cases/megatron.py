"""A decoder whose heads and features are split over cores by hand, as fattorib/transformer_shmap wrote it.

Idea: per-core code on a mesh of `dp` x `mp` cores: a layer's products are split over `mp` and their results summed
there, forward and backward; small batches follow one another, and their gradients are averaged over `dp` at the end.

Rule: bfloat16 weights, but activations that the softmax makes float32; attention with a slope for each head (ALiBi).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from plan_cases.case import Built
from plan_cases.decoder import Model
from plan_cases.optimizers import adam
from plan_cases.placing import mesh_of, placed, spec

_ADAM = adam(3e-4, 0.9, 0.95, 0.0, first_dtype=jnp.bfloat16)
_SPLIT_LAST, _SPLIT_FIRST = P(None, None, "mp"), P(None, "mp", None)
_AXES = {
    "layers": {
        **dict.fromkeys(("query", "key", "value", "up"), _SPLIT_LAST),
        **dict.fromkeys(("out", "down"), _SPLIT_FIRST),
        "norm": P(),
    },
    "embedding": P("mp", None),
    "logits": P(None, "mp"),
    "norm": P(),
}


@dataclasses.dataclass(frozen=True)
class Megatron:
    """A training run.

    Attributes:
        model: the sizes.
        dp: replicas of the model.
        mp: cores of one replica.
        rows: sequences of one replica in a step.
        parts: batches that they are cut into.
        length: tokens of a sequence.
    """

    model: Model
    dp: int
    mp: int
    rows: int
    parts: int
    length: int = 1024

    def build(self) -> Built:
        """Return the step over all cores, and its specs."""
        mesh = mesh_of(dp=self.dp, mp=self.mp)
        weights = jax.eval_shape(self.weights)
        axes = {"weights": _AXES, "slots": {"m": _AXES, "v": _AXES, "count": P()}}
        state = {"weights": weights, "slots": jax.eval_shape(_ADAM.start, weights)}
        tokens = spec(mesh, (self.dp * self.rows, self.length), jnp.int32, "dp")
        step = jax.shard_map(self.step, mesh=mesh, in_specs=(axes, P("dp")), out_specs=(axes, P()), check_vma=False)
        return step, (placed(mesh, state, axes), tokens)

    def weights(self) -> dict[str, Any]:
        """Return the weights, float32, those of the layers stacked."""
        width, layers, hidden = self.model.width, self.model.layers, self.model.hidden
        square = {name: jnp.zeros((layers, width, width)) for name in ("query", "key", "value", "out")}
        ends = {"up": jnp.zeros((layers, width, hidden)), "down": jnp.zeros((layers, hidden, width))}
        table = jnp.zeros((self.model.vocabulary, width))
        layer = {**square, **ends, "norm": jnp.ones((layers, width))}
        return {"layers": layer, "embedding": table, "logits": table.T, "norm": jnp.ones(width)}

    def parameters(self) -> int:
        """Return the number of parameters."""
        return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(self.weights)))

    def step(self, state: Any, tokens: jax.Array) -> tuple[Any, Any]:
        """Train on one core's share."""
        narrow = jax.tree.map(lambda w: w.astype(jnp.bfloat16), state["weights"])

        def add(total: Any, part: jax.Array) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, jax.value_and_grad(self.loss)(narrow, part)), None

        parts = tokens.reshape(self.parts, -1, self.length)
        start = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, narrow))
        (loss, gradients), _ = lax.scan(add, start, parts)
        gradients = jax.tree.map(lambda g: (lax.pmean(g, "dp") / self.parts).clip(-1, 1), gradients)
        weights, slots = _ADAM.update(state["weights"], gradients, state["slots"])
        return {"weights": weights, "slots": slots}, {"loss": lax.pmean(loss, "dp") / self.parts}

    def loss(self, weights: Any, tokens: jax.Array) -> jax.Array:
        """Return the mean cross entropy."""
        share = self.model.vocabulary // self.mp
        local = tokens - lax.axis_index("mp") * share
        x = summed(jax.nn.one_hot(local, share, dtype=jnp.float32) @ weights["embedding"])
        x, _ = lax.scan(jax.checkpoint(self._layer, prevent_cse=False), x, weights["layers"])
        logits = (shared(_normed(x, weights["norm"])) @ weights["logits"])[:, :-1].astype(jnp.float32)
        top = lax.stop_gradient(lax.pmax(lax.stop_gradient(logits.max(-1)), "mp"))
        total = summed(jnp.exp(logits - top[..., None]).sum(-1))
        hot = jax.nn.one_hot(local[:, 1:], share, dtype=jnp.float32)
        return jnp.mean(jnp.log(total) + top - summed((logits * hot).sum(-1)))

    def _layer(self, x: jax.Array, weights: Any) -> tuple[jax.Array, None]:
        inner = shared(_normed(x, weights["norm"]))
        hidden = jax.nn.gelu(inner @ weights["up"]) @ weights["down"]
        return x + summed(hidden + self._attended(inner, weights)), None

    def _attended(self, x: jax.Array, weights: Any) -> jax.Array:
        heads = self.model.heads // self.mp
        q, k, v = ((x @ weights[name]).reshape(*x.shape[:2], heads, -1) for name in ("query", "key", "value"))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
        slopes = 2.0 ** (-8 / self.model.heads * (1 + jnp.arange(heads) + heads * lax.axis_index("mp")))
        at = jnp.arange(self.length)
        scores += slopes[:, None, None] * at
        seen = at[:, None] >= at
        kept = jax.nn.softmax(jnp.where(seen, scores.astype(jnp.float32), jnp.finfo(jnp.float32).min))
        y = jnp.einsum("bhqk,bkhd->bqhd", kept, v)
        return y.reshape(*x.shape[:2], -1) @ weights["out"]


@jax.custom_vjp
def shared(x: jax.Array) -> jax.Array:
    """Return x, of which each core of `mp` uses all: its gradients are summed."""
    return x


shared.defvjp(lambda x: (x, None), lambda _, g: (lax.psum(g, "mp"),))


@jax.custom_vjp
def summed(x: jax.Array) -> jax.Array:
    """Return the sum over `mp`, whose gradient each core takes as it is."""
    return lax.psum(x, "mp")


summed.defvjp(lambda x: (lax.psum(x, "mp"), None), lambda _, g: (g,))


def _normed(x: jax.Array, scale: jax.Array) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(jnp.mean((x - mean) ** 2, -1, keepdims=True) + 1e-6) * scale
