"""`Minimization`: a request to minimise a loss, recorded by `optimizer.minimize(loss)`.

Idea: a TensorFlow graph derives gradients from the loss tensor alone. A traced loss does not know how it was computed.
So the request is recorded, and the code that runs the model function differentiates it.

Rule: making a `Minimization` computes nothing.
"""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True, eq=False)
class Minimization:
    """A loss to minimise, and its optimizer.

    Attributes:
        optimizer: the optimizer whose `minimize` was called.
        loss: the traced loss, a scalar.
        variables: the variables to update, or None for all trainable variables.
    """

    optimizer: Any
    loss: Any
    variables: tuple[Any, ...] | None = None
