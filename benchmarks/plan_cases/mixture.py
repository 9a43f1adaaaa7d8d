"""A mixture of experts that drops what an expert has no room for, as MaxText and torchprime compute it.

Idea: each expert takes so many tokens of a sequence, its capacity. Masks say which token goes to which place of which
expert; products with the masks bring tokens there and back, so that all shapes are fixed.

Rule: experts lie whole on each device, split over `fsdp` along the model's width as all weights are.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name


@dataclasses.dataclass(frozen=True)
class Mixture:
    """The sizes of a mixture.

    Attributes:
        experts: how many.
        chosen: experts of a token.
        capacity: places of an expert, as a factor of what it would take if tokens were spread evenly.
    """

    experts: int = 8
    chosen: int = 2
    capacity: float = 1.25

    def __call__(self, x: jax.Array, weights: Any) -> jax.Array:
        """Return `(batch, length, width)` of the chosen experts' perceptrons, weighted."""
        scores = (x @ weights["router"].astype(x.dtype)).astype(jnp.float32)
        best, which = jax.lax.top_k(scores, self.chosen)
        there, back = self.masks(jax.nn.softmax(best).astype(x.dtype), which)
        y = jnp.einsum("bsm,bsec->ebcm", x, there)
        gate = checkpoint_name(jnp.einsum("ebcm,emh->ebch", y, weights["gate"].astype(x.dtype)), "mlpwi_0")
        up = checkpoint_name(jnp.einsum("ebcm,emh->ebch", y, weights["up"].astype(x.dtype)), "mlpwi_1")
        y = jnp.einsum("ebch,ehm->ebcm", jax.nn.silu(gate) * up, weights["down"].astype(x.dtype))
        return jnp.einsum("ebcm,bsec->bsm", checkpoint_name(y, "mlpwo"), back)

    def masks(self, shares: jax.Array, which: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return masks `(batch, length, experts, places)`: of ones, and of the tokens' shares.

        Args:
            shares: of the chosen experts, `(batch, length, chosen)`.
            which: the chosen experts, integers of the same shape.
        """
        batch, length, chosen = which.shape
        places = int(length * chosen / self.experts * self.capacity)
        hot = jax.nn.one_hot(which, self.experts, dtype=jnp.int32)
        count = jnp.cumsum(hot.reshape(batch, length * chosen, -1), 1).reshape(hot.shape)
        kept = hot * (count <= places)
        share = jnp.sum(shares[..., None] * kept, 2)
        place = jax.nn.one_hot(jnp.sum(kept * count, 2), places + 1, dtype=shares.dtype)[..., 1:]
        return place, share[..., None] * place
