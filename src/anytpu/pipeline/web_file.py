"""Files at http:// and https://, read by range requests, or through a copy if the server ignores ranges.

Idea: a server may ignore the requested range and send the whole file. No more of its answer is read than was requested.
For reads at other offsets the file is copied once, to disk if it is large.

Rule: no more bytes of an answer are held in memory than were requested.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import tempfile
import threading
import warnings
from collections.abc import Iterator
from typing import IO, Any

from anytpu.errors import FileError
from anytpu.pipeline.buckets import RemoteFile, explained
from anytpu.pipeline.stored_file import Readable
from anytpu.units import MIB, format_bytes

IN_MEMORY_BYTES = 64 * MIB
"""Maximum size of a copy in memory; a larger copy is a temporary file."""


class WebFile(RemoteFile):
    """A file at http:// or https://."""

    def __init__(self, path: str):
        super().__init__(path)
        self._copy: IO[bytes] | None = None
        self._copying = threading.Lock()

    def read_at(self, offset_bytes: int, length_bytes: int) -> bytes:
        """Read a range of bytes; fewer at the end of the file."""
        end_bytes = min(offset_bytes + length_bytes, self.size_bytes)
        if end_bytes <= offset_bytes:
            return b""
        if self._copy is None:
            with explained(self.path, "read"):
                part = self._request(_read_part, offset_bytes, end_bytes)
            if part is not None:
                return part
        with self._copying:
            self._copy = self._copy or self._make_copy()
            self._copy.seek(offset_bytes)
            return self._copy.read(end_bytes - offset_bytes)

    @contextlib.contextmanager
    def stream(self) -> Iterator[Readable]:
        """Open the file for reading in order."""
        if self.known_size_bytes() is None:
            with super().stream() as remote:
                yield remote
        else:
            yield io.BufferedReader(_SequentialReader(self), self.chunk_bytes)

    def _make_copy(self) -> IO[bytes]:
        size_bytes, free_bytes = self.size_bytes, shutil.disk_usage(tempfile.gettempdir()).free
        if size_bytes > IN_MEMORY_BYTES:
            size, folder = format_bytes(size_bytes), tempfile.gettempdir()
            if size_bytes > free_bytes:
                raise FileError(
                    f"cannot read {self.path!r}: its server sends whole files only, and {folder!r} has no space for a "
                    f"copy of {size}; download it to a folder with enough space"
                )
            warnings.warn(
                f"{self.path!r}: its server sends whole files only, so {size} are copied to {folder!r} first; the copy "
                "is removed when the program ends",
                stacklevel=3,
            )
        copy = tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES)  # noqa: SIM115 - it lives as long as this object
        try:
            with explained(self.path, "read"):
                copied_bytes = self._request(_copy_file, copy, size_bytes)
            if copied_bytes < size_bytes:
                raise FileError(f"cannot read {self.path!r}: its server sent {copied_bytes:,} of {size_bytes:,} bytes")
        except BaseException:
            copy.close()
            raise
        return copy  # pyright: ignore[reportReturnType]

    def _request(self, coroutine: Any, *arguments: Any) -> Any:
        from fsspec.asyn import sync

        system, url = self._system
        return sync(system.loop, coroutine, system, url, *arguments)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in super().__getstate__().items() if name not in ("_copy", "_copying")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _copy=None, _copying=threading.Lock())

    def __del__(self) -> None:
        if self._copy is not None:
            self._copy.close()


class _SequentialReader(io.RawIOBase):
    """A stream over a file, from its beginning to its end."""

    def __init__(self, file: WebFile):
        self._file, self._offset = file, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        content = self._file.read_at(self._offset, len(buffer))
        buffer[: len(content)] = content
        self._offset += len(content)
        return len(content)


async def _read_part(system: Any, url: str, start_bytes: int, end_bytes: int) -> bytes | None:
    """Return a range of a file; None if the server ignores the range and it does not start at 0."""
    session = await system.set_session()
    headers = {"Range": f"bytes={start_bytes}-{end_bytes - 1}", "Accept-Encoding": "identity"}
    async with session.get(system.encode_url(url), **_settings(system, headers)) as answer:
        _check_status(answer, url)
        is_part = answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {start_bytes}-")
        if not is_part and start_bytes:
            return None
        content = bytearray()
        while piece := await answer.content.read(end_bytes - start_bytes - len(content)):
            content += piece
        return bytes(content)


async def _copy_file(system: Any, url: str, copy: IO[bytes], size_bytes: int) -> int:
    """Copy a file up to `size_bytes`, and return the number of bytes copied."""
    import aiohttp

    session = await system.set_session()
    # No limit on the total time; only a read without any data for 60 s times out.
    timeout = aiohttp.ClientTimeout(total=None, sock_read=60)
    settings = _settings(system, {"Accept-Encoding": "identity"})
    async with session.get(system.encode_url(url), timeout=timeout, **settings) as answer:
        _check_status(answer, url)
        left = size_bytes
        while left and (piece := await answer.content.read(min(left, MIB))):
            copy.write(piece)
            left -= len(piece)
        return size_bytes - left


def _settings(system: Any, headers: dict[str, str]) -> dict[str, Any]:
    """Return the user's request settings of this file system, with additional headers."""
    return {**system.kwargs, "headers": {**system.kwargs.get("headers", {}), **headers}}


def _check_status(answer: Any, url: str) -> None:
    if answer.status == 404:
        raise FileNotFoundError(url)
    answer.raise_for_status()
