"""Decode steps of language models: one token of each sequence, with a cache of keys and values.

Idea: published times with code. PyTorch/XLA's Llama is tensor parallel, one call of the host for each token. rvllm's
Gemma 4 has int8 weights, one scan over all layers, and a loop over tokens on the device.

Rule: throughputs of servers (JetStream and others) are left out: prefills of other requests run between their steps.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

from plan_cases.case import Built, Case
from plan_cases.placing import mesh_of, spec

TOKENS = 16
"""Tokens of a call where the loop is on the device."""


@dataclasses.dataclass(frozen=True)
class Llama:
    """A Llama that generates one token of each sequence, tensor parallel as FairScale splits it.

    Attributes:
        chips: devices over which heads and features are split.
        layers: how many.
        width: features between layers.
        hidden: features inside the multilayer perceptron.
        heads: of queries, keys and values.
        rows: sequences.
        length: positions of the cache.
    """

    chips: int
    layers: int
    width: int
    hidden: int
    heads: int
    rows: int = 1
    length: int = 256

    def build(self) -> Built:
        """Return the step over all chips, and its specs."""
        mesh = mesh_of(tensor=self.chips)
        columns, rows = P(None, "tensor"), P("tensor", None)
        heads, head = self.heads, self.width // self.heads
        shapes = {
            "query": ((self.width, heads, head), columns),
            "key": ((self.width, heads, head), columns),
            "value": ((self.width, heads, head), columns),
            "out": ((heads, head, self.width), rows),
            "gate": ((self.width, self.hidden), columns),
            "up": ((self.width, self.hidden), columns),
            "down": ((self.hidden, self.width), rows),
            "norm": ((self.width,), P()),
            "norm_2": ((self.width,), P()),
        }
        layer = {name: spec(mesh, shape, jnp.bfloat16, *at) for name, (shape, at) in shapes.items()}
        cache = spec(mesh, (self.rows, heads, self.length, head), jnp.bfloat16, None, "tensor")
        state = {
            "layers": [layer] * self.layers,
            "caches": [(cache, cache)] * self.layers,
            "embedding": spec(mesh, (32000, self.width), jnp.bfloat16, None, "tensor"),
            "logits": spec(mesh, (self.width, 32000), jnp.bfloat16, None, "tensor"),
            "position": spec(mesh, (), jnp.int32),
        }
        return functools.partial(self.step, mesh), (state, spec(mesh, (self.rows, 1), jnp.int32))

    def step(self, mesh: AbstractMesh, state: Any, tokens: Any) -> tuple[Any, Any]:
        """Return the state with fuller caches, and the next tokens."""

        def whole(x: jax.Array) -> jax.Array:
            return lax.with_sharding_constraint(x, NamedSharding(mesh, P()))

        x, caches = whole(state["embedding"][tokens]), []
        for weights, cache in zip(state["layers"], state["caches"], strict=True):
            attended, cache = self._attended(_normed(x, weights["norm"]), weights, cache, state["position"])
            x = whole(x + attended)
            inner = _normed(x, weights["norm_2"])
            x = whole(x + (jax.nn.silu(inner @ weights["gate"]) * (inner @ weights["up"])) @ weights["down"])
            caches.append(cache)
        logits = whole(x[:, -1] @ state["logits"]).astype(jnp.float32)
        after = state | {"caches": caches, "position": state["position"] + 1}
        return after, jnp.argmax(logits, -1)[:, None]

    def _attended(self, x: jax.Array, weights: Any, cache: Any, position: Any) -> tuple[jax.Array, Any]:
        query, key, value = (jnp.einsum("bsd,dhk->bhsk", x, weights[name]) for name in ("query", "key", "value"))
        query, key = _turned(query, position, 1.0), _turned(key, position, 1.0)
        keys, values = (
            lax.dynamic_update_slice(old, new, (0, 0, position, 0))
            for old, new in zip(cache, (key, value), strict=True)
        )
        scores = jnp.einsum("bhsk,bhtk->bhst", query, keys) * (self.width // self.heads) ** -0.5
        seen = jnp.arange(self.length) <= position
        shares = jax.nn.softmax(jnp.where(seen, scores.astype(jnp.float32), -1e9)).astype(x.dtype)
        y = jnp.einsum("bhst,bhtk->bhsk", shares, values)
        return jnp.einsum("bhsk,hkd->bsd", y, weights["out"]), (keys, values)


@dataclasses.dataclass(frozen=True)
class Gemma:
    """Gemma 4 with 31 billion weights in int8, for one sequence, as m0at/rvllm computes it over four chips.

    Each sixth layer attends to all positions, with fewer and wider heads; the others to the last 1,024. Arrays of both
    kinds of layers are padded to one size, so that one loop goes over all of them.

    Attributes:
        length: positions of the cache.
        layers: how many.
        width: features between layers.
        hidden: features inside the multilayer perceptron.
    """

    length: int
    layers: int = 60
    width: int = 5376
    hidden: int = 21504
    heads: int = 32
    queries: int = 16384
    keys: int = 4096

    def build(self) -> Built:
        """Return the loop over tokens on four chips, and its specs."""
        mesh = mesh_of(tensor=4)
        width, hidden = self.width, self.hidden
        products = {
            "query": (self.queries, width), "key": (self.keys, width), "value": (self.keys, width),
            "out": (width, self.queries), "gate": (hidden, width), "up": (hidden, width), "down": (width, hidden),
        }  # fmt: skip
        layers: dict[str, Any] = {}
        for name, shape in products.items():
            is_row = name in ("out", "down")
            at = (None, None, "tensor") if is_row else (None, "tensor", None)
            layers[name] = spec(mesh, (self.layers, *shape), jnp.int8, *at)
            layers[f"{name}_scale"] = spec(mesh, (self.layers, shape[0]), jnp.bfloat16, *at[: 1 if is_row else 2])
        norms = {"norm": width, "norm_2": width, "norm_3": width, "norm_4": width, "query_norm": 512, "key_norm": 512}
        layers |= {name: spec(mesh, (self.layers, size), jnp.bfloat16) for name, size in norms.items()}
        layers["scale"] = spec(mesh, (self.layers, 1), jnp.bfloat16)
        layers["is_global"] = spec(mesh, (self.layers,), jnp.int32)
        cache = spec(mesh, (self.layers, self.length, self.keys), jnp.bfloat16, None, None, "tensor")
        ends = {
            "embedding": spec(mesh, (262144, width), jnp.bfloat16),
            "norm": spec(mesh, (width,), jnp.bfloat16),
        }
        state = {"layers": layers, "caches": (cache, cache), "ends": ends, "position": spec(mesh, (), jnp.int32)}
        return self.step, (state, spec(mesh, (1,), jnp.int32))

    def step(self, state: Any, token: Any) -> tuple[Any, Any]:
        """Generate `TOKENS` tokens on the device."""

        def one(carry: Any, _: Any) -> tuple[Any, Any]:
            token, caches, position = carry
            token, caches = self._token(state, token, caches, position)
            return (token, caches, position + 1), token

        first = token, state["caches"], state["position"]
        (_, caches, position), tokens = lax.scan(one, first, length=TOKENS)
        return state | {"caches": caches, "position": position}, tokens

    def _token(self, state: Any, token: Any, caches: Any, position: Any) -> tuple[Any, Any]:
        embedding = state["ends"]["embedding"]
        x = embedding[token] * jnp.bfloat16(self.width**0.5)

        def layer(x: Any, own: Any) -> tuple[Any, Any]:
            weights, keys, values = own
            query, key, value = (
                _scaled(_normed(x, weights["norm"]), weights, name) for name in ("query", "key", "value")
            )
            given = query, key, value, weights, keys, values
            of_all, of_last = (functools.partial(self._attended, position=position, is_global=g) for g in (True, False))
            attended, keys, values = lax.cond(weights["is_global"], of_all, of_last, given)
            x = x + _normed(_scaled(attended, weights, "out"), weights["norm_2"])
            inner = _normed(x, weights["norm_3"])
            inner = jax.nn.gelu(_scaled(inner, weights, "gate")) * _scaled(inner, weights, "up")
            x = (x + _normed(_scaled(inner, weights, "down"), weights["norm_4"])) * weights["scale"]
            return x, (keys, values)

        x, caches = lax.scan(layer, x, (state["layers"], *caches))
        x = _normed(x, state["ends"]["norm"])
        logits = 30.0 * jnp.tanh(x.astype(jnp.float32) @ embedding.astype(jnp.float32).T / 30.0)
        return jnp.argmax(logits, -1).astype(jnp.int32), caches

    def _attended(self, given: Any, position: Any, is_global: bool) -> tuple[Any, Any, Any]:
        """Return the attended values of one layer, padded, and its caches."""
        query, key, value, weights, keys, values = given
        head, groups = (512, 4) if is_global else (256, 16)
        query = query[:, : self.heads * head].reshape(1, self.heads, head)
        key, value = (
            (key if is_global else each)[:, : groups * head].reshape(1, groups, head) for each in (key, value)
        )
        query, key = _normed(query, weights["query_norm"][:head]), _normed(key, weights["key_norm"][:head])
        value = _normed(value, 1)
        share = 0.25 if is_global else 1.0
        query, key = (_turned(each[:, :, None], position, share)[:, :, 0] for each in (query, key))
        padding = (0, self.keys - groups * head)
        keys = keys.at[position].set(jnp.pad(key.reshape(-1), padding))
        values = values.at[position].set(jnp.pad(value.reshape(-1), padding))
        seen_keys, seen_values = (each[:, : groups * head].reshape(-1, groups, head) for each in (keys, values))
        grouped = query.reshape(1, groups, -1, head)
        scores = jnp.einsum("bghd,tgd->bght", grouped.astype(jnp.float32), seen_keys.astype(jnp.float32))
        places = jnp.arange(self.length)
        seen = (places <= position) & (is_global | (places > position - 1024))
        shares = jax.nn.softmax(jnp.where(seen, scores, -1e9)).astype(jnp.bfloat16)
        y = jnp.einsum("bght,tgd->bghd", shares, seen_values).reshape(1, -1)
        return jnp.pad(y, ((0, 0), (0, self.queries - y.shape[1]))), keys, values


def _normed(x: jax.Array, scale: Any) -> jax.Array:
    wide = x.astype(jnp.float32)
    return x * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6).astype(x.dtype) * scale


def _scaled(x: jax.Array, weights: Any, name: str) -> jax.Array:
    """Return the product with an int8 weight, which is scaled for each output."""
    return (x @ weights[name].astype(jnp.bfloat16).T) * weights[f"{name}_scale"]


def _turned(x: jax.Array, position: Any, share: float) -> jax.Array:
    """Turn `(batch, heads, 1, head)` by its position (RoPE), only the first features if the share is less than 1."""
    half = int(x.shape[-1] * share) // 2
    angle = position * 10000.0 ** -(jnp.arange(half, dtype=jnp.float32) / half)
    cos, sin = jnp.cos(angle).astype(x.dtype), jnp.sin(angle).astype(x.dtype)
    first, second, rest = jnp.split(x, (half, 2 * half), -1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin, rest], -1)


_LLAMA_7B = functools.partial(Llama, layers=32, width=4096, hidden=11008, heads=32)
_LLAMA_65B = functools.partial(Llama, layers=80, width=8192, hidden=22016, heads=64)
_BLOG = "pytorch.org/blog/path-achieve-low-inference-latency (2023-06-28), Results; pytorch-tpu/llama, branch blog"
_LATER = "pytorch.org/blog/high-performance-llama-2 (2023-11-06), Inference; pytorch-tpu/llama"


def _llama(name: str, target: str, llama: Llama, seconds: float, source: str, arithmetic: str = "as printed") -> Case:
    return Case(
        name=f"{name}_{target}",
        family=f"pytorch_llama_{target.partition('-')[0]}",
        kind="step",
        target=target,
        measured_s=seconds,
        arithmetic=arithmetic,
        source=source,
        trust="C",
        build=llama.build,
        stack="PyTorch/XLA nightly",
        year=2023,
        differs="tokens are chosen by argmax; PyTorch/XLA sampled them",
    )


def _gemma(length: int, seconds: float) -> Case:
    return Case(
        name=f"gemma4_31b_{length}_v6e-4",
        family="rvllm_gemma_v6e",
        kind="step",
        target="v6e-4",
        measured_s=TOKENS * seconds,
        arithmetic=f"{1e3 * seconds:.2f} ms a token, {TOKENS} tokens",
        source="m0at/rvllm README.md at 0423962, 31B context scaling; tpu/harness/gemma4_tpu_infer.py at 05dec18",
        trust="B",
        build=Gemma(length).build,
        steps_per_execution=12,
        stack="JAX",
        year=2026,
        differs=f"a call generates {TOKENS} tokens, not about 200; a plan counts each layer as one of all positions",
        is_judged_only=True,
    )


CASES = (
    _llama("llama_7b_decode", "v4-8", _LLAMA_7B(4), 4.7e-3, _BLOG),
    _llama("llama_7b_decode", "v4-16", _LLAMA_7B(8), 3.8e-3, _BLOG),
    _llama("llama_65b_decode", "v4-32", _LLAMA_65B(16), 14.5e-3, _BLOG),
    _llama(
        "llama2_7b_decode",
        "v5e-4",
        _LLAMA_7B(4),
        1 / 201,
        _LATER,
        "201 tokens/s a chip at batch 1, of 4 chips: 1.2 ms each",
    ),
    _gemma(512, 12.79e-3),
    _gemma(2048, 22.6e-3),
)
"""Steps that generate tokens."""
