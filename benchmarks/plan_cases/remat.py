"""Rematerialisation: what a scanned layer keeps for its backward pass, by the names that MaxText uses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax


@dataclasses.dataclass(frozen=True)
class Remat:
    """What is kept of a layer.

    Attributes:
        saved: names of values kept in the device's memory.
        offloaded: names of values kept in the host's memory.
        keeps_products: keep every product of activations and weights (MaxText's "minimal").
    """

    saved: tuple[str, ...] = ()
    offloaded: tuple[str, ...] = ()
    keeps_products: bool = False

    def of(self, layer: Callable[..., Any]) -> Callable[..., Any]:
        """Return the layer, rematerialised where nothing is kept."""
        policies = jax.checkpoint_policies
        if self.keeps_products:
            policy = policies.checkpoint_dots_with_no_batch_dims
        elif self.offloaded:
            policy = policies.save_and_offload_only_these_names(
                names_which_can_be_saved=list(self.saved),
                names_which_can_be_offloaded=list(self.offloaded),
                offload_src="device",
                offload_dst="pinned_host",
            )
        else:
            policy = policies.save_only_these_names(*self.saved)
        return jax.checkpoint(layer, policy=policy, prevent_cse=False)


FULL = Remat()
"""Nothing but the layer's input is kept."""

MINIMAL = Remat(keeps_products=True)
"""Products of activations and weights are kept."""
