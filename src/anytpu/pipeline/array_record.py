"""ArrayRecord files: records with random access by index.

Idea: a TFRecord file must be scanned before record i can be read, and a compressed one must be unpacked up to it. An
ArrayRecord file has an index and compresses each record separately. It is the format that grain reads best.

Rule: the array_record package reads and writes the files; its errors are converted to those of `anytpu.errors`.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from anytpu._calls import explain_arguments
from anytpu.errors import FileError, RecordError
from anytpu.pipeline.sources import Fault, IndexedShard, Origin, Record, RecordSource
from anytpu.pipeline.storage import AnyPath, created, expand, is_remote, shard_names
from anytpu.pipeline.tfrecord import records

# One record per group, because a group is read and unpacked as a whole.
_WRITER_OPTIONS = "group_size:1"
# No read-ahead threads of the package's own: they help sequential reading only.
_READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"


@explain_arguments
def array_records(paths: AnyPath | Sequence[AnyPath]) -> RecordSource:
    """Read ArrayRecord files.

    Args:
        paths: a path of this machine, a glob pattern, or a list of them.

    Raises:
        FileError: a file is missing, or is not an ArrayRecord file.
        RecordError: a record is damaged; raised while reading.
    """
    return RecordSource([ArrayRecordShard(path) for path in expand(paths)])


@explain_arguments
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
        compression: compression of the TFRecord files: "gzip", "zlib" or None.
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
    """One ArrayRecord file. It is opened on first use; each process that gets a copy opens its own."""

    def __init__(self, path: str):
        if is_remote(path):
            raise FileError(f"ArrayRecord files are read from this machine only, not from {path!r}: download it first")
        self.path = path
        self._reader: Any = None

    def __len__(self) -> int:
        return self._opened().num_records()

    def __iter__(self) -> Iterator[Record]:
        return (self.read(index) for index in range(len(self)))

    def read(self, index: int) -> Record:
        """Return the record at an index, from 0."""
        # The reader does not report byte offsets.
        origin = Origin(self.path, index, None)
        try:
            return Record.at(self._opened().read([index])[0], origin)
        except (RuntimeError, ValueError, IndexError) as error:
            raise RecordError(str(Fault(origin, _first_line(error)))) from error

    def _opened(self) -> Any:
        if self._reader is None:
            from array_record.python.array_record_module import ArrayRecordReader

            reader = ArrayRecordReader(self.path, _READER_OPTIONS)
            if not reader.ok():
                raise FileError(f"cannot read {self.path!r}: it is not an ArrayRecord file, or it is truncated")
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
