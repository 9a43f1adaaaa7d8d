"""`BucketLock`: allow one writer for each URL of checkpoints.

Idea: a lock is an object `.writer-N.json` that names its writer; the largest N is the owner's. It is made by a
conditional write, so of two writers one gets it. The owner writes it again every few seconds. Another job watches it
for a minute. If it does not change, its owner is dead, and the other job makes the lock with the next number. So the
replacement of a lost machine continues by itself.

Rule: only the content of the object is compared with what was seen before, never a clock of another machine. An owner
that was stopped for long sees the larger number, and saves nothing any more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import re
import secrets
import sys
import threading
import time
from pathlib import Path

from anytpu.errors import FileError
from anytpu.files.json_text import read_json
from anytpu.train.checkpoint.bucket import Bucket
from anytpu.train.checkpoint.lock import Writer

LOG = logging.getLogger("anytpu")

BEAT_S = 15.0
"""Time between two writes of the owner, in seconds."""

SILENCE_S = 60.0
"""Time without a write after which the owner is dead, in seconds."""

_NAME = re.compile(r"\.writer-(\d+)\.json")


class BucketLock:
    """The right to write checkpoints below a URL. A context manager.

    Args:
        bucket: the URL.

    Raises:
        FileError: (on entering) another job holds the lock, or the bucket cannot be written.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._writer = Writer.here()
        self._token = secrets.token_hex(8)
        self._beats = 0
        self._number = 0
        self._ended = threading.Event()
        self._beating = threading.Thread(target=self._beat, name="anytpu holds a lock", daemon=True)

    def __enter__(self) -> BucketLock:
        """Take the lock."""
        # 1. The lock after the newest one. If there is one, its owner must be dead.
        numbers = self._numbers()
        self._number = max(numbers, default=0) + 1
        if numbers:
            self._wait_for_death(self._number - 1)
        # 2. Make it. Of two writers the store lets one.
        if not self._bucket.create(self._name(self._number), self._content()):
            raise self._refusal(_read(self._bucket, self._name(self._number)))
        # 3. Delete the older ones, which decide nothing any more.
        for number in numbers:
            self._bucket.delete(self._name(number))
        self._beating.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Release the lock, unless another job has it."""
        # A forked child has a copy of the lock, and does not hold it.
        if os.getpid() != self._writer.process_id:
            return
        self._ended.set()
        self._beating.join()
        with contextlib.suppress(OSError):
            self.check()
            self._bucket.delete(self._name(self._number))

    def check(self) -> None:
        """Check that this process still holds the lock.

        Raises:
            FileError: another job has taken it over.
        """
        numbers = self._numbers()
        if max(numbers, default=0) != self._number:
            newer = _read(self._bucket, self._name(max(numbers))) if numbers else None
            raise FileError(
                f"another job has taken over the checkpoints at {self._bucket.url!r}: {_named(newer)}. This one was "
                f"silent for more than {SILENCE_S:.0f} s, and saves nothing there any more"
            )

    def _wait_for_death(self, number: int) -> None:
        """Wait until the owner of a lock is certainly dead.

        Raises:
            FileError: it is alive.
        """
        seen = _read(self._bucket, self._name(number))
        if seen is None or _is_dead_here(seen):
            return
        message = f"{_named(seen)} holds the checkpoints at {self._bucket.url!r}; it gets {SILENCE_S:.0f} s to show"
        print(f"anytpu: {message} that it is alive.", file=sys.stderr, flush=True)
        end_s = time.monotonic() + SILENCE_S
        while time.monotonic() < end_s:
            time.sleep(min(BEAT_S / 5, SILENCE_S / 5))
            if (now := _read(self._bucket, self._name(number))) != seen:
                if now is None:
                    return
                raise self._refusal(now)
        LOG.info("The lock of %s is taken over: it has ended without releasing it.", _named(seen))

    def _refusal(self, owner: bytes | None) -> FileError:
        return FileError(
            f"another job writes checkpoints to {self._bucket.url!r}: {_named(owner)}. Wait until it ends, end it, or "
            "choose another folder"
        )

    def _beat(self) -> None:
        """Write the lock again and again, until it is released or lost."""
        while not self._ended.wait(BEAT_S):
            # A store that does not answer for a moment is no reason to end; `check` decides at the next save.
            with contextlib.suppress(OSError):
                if max(self._numbers(), default=0) != self._number:
                    return
                self._beats += 1
                self._bucket.write(self._name(self._number), self._content())

    def _content(self) -> bytes:
        fields = {"namespace": _namespace(), "token": self._token, "beats": self._beats}
        return json.dumps({**dataclasses.asdict(self._writer), **fields}).encode()

    def _numbers(self) -> list[int]:
        return [int(match[1]) for name in self._bucket.sizes() if (match := _NAME.fullmatch(name))]

    def _name(self, number: int) -> str:
        return f".writer-{number}.json"


def _read(bucket: Bucket, name: str) -> bytes | None:
    try:
        return bucket.read(name)
    except FileNotFoundError:
        return None


def _named(content: bytes | None) -> str:
    return str(None if content is None else Writer.of(content) or "a job")


def _is_dead_here(content: bytes) -> bool:
    """Return whether a writer of this machine's present boot, and of this container, has ended."""
    writer = Writer.of(content)
    if writer is None or not writer.is_here() or read_json(content).get("namespace") != _namespace():
        return False
    return not Path(f"/proc/{writer.process_id}").exists()


def _namespace() -> str:
    return os.readlink("/proc/self/ns/pid")
