"""A child of the front server: its start, its two sockets and its end.

Rule: the child's environment has no token. It is killed with its whole process group: on a GPU, XLA starts ptxas.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import threading
from typing import final

from anytpu import _env
from anytpu.errors import WorkerError
from anytpu.files.memory import resident_bytes
from anytpu.units import format_bytes
from anytpu.worker.frames import FrameSocket
from anytpu.worker.link import HEAD
from anytpu.worker.shared import SharedArrays
from anytpu.worker.wire import messages

DEADLINE_STATUS = 75
"""Exit status of a child that ran longer than its deadline."""
MEMORY_STATUS = 76
"""Exit status of a child that took far more memory than its session may have."""

_GRACE_S = 10.0
# Without it the first process takes three quarters of a GPU's memory.
_SHARED_GPU = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


@dataclasses.dataclass(frozen=True)
class ChildOptions:
    """How children run.

    Attributes:
        tpu: the system, as in `TPUClusterResolver`.
        cores: number of cores, or None.
        memory_bytes: memory for the arrays and programs of a session; None chooses.
        deadline_s: maximum duration of a compilation, and of a call, in seconds.
        sharers: maximum number of children at a time, which share the machine's memory.
    """

    tpu: str = ""
    cores: int | None = None
    memory_bytes: int | None = None
    deadline_s: float = 600.0
    sharers: int = 1


@final
class WorkerChild:
    """A process that runs one session.

    Args:
        options: how it runs.

    Attributes:
        description: the serialised `Description` of its system.
        control: requests and replies.
        buffers: chunks of arrays to the client.
        arrays: arrays from the client.

    Raises:
        WorkerError: it ended before it described its system.
    """

    def __init__(self, options: ChildOptions) -> None:
        """Start the process, and wait for its description."""
        (control, far_control), (buffers, far_buffers) = socket.socketpair(), socket.socketpair()
        self._options = options
        self._wait_lock = threading.Lock()
        arguments = [
            *(str(far.fileno()) for far in (far_control, far_buffers)),
            *(options.tpu, str(options.cores or 0), str(options.memory_bytes or 0), str(options.deadline_s)),
            str(options.sharers),
        ]
        # The far ends belong to the child. They are closed here, so that a read ends when the child does.
        with far_control, far_buffers:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "anytpu.worker.child", *arguments],
                pass_fds=(far_control.fileno(), far_buffers.fileno()),
                env=_env.worker_environment() | (_SHARED_GPU if options.sharers > 1 else {}),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.control, self.buffers = FrameSocket(control), FrameSocket(buffers)
        self.arrays = SharedArrays(buffers)
        self.description = next(self.control.received(), b"")[len(HEAD) :]
        if not self.description:
            raise WorkerError(
                f"the worker's child ended before it opened its system: {self.wait_for_end()}. Its messages are above; "
                f"try the same system with: anytpu devices --tpu {options.tpu or 'local'}"
            )
        self.arrays.max_bytes = messages().Description.FromString(self.description).memory_bytes

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def memory_bytes(self) -> int:
        """Return the memory that the process occupies; 0 after its end."""
        return resident_bytes(self._process.pid)

    def kill(self) -> None:
        """End the process; a second call does nothing."""
        self.control.close()
        self.buffers.close()
        self.arrays.close()
        self._kill_group()

    def wait_for_end(self) -> str:
        """Wait until the process has ended, and return its end; kill it if it still runs after 10 seconds.

        Returns:
            "signal SIGKILL", "deadline 600", "memory 1 GiB" or "status 1".
        """
        with self._wait_lock:
            try:
                status = self._process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                self._kill_group()
                status = self._process.wait()
        if status == DEADLINE_STATUS:
            return f"deadline {self._options.deadline_s:g}"
        if status == MEMORY_STATUS:
            return f"memory {format_bytes(self.arrays.max_bytes)}"
        return f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"

    def _kill_group(self) -> None:
        # The process keeps its id until it is reaped, so the signal cannot reach another group. A thread that waits
        # in `wait_for_end` may reap it just now.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
