"""Files behind URLs: gs://, s3://, https:// and whatever else fsspec knows.

Idea: fsspec finds the library for a kind of URL, and each of these fails in its own words when there is no network, no
credentials, no file. Here all of that becomes one line, with the URL and what to type.

Rule: no connection is pickled: a process opens its own.
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
    "https": "download it where you may, and read it from there",
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
    """A file behind a URL."""

    # A request takes some 50 ms, whatever its size: looking through a file had better take few.
    chunk_bytes = 8 * MIB

    def __init__(self, path: str):
        self.path = path

    @functools.cached_property
    def size_bytes(self) -> int:
        """The file's length when it was first asked for."""
        size = self.known_size_bytes()
        if size is None:
            raise FileError(
                f"{self.path!r} can only be read in order: its server does not say how long it is; download it first"
            )
        return size

    def known_size_bytes(self) -> int | None:
        """Return the file's length, or None when its server does not say."""
        with explained(self.path, "read"):
            return self._system[0].size(self._system[1])

    def read_at(self, offset_bytes: int, length_bytes: int) -> bytes:
        """Read these bytes: fewer where the file ends."""
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
    """A remote stream whose errors are ours."""

    def __init__(self, file: Any, path: str):
        self._file, self._path = file, path

    def read(self, length_bytes: int, /) -> bytes:
        with explained(self._path, "read"):
            return self._file.read(length_bytes)


def remote_matches(url: str) -> list[str]:
    """Return the URLs that a URL with a glob pattern names, in order of name; the URL itself if it has none.

    Raises:
        FileError: nothing matches, or the store cannot be asked.
    """
    # In a web address a question mark begins the query.
    pattern = url.replace("?", "") if protocol_of(url) in ("http", "https") else url
    if not glob.has_magic(pattern):
        return [url]
    with explained(url, "list"):
        system, path = _file_system(url)
        found = [system.unstrip_protocol(match) for match in sorted(system.glob(path))]
    if not found:
        raise FileError(f"no file matches {url!r}")
    return found


def upload(local: str, url: str) -> None:
    """Copy a file of this machine to a URL.

    Raises:
        FileError: it cannot be written there.
    """
    with explained(url, "write"):
        system, path = _file_system(url)
        system.put_file(local, path)


def _file_system(url: str) -> tuple[Any, str]:
    import fsspec

    # gcsfs logs, with its traceback, what it also raises: for whoever has set up logging, not for stderr.
    logging.getLogger("gcsfs").addHandler(_SILENT)
    protocol = protocol_of(url)
    try:
        return fsspec.core.url_to_fs(url)
    except ImportError as error:
        missing = f"type pip install 'anytpu[{_EXTRAS[protocol]}]'" if protocol in _EXTRAS else str(error)
        raise FileError(f"{protocol}:// needs a package that is not installed, for {url!r}: {missing}") from error
    except ValueError as error:
        known = ", ".join(f"{name}://" for name in ("gs", "s3", "https"))
        raise FileError(f"{url!r} cannot be read: {protocol}:// is not known; known are {known} and paths") from error


_SILENT = logging.NullHandler()


@contextlib.contextmanager
def explained(url: str, verb: str) -> Iterator[None]:
    """Turn an error of a store into a FileError that names the URL and says what to do."""
    try:
        yield
    except FileError:
        raise
    except Exception as error:  # each store has a tree of errors of its own
        raise FileError(_reason(url, verb, error)) from error


def _reason(url: str, verb: str, error: BaseException) -> str:
    """Say in one line why a URL cannot be read: no network, no permission, no file, or the store's own words."""
    chain = list(_chain(error))
    words = (str(chain[-1]) or type(chain[-1]).__name__).splitlines()[0]
    if any(_is_of_network(link) for link in chain):
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


def _is_of_network(error: BaseException) -> bool:
    return isinstance(error, ConnectionError | TimeoutError) or type(error).__name__.startswith(_NETWORK_ERRORS)


def _is_denied(error: BaseException) -> bool:
    # aiohttp has a status, and warns when asked for its code; gcsfs has a code.
    status = getattr(error, "status", None) or getattr(error, "code", None)
    name = type(error).__name__
    return (
        isinstance(error, PermissionError)
        or str(status) in _DENIED_STATUS
        or any(word in name for word in _DENIED_WORDS)
        or str(error).startswith("Forbidden")
    )


def protocol_of(url: str) -> str:
    """Return what stands before "://", in small letters."""
    return url.split("://", 1)[0].lower()
