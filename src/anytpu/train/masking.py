"""Change a model's layers while a step on padded sequences is traced, so that padding changes no result.

Idea: Keras passes a mask from layer to layer, and most layers that combine several steps apply it. The mask of the real
steps enters at the model's inputs. A layer that would drop the mask is made to pass it on. A layer that would read
masked steps (a maximum over time, a convolution across the end) gets neutral values there.

Rule: layers are changed as objects, during one trace, and restored after it. `time_axis` decides the changes.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from anytpu import _keras
from anytpu.errors import ProgramError
from anytpu.train.time_axis import Change, TimeAxis

_Changes = dict[str, Any]


@contextlib.contextmanager
def masked(model: Any, axis: TimeAxis, x: Any, lengths: tuple[Any, ...]) -> Iterator[None]:
    """Return a context in which a traced model sees only the real steps of padded inputs.

    Args:
        model: the model.
        axis: the time axis of the model's tensors.
        x: the inputs as the model takes them, padded along axis 1.
        lengths: for each leaf of x the number of real steps of each row, int32 `(rows,)`, or None.
    """
    # 1. The mask of the real steps of each input.
    leaves, form = jax.tree.flatten(x)
    pairs = list(zip(leaves, lengths, strict=True))
    real = [None if length is None else jnp.arange(leaf.shape[1]) < length[:, None] for leaf, length in pairs]
    shapes = [leaf.shape[:2] for leaf in leaves]
    first = next(length for length in lengths if length is not None)
    with contextlib.ExitStack() as stack:
        # 2. The model gets the masks. It must not warn of layers that drop them: `time_axis` has checked each layer.
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "Layer .* does not support masking", UserWarning)
        stack.enter_context(
            _changed(model, {**_silent(model), "call": _with_masks(model, jax.tree.unflatten(form, real), shapes)})
        )
        # 3. Layers that would drop the mask or read masked steps are changed.
        for change in axis.changes:
            stack.enter_context(_changed(change.layer, _changes_of(change, first)))
        # 4. Metrics count each row once.
        if axis.outputs[0] is not None:
            # `check_targets` has checked that there is one output and that all metrics are means.
            ends = axis.outputs[0].length_of(lengths[axis.outputs[0].source])
            for metric in _keras.metrics_of(model):
                stack.enter_context(_changed(metric, _counting_rows(metric, ends)))
        yield


@contextlib.contextmanager
def _changed(layer: Any, changes: _Changes) -> Iterator[None]:
    """Return a context in which an object has other methods and attributes."""
    attributes = vars(layer)
    previous = {name: attributes[name] for name in changes if name in attributes}
    attributes.update(changes)
    try:
        yield
    finally:
        for name in changes:
            attributes.pop(name, None)
        attributes.update(previous)


def _with_masks(model: Any, real: Any, shapes: list[Any]) -> Callable:
    """Return the model's `call` with the masks `real` of its inputs."""
    call = model.call

    def masked_call(inputs: Any, training: Any = None, mask: Any = None, **kwargs: Any) -> Any:
        if [leaf.shape[:2] for leaf in jax.tree.leaves(inputs)] != shapes:
            raise ProgramError(
                f"a step of {model.name!r} calls the model with tensors of another shape than its input x, so the "
                "steps that pad its sequences cannot be masked: pass sequences of one length"
            )
        return call(inputs, training=training, mask=real, **kwargs)

    return masked_call


def _counting_rows(metric: Any, ends: Any) -> _Changes:
    """Change a mean metric so that each row has weight 1: Keras weights a row by its share of unmasked steps."""
    original = metric.update_state

    def update_state(y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        mask = _keras.mask_of(y_pred)
        steps = y_pred.shape[1]
        # Keras passes metrics no mask in training, and the model's mask in evaluation.
        counted = jnp.arange(steps) < ends[:, None] if mask is None else mask
        # Weights that sum to `steps` in each row, so that the mean over the steps gives each row the weight 1.
        _keras.set_mask(y_pred, counted * (steps / ends[:, None]))
        try:
            return original(y_true, y_pred, sample_weight)
        finally:
            _keras.set_mask(y_pred, mask)

    return {"update_state": update_state}


def _changes_of(change: Change, length: Any) -> _Changes:
    return _KINDS[change.kind](change, length)


def _silent(*_: Any) -> _Changes:
    """Change a nested model to compute no mask: its outputs already have their masks."""
    return _keras.mask_by(lambda *args, **kwargs: None)


def _passing(change: Change, _: Any) -> _Changes:
    return _keras.mask_by(lambda inputs, mask=None, **kwargs: mask)


def _keeping(change: Change, _: Any) -> _Changes:
    """Change an attention layer that removes the masks of its inputs: they are put back after the call."""
    original = change.layer.call

    def call(*args: Any, **kwargs: Any) -> Any:
        masks = [(leaf, _keras.mask_of(leaf)) for leaf in jax.tree.leaves(args)]
        outputs = original(*args, **kwargs)
        for leaf, mask in masks:
            _keras.set_mask(leaf, mask)
        return outputs

    return {"call": call}


def _maximum(change: Change, _: Any) -> _Changes:
    original = change.layer.call

    def call(inputs: Any) -> Any:
        mask = _keras.mask_of(inputs)
        return original(inputs if mask is None else jnp.where(mask[..., None], inputs, jnp.finfo(inputs.dtype).min))

    return {"call": call, **_keras.mask_by(lambda *args, **kwargs: None)}


def _window(first: Callable[[Any], int]) -> Callable[[Change, Any], _Changes]:
    """Return the change of a convolution or pooling layer: an output step is real if its whole window is real.

    Args:
        first: returns for a layer the offset in a window of the step whose mask decides: the window's last input step.
    """

    def changes(change: Change, _: Any) -> _Changes:
        layer, original = change.layer, change.layer.call

        def call(inputs: Any) -> Any:
            mask = _keras.mask_of(inputs)
            # padding="same" also appends zeros after the end.
            return original(inputs if mask is None else jnp.where(mask[..., None], inputs, 0))

        def compute_mask(inputs: Any, mask: Any = None) -> Any:
            return None if mask is None else mask[:, first(layer) :: layer.strides[0]]

        return {"call": call, **_keras.mask_by(compute_mask)}

    return changes


def _last_of_window(layer: Any) -> int:
    size = getattr(layer, "pool_size", None)
    return size[0] - 1 if size else (layer.kernel_size[0] - 1) * layer.dilation_rate[0]


def _dropout(change: Change, length: Any) -> _Changes:
    layer, original = change.layer, change.layer.call

    def call(inputs: Any, training: bool = False) -> Any:
        mask = _keras.mask_of(inputs)
        if not training or not layer.rate or mask is None:
            return original(inputs, training=training)
        # The model's own mask may hide real steps, so the input lengths are used; no earlier layer changes the length.
        steps = length[0] if change.steps.is_masked else mask[0].sum()
        kept = _kept(_keras.draw_key(layer.seed_generator), 1.0 - layer.rate, inputs.shape, steps)
        return jnp.where(kept, inputs / (1.0 - layer.rate), jnp.zeros_like(inputs))

    return {"call": call}


def _kept(key: Any, share: float, shape: tuple[int, ...], steps: Any) -> Any:
    """Draw the keep mask of dropout as it is drawn for unpadded rows of `steps` steps.

    JAX draws the value at each index from the key and that index alone. So the values for shorter rows are a prefix of
    the longer stream, split at other offsets.
    """
    rows, row_size = shape[0], math.prod(shape[1:])
    stream = jax.random.bernoulli(key, share, (rows * row_size,))
    offsets = jnp.arange(rows) * steps * (row_size // shape[1])
    split = jax.vmap(lambda offset: jax.lax.dynamic_slice(stream, (offset,), (row_size,)))(offsets)
    return split.reshape(shape)


_KINDS: dict[str, Callable[[Change, Any], _Changes]] = {
    "silent": _silent,
    "passing": _passing,
    "keeping": _keeping,
    "maximum": _maximum,
    "dropout": _dropout,
    "valid window": _window(_last_of_window),
    "same window": _window(lambda _: 0),
    "causal window": _window(lambda _: 0),
}
