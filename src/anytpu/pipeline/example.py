"""tf.Example and tf.SequenceExample, the usual content of TFRecords, written and read without TensorFlow.

Idea: an example is a dict of features. `encode_example` chooses the kind of each feature by the type of its values;
`parse_example` converts each feature to its specified dtype and shape.

Rule: an error names the feature. If the bytes come from a source of this package, it also names the file, the record
and the byte.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anytpu.errors import RecordError
from anytpu.pipeline.features import KIND_NAMES, FeatureSpec
from anytpu.pipeline.record import Record

Spec = Mapping[str, FeatureSpec]

_BYTES_LIKE = (bytes, bytearray, memoryview, str)


def encode_example(features: Mapping[str, Any]) -> bytes:
    """Encode a dict as a tf.Example.

    Args:
        features: each a value, a list of values or an array, of one kind. The kinds are bytes or text (as UTF-8),
            floats (kept as float32), and integers or booleans (as int64). Shapes are not kept. `None` and empty lists
            have no kind; an empty array has the kind of its dtype.

    Returns:
        The message; the same dict always gives the same bytes.

    Raises:
        RecordError: a feature has another kind, mixes kinds, or is out of range.

    Example:
        >>> from anytpu.pipeline import FixedLenFeature
        >>> parse = {"label": FixedLenFeature((), "int64"), "name": FixedLenFeature((), bytes)}
        >>> parse_example(encode_example({"label": 3, "name": "rose"}), parse)
        {'label': array(3), 'name': b'rose'}
    """
    message = _messages().Example()
    _fill(message.features, features)
    return message.SerializeToString(deterministic=True)


def parse_example(record: bytes, spec: Spec) -> dict[str, Any]:
    """Decode features of a tf.Example.

    Args:
        record: the message.
        spec: the specification of each feature to read; other features are left out.

    Returns:
        The features: arrays, or `bytes` for a single value of that type, with the `origin` of the record if it has one.

    Raises:
        RecordError: the record is not a tf.Example; a feature is missing, or has another kind or length.

    Example:
        >>> from anytpu.pipeline import FixedLenFeature
        >>> parse_example(encode_example({"x": [1.5, 2.5]}), {"x": FixedLenFeature((2,), "float32")})
        {'x': array([1.5, 2.5], dtype=float32)}
    """
    try:
        parsed = _parsed(_read("Example", record).features.feature, spec)
    except RecordError as error:
        raise _with_origin(record, error) from error.__cause__
    if isinstance(record, Record):
        # Keep the origin, so that a later error, such as that of an image decoder, can name the record.
        return {
            name: Record.at(value, record.origin) if type(value) is bytes else value for name, value in parsed.items()
        }
    return parsed


def parse_examples(records: Sequence[bytes], spec: Spec) -> dict[str, np.ndarray]:
    """Decode features of several tf.Examples, each feature as one array.

    Args:
        records: the messages, at least one.
        spec: the specification of each feature to read; other features are left out.

    Returns:
        The features, with the examples as first axis; bytes as an array of objects.

    Raises:
        RecordError: as `parse_example`; a feature has different lengths.

    Example:
        >>> from anytpu.pipeline import FixedLenFeature
        >>> parse_examples([encode_example({"x": x}) for x in (1, 2)], {"x": FixedLenFeature((), "int64")})
        {'x': array([1, 2])}
    """
    if not len(records):
        raise RecordError("records must contain at least one record, not []")
    rows = [parse_example(record, spec) for record in records]
    return {name: feature_spec.column(name, [row[name] for row in rows]) for name, feature_spec in spec.items()}


def encode_sequence_example(context: Mapping[str, Any], sequences: Mapping[str, Sequence[Any]]) -> bytes:
    """Encode a tf.SequenceExample.

    Args:
        context: features of the whole sequence, as for `encode_example`.
        sequences: lists of features: for each step a value, a list of values or an array.

    Raises:
        RecordError: a feature has a kind that an example cannot hold, mixes kinds, or is out of range.
    """
    message = _messages().SequenceExample()
    _fill(message.context, context)
    for name, steps in sequences.items():
        listed = message.feature_lists.feature_list[_checked_name(name)].feature
        for index, step in enumerate(steps):
            _fill_feature(listed.add(), f"{name}[{index}]", step)
    return message.SerializeToString(deterministic=True)


def parse_sequence_example(record: bytes, context: Spec, sequences: Spec) -> tuple[dict[str, Any], dict[str, Any]]:
    """Decode features of a tf.SequenceExample.

    Args:
        record: the message.
        context: the specification of each feature of the whole sequence.
        sequences: the specification of a step, for each sequence to read.

    Returns:
        The features of the whole, and the sequences. A sequence is an array with the steps as first axis, or a list of
        steps if their lengths differ. A missing sequence has 0 steps, in the dtype and the shape of a step.

    Raises:
        RecordError: the record is not a tf.SequenceExample; a feature is missing, or has another kind or length.
    """
    try:
        message = _read("SequenceExample", record)
        listed = message.feature_lists.feature_list
        steps = {
            name: step.steps([_value(f"{name}[{i}]", feature, step) for i, feature in enumerate(listed[name].feature)])
            for name, step in sequences.items()
        }
        return _parsed(message.context.feature, context), steps
    except RecordError as error:
        raise _with_origin(record, error) from error.__cause__


@functools.cache
def _messages() -> Any:
    # Imported here because loading protobuf takes 20 ms.
    from anytpu.files.proto import message_classes

    return message_classes(Path(__file__).with_name("example.proto"))


def _read(name: str, record: bytes) -> Any:
    try:
        return getattr(_messages(), name).FromString(record)
    except Exception as error:  # DecodeError or TypeError; naming DecodeError would load protobuf with this module
        if not isinstance(record, bytes | bytearray | memoryview):
            raise RecordError(f"a record to parse must be bytes, not {type(record).__name__}") from None
        raise RecordError(f"these {len(record)} bytes are not a tf.{name}: {error}") from error


def _parsed(features: Any, spec: Spec) -> dict[str, Any]:
    return {
        name: _value(name, features[name], feature_spec) if name in features else feature_spec.missing(name)
        for name, feature_spec in spec.items()
    }


def _value(name: str, feature: Any, spec: FeatureSpec) -> Any:
    kind = feature.WhichOneof("kind")
    if kind is None:
        return spec.missing(name)
    if kind != spec.kind:
        expected = spec.dtype.__name__ if spec.dtype is bytes else spec.dtype
        raise RecordError(f"feature {name!r} holds {KIND_NAMES[kind]}, but the specification says {expected}")
    return spec.value(name, getattr(feature, kind).value)


def _fill(message: Any, features: Mapping[str, Any]) -> None:
    for name, value in features.items():
        _fill_feature(message.feature[_checked_name(name)], name, value)


def _fill_feature(feature: Any, name: str, value: Any) -> None:
    array = _flat(name, value)
    if array is None:
        # The kind is unknown. TensorFlow treats such a feature as missing, and so does `parse_example`.
        feature.SetInParent()
    elif array.dtype.kind == "O":
        feature.bytes_list.value.extend(_encoded(name, item) for item in array)
        feature.bytes_list.SetInParent()
    elif array.dtype.kind == "f":
        feature.float_list.value.extend(_narrowed(name, array).tolist())
        feature.float_list.SetInParent()
    else:
        feature.int64_list.value.extend(_checked_integers(name, array).tolist())
        feature.int64_list.SetInParent()


def _flat(name: str, value: Any) -> np.ndarray | None:
    """Return values as a 1-D array of objects, floats or integers; None if the kind is unknown."""
    if isinstance(value, _BYTES_LIKE):
        return _objects([value])
    if value is None or (isinstance(value, list | tuple) and not value):
        return None
    if isinstance(value, list | tuple) and isinstance(value[0], _BYTES_LIKE):
        return _objects(value)
    array = np.asarray(value).reshape(-1)
    if not array.size and isinstance(value, list | tuple) and array.dtype == np.float64:
        return None  # As [[], []], which NumPy makes floats.
    if array.dtype.kind in "SUO" and isinstance(value, np.ndarray | np.generic) and _holds_bytes(array):
        return _objects(array.tolist())
    if array.dtype.kind not in "iubf" or (array.dtype.kind == "f" and _holds_integers(value)):
        raise RecordError(
            f"feature {name!r} must be bytes, text, integers of 64 bits or floats, or a list of one of these, "
            f"not {value!r}"
        )
    return array


def _holds_bytes(array: np.ndarray) -> bool:
    return array.dtype.kind != "O" or not array.size or isinstance(array[0], _BYTES_LIKE)


def _holds_integers(value: Any) -> bool:
    """Return whether all values are integers; if NumPy made them floats, some exceed 64 bits."""
    return isinstance(value, list | tuple) and all(isinstance(item, int) for item in value)


def _objects(values: Sequence[Any]) -> np.ndarray:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def _encoded(name: str, value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, bytes | bytearray | memoryview):
        raise RecordError(f"feature {name!r} mixes bytes or text with {value!r}")
    return bytes(value)


def _narrowed(name: str, array: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        narrow = array.astype(np.float32)
    if (overflowed := np.isinf(narrow) & ~np.isinf(array)).any():
        raise RecordError(f"feature {name!r} has the value {array[overflowed][0]!s}, which float32 cannot hold")
    return narrow


def _checked_integers(name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise RecordError(f"feature {name!r} has the value {array.max()}, which int64 cannot hold")
    return array.astype(np.int64)


def _checked_name(name: Any) -> str:
    if not isinstance(name, str):
        raise RecordError(f"a feature's name must be text, not {name!r}")
    return name


def _with_origin(record: bytes, error: RecordError) -> RecordError:
    return RecordError(f"{record.origin}: {error}") if isinstance(record, Record) else error
