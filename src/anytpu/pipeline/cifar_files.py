"""The batches of CIFAR-10: pickles of Python 2, alone or in their archive, from a server that one may not trust.

Idea: an archive is read member by member until the six batches are there, and nothing of it is unpacked to a disk.

Rule: no read asks for more than a header of the archive has, or than the memory that is free.
"""

from __future__ import annotations

import contextlib
import gzip
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from anytpu.errors import DataError
from anytpu.files.memory import check_memory, check_ratio
from anytpu.files.zips import read_exactly
from anytpu.pipeline.unpickling import load
from anytpu.units import MIB

Batch = tuple[np.ndarray, np.ndarray]
"""Images uint8 `(images, 32, 32, 3)` and labels uint8 `(images, 1)`."""

FILES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
"""The names of the batches."""

_GZIP_MARK = b"\x1f\x8b"
_MAX_MEMBERS = 1000
_PIXELS = 3 * 32 * 32
_DAMAGED = (tarfile.TarError, EOFError, OSError, zlib.error, ValueError, OverflowError)


def batch_of(path: Path) -> Batch:
    """Read a batch.

    Raises:
        DataError: the file cannot be read, is no batch, or is damaged.
    """
    try:
        check_memory(path.stat().st_size)
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {_reason(error)}") from error
    return _batch(content, path)


def batches_of_archive(path: Path) -> list[Batch]:
    """Read the batches of an archive, in the order of `FILES`.

    Raises:
        DataError: the file cannot be read, is no archive of the batches, or is damaged.
    """
    found: dict[str, Batch] = {}
    try:
        for name, content in _members(path):
            found[name] = _batch(content, f"{path}:{name}")
    except DataError:
        raise
    except _DAMAGED as error:
        raise DataError(f"{path} cannot be read as an archive: {_reason(error)}. Get the file anew") from error
    if missing := [name for name in FILES if name not in found]:
        raise DataError(f"{path} has no {', '.join(missing)}. Get the file anew")
    return [found[name] for name in FILES]


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each batch that an archive has, until all of them came."""
    left, unpacked_bytes = set(FILES), 0
    with _opened(path) as stream, _tar(stream) as archive:
        for number, member in enumerate(archive):
            if not left or number == _MAX_MEMBERS:
                return
            name = Path(member.name).name
            if name not in left or not member.isfile() or member.issparse():
                continue
            left.remove(name)
            unpacked_bytes += member.size
            check_ratio(path.stat().st_size, unpacked_bytes)
            check_memory(member.size)
            opened = archive.extractfile(member)
            assert opened is not None
            yield name, read_exactly(opened, member.size)


def _tar(stream: IO[bytes]) -> tarfile.TarFile:
    pieces: Any = _Pieces(stream)
    return tarfile.open(fileobj=pieces, mode="r:")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    with path.open("rb") as file:
        is_packed = file.read(len(_GZIP_MARK)) == _GZIP_MARK
        file.seek(0)
        if not is_packed:
            yield file
            return
        with gzip.GzipFile(fileobj=file) as unpacked:
            yield unpacked  # pyright: ignore[reportReturnType]


class _Pieces:
    """A stream of an archive that is read in pieces: a header of it cannot ask for gigabytes."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.seek, self.tell = stream.seek, stream.tell

    def read(self, length_bytes: int) -> bytes:
        if not 0 <= length_bytes <= MIB:
            raise ValueError(f"a header of it asks for {length_bytes:,} bytes")
        return self._stream.read(length_bytes)


def _batch(content: bytes, path: Path | str) -> Batch:
    batch = load(content, path)
    if not isinstance(batch, dict):
        batch = {}
    # Python 3 writes the names as text.
    pixels, labels = (batch.get(name, batch.get(name.decode())) for name in (b"data", b"labels"))
    if pixels is None or labels is None:
        raise DataError(f"{path} is no batch of CIFAR-10: it has no data and labels. Get the file anew")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or not _are_labels(labels):
        raise DataError(f"{path} is no batch of CIFAR-10: its data or its labels are no bytes. Get the file anew")
    labels = np.asarray(labels, np.uint8)
    if pixels.shape != (len(labels), _PIXELS):
        raise DataError(
            f"{path} is no batch of CIFAR-10: {len(labels)} labels and pixels of shape {pixels.shape}. Get the file "
            "anew"
        )
    # Planes of red, green and blue become the channels of a pixel.
    return pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels[:, np.newaxis]


def _are_labels(labels: Any) -> bool:
    if isinstance(labels, np.ndarray):
        labels = labels.tolist() if labels.ndim == 1 else None
    return isinstance(labels, list) and all(type(one) is int and 0 <= one < 256 for one in labels)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)[:200] or type(error).__name__
