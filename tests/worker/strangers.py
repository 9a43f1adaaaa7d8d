"""Strangers on the network, with sockets alone: TLS connections, and HTTP/2 frames of calls."""

from __future__ import annotations

import socket
import ssl

from anytpu.worker.wire import PROTOCOL

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS = 0, 1, 4


def is_over(connection: socket.socket) -> bool:
    """Return whether the other side has closed a connection."""
    connection.settimeout(5)
    try:
        while connection.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def encrypted(port: int) -> ssl.SSLSocket:
    """Return a TLS connection to a worker's port, whose certificate is not checked."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with socket.create_connection(("127.0.0.1", port), 60) as plain:
        return context.wrap_socket(plain)


def frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    """Return an HTTP/2 frame."""
    return len(content).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + content


def call_of(path: str, stream: int, token: str | None = None) -> bytes:
    """Return the begin of a gRPC call without its message, from a client that has no room for an answer."""
    fields = {":method": "POST", ":scheme": "https", ":path": f"/{path}", ":authority": "worker", "te": "trailers"}
    fields |= {"content-type": "application/grpc", "anytpu-protocol": PROTOCOL, "anytpu-session": "a" * 32}
    fields |= {"anytpu-received": "0"} | ({"authorization": f"Bearer {token}"} if token else {})
    # HPACK, RFC 7541: literal fields without an index. Texts have fewer than 127 bytes.
    packed = b"".join(
        b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in field) for field in fields.items()
    )
    opening = PREFACE + frame(SETTINGS, 0, 0, b"\0\4" + bytes(4)) if stream == 1 else b""
    return opening + frame(HEADERS, 4, stream, packed)
