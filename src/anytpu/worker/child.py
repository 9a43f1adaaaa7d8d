"""The child of a worker: it parses, checks, compiles and runs the Programs of one session.

Idea: requests are executed in their order, in the main thread. A call returns at once; a second thread waits for its
results, reports its duration or its error, and so every request gets one reply. The front kills this process at the end
of the session, and tells the client if it ends before.

Rule: nothing here trusts a client. Sizes are checked before memory is taken. A failed request marks its results as
failed; later requests that use them fail with the same error.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.metadata
import os
import queue
import select
import signal
import socket
import sys
import threading
import time
from typing import Any, final

import jax
from google.protobuf.unknown_fields import UnknownFieldSet

from anytpu.engine import Backend, Executable, backend_of
from anytpu.engine.foreign import foreign_kernels
from anytpu.errors import AnyTPUError, BackendError, DataError, ProgramError
from anytpu.files.memory import available_memory_bytes, resident_bytes
from anytpu.program.file import decode
from anytpu.program.program import Layout, Program
from anytpu.system import TPUClusterResolver, running_system
from anytpu.units import GIB, format_bytes, printable
from anytpu.worker.allowed import check_program
from anytpu.worker.arrays import ArrayStore, bytes_apart, describe, from_wire, to_host
from anytpu.worker.children import DEADLINE_STATUS, MEMORY_STATUS
from anytpu.worker.chunk import ChunkWriter, read_head
from anytpu.worker.frames import FrameSocket
from anytpu.worker.link import HEAD
from anytpu.worker.shared import map_shared, receive_shared
from anytpu.worker.wire import MAX_ERROR, messages

_MEMORY_SHARE = 0.8
_ARRAY_BYTES = 3 * 2**10
"""Memory of an array of one byte: the objects of JAX and of Python around it. Measured: 2.7 KiB."""
_LIBRARIES_BYTES = 4 * GIB
"""Host memory of the libraries of a GPU or a TPU, which are loaded by the first programs."""
_MAX_EXCESS = 2
"""Ratio of a session's host memory to its limit at which its process ends: an array may be there twice in a call."""


@final
class _Failure:
    """The result of a failed request."""

    def __init__(self, error: Exception) -> None:
        self.error = error


@final
class ChildSession:
    """The arrays and programs of one client.

    Args:
        resolver: the system.
        memory_bytes: memory for the arrays and programs; 0 chooses.
        deadline_s: maximum duration of a compilation, and of a call, in seconds.
        sharers: number of sessions that share the memory.
    """

    def __init__(self, resolver: TPUClusterResolver, memory_bytes: int, deadline_s: float, sharers: int = 1) -> None:
        self.system = running_system(resolver.address)
        backend = backend_of(self.system)
        self.memory_bytes = memory_bytes or _default_memory(backend) // sharers
        self._host_memory_bytes = self.memory_bytes + (0 if backend.is_host else _LIBRARIES_BYTES)
        self._begin_bytes = resident_bytes()
        self.store = ArrayStore(self.memory_bytes)
        self._values: dict[int, Any] = {}
        self._programs: dict[int, tuple[Program, Executable, Backend]] = {}
        self._began_s: float | None = None
        self.running: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._deadline_s = deadline_s

    def execute(self, request: Any, control: FrameSocket, buffers: FrameSocket) -> None:
        """Execute one request, and reply unless its results are still being computed."""
        kind, began_s = request.WhichOneof("kind"), time.perf_counter()
        self._began_s = began_s
        self._free(request.free)
        try:
            if kind == "run":
                results = self._run(request.run)
                # The reply comes from `_Awaited`, when the results are computed.
                self.running.put((request.operation, began_s, results, request.run.results))
                return
            if kind == "get":
                self._get(request, control, buffers)
                return
            if kind == "put":
                self._put(request)
            elif kind == "compile":
                self._compile(request)
            elif len(UnknownFieldSet(request)):
                raise DataError(
                    "this worker does not know a request of that kind. Install the same release on both machines: "
                    "pip install --upgrade anytpu"
                )
            done = messages().Done(duration_s=time.perf_counter() - began_s)
            control.send(HEAD, messages().Reply(operation=request.operation, done=done).SerializeToString())
        except Exception as error:  # Parsers raise many types for bytes of a stranger, and each is the client's to see.
            results = request.run.results if kind == "run" else ()
            self.fail(request.operation, results, error, control)
        finally:
            self.store.end(request.operation)
            self._began_s = None

    def fail(self, operation: int, results: Any, error: Exception, control: FrameSocket) -> None:
        """Reply with an error, and mark the results of the request as failed."""
        self._values.update(dict.fromkeys(results, _Failure(error)))
        name = type(error).__name__ if isinstance(error, AnyTPUError) else "BackendError"
        text = str(error) if isinstance(error, AnyTPUError) else f"{type(error).__name__}: {error}"
        failed = messages().Failed(kind=name, text=text[:MAX_ERROR])
        control.send(HEAD, messages().Reply(operation=operation, failed=failed).SerializeToString())

    def watch(self, awaited: _Awaited) -> None:
        """End this process when a request or a call has exceeded the deadline, or takes far too much memory."""
        while True:
            time.sleep(min(self._deadline_s / 10, 1.0))
            if self._taken_bytes() > _MAX_EXCESS * self._host_memory_bytes:
                os._exit(MEMORY_STATUS)
            for began_s in (self._began_s, awaited.began_s):
                if began_s is not None and time.perf_counter() - began_s > self._deadline_s:
                    # The main thread may be inside XLA, where no exception reaches it.
                    os._exit(DEADLINE_STATUS)

    def _backend(self, cores: int) -> Backend:
        count = len(self.system.topology.cores)
        if not 0 < cores <= count:
            raise DataError(f"this worker has {count} cores, not {cores}")
        return backend_of(self.system, cores)

    def _check_memory(self, needed_bytes: int, purpose: str, count: int = 1) -> None:
        """Check the memory for the arrays or the program of a request: the device's, and that of this process.

        Args:
            needed_bytes: size of their content.
            purpose: their kind, for the error.
            count: number of arrays.
        """
        held_bytes = sum(getattr(value, "nbytes", 0) for value in self._values.values())
        if held_bytes + needed_bytes > self.memory_bytes:
            raise self._out_of_memory(purpose, needed_bytes, held_bytes)
        needed_bytes += count * _ARRAY_BYTES
        taken_bytes = self._least_taken_bytes(self._host_memory_bytes - needed_bytes)
        if taken_bytes + needed_bytes > self._host_memory_bytes:
            raise self._out_of_memory(purpose, needed_bytes, taken_bytes)

    def _out_of_memory(self, purpose: str, needed_bytes: int, held_bytes: int) -> BackendError:
        return BackendError(
            f"out of memory on the worker: {purpose} needs {format_bytes(needed_bytes)}, the session holds "
            f"{format_bytes(held_bytes)}, and it may have {format_bytes(self.memory_bytes)}. Make the batch or the "
            "model smaller, or start the worker with a larger --memory-limit"
        )

    def _taken_bytes(self) -> int:
        """Return the memory of this process beyond that at its begin: arrays, small objects and compiled programs."""
        return max(0, resident_bytes() - self._begin_bytes)

    def _least_taken_bytes(self, allowed_bytes: int) -> int:
        """Return the memory of this process; if it is more than allowed, after freed memory went to the system."""
        if self._taken_bytes() > allowed_bytes:
            gc.collect()
            with contextlib.suppress(AttributeError):  # Another C library than glibc.
                ctypes.CDLL(None).malloc_trim(0)
        return self._taken_bytes()

    def _put(self, request: Any) -> None:
        put = request.put
        self._check_memory(sum(array.size_bytes for array in put.arrays), "an array", len(put.arrays))
        backend, layout = self._backend(put.cores), Layout(put.axis if put.axis >= 0 else None)
        for index, (handle, array) in enumerate(zip(put.handles, put.arrays, strict=True)):
            value = self.store.take(request.operation, index, array)
            if layout.axis is not None and layout.axis >= value.ndim:
                raise DataError(f"an array of {value.ndim} axes has no axis {layout.axis} to split")
            self._values[handle] = backend.put(value, layout)

    def _compile(self, request: Any) -> None:
        described = request.compile
        self._check_memory(described.code.size_bytes, "a program")
        code = bytes(self.store.take(request.operation, 0, described.code))
        exported = jax.export.deserialize(bytearray(code))
        check_program(exported, self.memory_bytes)
        program = decode(described.manifest, code)
        backend = self._backend(described.cores)
        # The size of a compiled program shows when it is there.
        held_bytes = self._least_taken_bytes(self._host_memory_bytes // 2)
        executable = backend.compile(program)
        taken_bytes = self._least_taken_bytes(self._host_memory_bytes)
        if taken_bytes > self._host_memory_bytes:
            raise self._out_of_memory("a program", taken_bytes - held_bytes, held_bytes)
        self._programs[described.program] = program, executable, backend

    def _run(self, run: Any) -> list[Any]:
        # 1. Find the program, and compare the call with it.
        if run.program not in self._programs:
            raise ProgramError(f"there is no program {run.program} in this session")
        program, executable, backend = self._programs[run.program]
        specs = [*jax.tree.leaves(program.state), *jax.tree.leaves(program.batch)]
        layouts = [Layout()] * len(run.state) + [layout for _, layout in program.leaves()]
        arguments = [*run.state, *run.batch]
        if len(arguments) != len(specs):
            raise DataError(f"{program.name!r} takes {len(specs)} arrays, not {len(arguments)}")
        # 2. Check the memory for the outputs. The new state has that of the old one.
        outputs = jax.tree.leaves(executable.outputs)
        self._check_memory(sum(spec.size * spec.dtype.itemsize for spec in outputs), "a call", len(run.results))
        # 3. Take the arguments.
        values = [
            self._argument(backend, argument, layout) for argument, layout in zip(arguments, layouts, strict=True)
        ]
        count = len(run.state)
        for argument in run.state:  # The call consumes its state, also if it fails.
            self._values.pop(argument.handle, None)
        for value, spec in zip(values[:count], specs[:count], strict=True):
            if (tuple(value.shape), value.dtype) != (tuple(spec.shape), spec.dtype):
                raise DataError(f"{program.name!r} takes {spec}, not {value.dtype}{list(value.shape)}")
        # 4. Start the call, which returns before its results are computed.
        state, batch = jax.tree.structure((program.state, program.batch)).unflatten(values)
        state, outputs = executable.step(state, batch)
        results = jax.tree.leaves((state, outputs))
        self._values.update(zip(run.results, results, strict=True))
        # Wait for the outputs if there are any: a later call may consume the state meanwhile.
        return results[count:] or results

    def _argument(self, backend: Backend, argument: Any, layout: Layout) -> Any:
        if argument.WhichOneof("value") == "array":
            return backend.put_once(from_wire(argument.array, argument.array.content), layout)
        return self._value(argument.handle)

    def _value(self, handle: int) -> Any:
        value = self._values.get(handle)
        if isinstance(value, _Failure):
            raise value.error
        if value is None:
            raise DataError("an array of the session is gone, because a call consumed it")
        return value

    def _get(self, request: Any, control: FrameSocket, buffers: FrameSocket) -> None:
        arrays = [to_host(self._value(handle)) for handle in request.get.handles]
        described = messages().Arrays(arrays=[describe(*array) for array in arrays])
        control.send(HEAD, messages().Reply(operation=request.operation, arrays=described).SerializeToString())
        for index, (array, _) in enumerate(arrays):
            for chunk in ChunkWriter().chunks(request.operation, index, bytes_apart(array)):
                buffers.send(HEAD, *chunk)

    def _free(self, free: Any) -> None:
        for handle in free.handles:
            self._values.pop(handle, None)
        for program in free.programs:
            self._programs.pop(program, None)


@final
class _Awaited:
    """Waits for the results of calls, in their order, and replies."""

    def __init__(self, session: ChildSession, control: FrameSocket) -> None:
        self._session, self._control = session, control
        self.began_s: float | None = None

    def serve(self) -> None:
        """Wait for one call after the other."""
        while True:
            operation, began_s, results, handles = self._session.running.get()
            self.began_s = time.perf_counter()
            try:
                jax.block_until_ready(results)
            except Exception as error:  # XLA raises several types, and each is the client's to see.
                if any(value.is_deleted() for value in results):
                    # A later call has consumed this state: that call reports a failure of both.
                    self._done(operation, began_s)
                    continue
                self._session.fail(operation, handles, BackendError(_first_line(error)), self._control)
                continue
            finally:
                self.began_s = None
            self._done(operation, began_s)

    def _done(self, operation: int, began_s: float) -> None:
        done = messages().Done(duration_s=time.perf_counter() - began_s)
        self._control.send(HEAD, messages().Reply(operation=operation, done=done).SerializeToString())


def _first_line(error: Exception) -> str:
    return f"the call of a program failed on the worker: {(str(error).splitlines() or [''])[0][:1000]}"


def _default_memory(backend: Backend) -> int:
    if not backend.is_host:
        return backend.memory_bytes
    return int(_MEMORY_SHARE * (available_memory_bytes() or backend.memory_bytes))


def _description(session: ChildSession, kind: str) -> bytes:
    topology, minimum = session.system.topology, jax.export.minimum_supported_calling_convention_version
    cores = [
        messages().Core(
            index=core.index,
            platform=core.platform,
            virtual=core.virtual,
            chip_coordinates=core.chip_coordinates,
            core_on_chip=core.core_on_chip,
            host=core.host,
            memory_bytes=core.memory_bytes or 0,
        )
        for core in topology.cores
    ]
    return (
        messages()
        .Description(
            anytpu=importlib.metadata.version("anytpu"),
            jax=jax.__version__,
            jaxlib=importlib.metadata.version("jaxlib"),
            kernels=kernels_version(),
            kind=kind,
            name=topology.name,
            chip=topology.chip.name if topology.chip else "",
            chip_bounds=topology.chip_bounds,
            cores_per_chip=topology.cores_per_chip,
            cores=cores,
            memory_bytes=session.memory_bytes,
            oldest_calling_convention=minimum,
            newest_calling_convention=jax.export.maximum_supported_calling_convention_version,
        )
        .SerializeToString()
    )


def kernels_version() -> str:
    """Return the version of anytpu-kernels if they are used, otherwise ""."""
    return "" if foreign_kernels() is None else importlib.metadata.version("anytpu-kernels")


def collect_arrays(connection: socket.socket, store: ArrayStore) -> None:
    """Move the arrays that the front sends into a store, until it closes the connection."""
    while received := receive_shared(connection):
        head, file = received
        operation, index, size_bytes = read_head(head)
        store.add(operation, index, None if file is None else map_shared(file, size_bytes))
    store.close()


def end_with_front(connection: socket.socket) -> None:
    """Wait for the end of the front, also while the main thread is in XLA; then kill this process and its own."""
    ends = select.poll()
    ends.register(connection, 0)  # Its end is reported without a wish for it, also behind bytes that nobody has read.
    ends.poll()
    os.killpg(os.getpgid(0), signal.SIGKILL)


def main(words: list[str]) -> None:
    """Serve one session.

    Args:
        words: the numbers of two sockets; then the fields of `ChildOptions`, of which 0 chooses.
    """
    control_socket, array_socket = (socket.socket(fileno=int(number)) for number in words[:2])
    threading.Thread(target=end_with_front, args=(control_socket,), daemon=True).start()
    control, buffers = FrameSocket(control_socket), FrameSocket(array_socket)
    resolver = TPUClusterResolver(words[2], cores=int(words[3]) or None)
    session = ChildSession(resolver, int(words[4]), float(words[5]), int(words[6]))
    awaited = _Awaited(session, control)

    def end_on_error(serve: Any) -> None:
        try:
            serve()
        except OSError:
            os._exit(0)  # The front has closed: the session is over.
        except Exception as error:
            print(f"anytpu worker: {printable(str(error))}", file=sys.stderr)
            os._exit(1)

    for serve in (lambda: collect_arrays(array_socket, session.store), awaited.serve, lambda: session.watch(awaited)):
        threading.Thread(target=end_on_error, args=(serve,), daemon=True).start()

    def execute_all() -> None:
        control.send(HEAD, _description(session, resolver.address.kind))
        for frame in control.received():
            session.execute(messages().Request.FromString(frame), control, buffers)
        os._exit(0)

    end_on_error(execute_all)


if __name__ == "__main__":
    main(sys.argv[1:])
