"""Pairs of a model and a slice for `shard_accuracy.py`: steps without any sharding, for the search of layouts.

Rule: layers are equal, so two of them stand for all; they are scanned, as MaxText writes them. The batch is such that
the share of a device is that of a usual run. Weights and moments are float32, products bfloat16.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from plan_cases.mixture import Mixture
from plan_cases.optimizers import adam, momentum
from plan_cases.resnet import ResNet, stats_of

_ADAM = adam()
_LAYERS = 2

Step = Callable[[Any, Any], tuple[Any, Any]]


@dataclasses.dataclass(frozen=True)
class Pair:
    """A model on a slice.

    Attributes:
        name: "gpt2_124m".
        tpu: the slice.
        weights: number of weights at full depth, for the record.
        build: makes the step and the specs of its state and batch.
        batch_axis: axes of the examples, as `shard` takes them.
    """

    name: str
    tpu: str
    weights: int
    build: Callable[[], tuple[Step, Any]]
    batch_axis: Any = None

    @property
    def key(self) -> str:
        """Model and slice: "gpt2_124m on v5e-8"."""
        return f"{self.name} on {self.tpu}"


@dataclasses.dataclass(frozen=True)
class Transformer:
    """A transformer with scanned layers.

    Attributes:
        depth: layers of the real model; the step has two.
        width: features between layers.
        heads: heads of queries.
        kv_heads: heads of keys and values.
        head: features of a head.
        hidden: features inside the perceptron.
        vocabulary: tokens; 0 for patches of images, with 1,000 classes.
        batch: sequences of a step.
        length: positions of a sequence.
        is_gated: whether the perceptron is `silu(x a) * (x b)`, else `gelu(x a)`.
        is_causal: whether a position sees only those before it.
        is_remat: whether a layer is computed again in the backward pass.
        mixture: experts in place of one perceptron.
    """

    depth: int
    width: int
    heads: int
    kv_heads: int
    head: int
    hidden: int
    vocabulary: int
    batch: int
    length: int
    is_gated: bool = True
    is_causal: bool = True
    is_remat: bool = True
    mixture: Mixture | None = None

    def weights(self, layers: int = _LAYERS) -> dict[str, Any]:
        """Return the weights."""

        def stacked(*shape: int) -> jax.Array:
            return jnp.zeros((layers, *shape))

        width, head = self.width, self.head
        experts = (self.mixture.experts,) if self.mixture else ()
        layer = {
            "norm_1": stacked(width),
            "norm_2": stacked(width),
            "query": stacked(width, self.heads, head),
            "key": stacked(width, self.kv_heads, head),
            "value": stacked(width, self.kv_heads, head),
            "out": stacked(self.heads, head, width),
            "up": stacked(*experts, width, self.hidden),
            "down": stacked(*experts, self.hidden, width),
        }
        if self.is_gated:
            layer["gate"] = stacked(*experts, width, self.hidden)
        if self.mixture:
            layer["router"] = stacked(width, self.mixture.experts)
        ends = {"embedding": jnp.zeros((self.vocabulary or 16 * 16 * 3, width)), "norm": jnp.zeros(width)}
        return {"layers": layer, "logits": jnp.zeros((width, self.vocabulary or 1000)), **ends}

    def build(self) -> tuple[Step, Any]:
        """Return the step and its specs."""
        weights = jax.eval_shape(self.weights)
        state = {"weights": weights, "slots": jax.eval_shape(_ADAM.start, weights)}
        tokens = jax.ShapeDtypeStruct((self.batch, self.length), jnp.int32)
        batch = {"x": tokens, "y": tokens}
        if not self.vocabulary:
            patches = jax.ShapeDtypeStruct((self.batch, self.length, 16 * 16 * 3), jnp.bfloat16)
            batch = {"x": patches, "y": jax.ShapeDtypeStruct((self.batch,), jnp.int32)}
        return trained(self.loss), (state, batch)

    def count(self) -> int:
        """Return the number of weights at full depth."""
        return _size(jax.eval_shape(lambda: self.weights(self.depth)))

    def loss(self, weights: Any, batch: Any) -> jax.Array:
        """Return the mean cross entropy."""
        table = weights["embedding"].astype(jnp.bfloat16)
        x = table[batch["x"]] if self.vocabulary else batch["x"] @ table
        layer = jax.checkpoint(self._layer, prevent_cse=False) if self.is_remat else self._layer
        x, _ = lax.scan(lambda x, weights: (layer(x, weights), None), x, weights["layers"])
        x = _normed(x, weights["norm"])
        x = x if self.vocabulary else x.mean(1)
        return cross_entropy(x @ weights["logits"].astype(x.dtype), batch["y"])

    def _layer(self, x: jax.Array, weights: Any) -> jax.Array:
        inner = _normed(x, weights["norm_1"])
        q, k, v = (
            jnp.einsum("btd,dhk->bthk", inner, weights[name].astype(x.dtype)) for name in ("query", "key", "value")
        )
        k, v = (jnp.repeat(y, self.heads // self.kv_heads, axis=2) for y in (k, v))
        scores = jnp.einsum("bqhk,bshk->bhqs", q, k).astype(jnp.float32) * self.head**-0.5
        if self.is_causal:
            scores = jnp.where(jnp.tril(jnp.ones((self.length, self.length), bool)), scores, -1e10)
        y = jnp.einsum("bhqs,bshk->bqhk", jax.nn.softmax(scores).astype(x.dtype), v)
        x = x + jnp.einsum("bqhk,hkd->bqd", y, weights["out"].astype(x.dtype))
        return x + self._perceptron(_normed(x, weights["norm_2"]), weights)

    def _perceptron(self, x: jax.Array, weights: Any) -> jax.Array:
        if self.mixture:
            return self.mixture(x, weights)
        y = x @ weights["up"].astype(x.dtype)
        y = jax.nn.silu(x @ weights["gate"].astype(x.dtype)) * y if self.is_gated else jax.nn.gelu(y)
        return y @ weights["down"].astype(x.dtype)


@dataclasses.dataclass(frozen=True)
class Recommender:
    """A recommender with one large table, from which each example looks up some rows (as in DLRM).

    Attributes:
        rows: rows of the table.
        width: features of a row.
        lookups: rows that an example looks up.
        hidden: features of the perceptron's layers.
        batch: examples of a step.
    """

    rows: int
    width: int
    lookups: int
    hidden: tuple[int, ...]
    batch: int

    def weights(self) -> dict[str, Any]:
        """Return the weights."""
        sizes = (self.lookups * self.width, *self.hidden, 1)
        dense = [jnp.zeros(pair) for pair in itertools.pairwise(sizes)]
        return {"table": jnp.zeros((self.rows, self.width)), "dense": dense}

    def build(self) -> tuple[Step, Any]:
        """Return the step and its specs."""
        weights = jax.eval_shape(self.weights)
        state = {"weights": weights, "slots": jax.eval_shape(_ADAM.start, weights)}
        ids = jax.ShapeDtypeStruct((self.batch, self.lookups), jnp.int32)
        return trained(self.loss), (state, {"x": ids, "y": jax.ShapeDtypeStruct((self.batch,), jnp.float32)})

    def loss(self, weights: Any, batch: Any) -> jax.Array:
        """Return the mean binary cross entropy."""
        x = weights["table"][batch["x"]].reshape(self.batch, -1).astype(jnp.bfloat16)
        for index, kernel in enumerate(weights["dense"]):
            x = x @ kernel.astype(x.dtype)
            x = jax.nn.relu(x) if index < len(self.hidden) else x
        logits = x[:, 0].astype(jnp.float32)
        return jnp.mean(jnp.maximum(logits, 0) - logits * batch["y"] + jnp.log1p(jnp.exp(-jnp.abs(logits))))


def resnet(batch: int) -> tuple[Step, Any]:
    """Return ResNet-50 with BatchNorm over the global batch, and its specs."""
    model, optimizer = ResNet(batch, 1), momentum()
    weights = jax.eval_shape(model.weights)
    state = {"weights": weights, "slots": jax.eval_shape(optimizer.start, weights), "stats": stats_of(weights)}

    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        grad = jax.value_and_grad(model.loss, has_aux=True)
        (loss, stats), gradients = grad(state["weights"], state["stats"], batch)
        weights, slots = optimizer.update(state["weights"], gradients, state["slots"])
        return {"weights": weights, "slots": slots, "stats": stats}, {"loss": loss}

    images = jax.ShapeDtypeStruct((224, 224, 3, batch), jnp.bfloat16)
    return step, (state, {"images": images, "labels": jax.ShapeDtypeStruct((batch,), jnp.int32)})


def trained(loss: Callable[[Any, Any], jax.Array]) -> Step:
    """Return a step of AdamW on a loss `(weights, batch) -> scalar`."""

    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        value, gradients = jax.value_and_grad(loss)(state["weights"], batch)
        weights, slots = _ADAM.update(state["weights"], gradients, state["slots"])
        return {"weights": weights, "slots": slots}, {"loss": value}

    return step


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the mean cross entropy of logits in float32."""
    logits = logits.astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - chosen)


def _normed(x: jax.Array, scale: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6) * scale).astype(x.dtype)


def _size(tree: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def _pair(name: str, tpu: str, model: Transformer) -> Pair:
    return Pair(name, tpu, model.count(), model.build)


_RECOMMENDER = Recommender(4_194_304, 64, 32, (1024, 1024, 512), 32768)

PAIRS = (
    _pair("gpt2_124m", "v5e-8", Transformer(12, 768, 12, 12, 64, 3072, 50304, 64, 1024, False)),
    Pair("recommender_270m", "v5e-8", _size(jax.eval_shape(_RECOMMENDER.weights)), _RECOMMENDER.build),
    _pair("llama_1b", "v6e-8", Transformer(16, 2048, 32, 8, 64, 8192, 128256, 32, 2048)),
    _pair("mixture_1.6b", "v5e-8", Transformer(16, 1024, 16, 4, 64, 3584, 32000, 64, 1024, mixture=Mixture())),
    _pair("llama_8b", "v5p-16", Transformer(32, 4096, 32, 8, 128, 14336, 128256, 16, 2048)),
    _pair("bert_large", "v4-32", Transformer(24, 1024, 16, 16, 64, 4096, 30528, 256, 512, False, False)),
    _pair("vit_large", "v5e-8", Transformer(24, 1024, 16, 16, 64, 4096, 0, 512, 196, False, False, False)),
    _pair("gpt2_1.5b", "v5e-16", Transformer(48, 1600, 25, 25, 64, 6400, 50304, 64, 1024, False)),
    _pair("gemma_2b", "v5e-16", Transformer(18, 2048, 8, 1, 256, 16384, 256128, 16, 2048)),
    _pair("llama_3b", "v6e-16", Transformer(28, 3072, 24, 8, 128, 8192, 128256, 32, 2048)),
    _pair("llama_8b", "v5p-64", Transformer(32, 4096, 32, 8, 128, 14336, 128256, 16, 4096)),
    Pair("resnet50", "v5e-8", 25_557_032, lambda: resnet(1024), {"images": 3, "labels": 0}),
)
"""Models of 0.03 to 8 billion weights, on 8 to 32 chips."""
