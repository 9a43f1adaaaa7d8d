"""Where the time axis of a model's inputs goes, layer by layer, and whether steps may be added to its end.

Idea: a model with `Input((None,))` takes sequences of any length, and every length would be compiled anew. Padded to a
few lengths, with the added steps masked, they share programs. That gives the same numbers only if each layer that the
time axis goes through either treats each step by itself, or leaves masked steps out, or can be made to.

Rule: deciding only; `masking` does what is decided here. What a layer does with masked steps must be known: a layer
that is not in the table stands in the way, and the model is computed unpadded, as ever.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
from keras import layers

from anytpu import _keras


@dataclasses.dataclass(frozen=True)
class Steps:
    """The time axis of one tensor: its axis 1.

    Attributes:
        source: the number of the model's input that it comes from.
        stride: steps of the input from one step here to the next.
        reach: steps of the input that one step here sees, where padding adds none.
        is_masked: True where the model may mask steps of its own (`mask_zero`, `Masking`).
        is_raw: True for an input of the model that no layer has changed.
        is_mask: True for the model's own mask itself.
    """

    source: int
    stride: int = 1
    reach: int = 1
    is_masked: bool = False
    is_raw: bool = False
    is_mask: bool = False

    def length_of(self, length: Any) -> Any:
        """Return the steps here of an input that has `length` steps."""
        return (length - self.reach) // self.stride + 1


@dataclasses.dataclass(frozen=True)
class Change:
    """What `masking` changes in a layer while a padded step is traced.

    Attributes:
        layer: the layer.
        kind: the name of the change, see `masking`.
        steps: the time axis that reaches the layer.
    """

    layer: Any
    kind: str
    steps: Steps


@dataclasses.dataclass(frozen=True)
class TimeAxis:
    """How sequences go through a model that may be padded.

    Attributes:
        pads: for each input, in order, what pads it, where the model masks by value; None repeats the last step.
        outputs: the time axis of each output; None where it has none.
        changes: what is changed in its layers.
        is_joint: True where inputs meet that must have the same length.
        shortest: the fewest steps that the model takes.
    """

    pads: tuple[float | None, ...]
    outputs: tuple[Steps | None, ...]
    changes: tuple[Change, ...]
    is_joint: bool
    shortest: int


class NotPaddable(Exception):
    """Says what stands in the way."""


def time_axis_of(model: Any) -> TimeAxis:
    """Return how sequences go through a model.

    Raises:
        NotPaddable: it takes sequences of one length only, or something in it needs them as they are.
    """
    graph = _keras.graph_of(model)
    if graph is None:
        raise NotPaddable("it is not a Sequential or functional model that is built")
    walk = _Walk()
    opens = [is_open_shape(tensor.shape) for tensor in graph.inputs]
    starts = [Steps(number, is_raw=True) if is_open else None for number, is_open in enumerate(opens)]
    if not any(starts):
        raise NotPaddable("none of its inputs has a time axis of any length, keras.Input((None, ...))")
    outputs = walk.through(graph, starts)
    pads = tuple(walk.pads.get(number) for number in range(len(starts)))
    return TimeAxis(pads, tuple(outputs), tuple(walk.changes), walk.is_joint, walk.shortest)


def check_targets(model: Any, axis: TimeAxis) -> None:
    """Refuse a loss and metrics that would see the steps that pad an output, where they cannot be kept from them.

    Raises:
        NotPaddable: an output has a time axis, and what is computed of it does not treat each step by itself.
    """
    if not any(axis.outputs):
        return
    if len(axis.outputs) > 1:
        raise NotPaddable("it has several outputs, and one with a time axis")
    loss = keras.losses.get(model.loss)
    name = getattr(loss, "__name__", type(loss).__name__)
    if not loss.__module__.startswith("keras.") or name.lower() in _LOSSES_OF_WHOLE_SEQUENCES:
        raise NotPaddable(f"whether the loss {name} treats each step by itself is not known")
    for metric in _keras.metrics_of(model):
        if not isinstance(metric, keras.metrics.MeanMetricWrapper):
            raise NotPaddable(f"the metric {metric.name!r} knows no mask")


def is_open(model: Any) -> bool:
    """Say whether a model has an input whose axis 1 may have any length."""
    graph = _keras.graph_of(model)
    return graph is not None and any(is_open_shape(tensor.shape) for tensor in graph.inputs)


def is_open_shape(shape: tuple[int | None, ...]) -> bool:
    """Say whether axis 1 of a symbolic tensor, and no other but that of the rows, may have any length."""
    return len(shape) > 1 and shape[1] is None and None not in shape[2:]


class _Walk:
    """One walk through a graph, and through the graphs in it."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.pads: dict[int, float] = {}
        self.is_joint = False
        self.shortest = 1

    def through(self, graph: Any, starts: list[Steps | None]) -> list[Steps | None]:
        found = {id(tensor): start for tensor, start in zip(graph.inputs, starts, strict=True)}
        for operation, tensors, _, outputs in _keras.calls_of(graph):
            steps = [found.get(id(tensor)) for tensor in tensors]
            results = self._results(operation, tensors, outputs, steps) if any(steps) else [None] * len(outputs)
            found.update({id(tensor): result for tensor, result in zip(outputs, results, strict=True)})
        return [found.get(id(tensor)) for tensor in graph.outputs]

    def _results(self, operation: Any, tensors: list, outputs: list, steps: list[Steps | None]) -> list[Steps | None]:
        if _makes_mask(operation, outputs):
            return [dataclasses.replace(_first(steps), is_mask=True)]
        if any(one is not None and one.is_mask for one in steps):
            raise _stands_in_the_way(operation, "it computes with a mask")
        inner = _keras.graph_of(operation) if isinstance(operation, keras.Model) else None
        if inner is not None:
            self.changes.append(Change(operation, "silent", _first(steps)))
            return self.through(inner, steps)
        return self._layer_results(operation, tensors, outputs, steps)

    def _layer_results(self, layer: Any, tensors: list, outputs: list, steps: list[Steps | None]) -> list[Steps | None]:
        if isinstance(layer, layers.MultiHeadAttention | layers.Attention) and len(outputs) > 1:
            raise _stands_in_the_way(layer, "its scores have a time axis each way")
        rule = _rule(layer)
        if getattr(layer, "activity_regularizer", None) is not None:
            raise _stands_in_the_way(layer, "its activity_regularizer counts all steps")
        result = rule(self, layer, tensors[0].shape, steps)
        if result is None or (rule is _of_the_user and not is_open_shape(outputs[0].shape)):
            return [None] * len(outputs)
        return [dataclasses.replace(result, is_raw=False), *[None] * (len(outputs) - 1)]

    def pad_by(self, layer: Any, steps: Steps, pad: float) -> None:
        """Let an input be padded with the value by which a layer masks."""
        if not steps.is_raw or self.pads.setdefault(steps.source, pad) != pad:
            raise _stands_in_the_way(layer, "it masks by a value that the input cannot be padded with")

    def change(self, layer: Any, kind: str, steps: Steps) -> None:
        self.changes.append(Change(layer, kind, steps))


_Result = Steps | None
_Rule = Callable[[_Walk, Any, tuple, list[_Result]], _Result]


def _each(walk: _Walk, layer: Any, shape: tuple, steps: list[_Result]) -> _Result:
    """A layer that treats each step by itself, and whose last axis is not time."""
    (one,) = _needs_sequences(layer, steps)
    if len(shape) < 3:
        raise _stands_in_the_way(layer, "it mixes the steps")
    if not layer.supports_masking:
        if one.is_masked:
            raise _stands_in_the_way(layer, "it drops the model's own mask")
        walk.change(layer, "passing", one)
    return one


def _elementwise(walk: _Walk, layer: Any, shape: tuple, steps: list[_Result]) -> _Result:
    return _needs_sequences(layer, steps)[0]


def _normalization(walk: _Walk, layer: Any, shape: tuple, steps: list[_Result]) -> _Result:
    axes = layer.axis if isinstance(layer.axis, list | tuple) else [layer.axis]
    if any(axis % len(shape) < 2 for axis in axes):
        raise _stands_in_the_way(layer, "it mixes the steps")
    if isinstance(layer, layers.BatchNormalization) and len(shape) != 3:
        raise _stands_in_the_way(layer, "it knows no mask for inputs of this rank")
    return _each(walk, layer, shape, steps)


def _embedding(walk: _Walk, layer: Any, shape: tuple, steps: list[_Result]) -> _Result:
    (one,) = _needs_sequences(layer, steps)
    if layer.mask_zero:
        walk.pad_by(layer, one, 0)
        return dataclasses.replace(one, is_masked=True)
    if one.is_masked:
        raise _stands_in_the_way(layer, "it drops the model's own mask")
    walk.change(layer, "passing", one)
    return one


def _masking(walk: _Walk, layer: Any, shape: tuple, steps: list[_Result]) -> _Result:
    (one,) = _needs_sequences(layer, steps)
    walk.pad_by(layer, one, layer.mask_value)
    return dataclasses.replace(one, is_masked=True)


def _dropout(walk: _Walk, layer: Any, shape: tuple, steps: list[_Result]) -> _Result:
    (one,) = _needs_sequences(layer, steps)
    noise = layer.noise_shape
    if noise is not None and noise[1] != 1:
        raise _stands_in_the_way(layer, "its noise_shape has a time axis")
    if noise is None:
        walk.change(layer, "dropout", one)
    return one


def _merge(walk: _Walk, layer: Any, shape: tuple, steps: list[_Result]) -> _Result:
    ones = _needs_sequences(layer, steps)
    if isinstance(layer, layers.Concatenate) and layer.axis % len(shape) < 2:
        raise _stands_in_the_way(layer, "it joins sequences end to end")
    if len({(one.stride, one.reach) for one in ones}) > 1:
        raise _stands_in_the_way(layer, "it joins sequences of different strides")
    walk.is_joint |= len({one.source for one in ones}) > 1
    return dataclasses.replace(ones[0], is_masked=any(one.is_masked for one in ones))


def _recurrent(walk: _Walk, layer: Any, shape: tuple, steps: list[_Result]) -> _Result:
    first, *states = steps
    if first is None or any(states):
        raise _stands_in_the_way(layer, "a sequence goes into its state")
    if isinstance(layer, layers.Bidirectional) and (layer.return_state or type(layer.forward_layer) not in _RECURRENT):
        raise _stands_in_the_way(layer, "return_state=True, or a layer in it that is not Keras's")
    return first if layer.return_sequences else None


def _attention(walk: _Walk, layer: Any, shape: tuple, steps: list[_Result]) -> _Result:
    if layer.get_config()["dropout"]:
        raise _stands_in_the_way(layer, "its dropout is over the steps")
    if isinstance(layer, layers.MultiHeadAttention):
        # Keras takes the masks off what goes into it, so the model's own would be gone for the layers after it.
        walk.change(layer, "keeping", _without_own_mask(layer, [one for one in steps if one is not None]))
    return steps[0]


def _average(walk: _Walk, layer: Any, shape: tuple, steps: list[_Result]) -> _Result:
    _needs_channels_last(layer)
    _needs_sequences(layer, steps)
    return None


def _maximum(walk: _Walk, layer: Any, shape: tuple, steps: list[_Result]) -> _Result:
    _needs_channels_last(layer)
    walk.change(layer, "maximum", _without_own_mask(layer, steps))
    return None


def _window(walk: _Walk, layer: Any, shape: tuple, steps: list[_Result]) -> _Result:
    """A convolution or a pooling over steps: its output may be shorter."""
    _needs_channels_last(layer)
    one = _without_own_mask(layer, steps)
    is_pool = isinstance(layer, layers.MaxPooling1D | layers.AveragePooling1D)
    size = layer.pool_size[0] if is_pool else (layer.kernel_size[0] - 1) * layer.dilation_rate[0] + 1
    stride = layer.strides[0]
    if layer.padding == "same" and (is_pool or stride > 1):
        raise _stands_in_the_way(layer, 'padding="same" depends on the length')
    walk.change(layer, f"{layer.padding} window", one)
    reach = one.reach + (size - 1) * one.stride if layer.padding == "valid" else one.reach
    walk.shortest = max(walk.shortest, reach)
    return dataclasses.replace(one, stride=one.stride * stride, reach=reach)


def _time_distributed(walk: _Walk, layer: Any, shape: tuple, steps: list[_Result]) -> _Result:
    if not isinstance(layer.layer, _OF_ONE_STEP):
        raise _stands_in_the_way(layer, f"what {type(layer.layer).__name__} does at masked steps is not known")
    return _needs_sequences(layer, steps)[0]


def _of_the_user(walk: _Walk, layer: Any, shape: tuple, steps: list[_Result]) -> _Result:
    """A layer of the user's own that says that it passes masks on: it is believed."""
    ones = _needs_sequences(layer, steps)
    return ones[0]


_RECURRENT = (layers.LSTM, layers.GRU, layers.SimpleRNN, layers.RNN)
_OF_ONE_STEP = (layers.Dense, layers.Conv2D, layers.Flatten, layers.MaxPooling2D, layers.GlobalAveragePooling2D)

_RULES: tuple[tuple[tuple[type, ...], _Rule], ...] = (
    ((layers.Embedding,), _embedding),
    ((layers.Masking,), _masking),
    ((*_RECURRENT, layers.Bidirectional), _recurrent),
    ((layers.Dense, layers.Activation), _each),
    ((layers.ReLU, layers.LeakyReLU, layers.ELU, layers.Identity), _elementwise),
    ((layers.SpatialDropout1D,), _elementwise),
    ((layers.Dropout,), _dropout),
    ((layers.LayerNormalization, layers.BatchNormalization, layers.UnitNormalization), _normalization),
    ((layers.Add, layers.Subtract, layers.Multiply, layers.Average), _merge),
    ((layers.Maximum, layers.Minimum, layers.Concatenate), _merge),
    ((layers.GlobalAveragePooling1D,), _average),
    ((layers.GlobalMaxPooling1D,), _maximum),
    ((layers.Conv1D, layers.MaxPooling1D, layers.AveragePooling1D), _window),
    ((layers.MultiHeadAttention, layers.Attention), _attention),
    ((layers.TimeDistributed,), _time_distributed),
)


_LOSSES_OF_WHOLE_SEQUENCES = frozenset({"ctc", "dice", "tversky"})

_LOGIC = ("NotEqual", "Any", "All", "LogicalAnd", "LogicalOr")
_FORM = ("ExpandDims", "Squeeze", "Concatenate", "ConvertToTensor", "BroadcastTo")
_MASK_OPERATIONS = frozenset(_LOGIC + _FORM)
"""What Keras's `compute_mask` puts into a graph; each step of its result comes from the same step."""


_CONSTANTS = frozenset({"ZerosLike"})


def _makes_mask(operation: Any, outputs: list) -> bool:
    name = type(operation).__name__
    is_known = name in _CONSTANTS or (name in _MASK_OPERATIONS and [one.dtype for one in outputs] == ["bool"])
    return is_known and type(operation).__module__.startswith("keras.")


def _first(steps: list[_Result]) -> Steps:
    return next(one for one in steps if one is not None)


def _rule(layer: Any) -> _Rule:
    for classes, rule in _RULES:
        # Not isinstance: a class derived from one of these may compute something else.
        if type(layer) in classes:
            return rule
    is_of_keras = type(layer).__module__.split(".")[0] == "keras"
    if not is_of_keras and isinstance(layer, layers.Layer) and layer.supports_masking:
        return _of_the_user
    raise _stands_in_the_way(layer, "what it does at masked steps is not known")


def _needs_sequences(layer: Any, steps: list[_Result]) -> list[Steps]:
    ones = [one for one in steps if one is not None]
    if len(ones) < len(steps):
        raise _stands_in_the_way(layer, "it joins a sequence with what is none")
    return ones


def _without_own_mask(layer: Any, steps: list[_Result]) -> Steps:
    ones = _needs_sequences(layer, steps)
    if any(one.is_masked for one in ones):
        raise _stands_in_the_way(layer, "it drops the model's own mask")
    return ones[0]


def _needs_channels_last(layer: Any) -> None:
    if layer.data_format != "channels_last":
        raise _stands_in_the_way(layer, 'data_format="channels_first"')


def _stands_in_the_way(layer: Any, why: str) -> NotPaddable:
    return NotPaddable(f"{type(layer).__name__} {layer.name!r}: {why}")
