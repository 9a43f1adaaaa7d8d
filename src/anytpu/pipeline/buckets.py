"""Files at URLs: gs://, s3://, https:// and every other protocol of fsspec.

Idea: fsspec chooses a library by the protocol, and each library reports a missing network, missing credentials or a
missing file in its own way. Here all of these become one line with the URL and the command to type.

Rule: connections are not pickled: each process opens its own.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import logging
from collections.abc import Iterator
from typing import Any

from anytpu.errors import FileError
from anytpu.pipeline.stored_file import Readable, StoredFile
from anytpu.units import MIB

_EXTRAS = {"gs": "gs", "gcs": "gs", "s3": "s3", "s3a": "s3", "http": "https", "https": "https"}
_LOGIN = {
    "gs": "type gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS to the path of a service "
    "account's key file",
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; FSSPEC_S3_ANON=true for a public bucket",
    "https": "download it where you have access, and read the local copy",
}
_DENIED_STATUS = {"401", "403"}
_DENIED_WORDS = ("Credentials", "RefreshError", "Forbidden", "Unauthorized", "AccessDenied", "TokenRetrieval")
_NETWORK_ERRORS = (
    "ClientConnect",
    "EndpointConnection",
    "ConnectTimeout",
    "FSTimeout",
    "ServerTimeout",
    "TransportError",
)


class RemoteFile(StoredFile):
    """A file at a URL."""

    # A request takes about 50 ms whatever its size, so a scan of a file uses large chunks.
    chunk_bytes = 8 * MIB

    def __init__(self, path: str):
        self.path = path

    @functools.cached_property
    def size_bytes(self) -> int:
        """Length of the file, cached on first use."""
        size = self.known_size_bytes()
        if size is None:
            raise FileError(
                f"{self.path!r} can only be read in order: its server does not report its size; download it first"
            )
        return size

    def known_size_bytes(self) -> int | None:
        """Return the file's length, or None if its server does not report it."""
        with explained(self.path, "read"):
            return self._system[0].size(self._system[1])

    def read_at(self, offset_bytes: int, length_bytes: int) -> bytes:
        """Read a range of bytes; fewer at the end of the file."""
        end_bytes = min(offset_bytes + length_bytes, self.size_bytes)
        if end_bytes <= offset_bytes:
            return b""
        with explained(self.path, "read"):
            return self._system[0].cat_file(self._system[1], start=offset_bytes, end=end_bytes)

    @contextlib.contextmanager
    def stream(self) -> Iterator[Readable]:
        """Open the file for reading in order."""
        with explained(self.path, "read"):
            file = self._system[0].open(self._system[1], "rb")
        with file:
            yield _ExplainedStream(file, self.path)

    @functools.cached_property
    def _system(self) -> tuple[Any, str]:
        return _file_system(self.path)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_system"}


class _ExplainedStream:
    """A remote stream that raises `FileError`."""

    def __init__(self, file: Any, path: str):
        self._file, self._path = file, path

    def read(self, length_bytes: int, /) -> bytes:
        with explained(self._path, "read"):
            return self._file.read(length_bytes)


def remote_matches(url: str) -> list[str]:
    """Return the URLs that match a URL with a glob pattern, sorted by name; a URL without pattern, unchanged.

    Raises:
        FileError: nothing matches, or the store cannot be listed.
    """
    # In http URLs a question mark begins the query; it is not a wildcard.
    pattern = url.replace("?", "") if protocol_of(url) in ("http", "https") else url
    if not glob.has_magic(pattern):
        return [url]
    with explained(url, "list"):
        system, path = _file_system(url)
        urls = [system.unstrip_protocol(match) for match in sorted(system.glob(path))]
    if not urls:
        raise FileError(f"no file matches {url!r}")
    return urls


def upload(local: str, url: str) -> None:
    """Copy a local file to a URL.

    Raises:
        FileError: the URL cannot be written.
    """
    with explained(url, "write"):
        system, path = _file_system(url)
        system.put_file(local, path)


def _file_system(url: str) -> tuple[Any, str]:
    import fsspec

    # gcsfs also logs each error that it raises, with a traceback. The null handler keeps that off stderr, unless the
    # user has configured logging.
    logging.getLogger("gcsfs").addHandler(_SILENT)
    protocol = protocol_of(url)
    try:
        return fsspec.core.url_to_fs(url)
    except ImportError as error:
        missing = f"type pip install 'anytpu[{_EXTRAS[protocol]}]'" if protocol in _EXTRAS else str(error)
        raise FileError(f"{protocol}:// needs a package that is not installed, for {url!r}: {missing}") from error
    except ValueError as error:
        known = ", ".join(f"{name}://" for name in ("gs", "s3", "https"))
        raise FileError(
            f"{url!r} cannot be read: unknown protocol {protocol}://; use one of {known}, or a path"
        ) from error


_SILENT = logging.NullHandler()


@contextlib.contextmanager
def explained(url: str, verb: str) -> Iterator[None]:
    """Convert a store's error to a FileError that names the URL and says what to do."""
    try:
        yield
    except FileError:
        raise
    except Exception as error:  # each store's library has its own exception classes
        raise FileError(_reason(url, verb, error)) from error


def _reason(url: str, verb: str, error: BaseException) -> str:
    """Return one line on the failure: no network, no permission, no file, or the store's own message."""
    chain = list(_chain(error))
    words = (str(chain[-1]) or type(chain[-1]).__name__).splitlines()[0]
    if any(_is_network_error(link) for link in chain):
        return f"cannot {verb} {url!r}: its server cannot be reached; check the network and the name ({words})"
    if any(_is_denied(link) for link in chain):
        login = _LOGIN[_EXTRAS.get(protocol_of(url), "https")]
        return f"cannot {verb} {url!r}: there are no credentials that allow it; {login} ({words})"
    if any(isinstance(link, FileNotFoundError) for link in chain):
        return f"cannot {verb} {url!r}: there is no such file or bucket"
    return f"cannot {verb} {url!r}: {type(error).__name__}: {words}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_network_error(error: BaseException) -> bool:
    return isinstance(error, ConnectionError | TimeoutError) or type(error).__name__.startswith(_NETWORK_ERRORS)


def _is_denied(error: BaseException) -> bool:
    # aiohttp errors have `status`, and reading their `code` warns; gcsfs errors have `code`.
    status = getattr(error, "status", None) or getattr(error, "code", None)
    name = type(error).__name__
    return (
        isinstance(error, PermissionError)
        or str(status) in _DENIED_STATUS
        or any(word in name for word in _DENIED_WORDS)
        or str(error).startswith("Forbidden")
    )


def protocol_of(url: str) -> str:
    """Return a URL's protocol in lower case."""
    return url.split("://", 1)[0].lower()
