"""The classes of protocol buffer messages, made at run time from a .proto file.

Idea: the .proto file is the only description. Generated Python would be a second one, bound to one major version of
protobuf. Our files use a small part of the language: messages of one level, scalar fields, `repeated`, `oneof`, and
maps from text.

Rule: the messages of a file are in a descriptor pool of their own, so that another package of this process may define
the same names.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_SCALARS = {
    name: getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{name.upper()}")
    for name in ("bool", "bytes", "double", "float", "int32", "int64", "string", "uint32", "uint64")
}
_FIELD = re.compile(r"(?:(repeated )?(\w+)|map<string, (\w+)>) (\w+) = (\d+);")


def message_classes(path: Path) -> Any:
    """Return the classes of the messages in a .proto file, as attributes of one object: `classes.Request`."""
    pool = descriptor_pool.DescriptorPool()
    parsed = parse_proto(path.name, path.read_text(encoding="utf-8"))
    pool.Add(parsed)  # pyright: ignore[reportAttributeAccessIssue]
    classes = {
        message.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{parsed.package}.{message.name}"))
        for message in parsed.message_type
    }
    return type("Messages", (), classes)


def parse_proto(name: str, text: str) -> descriptor_pb2.FileDescriptorProto:
    """Parse a .proto file.

    Raises:
        ValueError: a line is not of the part of the language that is read here.
    """
    parsed = descriptor_pb2.FileDescriptorProto(name=name, syntax="proto3")
    message: Any = None
    is_choice = False
    for line in (line.strip() for line in text.splitlines()):
        if not line or line.startswith(("//", "syntax")):
            continue
        if match := re.fullmatch(r"package ([\w.]+);", line):
            parsed.package = match[1]
        elif match := re.fullmatch(r"message (\w+) \{", line):
            message = parsed.message_type.add(name=match[1])
        elif match := re.fullmatch(r"oneof (\w+) \{", line):
            message.oneof_decl.add(name=match[1])
            is_choice = True
        elif match := _FIELD.fullmatch(line):
            _add_field(parsed.package, message, match, is_choice)
        elif line == "}":
            is_choice = False
        else:
            raise ValueError(f"{name} has a line that files/proto.py cannot read: {line!r}")
    return parsed


def _add_field(package: str, message: Any, match: re.Match[str], is_choice: bool) -> None:
    repeated, kind, mapped, name, number = match.groups()
    field = message.field.add(name=name, number=int(number), **_type_of(package, kind or mapped, repeated or mapped))
    if is_choice:
        field.oneof_index = len(message.oneof_decl) - 1
    if mapped:
        entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, **_type_of(package, "string"))
        entry.field.add(name="value", number=2, **_type_of(package, mapped))
        field.type, field.type_name = field.TYPE_MESSAGE, f".{package}.{message.name}.{entry.name}"


def _type_of(package: str, kind: str, is_repeated: Any = False) -> dict[str, Any]:
    field = descriptor_pb2.FieldDescriptorProto
    label = field.LABEL_REPEATED if is_repeated else field.LABEL_OPTIONAL
    if kind in _SCALARS:
        return {"label": label, "type": _SCALARS[kind]}
    return {"label": label, "type": field.TYPE_MESSAGE, "type_name": f".{package}.{kind}"}
