"""Labels outside of a model's classes, which Keras's loss on JAX accepts in silence.

Idea: JAX raises no error for an index outside an array. Keras's sparse cross-entropy makes a row of zeros of such a
label, so its loss is 0 and nothing is learned from it.
"""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np

from anytpu._calls import users_stacklevel

_KEEP_CLASSES = (keras.layers.Activation, keras.layers.Softmax)
_NAMES = ("sparse_categorical_crossentropy", "SparseCategoricalCrossentropy")


def warn_of_labels(model: Any, y: Any) -> None:
    """Warn if labels are outside of the classes of a model with one output and a sparse cross-entropy.

    Args:
        model: a compiled Keras model.
        y: labels on the host, an array; any other value is not checked.

    Example:
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
        >>> model.compile(loss="sparse_categorical_crossentropy")
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warn_of_labels(model, np.array([0, 3]))
        >>> str(caught[0].message)[:56]
        "y has labels from 0 to 3, and 'sequential' has 3 classes"
    """
    classes = _classes_of(model)
    if classes is None or not isinstance(y, np.ndarray) or not y.size or y.dtype.kind not in "iuf":
        return
    low, high = y.min(), y.max()
    if not np.isfinite(low) or not np.isfinite(high) or (low >= 0 and high < classes):
        return
    advice = f"give its last layer {int(high) + 1} units" if low >= 0 else "number the labels from 0"
    warnings.warn(
        f"y has labels from {low:g} to {high:g}, and {model.name!r} has {classes} classes, 0 to {classes - 1}. The "
        f"loss of a label outside of them is 0, and nothing is learned from it: {advice}",
        stacklevel=users_stacklevel(),
    )


def _classes_of(model: Any) -> int | None:
    """Return the number of classes of a model's sparse cross-entropy; None if they are not known."""
    loss = getattr(model, "loss", None)
    is_sparse = loss in _NAMES if isinstance(loss, str) else loss is keras.losses.sparse_categorical_crossentropy
    if isinstance(loss, keras.losses.SparseCategoricalCrossentropy):
        is_sparse = loss.ignore_class is None
    if not is_sparse:
        return None
    try:
        shape = model.output_shape
    except (AttributeError, ValueError):  # The model is not built yet.
        layers = model.layers if isinstance(model, keras.Sequential) else []
        last = next((layer for layer in reversed(layers) if not isinstance(layer, _KEEP_CLASSES)), None)
        return last.units if isinstance(last, keras.layers.Dense) else None
    return shape[-1] if isinstance(shape, tuple) and shape and isinstance(shape[-1], int) else None
