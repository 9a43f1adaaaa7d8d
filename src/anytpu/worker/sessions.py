"""The sessions of a front server: each has a child, two links and a lease.

Idea: a session outlives its connection. When the connection is lost, the child goes on, and its replies wait in the
links. The client continues within the lease; after it, the child is killed.

Rule: a child serves one session, so no session finds anything of another one.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import final

from anytpu.errors import WorkerError
from anytpu.worker.children import ChildOptions, WorkerChild
from anytpu.worker.frames import FrameSocket
from anytpu.worker.link import Link

_LOG = logging.getLogger("anytpu")
_BUSY_S = 5.0
"""Time that a client waits before it is refused, in seconds: another session may be about to end."""
_CEDE_S = 15.0
"""Time without a connection after which a session gives its place to a waiting client, in seconds."""
_MAX_WAITING = 32
"""Maximum number of clients that wait at a time; each holds a thread of the server."""


@dataclasses.dataclass(frozen=True)
class SessionLimits:
    """How many sessions a worker serves, and how long each is kept.

    Attributes:
        count: maximum number of sessions at a time.
        queues: whether further clients wait, instead of being refused.
        lease_s: time that a session is kept without a connection, in seconds.
    """

    count: int = 1
    queues: bool = False
    lease_s: float = 120.0


@final
class WorkerSession:
    """A client's session: its child, and the links to its client.

    Args:
        name: the name that the client chose.
        peer: the client's address.
        child: the child that serves it.

    Attributes:
        links: the link of each stream, "control" and "buffers".
        began_s: start of the session, in seconds of `time.time`.
    """

    def __init__(self, name: str, peer: str, child: WorkerChild) -> None:
        """Begin to pass on the messages of the child."""
        self.name, self.peer, self.child = name, peer, child
        self.links = {"control": Link(), "buffers": Link()}
        self.began_s = time.time()
        self._targets = {"control": child.control, "buffers": child.arrays}
        self._order = {"control": threading.Lock(), "buffers": threading.Lock()}
        self._away_since_s: float | None = None
        for source, link in zip((child.control, child.buffers), self.links.values(), strict=True):
            threading.Thread(target=_pass_on, args=(source, link), name="anytpu worker replies", daemon=True).start()

    @property
    def transferred_bytes(self) -> tuple[int, int]:
        """Number of bytes from the client, and to it."""
        links = self.links.values()
        return sum(link.received_bytes for link in links), sum(link.sent_bytes for link in links)

    @property
    def away_s(self) -> float:
        """Time since the connection was lost, in seconds; 0 with a connection."""
        return 0.0 if self._away_since_s is None else time.monotonic() - self._away_since_s

    def attach(self, stream: str, received_there: int) -> tuple[int, int]:
        """Begin a connection of a stream; see `Link.attach`."""
        self._away_since_s = None
        return self.links[stream].attach(received_there)

    def detach(self, stream: str, connection: int) -> None:
        """End a connection of a stream."""
        if self.links[stream].detach(connection):
            self._away_since_s = time.monotonic()

    def take(self, stream: str, connection: int, frames: Iterator[bytes]) -> None:
        """Pass the messages of a client on to the child, until the frames end.

        Raises:
            DataError: a frame is not of this session.
            OSError: the child has ended.
        """
        for frame in frames:
            with self._order[stream]:  # The connection before may still wait for the child with its last message.
                if message := self.links[stream].accept(connection, frame):
                    self._targets[stream].send(message)


@final
class Sessions:
    """All sessions of a worker.

    Args:
        options: how children run.
        limits: number of sessions, and their lease.

    Attributes:
        description: the serialised `Description` of the system.
        ended: number of sessions that ended, by the reason: "closed", "lost", "died".
        past_bytes: bytes that were received and sent in sessions that ended.
    """

    def __init__(self, options: ChildOptions, limits: SessionLimits) -> None:
        self._options, self.limits = options, limits
        self._changed = threading.Condition()
        self._spare: WorkerChild | None = None
        self._starting = 0
        self._sessions: dict[str, WorkerSession] = {}
        self._waiting = 0
        self._is_closed = False
        self.description = b""
        self.ended = {"closed": 0, "lost": 0, "died": 0}
        self.past_bytes = [0, 0]

    def prepare(self) -> None:
        """Start the first child, and wait until it describes its system.

        Raises:
            WorkerError: it cannot.
        """
        self._starting += 1
        self._start_child()
        threading.Thread(target=self._end_old, name="anytpu worker leases", daemon=True).start()

    def all(self) -> list[WorkerSession]:
        """Return the present sessions."""
        with self._changed:
            return list(self._sessions.values())

    def begin(self, name: str, peer: str, is_waiting: Callable[[], bool]) -> WorkerSession | str:
        """Begin a session, or return why not: "busy 1" or "queue 32", with the number of sessions or of those waiting.

        Args:
            name: name that the client chose.
            peer: address of the client.
            is_waiting: whether the client is still there.
        """
        busy = f"busy {self.limits.count}"
        until_s = time.monotonic() + _BUSY_S
        with self._changed:
            if not name or name in self._sessions:
                return "no name, or one that is taken"
            if self._waiting >= _MAX_WAITING:
                return f"queue {self._waiting}"
            self._waiting += 1
            try:
                while not self._has_spare() and not self._is_closed:
                    is_full = len(self._sessions) >= self.limits.count
                    if not is_waiting() or (is_full and not self.limits.queues and time.monotonic() > until_s):
                        return busy
                    self._changed.wait(0.2)
            finally:
                self._waiting -= 1
            child, self._spare = self._spare, None
            if child is None:
                return "the worker ends"
            session = self._sessions[name] = WorkerSession(name, peer, child)
        self._keep_a_spare()
        return session

    def _has_spare(self) -> bool:
        """Return whether a child is ready; start another one if it died, or if its start failed."""
        if self._spare is not None and self._spare.has_ended:
            _LOG.warning("the child of the next session died: %s", self._spare.wait_for_end())
            self._spare.kill()
            self._spare = None
        if self._spare is None:
            self._keep_a_spare()
        return self._spare is not None

    def find(self, name: str) -> WorkerSession | None:
        """Return a session; None if there is none of this name."""
        with self._changed:
            return self._sessions.get(name)

    def end(self, session: WorkerSession, reason: str) -> bool:
        """End a session, and kill its child; return False if it had ended already."""
        # Several threads may see the end of a session; the one that removes it ends it.
        with self._changed:
            if self._sessions.pop(session.name, None) is None:
                return False
            self.ended[reason] += 1
            self.past_bytes = [past + now for past, now in zip(self.past_bytes, session.transferred_bytes, strict=True)]
            self._changed.notify_all()
        # Outside of the lock, because this waits for the process.
        session.child.kill()
        session.child.wait_for_end()
        for link in session.links.values():
            link.close()
        self._keep_a_spare()
        return True

    def close(self) -> None:
        """End all children."""
        with self._changed:
            self._is_closed = True
            children = [session.child for session in self._sessions.values()]
            children += [self._spare] if self._spare is not None else []
            self._changed.notify_all()
        for child in children:
            child.kill()

    def _keep_a_spare(self) -> None:
        """Start the child of the next session, if there may be one more."""
        # The lock is reentrant: `_has_spare` is called with it.
        with self._changed:
            children = len(self._sessions) + self._starting + (self._spare is not None)
            if self._is_closed or self._spare is not None or self._starting or children >= self.limits.count:
                return
            self._starting += 1
        threading.Thread(target=self._start_or_log, name="anytpu worker child", daemon=True).start()

    def _start_or_log(self) -> None:
        try:
            self._start_child()
        except WorkerError as error:
            _LOG.error("%s", error)

    def _start_child(self) -> None:
        try:
            child = WorkerChild(self._options)
        except WorkerError:
            with self._changed:
                self._starting -= 1
            raise
        with self._changed:
            self._starting -= 1
            self.description = child.description
            if self._is_closed:
                child.kill()
            else:
                self._spare = child
            self._changed.notify_all()

    def _end_old(self) -> None:
        """End the sessions whose lease is over, and those whose place is needed."""
        while not self._is_closed:
            time.sleep(0.5)
            for session in self.all():
                lease_s = self.limits.lease_s
                kept_s = min(_CEDE_S, lease_s) if self._waiting else lease_s
                if session.away_s > kept_s:
                    _LOG.info("session of %s ends: no connection for %.0f s", session.peer, session.away_s)
                    self.end(session, "lost")


def _pass_on(child: FrameSocket, link: Link) -> None:
    """Pass the child's messages on to the client, until the child ends."""
    try:
        for frame in child.received():
            link.send_frame(frame)
    except OSError:
        pass
    link.close()
