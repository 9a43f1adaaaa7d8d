"""The messages of the wire, made at run time from `worker.proto`.

Idea: the .proto file is the only description of the wire. Generated Python would be a second one, bound to one major
version of protobuf. The file uses a small part of the language, which this module parses.

Rule: the messages are in a descriptor pool of their own.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from anytpu.units import printable

PROTOCOL = "3"
"""Version of the wire; client and worker must have the same one."""

INLINE_BYTES = 64 * 2**10
"""Maximum size of an array that travels inside its message, and not as chunks (`chunk.py`)."""
MAX_MESSAGE_BYTES = 64 * 2**20
"""Maximum size of a message."""
MAX_FRAME_BYTES = 4 * 2**20
"""Maximum size of a frame of HTTP/2. gRPC's default divides a chunk of 1 MiB into 64 frames."""

MAX_ERROR = 4000
"""Maximum length of an error's text, in characters."""

PACKAGE = "anytpu.worker.v1"
SERVICE = f"{PACKAGE}.Worker"

_SCALARS = {
    name: getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{name.upper()}")
    for name in ("bool", "bytes", "double", "int32", "string", "uint32", "uint64")
}
_FIELD = re.compile(r"(repeated )?(\w+) (\w+) = (\d+);")


@functools.cache
def messages() -> Any:
    """Return the message classes, as attributes of one object: `messages().Request`."""
    pool = descriptor_pool.DescriptorPool()
    parsed = parse_proto(Path(__file__).with_name("worker.proto").read_text(encoding="utf-8"))
    pool.Add(parsed)  # pyright: ignore[reportAttributeAccessIssue]
    classes = {
        message.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{message.name}"))
        for message in parsed.message_type
    }
    return type("Messages", (), classes)


def read_message(kind: str, content: bytes | memoryview) -> Any:
    """Return the message in bytes of another machine, with printable texts only (see `units.printable`).

    Raises:
        google.protobuf.message.DecodeError: it is none.
    """
    message = getattr(messages(), kind).FromString(content)
    _escape_texts(message)
    return message


def _escape_texts(message: Any) -> None:
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if field.is_repeated else [value]:
                _escape_texts(inner)
        elif field.type == field.TYPE_STRING:
            setattr(message, field.name, printable(value, MAX_ERROR))


def parse_proto(text: str) -> descriptor_pb2.FileDescriptorProto:
    """Parse the part of the protocol buffer language that `worker.proto` uses.

    Raises:
        ValueError: a line is not of that part.
    """
    parsed = descriptor_pb2.FileDescriptorProto(name="worker.proto", package=PACKAGE, syntax="proto3")
    message: Any = None
    is_choice = False
    for line in (line.strip() for line in text.splitlines()):
        if not line or line.startswith(("//", "syntax", "package")):
            continue
        if match := re.fullmatch(r"message (\w+) \{", line):
            message = parsed.message_type.add(name=match[1])
        elif match := re.fullmatch(r"oneof (\w+) \{", line):
            message.oneof_decl.add(name=match[1])
            is_choice = True
        elif match := _FIELD.fullmatch(line):
            _add_field(message, match, is_choice)
        elif line == "}":
            is_choice = False
        else:
            raise ValueError(f"worker.proto has a line that wire.py cannot read: {line!r}")
    return parsed


def _add_field(message: Any, match: re.Match[str], is_choice: bool) -> None:
    repeated, kind, name, number = match.groups()
    labels = descriptor_pb2.FieldDescriptorProto
    field = message.field.add(name=name, number=int(number))
    field.label = labels.LABEL_REPEATED if repeated else labels.LABEL_OPTIONAL
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type, field.type_name = labels.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
    if is_choice:
        field.oneof_index = len(message.oneof_decl) - 1
