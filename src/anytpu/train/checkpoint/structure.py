"""Compare the names, shapes and dtypes of a checkpoint's arrays with those of a model.

Rule: a checkpoint is loaded completely or not at all. A partial match is an error.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import numpy as np

from anytpu.train.checkpoint.manifest import ArrayForm

MAX_NAMED = 5
"""Maximum number of arrays named in each part of the text."""

Forms = Mapping[str, ArrayForm]


class Purpose(enum.Enum):
    """The purpose for which a model loads a checkpoint."""

    RESUME = "to go on with the training"
    INFER = "to evaluate or predict"
    WARM_START = "to start another training"


def difference(stored: Forms, wanted: Forms, purpose: Purpose) -> str | None:
    """Return the difference between a checkpoint and a model as text, or None if the checkpoint fits.

    - To resume, both must have the same arrays.
    - To infer, a checkpoint may also have the optimizer's state and integers (counts, random seeds). A model may also
      have integers that only inference needs (random seeds). An old checkpoint does not mark the optimizer's state: it
      may have any array that is not a trainable weight.
    - For a warm start, the checkpoint must have the model's trainable weights.

    An array in both must have the same shape and dtype.

    Args:
        stored: forms of the checkpoint's arrays by name.
        wanted: forms of the model's arrays by name.
        purpose: the purpose for which the model loads the checkpoint.

    Example:
        >>> kernel = ArrayForm((2, 3), "float32", is_trained=True)
        >>> difference({"dense/kernel": kernel}, {"head/kernel": kernel}, Purpose.RESUME)
        "In the checkpoint only: 'dense/kernel' float32[2, 3]. In the model only: 'head/kernel' float32[2, 3]"
    """
    both = [name for name in wanted if name in stored]
    differences = {
        "In the checkpoint only": [
            f"{name!r} {form}" for name, form in stored.items() if name not in wanted and _is_needed(form, purpose)
        ],
        "In the model only": [
            f"{name!r} {form}" for name, form in wanted.items() if name not in stored and _is_wanted(form, purpose)
        ],
        "With another shape": [_sides(n, stored, wanted) for n in both if stored[n].shape != wanted[n].shape],
        "With another dtype": [
            _sides(n, stored, wanted)
            for n in both
            if stored[n].shape == wanted[n].shape and stored[n].dtype != wanted[n].dtype
        ],
    }
    return ". ".join(f"{kind}: {_listed(arrays)}" for kind, arrays in differences.items() if arrays) or None


def _is_needed(form: ArrayForm, purpose: Purpose) -> bool:
    """Return whether a model must have this array of a checkpoint."""
    if purpose is Purpose.INFER:
        return form.is_trained or (form.is_optimizer_state is False and not _is_integer(form))
    return purpose is Purpose.RESUME


def _is_wanted(form: ArrayForm, purpose: Purpose) -> bool:
    """Return whether a checkpoint must have this array of a model."""
    if purpose is Purpose.INFER:
        return form.is_trained or not _is_integer(form)
    return purpose is Purpose.RESUME or form.is_trained


def _is_integer(form: ArrayForm) -> bool:
    return np.dtype(form.dtype).kind in "biu"


def _sides(name: str, stored: Forms, wanted: Forms) -> str:
    return f"{name!r} {stored[name]} in the checkpoint and {wanted[name]} in the model"


def _listed(arrays: list[str]) -> str:
    more = len(arrays) - MAX_NAMED
    return ", ".join(arrays[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
