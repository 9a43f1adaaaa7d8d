"""Labels outside of a model's classes, which Keras's loss on JAX accepts in silence.

Idea: JAX raises no error for an index outside an array. Keras's sparse cross-entropy makes a row of zeros of such a
label, so its loss is 0 and nothing is learned from it.

Rule: labels are checked on the host, where they are before a step: arrays once a call, a stream batch by batch. A row
of weight 0 and the class that a loss ignores may have any label.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import jax
import keras
import numpy as np

from anytpu import _keras
from anytpu._calls import users_stacklevel
from anytpu.program.program import spec_of
from anytpu.train.batch_specs import is_sparse, losses_of, outputs_of

_KEEP_CLASSES = (keras.layers.Activation, keras.layers.Softmax)
_METRIC_CLASSES = (keras.metrics.SparseCategoricalCrossentropy, keras.metrics.SparseTopKCategoricalAccuracy)
_METRICS = (
    *[kind.__name__ for kind in _METRIC_CLASSES],
    *["sparse_categorical_crossentropy", "sparse_top_k_categorical_accuracy"],
)

Classes = tuple[int, int | None]
"""The number of classes of an output, and the class that its loss ignores."""


class LabelCheck:
    """Warns of labels outside of the classes of a model's sparse cross-entropy or metric, once.

    Args:
        model: a compiled Keras model.

    Example:
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
        >>> model.compile(loss="sparse_categorical_crossentropy")
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     LabelCheck(model).check((np.zeros((2, 2)), np.array([0, 3])))
        >>> str(caught[0].message)[:56]
        "y has labels from 0 to 3, and 'sequential' has 3 classes"
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        # Empty until the model is built. Then its one entry has the classes of each output, or None for one without.
        self._known: list[list[Classes | None]] = []
        self._is_sparse = _may_be_sparse(model)
        self._is_over = not self._is_sparse

    def of_pass(self) -> LabelCheck:
        """Return a check that warns once in another pass over data; what is known of the model is shared."""
        other = copy.copy(self)
        other._is_over = not self._is_sparse
        return other

    def check(self, batch: Any) -> None:
        """Check the labels of a batch, or of arrays: x, (x, y) or (x, y, sample_weight) on the host."""
        if self._is_over or not isinstance(batch, tuple) or len(batch) < 2:
            return
        if not self._known:
            found = _classes_of(self._model, batch[0])
            if found is None:
                return
            self._known.append(found)
        each = self._known[0]
        # Most models have one output, and most labels are classes: this takes 3 us.
        if len(each) == 1 and (each[0] is None or _are_classes(batch[1], each[0][0])):
            return
        labels = jax.tree.leaves(_in_order(self._model, batch[1]))
        weights = jax.tree.leaves(_in_order(self._model, batch[2])) if len(batch) > 2 else []
        if len(labels) != len(each):
            return
        for index, (array, classes) in enumerate(zip(labels, each, strict=True)):
            weight = weights[index] if len(weights) == len(labels) else None
            if classes is not None and (text := _fault(self._model, array, weight, *classes)) is not None:
                self._is_over = True
                warnings.warn(text, stacklevel=users_stacklevel())
                return


def _fault(model: Any, y: Any, weight: Any, classes: int, ignored: int | None) -> str | None:
    """Return the text of the warning; None if all labels that count are classes."""
    y = np.asarray(y)
    if not y.size or y.dtype.kind not in "iuf" or _are_classes(y, classes):
        return None
    y = y[np.isfinite(y)] if weight is None else _counted(y, np.asarray(weight))
    y = y if ignored is None else y[y != ignored]
    if not y.size or ((low := y.min()) >= 0 and y.max() < classes):
        return None
    high = y.max()
    advice = f"give its last layer {int(high) + 1} units" if low >= 0 else "number the labels from 0"
    return (
        f"y has labels from {low:g} to {high:g}, and {model.name!r} has {classes} classes, 0 to {classes - 1}. The "
        f"loss of a label outside of them is 0, and nothing is learned from it: {advice}"
    )


def _are_classes(y: Any, classes: int) -> bool:
    """Return whether y is an array of integers, and each is the index of a class."""
    if not isinstance(y, np.ndarray) or not y.size or y.dtype.kind not in "iu":
        return False
    # As an unsigned integer a negative one is large, so one maximum is enough.
    return bool(y.view(f"u{y.dtype.itemsize}").max() < classes)


def _in_order(model: Any, columns: Any) -> Any:
    """Return columns in the order of the outputs, if they have their names."""
    names = getattr(model, "output_names", None) or ()
    return [columns[name] for name in names] if isinstance(columns, dict) and set(names) == set(columns) else columns


def _counted(y: Any, weight: Any) -> Any:
    """Return the finite labels of rows whose weight is not 0."""
    counts = np.isfinite(y)
    if weight.ndim <= y.ndim and weight.shape == y.shape[: weight.ndim]:
        counts &= weight.reshape(*weight.shape, *[1] * (y.ndim - weight.ndim)) != 0
    return y[counts]


def _may_be_sparse(model: Any) -> bool:
    return any(map(is_sparse, keras.tree.flatten(model.loss))) or _has_sparse_metric(model)


def _has_sparse_metric(model: Any) -> bool:
    metrics = keras.tree.flatten(_keras.compiled_with(model).get("metrics"))
    return any(metric in _METRICS or isinstance(metric, _METRIC_CLASSES) for metric in metrics)


def _classes_of(model: Any, x: Any) -> list[Classes | None] | None:
    """Return the classes of each output with a sparse loss or metric, and None for others; None before it is built."""
    if not _keras.is_built(model):
        # A generator's first batch builds the model, and is not seen again.
        layers = model.layers if isinstance(model, keras.Sequential) else []
        last = next((layer for layer in reversed(layers) if not isinstance(layer, _KEEP_CLASSES)), None)
        return [(last.units, _ignored(model.loss))] if isinstance(last, keras.layers.Dense) else None
    if getattr(model, "outputs", None):
        outputs = [jax.ShapeDtypeStruct([size or 1 for size in each.shape], each.dtype) for each in model.outputs]
    else:
        try:
            outputs = outputs_of(model, spec_of(x))
        except Exception:  # A model without a `call`, or whose step calls it in another way.
            return []
    leaves = jax.tree.leaves(outputs)
    has_metric = len(leaves) == 1 and _has_sparse_metric(model)
    pairs = zip(leaves, losses_of(model, outputs), strict=True)
    return [
        (leaf.shape[-1], _ignored(loss)) if leaf.ndim > 1 and (has_metric or is_sparse(loss)) else None
        for leaf, loss in pairs
    ]


def _ignored(loss: Any) -> int | None:
    return getattr(loss, "ignore_class", None)
