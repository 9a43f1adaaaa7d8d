"""`pads_of`: the values by which a model's own layers mask the steps of its sequences.

Idea: a model with `Input((None,))` takes sequences of any length, and each length would be compiled again. If the model
masks steps by a value (`Embedding(mask_zero=True)`, `Masking`), steps of that value may be added at the end. Keras
passes the mask from layer to layer, and the layers say `supports_masking`.

Rule: the results stay those of the unpadded sequences. Not every layer that supports masks ignores masked steps:
dropout draws numbers for them. So a layer of Keras must be in the table. A layer of the user's own with
`supports_masking` is trusted.
"""

from __future__ import annotations

from typing import Any

from keras import layers

from anytpu import _keras


class NotPaddable(Exception):
    """The sequences of a model cannot be padded; the text is the reason."""


def is_open(model: Any) -> bool:
    """Return whether a model has an input whose axis 1 may have any length."""
    graph = _keras.graph_of(model)
    return graph is not None and any(is_open_shape(tensor.shape) for tensor in graph.inputs)


def is_open_shape(shape: tuple[int | None, ...]) -> bool:
    """Return whether axis 1 of a symbolic tensor may have any length, and no other axis but the batch axis."""
    return len(shape) > 1 and shape[1] is None and None not in shape[2:]


def pads_of(model: Any) -> tuple[float | None, ...]:
    """Return the value that each input of a model may be padded with; None for an input without a time axis.

    Raises:
        NotPaddable: a step of that value would change a result.
    """
    graph: Any = _keras.graph_of(model)
    sources = {id(tensor): index for index, tensor in enumerate(graph.inputs) if is_open_shape(tensor.shape)}
    pads: list[float | None] = [None] * len(graph.inputs)
    masks: set[int] = set()
    for operation, tensors, _, outputs in _keras.calls_of(graph):
        if _makes_mask(operation, outputs):
            masks.update(map(id, outputs))
            continue
        if not masks.isdisjoint(map(id, tensors)):
            raise _obstacle(operation, "it computes with a mask")
        for tensor in tensors:
            if id(tensor) in sources:
                index, pad = sources[id(tensor)], _pad_of(operation)
                if pads[index] not in (None, pad):
                    raise _obstacle(operation, "it masks by another value than a layer before it")
                pads[index] = pad
        steps = [tensor for tensor in tensors if None in tensor.shape[1:] and id(tensor) not in sources]
        if steps:
            _check(operation, steps, len(tensors), len(sources))
    if any(None in tensor.shape[1:] for tensor in graph.outputs):
        raise NotPaddable("its output has a time axis")
    return tuple(pads)


def _pad_of(layer: Any) -> float:
    """Return the value by which the first layer of a sequence masks."""
    _check_penalty(layer)
    if type(layer) is layers.Embedding and layer.mask_zero:
        return 0
    if type(layer) is layers.Masking:
        return layer.mask_value
    raise _obstacle(layer, "no mask comes before it; begin with Embedding(..., mask_zero=True) or Masking()")


def _check(layer: Any, steps: list[Any], tensors: int, sources: int) -> None:
    """Check that a layer on the time axis ignores masked steps.

    Args:
        layer: the layer.
        steps: its inputs with a time axis.
        tensors: number of all its inputs.
        sources: number of the model's inputs with a time axis.

    Raises:
        NotPaddable: it does not, or may not.
    """
    is_of_keras = type(layer).__module__.split(".")[0] == "keras"
    if not (type(layer) in _KNOWN if is_of_keras else isinstance(layer, layers.Layer) and layer.supports_masking):
        raise _obstacle(layer, "its behaviour at masked steps is not known")
    _check_penalty(layer)
    if isinstance(layer, (*_RECURRENT, layers.Bidirectional)) and tensors > 1:
        raise _obstacle(layer, "with initial_state Keras passes it no mask")
    if len(steps) > 1 and sources > 1:
        raise _obstacle(layer, "it joins sequences that may have different lengths")
    if type(layer) in _MERGES and len(steps) < tensors:
        raise _obstacle(layer, "it joins a sequence with a tensor without a time axis")
    shape = steps[0].shape
    axes = getattr(layer, "axis", -1)
    mixes = any(axis % len(shape) < 2 for axis in (axes if isinstance(axes, list | tuple) else [axes]))
    if is_of_keras and (mixes or getattr(layer, "data_format", "channels_last") != "channels_last"):
        raise _obstacle(layer, "it mixes the steps")
    if type(layer) is layers.BatchNormalization and len(shape) != 3:
        raise _obstacle(layer, "it knows no mask for inputs of this rank")
    if getattr(layer, "go_backwards", False) and layer.return_sequences:
        raise _obstacle(layer, "it reverses the steps, and not their mask")
    if type(layer) is layers.Bidirectional and (layer.return_state or type(layer.forward_layer) not in _RECURRENT):
        raise _obstacle(layer, "return_state=True, or a layer in it that is not Keras's")


def _check_penalty(layer: Any) -> None:
    if getattr(layer, "activity_regularizer", None) is not None:
        raise _obstacle(layer, "its activity_regularizer counts all steps")


_RECURRENT = (layers.LSTM, layers.GRU, layers.SimpleRNN, layers.RNN)
_MERGES = (
    layers.Add, layers.Subtract, layers.Multiply, layers.Average, layers.Maximum, layers.Minimum, layers.Concatenate,
)  # fmt: skip
_KNOWN = frozenset({
    *_RECURRENT, layers.Bidirectional, *_MERGES, layers.Dense, layers.Activation, layers.ReLU, layers.LeakyReLU,
    layers.ELU, layers.Identity, layers.SpatialDropout1D, layers.LayerNormalization, layers.BatchNormalization,
    layers.UnitNormalization, layers.GlobalAveragePooling1D,
})  # fmt: skip
"""Layers of Keras whose results at real steps do not depend on masked ones. Not isinstance: a derived class may compute
something else."""

_MASK_OPERATIONS = frozenset({
    "NotEqual", "Any", "All", "LogicalAnd", "LogicalOr", "ExpandDims", "Squeeze", "Concatenate", "ConvertToTensor",
    "BroadcastTo",
})  # fmt: skip
"""Operations that Keras's `compute_mask` adds to a graph; each output step depends on the same input step alone."""


def _makes_mask(operation: Any, outputs: list[Any]) -> bool:
    name = type(operation).__name__
    is_known = name == "ZerosLike" or (name in _MASK_OPERATIONS and [tensor.dtype for tensor in outputs] == ["bool"])
    return is_known and type(operation).__module__.startswith("keras.")


def _obstacle(layer: Any, why: str) -> NotPaddable:
    return NotPaddable(f"{type(layer).__name__} {layer.name!r}: {why}")
