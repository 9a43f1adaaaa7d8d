from __future__ import annotations

import pickle

import pytest

from anytpu.errors import FileError, RecordError
from anytpu.pipeline import array_records, to_array_records, write_records
from error_texts import error_text

CONTENTS = [b"%d" % i * 50 for i in range(30)]


@pytest.fixture
def written(tmp_path):
    write_records(tmp_path / "x.tfrecord", CONTENTS)
    return tmp_path


def test_conversion(written):
    to_array_records(written / "x.tfrecord", written / "x.array_record")
    source = array_records(written / "x.array_record")
    assert list(iter(source)) == [source[i] for i in range(len(source))] == CONTENTS
    assert str(source[7].origin) == f"{written}/x.array_record, record 7"
    assert pickle.loads(pickle.dumps(source))[29] == CONTENTS[29]


def test_shards_and_compressed_records(written):
    write_records(written / "x.gz", CONTENTS, compression="gzip")
    names = to_array_records(written / "x.gz", written / "x.array_record", shards=4, compression="gzip")
    assert names[3] == f"{written}/x-00003-of-00004.array_record"
    source = array_records(written / "x-*.array_record")
    assert [len(shard) for shard in source.shards] == [8, 8, 7, 7]
    assert list(source) == [CONTENTS[i] for first in range(4) for i in range(first, 30, 4)]


def test_a_damaged_record_file(written):
    damaged = bytearray((written / "x.tfrecord").read_bytes())
    damaged[12] ^= 1
    (written / "x.tfrecord").write_bytes(damaged)
    message = error_text(lambda: to_array_records(written / "x.tfrecord", written / "x.array_record"), kind=RecordError)
    assert message.startswith(f"{written}/x.tfrecord, record 0 at byte 0: the record's 50 bytes do not match")
    assert [path.name for path in written.iterdir()] == ["x.tfrecord"]
    with pytest.warns(UserWarning, match="skipped"):
        to_array_records(written / "x.tfrecord", written / "x.array_record", on_error="skip")
    assert list(array_records(written / "x.array_record")) == CONTENTS[1:]


def test_what_is_no_array_record_file(written):
    to_array_records(written / "x.tfrecord", written / "x.array_record")
    whole = (written / "x.array_record").read_bytes()
    for content in (b"", b"x" * 1000, whole[: len(whole) // 2]):
        (written / "bad").write_bytes(content)
        assert error_text(lambda: len(array_records(written / "bad")), kind=FileError) == (
            f"cannot read '{written}/bad': it is not an ArrayRecord file, or it is truncated"
        )
    assert error_text(lambda: array_records(written / "none"), kind=FileError) == (
        f"there is no file '{written}/none'; '{written}' contains bad, x.array_record, x.tfrecord"
    )
    assert error_text(lambda: array_records("gs://bucket/x"), kind=FileError) == (
        "ArrayRecord files are read from this machine only, not from 'gs://bucket/x': download it first"
    )


def test_a_damaged_array_record_file(written):
    to_array_records(written / "x.tfrecord", written / "x.array_record")
    damaged = bytearray((written / "x.array_record").read_bytes())
    damaged[200] ^= 1
    (written / "x.array_record").write_bytes(damaged)
    message = error_text(lambda: list(iter(array_records(written / "x.array_record"))), kind=RecordError)
    assert message.startswith(f"{written}/x.array_record, record ")
    assert "hash mismatch" in message


def test_writing_where_there_is_no_folder(written):
    message = error_text(lambda: to_array_records(written / "x.tfrecord", written / "none" / "x"), kind=FileError)
    assert message.startswith(f"there is no file '{written}/none/x': the folder '{written}/none' does not exist; ")
