"""ArrayRecord files: records that any reader can reach by their number.

Idea: a TFRecord file has to be looked through before record i can be read, and a compressed one has to be unpacked up
to it. An ArrayRecord file carries its index, compresses record by record, and is what grain reads best.

Rule: the files are read and written by the array_record package; what it finds wrong comes as our errors.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from anytpu.errors import FileError, RecordError
from anytpu.pipeline.sources import Fault, IndexedShard, Origin, Record, RecordSource
from anytpu.pipeline.storage import created, expand, is_remote, shard_names
from anytpu.pipeline.stored_file import AnyPath
from anytpu.pipeline.tfrecord import records

# One record a group: a group is read and unpacked as a whole.
_WRITER_OPTIONS = "group_size:1"
# The package's own threads read ahead, which helps only in order.
_READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"


def array_records(paths: AnyPath | Sequence[AnyPath]) -> RecordSource:
    """Read ArrayRecord files.

    Args:
        paths: a path of this machine, a glob pattern, or a list of them.

    Raises:
        FileError: there is no such file, or it is no ArrayRecord file.
        RecordError: while reading: a record is damaged.
    """
    return RecordSource([ArrayRecordShard(path) for path in expand(paths)])


def to_array_records(
    paths: AnyPath | Sequence[AnyPath],
    to: AnyPath,
    *,
    shards: int = 1,
    compression: str | None = None,
    on_error: str = "raise",
) -> tuple[str, ...]:
    """Convert TFRecord files to ArrayRecord files.

    Args:
        paths: the TFRecord files: a path, a URL, a glob pattern, or a list of them.
        to: the ArrayRecord file. With several shards, "train.array_record" becomes
            "train-00000-of-00004.array_record" and so on; record i goes to shard i modulo `shards`.
        shards: the number of files to write, 1 to 99,999.
        compression: of the TFRecord files: "gzip", "zlib" or None.
        on_error: "raise", or "skip" to leave out records that cannot be read.

    Returns:
        The paths of the files written.

    Raises:
        FileError: a file cannot be read or written.
        RecordError: a TFRecord file is truncated or damaged.

    Example:
        >>> import tempfile, pathlib
        >>> from anytpu.pipeline import write_records
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = write_records(folder / "few.tfrecord", [b"a", b"bc"])
        >>> _ = to_array_records(folder / "few.tfrecord", folder / "few.array_record")
        >>> list(array_records(folder / "few.array_record"))
        [b'a', b'bc']
    """
    source, names = records(paths, compression=compression, on_error=on_error), shard_names(to, shards)
    with contextlib.ExitStack() as stack:
        writers = itertools.cycle([stack.enter_context(_writer(name)) for name in names])
        for record, writer in zip(source, writers, strict=False):
            writer.write(bytes(record))
    return names


class ArrayRecordShard(IndexedShard):
    """One ArrayRecord file. It is opened when it is first read; copies in other processes open it themselves."""

    def __init__(self, path: str):
        if is_remote(path):
            raise FileError(f"ArrayRecord files are read from this machine only, not from {path!r}: download it first")
        self.path = path
        self._reader: Any = None

    def __len__(self) -> int:
        return self._opened().num_records()

    def __iter__(self) -> Iterator[Record]:
        return (self.read(number) for number in range(len(self)))

    def read(self, number: int) -> Record:
        """Return a record by its place in the file, from 0."""
        # The file does not say at which byte a record lies.
        origin = Origin(self.path, number, None)
        try:
            return Record.at(self._opened().read([number])[0], origin)
        except (RuntimeError, ValueError, IndexError) as error:
            raise RecordError(str(Fault(origin, _first_line(error)))) from error

    def _opened(self) -> Any:
        if self._reader is None:
            from array_record.python.array_record_module import ArrayRecordReader

            reader = ArrayRecordReader(self.path, _READER_OPTIONS)
            if not reader.ok():
                raise FileError(f"cannot read {self.path!r}: it is no ArrayRecord file, or it is truncated")
            self._reader = reader
        return self._reader

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_reader": None}


@contextlib.contextmanager
def _writer(path: str) -> Iterator[Any]:
    from array_record.python.array_record_module import ArrayRecordWriter

    with created(path) as unfinished:
        writer = ArrayRecordWriter(unfinished, _WRITER_OPTIONS)
        try:
            yield writer
        finally:
            writer.close()


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
