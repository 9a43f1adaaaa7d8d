"""What is changed in a model's layers while a step on padded sequences is traced, so that padding changes no number.

Idea: Keras hands a mask from layer to layer, and most layers that look at more than one step know it. The mask of the
real steps starts at the model's inputs; where a layer would drop it, it is passed on, and where a layer would look at
masked steps (the maximum of a sequence, a convolution across its end), they are put aside first.

Rule: layers are changed as objects, for the time of one trace, and are as before after it. `time_axis` says which.
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
    """Let a model see only the real steps of padded inputs, while it is traced.

    Args:
        model: the model.
        axis: how sequences go through it.
        x: the inputs as the model takes them, padded along axis 1.
        lengths: for each leaf of x the real steps of each row, int32 `(rows,)`, or None.
    """
    leaves, form = jax.tree.flatten(x)
    pairs = list(zip(leaves, lengths, strict=True))
    real = [None if length is None else jnp.arange(leaf.shape[1]) < length[:, None] for leaf, length in pairs]
    shapes = [leaf.shape[:2] for leaf in leaves]
    first = next(length for length in lengths if length is not None)
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "Layer .* does not support masking", UserWarning)
        stack.enter_context(
            _changed(model, {**_silent(model), "call": _given(model, jax.tree.unflatten(form, real), shapes)})
        )
        for change in axis.changes:
            stack.enter_context(_changed(change.layer, _changes_of(change, first)))
        if axis.outputs[0] is not None:
            # The only output, and metrics that are means: `check_targets`.
            ends = axis.outputs[0].length_of(lengths[axis.outputs[0].source])
            for metric in _keras.metrics_of(model):
                stack.enter_context(_changed(metric, _counting_rows(metric, ends)))
        yield


@contextlib.contextmanager
def _changed(layer: Any, changes: _Changes) -> Iterator[None]:
    """Let an object have other methods and attributes for a while."""
    own = vars(layer)
    before = {name: own[name] for name in changes if name in own}
    own.update(changes)
    try:
        yield
    finally:
        for name in changes:
            own.pop(name, None)
        own.update(before)


def _given(model: Any, real: Any, shapes: list[Any]) -> Callable:
    """Return the model's `call`, given the masks of its inputs."""
    call = model.call

    def masked_call(inputs: Any, training: Any = None, mask: Any = None, **kwargs: Any) -> Any:
        if [leaf.shape[:2] for leaf in jax.tree.leaves(inputs)] != shapes:
            raise ProgramError(
                f"a step of {model.name!r} calls the model with tensors of another shape than the x that it was given, "
                "so the steps that pad its sequences cannot be masked: pass sequences of one length"
            )
        return call(inputs, training=training, mask=real, **kwargs)

    return masked_call


def _counting_rows(metric: Any, ends: Any) -> _Changes:
    """A mean over rows, of which each counts once: Keras's own counts the share of a row that is not masked."""
    original = metric.update_state

    def update_state(y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        mask = _keras.mask_of(y_pred)
        steps = y_pred.shape[1]
        # In training Keras's metrics get no mask, in evaluation that of the model.
        counted = jnp.arange(steps) < ends[:, None] if mask is None else mask
        _keras.set_mask(y_pred, counted * (steps / ends[:, None]))
        try:
            return original(y_true, y_pred, sample_weight)
        finally:
            _keras.set_mask(y_pred, mask)

    return {"update_state": update_state}


def _changes_of(change: Change, length: Any) -> _Changes:
    return _KINDS[change.kind](change, length)


def _silent(*_: Any) -> _Changes:
    """A model in a model: its outputs have their masks already."""
    return _keras.mask_by(lambda *args, **kwargs: None)


def _passing(change: Change, _: Any) -> _Changes:
    return _keras.mask_by(lambda inputs, mask=None, **kwargs: mask)


def _keeping(change: Change, _: Any) -> _Changes:
    """An attention that takes the masks off its inputs: they get them back."""
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
    """Return the change of a convolution or pooling: a window counts if all of it is real.

    Args:
        first: the step, counted from a window's begin, that is its last real one.
    """

    def changes(change: Change, _: Any) -> _Changes:
        layer, original = change.layer, change.layer.call

        def call(inputs: Any) -> Any:
            mask = _keras.mask_of(inputs)
            # Zeros are what padding="same" puts behind the end.
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
        # The model's own mask may hide real steps; before one, no layer changes the length.
        steps = length[0] if change.steps.is_masked else mask[0].sum()
        kept = _kept(_keras.draw_key(layer.seed_generator), 1.0 - layer.rate, inputs.shape, steps)
        return jnp.where(kept, inputs / (1.0 - layer.rate), jnp.zeros_like(inputs))

    return {"call": call}


def _kept(key: Any, share: float, shape: tuple[int, ...], steps: Any) -> Any:
    """Draw which values dropout keeps, as it would draw them for rows of `steps` steps.

    JAX draws the value at each place from the key and the number of the place alone, so those of shorter rows are the
    beginning of a longer stream, cut at other places.
    """
    rows, of_row = shape[0], math.prod(shape[1:])
    stream = jax.random.bernoulli(key, share, (rows * of_row,))
    begins = jnp.arange(rows) * steps * (of_row // shape[1])
    cut = jax.vmap(lambda begin: jax.lax.dynamic_slice(stream, (begin,), (of_row,)))(begins)
    return cut.reshape(shape)


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
