"""`Bucket`: the few requests to an object store that checkpoints need, each with a time limit.

Idea: fsspec has a library for each kind of URL. Its asynchronous ones can be given a time limit, so that a store that
does not answer cannot stop a training.

Rule: nothing is cached: another job may write to the same bucket.
"""

from __future__ import annotations

import functools
from typing import Any

from anytpu.errors import FileError
from anytpu.pipeline.remote_file import explained, file_system

REQUEST_LIMIT_S = 60.0
"""Time limit of a request with its repetitions, in seconds: enough for a part at 0.5 MB/s."""


class Bucket:
    """The objects below a URL, by their names relative to it.

    Args:
        url: the URL, such as "gs://bucket/run7".

    Raises:
        FileError: the URL is of an unknown kind, or its package is not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        with explained(self.url, "open"):
            self._system, self._root = file_system(self.url, use_listings_cache=False, skip_instance_cache=True)
        if not getattr(self._system, "async_impl", False):
            raise FileError(
                f"checkpoints cannot be kept at {self.url!r}: use gs:// or s3://, or the path of a local folder"
            )

    def sizes(self) -> dict[str, tuple[int, float]]:
        """Return the size in bytes and the time of each object, by name."""
        try:
            listed = self._ask("list", "", self._system._find, self._root, detail=True)
        except FileNotFoundError:
            return {}
        prefix = self._root.rstrip("/") + "/"
        return {
            name.removeprefix(prefix): (int(facts["size"]), _time_of(facts))
            for name, facts in listed.items()
            if name.startswith(prefix) and facts["type"] == "file"
        }

    def read(self, name: str) -> bytes:
        """Return the content of an object.

        Raises:
            FileNotFoundError: there is no such object.
        """
        return self._ask("read", name, self._system._cat_file, self._path(name))

    def write(self, name: str, content: bytes | bytearray) -> None:
        """Write an object."""
        self._ask("write", name, self._system._pipe_file, self._path(name), content)

    def create(self, name: str, content: bytes) -> bool:
        """Write an object that does not exist yet; return False if it exists.

        The store decides, in one step, if it knows conditional writes.
        """
        failure: FileError | None = None
        try:
            self._ask("write", name, self._system._pipe_file, self._path(name), content, mode="create")
        except FileError as error:
            failure = error
        # A repeated request may fail since the first one wrote the object. So the object decides.
        try:
            return self.read(name) == content
        except FileNotFoundError:
            raise failure or FileError(f"{self.url}/{name} was written, and the store does not have it") from None

    def delete(self, name: str) -> None:
        """Delete an object, if it exists."""
        try:
            self._ask("delete", name, self._system._rm_file, self._path(name))
        except FileNotFoundError:
            return

    def rename(self, name: str, new: str) -> None:
        """Copy an object within the store, and delete the first one."""
        self._ask("copy", name, self._system._cp_file, self._path(name), self._path(new))
        self.delete(name)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _ask(self, verb: str, name: str, request: Any, *arguments: Any, **settings: Any) -> Any:
        """Run a request. An error becomes a `FileError` with the URL; a missing object, but in a write, does not."""
        from fsspec.asyn import sync
        from fsspec.exceptions import FSTimeoutError

        url, limit_s = f"{self.url}/{name}".rstrip("/"), REQUEST_LIMIT_S
        passed = (FSTimeoutError,) if verb == "write" else (FSTimeoutError, FileNotFoundError)
        try:
            with explained(url, verb, passed):
                return sync(self._system.loop, functools.partial(request, **settings), *arguments, timeout=limit_s)
        except FSTimeoutError:
            raise FileError(
                f"cannot {verb} {url!r}: its server did not answer within {limit_s:.0f} s; check the network"
            ) from None
        except FileError as error:
            # "from None": the text has the reason, and the traces of the store's library are long.
            raise FileError(str(error)) from None


def _time_of(facts: dict[str, Any]) -> float:
    """Return the time of an object: s3fs calls it LastModified, gcsfs mtime."""
    time = facts.get("LastModified") or facts.get("mtime")
    return time.timestamp() if time is not None else 0.0
