"""`free_port`: a port for the coordinator of a launch.

Idea: process 0 opens the port some seconds later, when JAX starts. Until then no outgoing connection may get it, so it
is below the range of their ports. It is random, so that two launches rarely choose the same.
"""

from __future__ import annotations

import errno
import random
import socket

_PORTS = range(20000, 32000)
"""Below the ephemeral ports of Linux (32768) and of macOS (49152)."""


def free_port() -> int:
    """Return a TCP port that no program of this machine listens on."""
    return next(port for port in random.sample(_PORTS, len(_PORTS)) if not is_taken(port))


def is_taken(port: int) -> bool:
    """Return whether a program of this machine listens on a port, on any address."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family) as probe:
                # Connections of an earlier program that are still closing do not matter.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((address, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return True
    return False
