"""A relay on this machine between JAX's client and the coordination service, which hides the end of the service.

Idea: JAX's client ends its process with a stack trace as soon as the connection to its service closes. The watch learns
the same, and ends the process with one error. So the client connects to this relay, which never closes a connection.
"""

from __future__ import annotations

import contextlib
import socket
import threading

_CHUNK_BYTES = 65536


class Relay:
    """A listening socket on the loopback device, and threads that pass bytes on.

    Args:
        target: address of the service.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._kept: list[socket.socket] = []
        threading.Thread(target=self._accept, name="anytpu-relay", daemon=True).start()

    @property
    def address(self) -> str:
        """ "host:port" for the client."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._kept.append(client)
                with contextlib.suppress(OSError):
                    service = socket.create_connection(self._target)
                    self._kept.append(service)
                    for ends in ((client, service), (service, client)):
                        ends[0].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        threading.Thread(target=_pass_on, args=ends, name="anytpu-relay", daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    """Pass bytes on until one side ends. The other connection stays open."""
    with contextlib.suppress(OSError):
        while received := source.recv(_CHUNK_BYTES):
            sink.sendall(received)
