"""The protobuf messages tf.Example and tf.SequenceExample, built at run time; no generated code, no TensorFlow.

Source: the message definitions that TensorFlow documents (`Example`, `Features`, `Feature`, `BytesList`, `FloatList`,
`Int64List`, `SequenceExample`, `FeatureLists`, `FeatureList`), rebuilt with the same field numbers.

Rule: the messages are defined in a separate descriptor pool, so that a process that also imports TensorFlow has no
duplicate definition.
"""

from __future__ import annotations

import functools
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = descriptor_pb2.FieldDescriptorProto
_PACKAGE = "tensorflow"

KINDS = ("bytes_list", "float_list", "int64_list")
"""Fields of a feature, of which exactly one is set."""


@functools.cache
def message_class(name: str) -> Any:
    """Return the class of the message "Example" or "SequenceExample"."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"{_PACKAGE}.{name}"))


@functools.cache
def _pool() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(name="anytpu/example.proto", package=_PACKAGE, syntax="proto3")
    for name, kind in (
        ("BytesList", _Field.TYPE_BYTES),
        ("FloatList", _Field.TYPE_FLOAT),
        ("Int64List", _Field.TYPE_INT64),
    ):
        _add_field(file.message_type.add(name=name), "value", 1, kind, _Field.LABEL_REPEATED)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (field, kind) in enumerate(zip(KINDS, ("BytesList", "FloatList", "Int64List"), strict=True), 1):
        _add_message(feature, field, number, kind).oneof_index = 0
    _add_map(file.message_type.add(name="Features"), "feature", "Feature")
    _add_message(file.message_type.add(name="Example"), "features", 1, "Features")
    _add_message(file.message_type.add(name="FeatureList"), "feature", 1, "Feature").label = _Field.LABEL_REPEATED
    _add_map(file.message_type.add(name="FeatureLists"), "feature_list", "FeatureList")
    sequence = file.message_type.add(name="SequenceExample")
    _add_message(sequence, "context", 1, "Features")
    _add_message(sequence, "feature_lists", 2, "FeatureLists")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


def _add_field(message: Any, name: str, number: int, kind: int, label: int = _Field.LABEL_OPTIONAL) -> Any:
    return message.field.add(name=name, number=number, type=kind, label=label)


def _add_message(message: Any, name: str, number: int, kind: str) -> Any:
    field = _add_field(message, name, number, _Field.TYPE_MESSAGE)
    field.type_name = f".{_PACKAGE}.{kind}"
    return field


def _add_map(message: Any, name: str, kind: str) -> None:
    entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
    entry.options.map_entry = True
    _add_field(entry, "key", 1, _Field.TYPE_STRING)
    _add_message(entry, "value", 2, kind)
    field = _add_field(message, name, 1, _Field.TYPE_MESSAGE, _Field.LABEL_REPEATED)
    field.type_name = f".{_PACKAGE}.{message.name}.{entry.name}"
