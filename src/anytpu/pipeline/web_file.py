"""Files behind http:// and https://, read part by part; from servers that send whole files only, by way of a copy.

Idea: a server may ignore which part was asked for and send everything. Of its answer no more is read than was asked
for. Who goes on to other parts of such a file gets a copy of it, made once, on the disk where it is large.

Rule: no answer is taken into memory before its length is known to be what was asked for.
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
"""A copy of so many bytes is kept in memory; a larger one is a temporary file."""


class WebFile(RemoteFile):
    """A file behind http:// or https://."""

    def __init__(self, path: str):
        super().__init__(path)
        self._copy: IO[bytes] | None = None
        self._copying = threading.Lock()

    def read_at(self, offset_bytes: int, length_bytes: int) -> bytes:
        """Read these bytes: fewer where the file ends."""
        end_bytes = min(offset_bytes + length_bytes, self.size_bytes)
        if end_bytes <= offset_bytes:
            return b""
        if self._copy is None:
            with explained(self.path, "read"):
                part = self._ask(_part, offset_bytes, end_bytes)
            if part is not None:
                return part
        with self._copying:
            self._copy = self._copy or self._copied()
            self._copy.seek(offset_bytes)
            return self._copy.read(end_bytes - offset_bytes)

    @contextlib.contextmanager
    def stream(self) -> Iterator[Readable]:
        """Open the file for reading in order."""
        if self.known_size_bytes() is None:
            with super().stream() as found:
                yield found
        else:
            yield io.BufferedReader(_InOrder(self), self.chunk_bytes)

    def _copied(self) -> IO[bytes]:
        size_bytes, free_bytes = self.size_bytes, shutil.disk_usage(tempfile.gettempdir()).free
        if size_bytes > IN_MEMORY_BYTES:
            size, folder = format_bytes(size_bytes), tempfile.gettempdir()
            if size_bytes > free_bytes:
                raise FileError(
                    f"cannot read {self.path!r}: its server sends whole files only, and {folder!r} has no room for a "
                    f"copy of {size}; download it to where there is"
                )
            warnings.warn(
                f"{self.path!r}: its server sends whole files only, so {size} are copied into {folder!r} first; they "
                "are removed when the program ends",
                stacklevel=3,
            )
        copy = tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES)  # noqa: SIM115 - it lives as long as this object
        try:
            with explained(self.path, "read"):
                copied_bytes = self._ask(_copy, copy, size_bytes)
            if copied_bytes < size_bytes:
                raise FileError(f"cannot read {self.path!r}: its server sent {copied_bytes:,} of {size_bytes:,} bytes")
        except BaseException:
            copy.close()
            raise
        return copy  # pyright: ignore[reportReturnType]

    def _ask(self, question: Any, *arguments: Any) -> Any:
        from fsspec.asyn import sync

        system, url = self._system
        return sync(system.loop, question, system, url, *arguments)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in super().__getstate__().items() if name not in ("_copy", "_copying")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _copy=None, _copying=threading.Lock())

    def __del__(self) -> None:
        if self._copy is not None:
            self._copy.close()


class _InOrder(io.RawIOBase):
    """A file from its beginning to its end."""

    def __init__(self, file: WebFile):
        self._file, self._place = file, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        content = self._file.read_at(self._place, len(buffer))
        buffer[: len(content)] = content
        self._place += len(content)
        return len(content)


async def _part(system: Any, url: str, start_bytes: int, end_bytes: int) -> bytes | None:
    """Return a part of a file; None where the server sends something else."""
    session = await system.set_session()
    wanted = {"Range": f"bytes={start_bytes}-{end_bytes - 1}", "Accept-Encoding": "identity"}
    async with session.get(system.encode_url(url), **_settings(system, wanted)) as answer:
        _check_status(answer, url)
        is_part = answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {start_bytes}-")
        if not is_part and start_bytes:
            return None
        content = bytearray()
        while piece := await answer.content.read(end_bytes - start_bytes - len(content)):
            content += piece
        return bytes(content)


async def _copy(system: Any, url: str, copy: IO[bytes], size_bytes: int) -> int:
    """Copy the beginning of a file, and return how many bytes it has, up to `size_bytes`."""
    import aiohttp

    session = await system.set_session()
    # However long it takes, as long as something comes.
    patient = aiohttp.ClientTimeout(total=None, sock_read=60)
    wanted = _settings(system, {"Accept-Encoding": "identity"})
    async with session.get(system.encode_url(url), timeout=patient, **wanted) as answer:
        _check_status(answer, url)
        left = size_bytes
        while left and (piece := await answer.content.read(min(left, MIB))):
            copy.write(piece)
            left -= len(piece)
        return size_bytes - left


def _settings(system: Any, headers: dict[str, str]) -> dict[str, Any]:
    """Return what a user has set for requests of this kind, with headers of ours."""
    return {**system.kwargs, "headers": {**system.kwargs.get("headers", {}), **headers}}


def _check_status(answer: Any, url: str) -> None:
    if answer.status == 404:
        raise FileNotFoundError(url)
    answer.raise_for_status()
