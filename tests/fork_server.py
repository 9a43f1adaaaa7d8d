"""A server that has imported Keras, JAX and anytpu, and forks a process for each program that a test runs.

Idea: a new process takes two seconds of a core until it has imported them; a forked one has them. JAX has started no
device here, so a fork is safe, and a program may still choose its devices.

Usage: python fork_server.py ADDRESS FOLDER, with the folder of compiled programs, or "". It ends when its standard
input does. Each connection, of `fork_client.py`, sends (words, folder, environment, numbers, leads) as text, with its
files. The program gets them by the same numbers, and leads a session if the client does. The server sends the program's
process id, and then its status. A connection that closes before kills it.
"""

from __future__ import annotations

import ast
import contextlib
import fcntl
import gc
import os
import runpy
import selectors
import signal
import socket
import sys
import types
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anytpu  # isort: skip
import jax
import keras  # noqa: F401

import anytpu.embedding
import anytpu.strategy
import anytpu.train.adopt  # noqa: F401
import quick_compilation
import recorded_compilations  # noqa: F401
from anytpu import _env


def serve(address: str) -> list[str]:
    """Fork for each connection until the standard input ends; return the words of its program in a forked process."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    ended, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    print("ready", flush=True)
    gc.freeze()  # A collection in a forked process would copy the pages of all that was imported.
    clients: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as selector:
        for source in (listener, ended, sys.stdin):
            selector.register(source, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is sys.stdin:
                    for process_id in clients:
                        os.kill(process_id, signal.SIGKILL)
                    os._exit(0)
                if key.fileobj is ended:
                    ended.recv(1000)
                    _send_ends(clients, selector)
                elif key.fileobj is listener:
                    client, _ = listener.accept()
                    request, files = _receive(client)
                    if process_id := os.fork():
                        for file in files:
                            os.close(file)
                        clients[process_id] = client
                        selector.register(client, selectors.EVENT_READ, process_id)
                        client.sendall(b"%d\n" % process_id)
                        continue
                    for source in (listener, ended, wakes, client, *clients.values()):
                        source.close()
                    return _begin(files, *ast.literal_eval(request))
                elif key.data in clients:
                    selector.unregister(key.fileobj)
                    os.kill(key.data, signal.SIGKILL)


def _receive(client: socket.socket) -> tuple[str, list[int]]:
    """Return the text of a request, which ends with a line, and its files."""
    content, files, _, _ = socket.recv_fds(client, 2**20, 64)
    while not content.endswith(b"\n"):
        content += client.recv(2**20)
    return content.decode(), list(files)


def _send_ends(clients: dict[int, socket.socket], selector: selectors.BaseSelector) -> None:
    """Send the status of each process that has ended to its client."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            client = clients.pop(ended[0])
            with contextlib.suppress(KeyError):
                selector.unregister(client)
            with contextlib.suppress(OSError), client:
                client.sendall(b"%d\n" % os.waitstatus_to_exitcode(ended[1]))


def _begin(
    files: list[int], words: list[str], folder: str, environment: Mapping[str, str], numbers: list[int], leads: bool
) -> list[str]:
    """Give this process the files, the folder and the environment of a program; return the program's words."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if leads:
        os.setsid()
    # First to numbers that no file has.
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD, 1000) for file in files]
    for file in files:
        os.close(file)
    for number, file in zip(numbers, moved, strict=True):
        os.dup2(file, number)
        os.close(file)
    sys.stdin, sys.stdout, sys.stderr = (open(number, mode) for number, mode in enumerate("rww"))  # noqa: SIM115
    sys.stderr.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue]
    os.chdir(folder)
    assert environment.get("KERAS_BACKEND", "jax") == "jax", "Keras is imported here; start `python` itself"
    # JAX has read its settings at its import.
    for name in {**environment, **os.environ}:
        if name.startswith("JAX_") and environment.get(name) != os.environ.get(name):
            value, kind = environment.get(name), type(jax.config.values[name.lower()])
            is_number = value is not None and kind in (bool, int, float)
            jax.config.update(name.lower(), kind(float(value)) if is_number else value)
    if "JAX_COMPILATION_CACHE_DIR" not in environment:
        quick_compilation.keep_programs(sys.argv[2] or None)
    os.environ.clear()
    os.environ.update(environment)
    # The import of anytpu has chosen by the server's environment.
    _env.set_keras_backend()
    _env.prepare_jax()
    return words


def run(words: list[str]) -> None:
    """Run a program as `python WORDS` does."""
    is_safe = words[0] == "-P"
    words = words[is_safe:]
    while words[0] == "-W":
        sys.warnoptions.append(words[1])
        warnings._setoption(words[1])  # pyright: ignore[reportAttributeAccessIssue]
        words = words[2:]
    paths = list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    kind = words[0] if words[0] in ("-c", "-m") else None
    script = Path(words[0])
    sys.path[:1] = [*([] if is_safe else ["" if kind else str(script.parent.resolve())]), *paths]
    sys.argv = words if kind is None else [kind, *words[2:]]
    if kind == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    code, name = (words[1], "<string>") if kind else (script.read_text(), str(script))
    main: Any = types.ModuleType("__main__")
    if not kind:
        main.__file__ = name
    sys.modules["__main__"] = main
    exec(compile(code, name, "exec"), main.__dict__)


if __name__ == "__main__":
    run(serve(sys.argv[1]))
