"""The messages between parent and child: a header of JSON and a payload of bytes, each after its length.

Rule: no pickle; the child sends only numbers and text.
"""

from __future__ import annotations

import json
import struct
from typing import IO, Any

_LENGTHS = struct.Struct("<QQ")


def send(stream: IO[bytes], header: dict[str, Any], load: bytes = b"") -> None:
    """Write one message.

    Raises:
        OSError: the reader is gone.
    """
    head = json.dumps(header).encode()
    stream.write(_LENGTHS.pack(len(head), len(load)) + head)
    stream.write(load)
    stream.flush()


def receive(stream: IO[bytes]) -> tuple[dict[str, Any], bytes]:
    """Read one message: its header and its payload.

    Raises:
        EOFError: the other end is closed.
    """
    head, load = _LENGTHS.unpack(_exactly(stream, _LENGTHS.size))
    return json.loads(_exactly(stream, head)), _exactly(stream, load)


def _exactly(stream: IO[bytes], size_bytes: int) -> bytes:
    content = stream.read(size_bytes)
    if len(content) != size_bytes:
        raise EOFError("the other end is closed")
    return content
