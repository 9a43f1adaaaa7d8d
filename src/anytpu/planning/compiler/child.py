"""The child process: reads requests, compiles them with libtpu, and writes answers. `Child` of parent.py starts it.

Rule: this process imports neither Keras nor the user's program. Its printed output, above all libtpu's, goes to the
standard error that the parent chose, never into the answers. It exits with its parent, even in the middle of a
compilation, and after some time without a request.
"""

from __future__ import annotations

import os
import queue
import select
import sys
import threading
from typing import Any

from anytpu.planning.compiler import wire

IDLE_S = 120.0
"""How long a child waits for the next request, seconds."""

_LOOKS_S = 1.0
_Requests = queue.SimpleQueue[tuple[dict[str, Any], bytes]]


def main() -> None:
    """Answer requests from standard input on the original standard output, until the parent is gone."""
    requests: _Requests = queue.SimpleQueue()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    threading.Thread(target=_read, args=(requests, os.getppid()), daemon=True).start()
    from anytpu.planning.compiler.compiling import compile_request, load

    try:
        wire.send(answers, {"compiler": load()})
    except Exception as error:  # Any error here means that there is no compiler.
        wire.send(answers, {"unusable": f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"})
        return
    while True:
        try:
            header, code = requests.get(timeout=IDLE_S)
        except queue.Empty:
            return
        wire.send(answers, *compile_request(header, code))


def _read(requests: _Requests, parent: int) -> None:
    """Pass on each request; end this process when no more can come."""
    while os.getppid() == parent:
        if not select.select([0], [], [], _LOOKS_S)[0]:
            continue
        try:
            requests.put(wire.receive(sys.stdin.buffer))
        except EOFError:
            break
    os._exit(0)
