"""`Minimization`: the wish to minimise a loss, as `optimizer.minimize(loss)` records it.

Idea: a graph could be told "minimise this" and worked the gradients out itself. A traced loss is a number without a
past; so the wish is recorded, and the front door that runs the model function differentiates it.

Rule: nobody computes anything when a `Minimization` is made.
"""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True, eq=False)
class Minimization:
    """What is to be minimised, and by which optimizer.

    Attributes:
        optimizer: the optimizer whose `minimize` was called.
        loss: the loss that it was called with, traced.
        variables: the variables to change, or None for all that are trainable.
    """

    optimizer: Any
    loss: Any
    variables: tuple[Any, ...] | None = None
