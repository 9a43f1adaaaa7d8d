"""Files at URLs: gs://, s3://, https:// and every other protocol of fsspec.

Idea: fsspec chooses a library by the protocol, and each library reports a missing network, missing credentials or a
missing file in its own way. Here all of these become one line with the URL and the command to type. A web server that
sends whole files only, or does not report their sizes, is refused by name.

Rule: each process opens its own connections. A path that looks like a URL is never taken for a folder. A server that
cannot be reached is an error after a few seconds, though the libraries repeat a request for a minute.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import io
import logging
import re
import socket
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

from anytpu import _env
from anytpu.errors import FileError
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
_SILENT = logging.NullHandler()

_KNOWN = "gs|gcs|s3a?|hf|https?|az|abfss?|adl|ftp|sftp|ssh|hdfs|file"
_URL = re.compile(
    rf"(?i)(?P<protocol>[a-z][\w+.-]*)://.*|(?P<known>{_KNOWN})(:|//).*|(?P<one>[a-z][\w+.-]+):/.*", re.DOTALL
)
"""A URL, and what is meant as one: `pathlib.Path` makes "gs:/bucket" of "gs://bucket"."""

_CONTACT_S = 4.0
"""Seconds to wait for the first answer of a server, and then for a connection to it."""

_ANSWERED: set[str] = set()
"""The servers and buckets that have answered this process."""


class RemoteFile:
    """A file at a URL, with random access from any thread.

    Args:
        path: the URL.
    """

    # A request takes about 50 ms whatever its size, so a scan of a file uses large chunks.
    chunk_bytes = 8 * MIB

    def __init__(self, path: str):
        self.path = path

    @functools.cached_property
    def size_bytes(self) -> int:
        """Length of the file, cached on first use."""
        with explained(self.path, "read"):
            system, path = file_system(self.path)
            size = system.size(path)
        if size is None:
            raise FileError(f"cannot read {self.path!r}: its server does not report its size; download it first")
        return size

    def read_at(self, offset_bytes: int, length_bytes: int) -> bytes:
        """Read a range of bytes; fewer at the end of the file.

        Raises:
            FileError: the range cannot be read, or its server sends whole files only.
        """
        end_bytes = min(offset_bytes + length_bytes, self.size_bytes)
        if end_bytes <= offset_bytes:
            return b""
        with explained(self.path, "read"):
            if not _is_web(self.path):
                system, path = file_system(self.path)
                return system.cat_file(path, start=offset_bytes, end=end_bytes)
            # A block of one byte and no cache: fsspec requests exactly the range, and reads no more of a whole file.
            with self._opened(block_size=1, cache_type="none") as file:
                file.seek(offset_bytes)
                return file.read(end_bytes - offset_bytes)

    @contextlib.contextmanager
    def stream(self) -> Iterator[Any]:
        """Open the file for reading in order, by requests of ranges."""
        with explained(self.path, "read"):
            file = self._opened(block_size=self.chunk_bytes, cache_type="readahead")
        with file:
            yield io.BufferedReader(_ExplainedReader(self, file), self.chunk_bytes)

    def _opened(self, **settings: Any) -> Any:
        system, path = file_system(self.path)
        if _is_web(self.path):
            # Content without compression, because the size and the ranges are those of the file.
            headers = {**system.kwargs.get("headers", {}), "Accept-Encoding": "identity"}
            settings |= {"size": self.size_bytes, "headers": headers}
        return system.open(path, "rb", **settings)


class _ExplainedReader(io.RawIOBase):
    """A remote file that is read in order; its errors are FileErrors, and so is an end before the file's."""

    def __init__(self, file: RemoteFile, opened: Any):
        self._file, self._opened = file, opened

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        with explained(self._file.path, "read"):
            try:
                content = self._opened.read(len(buffer))
            except Exception:  # A connection broke: the next request has a new one.
                content = self._opened.read(len(buffer))
            if not content and self._opened.tell() < self._file.size_bytes:
                raise FileError(
                    f"cannot read {self._file.path!r}: {self._opened.tell():,} bytes could be read, and the file has "
                    f"{self._file.size_bytes:,}; download it first"
                )
        buffer[: len(content)] = content
        return len(content)


def is_url(path: str) -> bool:
    """Return whether a path is a URL.

    Raises:
        FileError: it is neither a URL nor clearly a path, such as "gs:/bucket/run7".

    Example:
        >>> is_url("gs://bucket/run7"), is_url("runs/7"), is_url("./gs:/run7")
        (True, False, False)
    """
    match = _URL.fullmatch(path)
    if match is None or match["protocol"]:
        return "://" in path
    protocol = match["known"] or match["one"]
    url = f"{protocol}://{path[len(protocol) :].lstrip(':/')}"
    raise FileError(
        f"{path!r} is neither a URL nor clearly a path. Type {url!r} as text, since pathlib.Path removes a slash. A "
        f"folder of that name is {'./' + path!r}"
    )


def refuse_url(path: str, what: str) -> None:
    """Reject a URL where only a folder of this machine can be used.

    Args:
        path: the path.
        what: the subject of the sentence, such as "an exported program".

    Raises:
        FileError: the path is a URL, or is meant as one.
    """
    if _URL.fullmatch(path) is not None:
        raise FileError(
            f"{path!r} looks like a URL, and {what} is written to a folder of this machine. Pass the path of a folder, "
            "and copy it from there"
        )


def remote_matches(url: str) -> list[str]:
    """Return the URLs that match a URL with a glob pattern, sorted by name; a URL without pattern, unchanged.

    Raises:
        FileError: nothing matches, or the store cannot be listed.
    """
    # In http URLs a question mark begins the query; it is not a wildcard.
    pattern = url.replace("?", "") if _is_web(url) else url
    if not glob.has_magic(pattern):
        return [url]
    with explained(url, "list"):
        system, path = file_system(url)
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
        system, path = file_system(url)
        system.put_file(local, path)


def file_system(url: str, **settings: Any) -> tuple[Any, str]:
    """Return the file system of fsspec for a URL, and the path in it.

    Args:
        url: the URL.
        **settings: settings of the file system.

    Raises:
        FileError: the protocol is unknown, or its package is not installed.
        ConnectionError: the server cannot be reached.
    """
    # gcsfs also logs each error that it raises, with a traceback. The null handler keeps that off stderr, unless the
    # user has configured logging.
    logging.getLogger("gcsfs").addHandler(_SILENT)
    server = "/".join(url.split("/")[:3])
    if server in _ANSWERED or protocol_of(url) not in _EXTRAS:
        return _opened(url, settings)
    # 1. Ask for the first time, in a thread: the library may look for credentials on the network before.
    results: list[Any] = []
    thread = threading.Thread(target=_ask, args=(url, settings, results), daemon=True)
    thread.start()
    thread.join(_CONTACT_S)
    # 2. Without an answer, look whether there is a connection at all. A web server is not asked: it may count requests.
    endpoint = _endpoint(url)
    fault = _fault_of_network(endpoint) if thread.is_alive() or endpoint == url else None
    if fault is not None:
        raise ConnectionError(fault)
    thread.join()
    if isinstance(results[0], Exception):
        raise results[0]
    _ANSWERED.add(server)
    return results[0]


def _opened(url: str, settings: dict[str, Any]) -> tuple[Any, str]:
    import fsspec

    protocol = protocol_of(url)
    try:
        return fsspec.core.url_to_fs(url, **settings)
    except ImportError as error:
        missing = f"type pip install 'anytpu[{_EXTRAS[protocol]}]'" if protocol in _EXTRAS else str(error)
        raise FileError(f"{protocol}:// needs a package that is not installed, for {url!r}: {missing}") from error
    except ValueError as error:
        known = ", ".join(f"{name}://" for name in ("gs", "s3", "https"))
        raise FileError(
            f"{url!r} cannot be read: unknown protocol {url.split('://', 1)[0]}://; use one of {known}, or a path"
        ) from error


def _ask(url: str, settings: dict[str, Any], results: list[Any]) -> None:
    """Open the file system of a URL, and ask a store whether the URL exists; the result is the system or an error."""
    try:
        system = _opened(url, settings)
        if not _is_web(url):
            with contextlib.suppress(Exception):  # The next request reports it.
                system[0].exists(system[1])
        results.append(system)
    except Exception as error:
        results.append(error)


def _endpoint(url: str) -> str:
    """Return the URL of the server that a request goes to first: a proxy, an emulator, the store, or the web server."""
    from fsspec.config import conf

    store = _EXTRAS[protocol_of(url)]
    default = {"gs": "https://storage.googleapis.com", "s3": "https://s3.amazonaws.com"}.get(store, url)
    settings = conf.get(protocol_of(url), {})
    endpoint = settings.get("endpoint_url") or _env.store_endpoint(store) or default
    return urllib.request.getproxies().get(protocol_of(endpoint)) or endpoint


def _fault_of_network(endpoint: str) -> str | None:
    """Return why there is no connection to the server of a URL, or None."""
    faults: list[str | None] = []
    parts = urllib.parse.urlsplit(endpoint)

    def connect() -> None:
        try:
            address = (parts.hostname or "", parts.port or (80 if parts.scheme == "http" else 443))
            socket.create_connection(address, _CONTACT_S).close()
            faults.append(None)
        except (OSError, ValueError) as error:
            faults.append(str(error))

    # Asking for the address of a name has no time limit of its own.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(_CONTACT_S)
    return faults[0] if faults else f"no answer within {_CONTACT_S:.0f} s"


@contextlib.contextmanager
def explained(url: str, verb: str, passed: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Convert a store's error to a FileError that names the URL and says what to do; `passed` is raised as it is."""
    try:
        yield
    except (FileError, *passed):
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
    if "range requests" in words:  # fsspec's error for an answer without the range
        return f"cannot {verb} {url!r}: its server sends whole files only; download it first"
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


def _is_web(url: str) -> bool:
    return protocol_of(url) in ("http", "https")
