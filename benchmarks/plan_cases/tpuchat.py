"""A small decoder on one chip, as vorushin/tpuchat trained it on v5e and v6e.

Idea: bfloat16 throughout, one head of keys and values for four of queries; small batches
follow one another, and their gradients are added up.

Rule: nothing is kept away from the backward pass but the logits, which are made again part by part.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from plan_cases.case import Built, Case
from plan_cases.optimizers import adam
from plan_cases.placing import mesh_of, placed, spec

_ADAM = adam(1e-4, 0.9, 0.95, 0.1, first_dtype=jnp.bfloat16)
_BLOCK = 1024
_CAP = 15.0


@dataclasses.dataclass(frozen=True)
class Chat:
    """A training run of tpuchat, or its forward pass alone.

    Attributes:
        rows: sequences of one small batch.
        parts: small batches of a step.
        is_trained: whether there is a backward pass and an update.
        layers: how many.
        width: features between layers.
        heads: of queries.
        head: features of a head.
        hidden: features inside the multilayer perceptron.
        vocabulary: tokens.
        length: tokens of a sequence.
        loss_parts: parts in which the logits are computed.
    """

    rows: int = 4
    parts: int = 16
    is_trained: bool = True
    layers: int = 8
    width: int = 1024
    heads: int = 4
    head: int = 256
    hidden: int = 3072
    vocabulary: int = 32768
    length: int = 2048
    loss_parts: int = 8

    def build(self) -> Built:
        """Return the step on one chip, and its specs."""
        mesh = mesh_of(device=1)
        weights = jax.eval_shape(self.weights)
        tokens = spec(mesh, (self.rows * self.parts, self.length), jnp.int32)
        batch = {"tokens": tokens, "targets": tokens}
        if not self.is_trained:
            return lambda state, batch: (state, self.loss(state, batch)), (placed(mesh, weights), batch)
        state = {"weights": weights, "slots": jax.eval_shape(_ADAM.start, weights)}
        return self.step, (placed(mesh, state), batch)

    def weights(self) -> dict[str, Any]:
        """Return the weights, bfloat16."""

        def zeros(*shape: int) -> jax.Array:
            return jnp.zeros(shape, jnp.bfloat16)

        layer = {
            "query": zeros(self.width, self.heads, self.head),
            "key": zeros(self.width, 1, self.head),
            "value": zeros(self.width, 1, self.head),
            "out": zeros(self.heads, self.head, self.width),
            "gate": zeros(self.width, self.hidden),
            "up": zeros(self.width, self.hidden),
            "down": zeros(self.hidden, self.width),
        }
        ends = {"embedding": zeros(self.vocabulary, self.width), "logits": zeros(self.width, self.vocabulary)}
        return ends | {"layers": [layer] * self.layers}

    def parameters(self) -> int:
        """Return the number of parameters."""
        return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(self.weights)))

    def step(self, state: Any, batch: Any) -> tuple[Any, Any]:
        """Train on all small batches."""
        weights = state["weights"]

        def add(total: Any, part: Any) -> tuple[Any, jax.Array]:
            loss, gradients = jax.value_and_grad(self.loss)(weights, part)
            return jax.tree.map(jnp.add, total, gradients), loss

        parts = jax.tree.map(lambda x: x.reshape(self.parts, self.rows, self.length), batch)
        gradients, losses = lax.scan(add, jax.tree.map(jnp.zeros_like, weights), parts)
        gradients = jax.tree.map(lambda g: g / self.parts, gradients)
        weights, slots = _ADAM.update(weights, gradients, state["slots"])
        return {"weights": weights, "slots": slots}, {"loss": losses.mean()}

    def loss(self, weights: Any, batch: Any) -> jax.Array:
        """Return the mean cross entropy."""
        x = _normed(weights["embedding"][batch["tokens"]])
        for layer in weights["layers"]:
            x = self._layer(x, layer)
        x = _normed(x).reshape(self.loss_parts, -1, self.width)
        targets = batch["targets"].reshape(self.loss_parts, -1)

        @jax.checkpoint
        def part(total: jax.Array, both: Any) -> tuple[jax.Array, None]:
            logits = _CAP * jnp.tanh(both[0] @ weights["logits"] / _CAP)
            chosen = jnp.take_along_axis(logits, both[1][:, None], -1)[:, 0]
            return total + jnp.sum(jax.nn.logsumexp(logits, -1) - chosen), None

        return lax.scan(part, jnp.zeros((), jnp.bfloat16), (x, targets))[0] / targets.size

    def _layer(self, x: jax.Array, weights: Any) -> jax.Array:
        inner = _normed(x)
        q, k, v = (jnp.einsum("btd,dhk->bhtk", inner, weights[name]) for name in ("query", "key", "value"))
        y = self._attended(_normed(_rotated(q)), _normed(_rotated(k)), v)
        x = x + jnp.einsum("bhtk,hkd->btd", y, weights["out"])
        inner = _normed(x)
        return x + (jax.nn.silu(inner @ weights["gate"]) * (inner @ weights["up"])) @ weights["down"]

    def _attended(self, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        mask = masks.MultiHeadMask([masks.CausalMask((self.length, self.length))] * self.heads)
        names = ("block_q", "block_kv", "block_q_dkv", "block_kv_dkv", "block_q_dq", "block_kv_dq")
        sizes = splash.BlockSizes(**dict.fromkeys(names, _BLOCK))
        return jax.vmap(splash.make_splash_mha(mask, block_sizes=sizes, head_shards=1, q_seq_shards=1))(q, k, v)


def _normed(x: jax.Array) -> jax.Array:
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def _rotated(x: jax.Array) -> jax.Array:
    """Turn `(batch, heads, length, head)` by its positions (RoPE)."""
    half = x.shape[-1] // 2
    speed = 10000.0 ** -(jnp.arange(half, dtype=jnp.float32) / half)
    angle = jnp.arange(x.shape[2], dtype=jnp.float32)[:, None] * speed
    cos, sin = jnp.cos(angle).astype(x.dtype), jnp.sin(angle).astype(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cos + second * sin, second * cos - first * sin], -1)


def _case(name: str, chip: str, chat: Chat, seconds: float, arithmetic: str, source: str) -> Case:
    return Case(
        name=f"{name}_{chip}-1",
        family=f"tpuchat_{chip}",
        kind="step",
        target=f"{chip}-1",
        measured_s=seconds,
        arithmetic=arithmetic,
        source=f"vorushin/tpuchat {source}; 08_tpu_ablations.py and 05_tpu_perf.py",
        trust="B",
        build=chat.build,
        stack="JAX on Colab",
        year=2026,
    )


_POST = "and vorushin.github.io, LLM pretraining on TPU v6e with a $50 budget"
_STEP = "64 sequences of 2048 tokens a step at {} tokens/s, steps waited for one by one"
CASES = (
    _case("tpuchat_164m", "v5e", Chat(), 131072 / 148829, _STEP.format(148829), _POST),
    _case("tpuchat_164m", "v6e", Chat(), 131072 / 434932, _STEP.format(434932), "LOG.md, Feb 21 2026"),
    _case("tpuchat_forward", "v6e", Chat(parts=1, is_trained=False), 4.73e-3, "as printed: forward only", _POST),
)
"""Training steps on one chip, and a forward pass."""
