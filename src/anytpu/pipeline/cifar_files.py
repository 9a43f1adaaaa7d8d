"""CIFAR-10 from Keras's cache folder or a path: Python 2 pickles, as files or in their archive.

Idea: as for MNIST (`keras_files.py`), the files are those of `keras.datasets`. An archive is read member by member
until all six batches are there. Nothing is unpacked to disk.

Rule: no read is longer than an archive's header needs, or larger than the free memory.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from anytpu import _env
from anytpu._calls import explain_arguments
from anytpu.errors import DataError
from anytpu.files.memory import check_memory, check_ratio
from anytpu.files.zips import read_exactly
from anytpu.pipeline.pickled_arrays import load
from anytpu.units import MIB

Batch = tuple[np.ndarray, np.ndarray]
"""Images uint8 `(images, 32, 32, 3)` and labels uint8 `(images, 1)`."""
AnyPath = str | os.PathLike[str]

_CIFAR_FOLDER = "cifar-10-batches-py"
_FILES = (*(f"data_batch_{index}" for index in range(1, 6)), "test_batch")
"""Names of the batches, in order: five to train on, one to test on."""

_GZIP_MARK = b"\x1f\x8b"
_MAX_MEMBERS = 1000
_PIXELS = 3 * 32 * 32
_ARCHIVE_ERRORS = (tarfile.TarError, EOFError, OSError, zlib.error, ValueError, OverflowError)


@explain_arguments
def cifar10(path: AnyPath | None = None) -> tuple[Batch, Batch]:
    """Load CIFAR-10: colour images of ten classes, 50,000 to train on and 10,000 to test on.

    Args:
        path: the folder `cifar-10-batches-py`, the archive `cifar-10-python.tar.gz`, or a folder that contains one of
            them. None: Keras's cache, `~/.keras/datasets`.

    Returns:
        `(x_train, y_train), (x_test, y_test)`: x uint8 `(images, 32, 32, 3)`, y uint8 `(images, 1)`.

    Raises:
        DataError: the files are missing or invalid; the message says which file to download, and to which folder.

    Example:
        >>> from anytpu.pipeline import make_cifar10
        >>> (x_train, y_train), _ = cifar10(make_cifar10())
        >>> x_train.shape[1:], y_train.shape[1:]
        ((32, 32, 3), (1,))
    """
    source = _find_cifar(path)
    batches = [_read_batch(source / name) for name in _FILES] if source.is_dir() else _archived_batches(source)
    *parts, test = batches
    return (np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])), test


def _find_cifar(path: AnyPath | None) -> Path:
    root = Path(path) if path is not None else _env.keras_datasets()
    # Keras 3 extracts to a folder named "...-target", earlier versions to the folder of the archive.
    folders = (root, root / _CIFAR_FOLDER, root / f"{_CIFAR_FOLDER}-target" / _CIFAR_FOLDER)
    archives = (root, root / "cifar-10-python.tar.gz", root / f"{_CIFAR_FOLDER}.tar.gz")
    for folder in folders:
        if (folder / _FILES[0]).is_file():
            missing = [name for name in _FILES if not (folder / name).is_file()]
            if missing:
                raise DataError(f"{folder} has no {', '.join(missing)}. Unpack cifar-10-python.tar.gz again")
            return folder
    for archive in archives:
        if archive.is_file():
            return archive
    raise DataError(
        f"there is no folder {folders[1]}: download https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz into "
        f"{root}, or pass its path, cifar10(path). For a small sample of the same form: "
        "cifar10(tpu.pipeline.make_cifar10())"
    )


def _read_batch(path: Path) -> Batch:
    """Read a batch.

    Raises:
        DataError: the file cannot be read, is not a batch, or is damaged.
    """
    try:
        check_memory(path.stat().st_size)
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {_reason(error)}") from error
    return _batch(content, path)


def _archived_batches(path: Path) -> list[Batch]:
    """Read the batches of an archive, in the order of `_FILES`.

    Raises:
        DataError: the file cannot be read, is not an archive of the batches, or is damaged.
    """
    batches: dict[str, Batch] = {}
    try:
        for name, content in _members(path):
            batches[name] = _batch(content, f"{path}:{name}")
    except DataError:
        raise
    except _ARCHIVE_ERRORS as error:
        raise DataError(f"{path} cannot be read as an archive: {_reason(error)}. Download the file again") from error
    if missing := [name for name in _FILES if name not in batches]:
        raise DataError(f"{path} has no {', '.join(missing)}. Download the file again")
    return [batches[name] for name in _FILES]


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each batch in an archive, until all batches were found."""
    missing, unpacked_bytes = set(_FILES), 0
    with _open(path) as stream, _tar(stream) as archive:
        for index, member in enumerate(archive):
            if not missing or index == _MAX_MEMBERS:
                return
            name = Path(member.name).name
            if name not in missing or not member.isfile() or member.issparse():
                continue
            missing.remove(name)
            unpacked_bytes += member.size
            check_ratio(path.stat().st_size, unpacked_bytes)
            check_memory(member.size)
            opened = archive.extractfile(member)
            assert opened is not None
            yield name, read_exactly(opened, member.size)


def _tar(stream: IO[bytes]) -> tarfile.TarFile:
    bounded: Any = _BoundedReads(stream)
    return tarfile.open(fileobj=bounded, mode="r:")


@contextlib.contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    with path.open("rb") as file:
        is_packed = file.read(len(_GZIP_MARK)) == _GZIP_MARK
        file.seek(0)
        if not is_packed:
            yield file
            return
        with gzip.GzipFile(fileobj=file) as unpacked:
            yield unpacked  # pyright: ignore[reportReturnType]


class _BoundedReads:
    """A stream whose single reads are at most 1 MiB, so that a damaged tar header cannot request gigabytes."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.seek, self.tell = stream.seek, stream.tell

    def read(self, length_bytes: int) -> bytes:
        if not 0 <= length_bytes <= MIB:
            raise ValueError(f"one of its headers requests {length_bytes:,} bytes")
        return self._stream.read(length_bytes)


def _batch(content: bytes, path: Path | str) -> Batch:
    batch = load(content, path)
    if not isinstance(batch, dict):
        batch = {}
    # The keys are bytes when Python 2 wrote the pickle, and text when Python 3 did.
    pixels, labels = (batch.get(name, batch.get(name.decode())) for name in (b"data", b"labels"))
    if pixels is None or labels is None:
        raise DataError(f"{path} is not a batch of CIFAR-10: it has no data and labels. Download the file again")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or not _are_labels(labels):
        raise DataError(f"{path} is not a batch of CIFAR-10: its data or labels are not uint8. Download the file again")
    labels = np.asarray(labels, np.uint8)
    if pixels.shape != (len(labels), _PIXELS):
        raise DataError(
            f"{path} is not a batch of CIFAR-10: it has {len(labels)} labels, and pixels of shape {pixels.shape}. "
            "Download the file again"
        )
    # Channels first in the file, channels last in the result.
    return pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels[:, np.newaxis]


def _are_labels(labels: Any) -> bool:
    if isinstance(labels, np.ndarray):
        labels = labels.tolist() if labels.ndim == 1 else None
    return isinstance(labels, list) and all(type(label) is int and 0 <= label < 256 for label in labels)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)[:200] or type(error).__name__
