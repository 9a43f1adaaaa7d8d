"""`StateExtension`: what layers with a state of their own, such as embedding tables, need of a Keras model's steps.

Idea: such a layer's backward pass computes its new state, and Keras assigns it. So it is saved and restored as weights
are. Only a few places of `fit` must know of it: the Program that names the state, and the checks of a batch.

Rule: `fit` asks for the extension of a model once, when a train function is made. A model without such layers has none,
and its steps ask nothing. The folder of the layers registers itself; `fit` does not know it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Protocol


class StateExtension(Protocol):
    """The layers of one model that have a state of their own."""

    @property
    def tables(self) -> dict[str, bool]:
        """The variables whose rows every layout splits: by path, whether it is a slot of an optimizer."""
        ...

    @property
    def nan_hint(self) -> str:
        """A sentence for an error about a loss that is not finite, or ""."""
        ...

    def check_forms(self, x: Any) -> None:
        """Check the inputs of a call before other checks, whose advice is for other arrays."""
        ...

    def check_callbacks(self, callbacks: Any) -> None:
        """Warn of callbacks of a fit that do not act on this state."""
        ...

    def checked(self, x: Any, is_batch: bool = False) -> Any:
        """Return the inputs of a batch, or of a data set, as the layers take them."""
        ...


LAYERS: weakref.WeakSet[Any] = weakref.WeakSet()
"""The layers of this process that have a state of their own: they take ids below their `input_dim`."""

_FINDERS: list[Callable[[Any], StateExtension | None]] = []


def register(find: Callable[[Any], StateExtension | None]) -> None:
    """Register the function that returns the extension of a model, or None if the model has none of its layers."""
    _FINDERS.append(find)


def extension_of(model: Any) -> StateExtension | None:
    """Return the extension of a Keras model, or None."""
    if LAYERS:
        for find in _FINDERS:
            if (extension := find(model)) is not None:
                return extension
    return None
