"""Causal attention of the three kinds that the recipes used.

Rule: a Pallas kernel sees one device's share: it is mapped over the batch and the heads, and the sequence stays whole.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import flash_attention as flash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P


@dataclasses.dataclass(frozen=True)
class Attention:
    """How attention is computed.

    Attributes:
        kind: "splash" and "flash" are Pallas kernels of JAX, "dot" is the plain product with a mask.
        block: queries and keys of one block of a kernel.
        block_compute: keys of one inner step of splash; 0 means a block.
        is_backward_fused: one kernel for all gradients of splash.
        window: keys that a query sees; None for all before it.
    """

    kind: Literal["splash", "flash", "dot"] = "splash"
    block: int = 512
    block_compute: int = 0
    is_backward_fused: bool = False
    window: int | None = None

    def __call__(self, mesh: AbstractMesh, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        """Return `(batch, heads, length, head)` of queries, and of keys and values that may have fewer heads."""
        if self.kind == "dot":
            return self._dot(q, k, v)
        batch = tuple(name for name in mesh.axis_names if name != "tensor")
        at = P(batch, "tensor" if "tensor" in mesh.axis_names else None, None, None)
        one = self._splash if self.kind == "splash" else self._flash
        return jax.shard_map(one, mesh=mesh, in_specs=(at, at, at), out_specs=at, check_vma=False)(q, k, v)

    def _splash(self, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        heads, length = q.shape[1:3]
        shape = (length, length)
        one = masks.LocalMask(shape, (self.window, 0), 0) if self.window else masks.CausalMask(shape)
        block = min(self.block, length)
        inner = self.block_compute or block
        fused = {} if self.is_backward_fused else {"block_q_dq": block, "block_kv_dq": block}
        sizes = splash.BlockSizes(
            block_q=block,
            block_kv=block,
            block_kv_compute=inner,
            block_q_dkv=block,
            block_kv_dkv=block,
            block_kv_dkv_compute=inner,
            use_fused_bwd_kernel=self.is_backward_fused,
            **fused,
        )
        kernel = splash.make_splash_mha(
            masks.MultiHeadMask([one] * heads), block_sizes=sizes, head_shards=1, q_seq_shards=1
        )
        ids = jnp.ones((q.shape[0], length), jnp.int32)
        scaled = q * q.shape[-1] ** -0.5
        return jax.vmap(kernel)(scaled, k, v, segment_ids=splash.SegmentIds(ids, ids))

    def _flash(self, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        k, v = (jnp.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
        block = min(self.block, q.shape[2])
        sizes = flash.BlockSizes(
            **{field.name: block for field in dataclasses.fields(flash.BlockSizes) if field.name != "block_b"},
            block_b=min(2, q.shape[0]),
        )
        return flash.flash_attention(q, k, v, causal=True, sm_scale=q.shape[-1] ** -0.5, block_sizes=sizes)

    def _dot(self, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5
        seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        weights = jax.nn.softmax(jnp.where(seen, scores.astype(jnp.float32), -1e10))
        return jnp.einsum("bhqk,bhkd->bhqd", weights.astype(v.dtype), v)


SPLASH = Attention()
"""The kernel with blocks of 512."""


def rotated(x: jax.Array, base: float = 10000.0) -> jax.Array:
    """Return `(batch, length, heads, head)` turned by its positions (RoPE)."""
    half = x.shape[-1] // 2
    speed = base ** -(jnp.arange(half, dtype=jnp.float32) / half)
    angle = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None, None] * speed
    first, second = jnp.split(x.astype(jnp.float32), 2, -1)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1).astype(x.dtype)
