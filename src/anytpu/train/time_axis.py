"""Follow the time axis of a model's inputs layer by layer, and decide whether steps may be appended.

Idea: a model with `Input((None,))` takes sequences of any length, and each length would be compiled again. Padded to a
few lengths, with the added steps masked, they share programs. The results stay the same only if each layer on the time
axis treats steps independently, or ignores masked steps, perhaps after a change.

Rule: this file only decides; `masking` applies the decision. The treatment of masked steps by a layer must be known. A
layer that is not in the table prevents padding, and the model runs unpadded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
from keras import layers

from anytpu import _keras


@dataclasses.dataclass(frozen=True)
class TensorSteps:
    """The time axis of one tensor: its axis 1.

    Attributes:
        source: index of the model's input from which the tensor is computed.
        stride: number of input steps between consecutive steps of the tensor.
        receptive_field: number of input steps in the window of one step of the tensor, at least 1. Layers with same or
            causal padding do not widen it, because they keep the length.
        is_masked: whether the model may mask steps by a mask of its own (`mask_zero`, `Masking`).
        is_raw: whether the tensor is an unchanged input of the model.
        is_mask: whether the tensor is the model's own mask.
    """

    source: int
    stride: int = 1
    receptive_field: int = 1
    is_masked: bool = False
    is_raw: bool = False
    is_mask: bool = False

    def length_of(self, length: Any) -> Any:
        """Return the number of steps of the tensor for an input of `length` steps."""
        return (length - self.receptive_field) // self.stride + 1


@dataclasses.dataclass(frozen=True)
class Change:
    """A change that `masking` makes to a layer while a padded step is traced.

    Attributes:
        layer: the layer.
        kind: name of the change, a key of `masking._KINDS`.
        steps: time axis of the layer's input.
    """

    layer: Any
    kind: str
    steps: TensorSteps


@dataclasses.dataclass(frozen=True)
class TimeAxis:
    """The time axes of a model whose sequences can be padded.

    Attributes:
        pads: padding value of each input, in order, if the model masks by value; None repeats the last step.
        outputs: time axis of each output; None for an output without one.
        changes: changes of the model's layers.
        is_joint: whether the model combines inputs step by step, so that they must have the same length.
        min_steps: minimum number of steps that the model takes, at least 1.
    """

    pads: tuple[float | None, ...]
    outputs: tuple[TensorSteps | None, ...]
    changes: tuple[Change, ...]
    is_joint: bool
    min_steps: int


class NotPaddable(Exception):
    """The sequences of a model cannot be padded; the text is the reason."""


def time_axis_of(model: Any) -> TimeAxis:
    """Return the time axes of a model.

    Raises:
        NotPaddable: the model takes sequences of one length only, or a layer prevents padding.
    """
    graph = _keras.graph_of(model)
    if graph is None:
        raise NotPaddable("it is not a Sequential or functional model that is built")
    walk = _GraphWalk()
    opens = [is_open_shape(tensor.shape) for tensor in graph.inputs]
    starts = [TensorSteps(index, is_raw=True) if is_open else None for index, is_open in enumerate(opens)]
    if not any(starts):
        raise NotPaddable("none of its inputs has a time axis of any length, keras.Input((None, ...))")
    outputs = walk.through(graph, starts)
    pads = tuple(walk.pads.get(index) for index in range(len(starts)))
    return TimeAxis(pads, tuple(outputs), tuple(walk.changes), walk.is_joint, walk.min_steps)


def check_targets(model: Any, axis: TimeAxis) -> None:
    """Reject a loss or a metric whose value would depend on the padding steps of an output.

    Raises:
        NotPaddable: an output has a time axis, and its loss or a metric is not known to treat steps independently.
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
    """Return whether a model has an input whose axis 1 may have any length."""
    graph = _keras.graph_of(model)
    return graph is not None and any(is_open_shape(tensor.shape) for tensor in graph.inputs)


def is_open_shape(shape: tuple[int | None, ...]) -> bool:
    """Return whether axis 1 of a symbolic tensor may have any length, and no other axis but the batch axis."""
    return len(shape) > 1 and shape[1] is None and None not in shape[2:]


class _GraphWalk:
    """One traversal of a graph and of the graphs nested in it."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.pads: dict[int, float] = {}
        self.is_joint = False
        self.min_steps = 1

    def through(self, graph: Any, starts: list[TensorSteps | None]) -> list[TensorSteps | None]:
        known = {id(tensor): start for tensor, start in zip(graph.inputs, starts, strict=True)}
        for operation, tensors, _, outputs in _keras.calls_of(graph):
            steps = [known.get(id(tensor)) for tensor in tensors]
            results = self._results(operation, tensors, outputs, steps) if any(steps) else [None] * len(outputs)
            known.update({id(tensor): result for tensor, result in zip(outputs, results, strict=True)})
        return [known.get(id(tensor)) for tensor in graph.outputs]

    def _results(self, operation: Any, tensors: list, outputs: list, steps: list[_Result]) -> list[_Result]:
        if _makes_mask(operation, outputs):
            return [dataclasses.replace(_first(steps), is_mask=True)]
        if any(axis is not None and axis.is_mask for axis in steps):
            raise _obstacle(operation, "it computes with a mask")
        inner = _keras.graph_of(operation) if isinstance(operation, keras.Model) else None
        if inner is not None:
            self.changes.append(Change(operation, "silent", _first(steps)))
            return self.through(inner, steps)
        return self._layer_results(operation, tensors, outputs, steps)

    def _layer_results(self, layer: Any, tensors: list, outputs: list, steps: list[_Result]) -> list[_Result]:
        if isinstance(layer, layers.MultiHeadAttention | layers.Attention) and len(outputs) > 1:
            raise _obstacle(layer, "its scores have a time axis each way")
        rule = _rule(layer)
        if getattr(layer, "activity_regularizer", None) is not None:
            raise _obstacle(layer, "its activity_regularizer counts all steps")
        result = rule(self, layer, tensors[0].shape, steps)
        if result is None or (rule is _custom_layer and not is_open_shape(outputs[0].shape)):
            return [None] * len(outputs)
        return [dataclasses.replace(result, is_raw=False), *[None] * (len(outputs) - 1)]

    def pad_by(self, layer: Any, steps: TensorSteps, pad: float) -> None:
        """Choose a layer's mask value as the padding value of an input."""
        if not steps.is_raw or self.pads.setdefault(steps.source, pad) != pad:
            raise _obstacle(layer, "it masks by a value that the input cannot be padded with")

    def change(self, layer: Any, kind: str, steps: TensorSteps) -> None:
        self.changes.append(Change(layer, kind, steps))


_Result = TensorSteps | None
_Rule = Callable[[_GraphWalk, Any, tuple, list[_Result]], _Result]


def _stepwise(walk: _GraphWalk, layer: Any, shape: tuple, steps: list[_Result]) -> _Result:
    """Check a layer that treats steps independently, if its last axis is not time."""
    (axis,) = _needs_sequences(layer, steps)
    if len(shape) < 3:
        raise _obstacle(layer, "it mixes the steps")
    if not layer.supports_masking:
        if axis.is_masked:
            raise _obstacle(layer, "it drops the model's own mask")
        walk.change(layer, "passing", axis)
    return axis


def _elementwise(walk: _GraphWalk, layer: Any, shape: tuple, steps: list[_Result]) -> _Result:
    return _needs_sequences(layer, steps)[0]


def _normalization(walk: _GraphWalk, layer: Any, shape: tuple, steps: list[_Result]) -> _Result:
    axes = layer.axis if isinstance(layer.axis, list | tuple) else [layer.axis]
    if any(axis % len(shape) < 2 for axis in axes):
        raise _obstacle(layer, "it mixes the steps")
    if isinstance(layer, layers.BatchNormalization) and len(shape) != 3:
        raise _obstacle(layer, "it knows no mask for inputs of this rank")
    return _stepwise(walk, layer, shape, steps)


def _embedding(walk: _GraphWalk, layer: Any, shape: tuple, steps: list[_Result]) -> _Result:
    (axis,) = _needs_sequences(layer, steps)
    if layer.mask_zero:
        walk.pad_by(layer, axis, 0)
        return dataclasses.replace(axis, is_masked=True)
    if axis.is_masked:
        raise _obstacle(layer, "it drops the model's own mask")
    walk.change(layer, "passing", axis)
    return axis


def _masking(walk: _GraphWalk, layer: Any, shape: tuple, steps: list[_Result]) -> _Result:
    (axis,) = _needs_sequences(layer, steps)
    walk.pad_by(layer, axis, layer.mask_value)
    return dataclasses.replace(axis, is_masked=True)


def _dropout(walk: _GraphWalk, layer: Any, shape: tuple, steps: list[_Result]) -> _Result:
    (axis,) = _needs_sequences(layer, steps)
    noise = layer.noise_shape
    if noise is not None and noise[1] != 1:
        raise _obstacle(layer, "its noise_shape has a time axis")
    if noise is None:
        walk.change(layer, "dropout", axis)
    return axis


def _merge(walk: _GraphWalk, layer: Any, shape: tuple, steps: list[_Result]) -> _Result:
    inputs = _needs_sequences(layer, steps)
    if isinstance(layer, layers.Concatenate) and layer.axis % len(shape) < 2:
        raise _obstacle(layer, "it joins sequences end to end")
    if len({(axis.stride, axis.receptive_field) for axis in inputs}) > 1:
        raise _obstacle(layer, "it joins sequences of different strides")
    walk.is_joint |= len({axis.source for axis in inputs}) > 1
    return dataclasses.replace(inputs[0], is_masked=any(axis.is_masked for axis in inputs))


def _recurrent(walk: _GraphWalk, layer: Any, shape: tuple, steps: list[_Result]) -> _Result:
    first, *states = steps
    if first is None or any(states):
        raise _obstacle(layer, "a sequence goes into its state")
    if isinstance(layer, layers.Bidirectional) and (layer.return_state or type(layer.forward_layer) not in _RECURRENT):
        raise _obstacle(layer, "return_state=True, or a layer in it that is not Keras's")
    return first if layer.return_sequences else None


def _attention(walk: _GraphWalk, layer: Any, shape: tuple, steps: list[_Result]) -> _Result:
    if layer.get_config()["dropout"]:
        raise _obstacle(layer, "its dropout is over the steps")
    if isinstance(layer, layers.MultiHeadAttention):
        # Keras removes the masks of its inputs, so later layers would lose the model's own mask.
        walk.change(layer, "keeping", _without_own_mask(layer, [axis for axis in steps if axis is not None]))
    return steps[0]


def _average(walk: _GraphWalk, layer: Any, shape: tuple, steps: list[_Result]) -> _Result:
    _needs_channels_last(layer)
    _needs_sequences(layer, steps)
    return None


def _maximum(walk: _GraphWalk, layer: Any, shape: tuple, steps: list[_Result]) -> _Result:
    _needs_channels_last(layer)
    walk.change(layer, "maximum", _without_own_mask(layer, steps))
    return None


def _window(walk: _GraphWalk, layer: Any, shape: tuple, steps: list[_Result]) -> _Result:
    """Check a convolution or a pooling over steps; its output may have fewer steps."""
    _needs_channels_last(layer)
    axis = _without_own_mask(layer, steps)
    is_pool = isinstance(layer, layers.MaxPooling1D | layers.AveragePooling1D)
    size = layer.pool_size[0] if is_pool else (layer.kernel_size[0] - 1) * layer.dilation_rate[0] + 1
    stride = layer.strides[0]
    if layer.padding == "same" and (is_pool or stride > 1):
        raise _obstacle(layer, 'padding="same" depends on the length')
    walk.change(layer, f"{layer.padding} window", axis)
    is_valid = layer.padding == "valid"
    receptive_field = axis.receptive_field + (size - 1) * axis.stride if is_valid else axis.receptive_field
    walk.min_steps = max(walk.min_steps, receptive_field)
    return dataclasses.replace(axis, stride=axis.stride * stride, receptive_field=receptive_field)


def _time_distributed(walk: _GraphWalk, layer: Any, shape: tuple, steps: list[_Result]) -> _Result:
    if not isinstance(layer.layer, _SINGLE_STEP_LAYERS):
        raise _obstacle(layer, f"the behaviour of {type(layer.layer).__name__} at masked steps is not known")
    return _needs_sequences(layer, steps)[0]


def _custom_layer(walk: _GraphWalk, layer: Any, shape: tuple, steps: list[_Result]) -> _Result:
    """Accept a layer of the user's own with `supports_masking`, trusting that it passes masks on."""
    return _needs_sequences(layer, steps)[0]


_RECURRENT = (layers.LSTM, layers.GRU, layers.SimpleRNN, layers.RNN)
_SINGLE_STEP_LAYERS = (layers.Dense, layers.Conv2D, layers.Flatten, layers.MaxPooling2D, layers.GlobalAveragePooling2D)

_RULES: tuple[tuple[tuple[type, ...], _Rule], ...] = (
    ((layers.Embedding,), _embedding),
    ((layers.Masking,), _masking),
    ((*_RECURRENT, layers.Bidirectional), _recurrent),
    ((layers.Dense, layers.Activation), _stepwise),
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
"""Operations that Keras's `compute_mask` adds to a graph; each output step depends on the same input step alone."""


_CONSTANTS = frozenset({"ZerosLike"})


def _makes_mask(operation: Any, outputs: list) -> bool:
    name = type(operation).__name__
    is_known = name in _CONSTANTS or (name in _MASK_OPERATIONS and [tensor.dtype for tensor in outputs] == ["bool"])
    return is_known and type(operation).__module__.startswith("keras.")


def _first(steps: list[_Result]) -> TensorSteps:
    return next(axis for axis in steps if axis is not None)


def _rule(layer: Any) -> _Rule:
    for classes, rule in _RULES:
        # Not isinstance: a class derived from one of these may compute something else.
        if type(layer) in classes:
            return rule
    is_of_keras = type(layer).__module__.split(".")[0] == "keras"
    if not is_of_keras and isinstance(layer, layers.Layer) and layer.supports_masking:
        return _custom_layer
    raise _obstacle(layer, "its behaviour at masked steps is not known")


def _needs_sequences(layer: Any, steps: list[_Result]) -> list[TensorSteps]:
    present = [axis for axis in steps if axis is not None]
    if len(present) < len(steps):
        raise _obstacle(layer, "it joins a sequence with a tensor without a time axis")
    return present


def _without_own_mask(layer: Any, steps: list[_Result]) -> TensorSteps:
    inputs = _needs_sequences(layer, steps)
    if any(axis.is_masked for axis in inputs):
        raise _obstacle(layer, "it drops the model's own mask")
    return inputs[0]


def _needs_channels_last(layer: Any) -> None:
    if layer.data_format != "channels_last":
        raise _obstacle(layer, 'data_format="channels_first"')


def _obstacle(layer: Any, why: str) -> NotPaddable:
    return NotPaddable(f"{type(layer).__name__} {layer.name!r}: {why}")
