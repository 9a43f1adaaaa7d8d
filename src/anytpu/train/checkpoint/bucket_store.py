"""`BucketStore`: checkpoints in an object store, gs:// or s3://.

Idea: a bucket has no rename. The bytes of the arrays are cut into parts, objects of one request each, and the manifest
is written when all parts are there. So the manifest makes the checkpoint, and to delete it unmakes the checkpoint.
Parts without a manifest are the rest of an interrupted save; the next writer deletes them.

Rule: before the manifest is written, the listing must show every part, and the lock must still be held.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from anytpu.errors import DamageError, FileError
from anytpu.train.checkpoint.arrays import ByteSource, Sink
from anytpu.train.checkpoint.bucket import Bucket
from anytpu.train.checkpoint.bucket_lock import BucketLock
from anytpu.train.checkpoint.manifest import NAME
from anytpu.train.checkpoint.read_ahead import AT_ONCE, ReadAhead
from anytpu.train.checkpoint.store import ARRAYS, number_of, part_name, parts_in
from anytpu.units import MIB

PART_BYTES = 32 * MIB
"""Size of a part: large enough that the time of a request is spent on its bytes."""


class BucketStore:
    """The files of checkpoints below a URL. See `Store`.

    Args:
        url: the URL, such as "s3://bucket/run7".
    """

    def __init__(self, url: str) -> None:
        self._bucket = Bucket(url)
        self._lock: BucketLock | None = None
        self.name = self._bucket.url

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Take the lock, and delete the parts that killed writers have left."""
        with BucketLock(self._bucket) as self._lock:
            sizes = self._bucket.sizes()
            for name in sizes:
                step, _, file = name.rpartition("/")
                if number_of(step) is not None and parts_in([file]) and f"{step}/{NAME}" not in sizes:
                    self._bucket.delete(name)
            yield

    def free_bytes(self) -> None:
        """Return None: a bucket has no limit."""
        return None

    def steps(self) -> dict[int, bool]:
        """Return each step with a manifest, oldest first, mapped to True."""
        names = [name.removesuffix(f"/{NAME}") for name in self._bucket.sizes() if name.endswith(f"/{NAME}")]
        return dict.fromkeys(sorted(step for name in names if (step := number_of(name)) is not None), True)

    def is_taken(self, step: int) -> bool:
        """Return whether there are objects below the name of a step that are no parts of an interrupted save."""
        names = [name for name in self._bucket.sizes() if name == str(step) or name.startswith(f"{step}/")]
        return any(not parts_in([name.removeprefix(f"{step}/")]) for name in names)

    def write(self, step: int, write: Callable[[Sink], bytes]) -> None:
        """Write the parts of a checkpoint, check that they are there, and write the manifest."""
        # 1. Send the parts, several at once.
        sent: dict[str, int] = {}
        try:
            with ThreadPoolExecutor(AT_ONCE) as pool:
                parts = _PartWriter(pool, self._bucket, str(step))
                manifest = write(parts)
                sent = parts.close()
            # 2. Check that the store has all of them, and that no other writer has taken the lock.
            self._check(step, sent)
            if self._lock is not None:
                self._lock.check()
            # 3. The manifest makes them a checkpoint.
            self._bucket.write(f"{step}/{NAME}", manifest)
            self._check(step, {**sent, NAME: len(manifest)})
        except BaseException:
            with contextlib.suppress(OSError):
                self.delete(step)
            raise

    def read_manifest(self, step: int) -> bytes:
        """Return the manifest of a checkpoint."""
        try:
            return self._bucket.read(f"{step}/{NAME}")
        except FileNotFoundError:
            raise DamageError(f"it has no {NAME}") from None

    @contextlib.contextmanager
    def arrays(self, step: int) -> Iterator[tuple[ByteSource, int]]:
        """Return a context with the bytes of all parts, fetched ahead, and their number."""
        sizes = {name.partition("/")[2]: size for name, (size, _) in self._files(step).items()}
        names = parts_in(sizes)
        if not names:
            raise DamageError(f"it has no {ARRAYS} and no part of it")
        with ReadAhead(functools.partial(self._read_part, f"{step}/{name}") for name in names) as parts:
            yield parts, sum(sizes[name] for name in names)

    def set_aside(self, step: int) -> str:
        """Rename the objects of a checkpoint, the manifest last."""
        taken = {name.partition("/")[0] for name in self._bucket.sizes()}
        names = itertools.chain([f"{step}.damaged"], (f"{step}.damaged-{number}" for number in itertools.count(2)))
        free = next(name for name in names if name not in taken)
        for name in sorted(self._files(step), key=lambda name: name.endswith(NAME)):
            self._bucket.rename(name, f"{free}/{name.partition('/')[2]}")
        return f"{self.name}/{free}"

    def delete(self, step: int) -> None:
        """Delete the objects of a checkpoint, the manifest first."""
        for name in sorted(self._files(step), key=lambda name: not name.endswith(NAME)):
            self._bucket.delete(name)

    def saved(self, step: int) -> tuple[float, int]:
        """Return the time of the newest object of a checkpoint, and the size of all."""
        facts = self._files(step).values()
        return max((time_s for _, time_s in facts), default=0.0), sum(size for size, _ in facts)

    def empty_steps(self) -> list[int]:
        """Return an empty list: a bucket has no empty folders."""
        return []

    def _read_part(self, name: str) -> bytes:
        try:
            return self._bucket.read(name)
        except FileNotFoundError:
            raise DamageError("a part of its arrays was deleted while it was read") from None

    def _files(self, step: int) -> dict[str, tuple[int, float]]:
        """Return the size and the time of each object of a checkpoint."""
        files = {name.partition("/"): facts for name, facts in self._bucket.sizes().items()}
        return {
            f"{folder}/{file}": facts
            for (folder, _, file), facts in files.items()
            if folder == str(step) and (file == NAME or parts_in([file]))
        }

    def _check(self, step: int, sent: dict[str, int]) -> None:
        """Check that the store has all objects that were sent.

        Raises:
            FileError: an object is missing or has another size.
        """
        sizes = {name.partition("/")[2]: size for name, (size, _) in self._files(step).items()}
        lost = sorted(name for name, size in sent.items() if sizes.get(name) != size)
        if lost:
            more = f" and {len(lost) - 1} more objects" if len(lost) > 1 else ""
            raise FileError(
                f"the store accepted {f'{self.name}/{step}/{lost[0]}'!r}{more}, and does not have it. Check the "
                "bucket's lifecycle rules"
            )


class _PartWriter:
    """A stream that sends its bytes as parts, several at once.

    Args:
        pool: runs the requests.
        bucket: the bucket.
        folder: name of the checkpoint.
    """

    def __init__(self, pool: ThreadPoolExecutor, bucket: Bucket, folder: str) -> None:
        self._pool, self._bucket, self._folder = pool, bucket, folder
        self._buffer = bytearray()
        self._sizes: dict[str, int] = {}
        self._waiting: deque[Future[None]] = deque()

    def write(self, content: memoryview, /) -> int:
        """Take bytes, at most up to the end of a part."""
        taken = content[: PART_BYTES - len(self._buffer)]
        self._buffer += taken
        if len(self._buffer) == PART_BYTES:
            self._send()
        return len(taken)

    def close(self) -> dict[str, int]:
        """Send the rest, wait for all parts, and return their sizes by name."""
        if self._buffer or not self._sizes:
            self._send()
        while self._waiting:
            self._waiting.popleft().result()
        return self._sizes

    def _send(self) -> None:
        if len(self._waiting) == AT_ONCE:
            self._waiting.popleft().result()
        name = part_name(len(self._sizes))
        self._sizes[name] = len(self._buffer)
        self._waiting.append(self._pool.submit(self._bucket.write, f"{self._folder}/{name}", self._buffer))
        # The request has the old buffer, so the next part gets a new one.
        self._buffer = bytearray()
