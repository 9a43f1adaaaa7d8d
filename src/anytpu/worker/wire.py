"""The messages of the wire, which `worker.proto` describes, and their limits."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from anytpu.files.proto import message_classes
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


@functools.cache
def messages() -> Any:
    """Return the message classes, as attributes of one object: `messages().Request`."""
    return message_classes(Path(__file__).with_name("worker.proto"))


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
