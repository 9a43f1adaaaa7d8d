"""A decoder transformer as MaxText trains it, of the Llama, Gemma, GPT or Mixtral kind.

Idea: one layer, scanned; its weights stacked along axis 0. Weights are split over `fsdp` along the model's width and
over `tensor` along heads, hidden features and vocabulary; activations are split over `data` and `fsdp` along the batch.

Rule: float32 master weights and moments, cast to bfloat16 where they are used; norms, softmax and loss in float32.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

from plan_cases.attention import SPLASH, Attention, rotated
from plan_cases.case import Built
from plan_cases.mixture import Mixture
from plan_cases.optimizers import Optimizer, adam
from plan_cases.placing import mesh_of, placed, spec
from plan_cases.remat import FULL, Remat

ADAMW = adam()

Split = Callable[..., jax.Array]
"""Function `(x, *axes) -> x` that says over which mesh axes an activation is split, beside its batch."""


@dataclasses.dataclass(frozen=True)
class Model:
    """The sizes of a decoder.

    Attributes:
        layers: how many.
        width: features between layers.
        heads: of queries.
        kv_heads: of keys and values.
        head: features of a head.
        hidden: features inside the multilayer perceptron.
        vocabulary: tokens.
        is_gated: the perceptron is `act(x a) * (x b)`, else `relu(x a)`.
        is_parallel: attention and perceptron both see the layer's input, under one norm.
        is_tied: the logits are products with the embedding.
        attention: how it is computed.
        has_rope: queries and keys are turned by their positions.
        mixture: experts in place of one gated perceptron; None for none.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    head: int
    hidden: int
    vocabulary: int
    is_gated: bool = True
    is_parallel: bool = False
    is_tied: bool = False
    attention: Attention = SPLASH
    has_rope: bool = True
    mixture: Mixture | None = None

    def weights(self) -> dict[str, Any]:
        """Return the weights, float32, those of the layers stacked."""

        def stacked(*shape: int) -> jax.Array:
            return jnp.zeros((self.layers, *shape))

        width, head, hidden = self.width, self.head, self.hidden
        experts = (self.mixture.experts,) if self.mixture else ()
        layer = {
            "norm": stacked(width),
            "query": stacked(width, self.heads, head),
            "key": stacked(width, self.kv_heads, head),
            "value": stacked(width, self.kv_heads, head),
            "out": stacked(self.heads, head, width),
            "up": stacked(*experts, width, hidden),
            "down": stacked(*experts, hidden, width),
        }
        if self.is_gated:
            layer["gate"] = stacked(*experts, width, hidden)
        if self.mixture:
            layer["router"] = stacked(width, self.mixture.experts)
        if not self.is_parallel:
            layer["norm_2"] = stacked(width)
        weights = {"layers": layer, "embedding": jnp.zeros((self.vocabulary, width)), "norm": jnp.zeros(width)}
        if not self.is_tied:
            weights["logits"] = jnp.zeros((width, self.vocabulary))
        return weights

    def axes(self, weights: Any) -> Any:
        """Return how each weight is split, a tree of `PartitionSpec`."""
        wide, narrow = P(None, "fsdp", "tensor"), P(None, "tensor", "fsdp")
        layer = {name: wide for name in weights["layers"]}
        layer |= {"out": P(None, "tensor", None, "fsdp"), "down": narrow}
        if self.mixture:
            experts = P(None, None, "fsdp", "tensor")
            layer |= {"gate": experts, "up": experts, "down": P(None, None, "tensor", "fsdp")}
        layer |= {name: P(None, "fsdp") for name in layer if name.startswith(("norm", "router"))}
        axes = {"layers": layer, "embedding": P("tensor", "fsdp"), "norm": P("fsdp")}
        return axes | ({"logits": P("fsdp", "tensor")} if "logits" in weights else {})

    def parameters(self) -> int:
        """Return the number of parameters."""
        return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(self.weights)))

    def layer(self, mesh: AbstractMesh, split: Split, x: jax.Array, weights: Any) -> jax.Array:
        """Return `(batch, length, width)` after one layer."""
        x = checkpoint_name(split(x, None, "tensor"), "decoder_layer_input")
        inner = normed(x, weights["norm"])
        attended = self._attended(mesh, split, inner, weights)
        if self.is_parallel:
            return split(x + attended + self._perceptron(split, inner, weights), None, "tensor")
        x = split(x + attended, None, "tensor")
        x += self._perceptron(split, normed(x, weights["norm_2"]), weights)
        return split(x, None, "tensor")

    def _attended(self, mesh: AbstractMesh, split: Split, x: jax.Array, weights: Any) -> jax.Array:
        def of(name: str) -> jax.Array:
            y = jnp.einsum("bsd,dhk->bshk", x, weights[name].astype(x.dtype))
            y = rotated(y) if self.has_rope and name != "value" else y
            return checkpoint_name(split(y, None, "tensor"), f"{name}_proj").transpose(0, 2, 1, 3)

        y = self.attention(mesh, of("query"), of("key"), of("value"))
        y = checkpoint_name(split(y.transpose(0, 2, 1, 3), None, "tensor"), "context")
        return checkpoint_name(jnp.einsum("bshk,hkd->bsd", y, weights["out"].astype(x.dtype)), "out_proj")

    def _perceptron(self, split: Split, x: jax.Array, weights: Any) -> jax.Array:
        if self.mixture:
            return self.mixture(x, weights)
        y = checkpoint_name(split(x @ weights["up"].astype(x.dtype), None, "tensor"), "mlpwi_1")
        if self.is_gated:
            gate = checkpoint_name(split(x @ weights["gate"].astype(x.dtype), None, "tensor"), "mlpwi_0")
            y = jax.nn.silu(gate) * y
        else:
            y = jax.nn.relu(y)
        return checkpoint_name(y @ weights["down"].astype(x.dtype), "mlpwo")


@dataclasses.dataclass(frozen=True)
class Training:
    """A training run of a decoder.

    Attributes:
        model: the decoder.
        batch: sequences of all devices.
        length: tokens of a sequence.
        fsdp: devices over which weights and the batch are split.
        tensor: devices over which heads and features are split.
        data: devices over which only the batch is split.
        remat: what is kept for the backward pass.
        optimizer: how weights are updated.
        vocabulary_tiles: parts in which the loss is computed; 1 means at once.
        is_embedding_product: the embedding is looked up by a product with one-hot rows.
        clip: the norm to which the gradients are cut; 0 means that they are not.
        dtype: of the weights between steps.
        is_constrained: whether the step says how its activations are split; else a layout from outside does.
    """

    model: Model
    batch: int
    length: int
    fsdp: int
    tensor: int = 1
    data: int = 1
    remat: Remat = FULL
    optimizer: Optimizer = ADAMW
    vocabulary_tiles: int = 1
    is_embedding_product: bool = True
    clip: float = 1.0
    dtype: Any = jnp.float32
    is_constrained: bool = True

    @property
    def mesh(self) -> AbstractMesh:
        """The mesh of all devices."""
        return mesh_of(data=self.data, fsdp=self.fsdp, tensor=self.tensor)

    def build(self) -> Built:
        """Return the step over all devices, and its specs."""
        mesh = self.mesh
        weights = jax.eval_shape(lambda: jax.tree.map(lambda w: w.astype(self.dtype), self.model.weights()))
        slots = jax.eval_shape(self.optimizer.start, weights)
        axes = self.model.axes(weights)
        state = {"weights": placed(mesh, weights, axes), "slots": placed(mesh, slots, self.optimizer.axes(axes))}
        tokens = spec(mesh, (self.batch, self.length), jnp.int32, ("data", "fsdp"))
        return self.step, (state, {"tokens": tokens, "targets": tokens})

    def unplaced(self) -> Built:
        """Return the step without shardings of its inputs, and its specs.

        With tensor parallelism it still says how activations between layers are split: along the width, which no layout
        of weights says.
        """
        weights = jax.eval_shape(lambda: jax.tree.map(lambda w: w.astype(self.dtype), self.model.weights()))
        state = {"weights": weights, "slots": jax.eval_shape(self.optimizer.start, weights)}
        tokens = jax.ShapeDtypeStruct((self.batch, self.length), jnp.int32)
        step = dataclasses.replace(self, is_constrained=self.tensor > 1).step
        return step, (state, {"tokens": tokens, "targets": tokens})

    def step(self, state: Any, batch: Any) -> tuple[Any, Any]:
        """Train on the global batch."""
        loss, gradients = jax.value_and_grad(self.loss)(state["weights"], batch)
        if self.clip:
            norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(gradients)))
            gradients = jax.tree.map(lambda g: g * jnp.minimum(1.0, self.clip / norm), gradients)
        weights, slots = self.optimizer.update(state["weights"], gradients, state["slots"])
        return {"weights": weights, "slots": slots}, {"loss": loss}

    def loss(self, weights: Any, batch: Any) -> jax.Array:
        """Return the mean cross entropy."""
        mesh, model = self.mesh, self.model
        x = self._split(self._embedded(weights["embedding"], batch["tokens"]), None, "tensor")
        layer = self.remat.of(lambda x, weights: (model.layer(mesh, self._split, x, weights), None))
        x, _ = lax.scan(layer, x, weights["layers"])
        x = normed(x, weights["norm"])
        table = weights["embedding"].T if model.is_tied else weights["logits"]
        return self._cross_entropy(x, table.astype(x.dtype), batch["targets"]) / (self.batch * self.length)

    def _split(self, x: jax.Array, *axes: Any) -> jax.Array:
        return split(self.mesh, x, *axes) if self.is_constrained else x

    def _embedded(self, table: jax.Array, tokens: jax.Array) -> jax.Array:
        if not self.is_embedding_product:
            return jnp.take(table.astype(jnp.bfloat16), tokens, axis=0)
        return jax.nn.one_hot(tokens, self.model.vocabulary, dtype=jnp.bfloat16) @ table.astype(jnp.bfloat16)

    def _cross_entropy(self, x: jax.Array, table: jax.Array, targets: jax.Array) -> jax.Array:
        def part(x: jax.Array, targets: jax.Array) -> jax.Array:
            logits = self._split(x @ table, None, "tensor").astype(jnp.float32)
            hot = jax.nn.one_hot(targets, logits.shape[-1], dtype=jnp.float32)
            return jnp.sum(jax.nn.logsumexp(logits, -1) - jnp.sum(logits * hot, -1))

        if self.vocabulary_tiles == 1:
            return part(x, targets)
        tiles = self.vocabulary_tiles

        def tiled(y: jax.Array) -> jax.Array:
            return y.reshape(y.shape[0], tiles, -1, *y.shape[2:]).swapaxes(0, 1)

        add = jax.checkpoint(lambda total, both: (total + part(*both), None))
        return lax.scan(add, jnp.zeros(()), (tiled(x), tiled(targets)))[0]


def split(mesh: AbstractMesh, x: jax.Array, *axes: Any) -> jax.Array:
    """Return `x` split over the devices along its batch, and along what else is named."""
    return lax.with_sharding_constraint(x, NamedSharding(mesh, P(("data", "fsdp"), *axes)))


def normed(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Return x over its root mean square, scaled (RMSNorm)."""
    wide = x.astype(jnp.float32)
    wide = wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)
    return (wide * scale).astype(x.dtype)
