from __future__ import annotations

import gzip
import itertools
import pickle
import struct
import tracemalloc
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anytpu.errors import FileError, RecordError, SettingError
from anytpu.files import memory
from anytpu.pipeline import RecordSource, RecordStream, records, write_records
from anytpu.pipeline.record import Origin
from anytpu.pipeline.tfrecord import frame, masked_crc32c
from anytpu.units import MIB, format_bytes
from error_texts import error_text

GOLDEN = Path(__file__).parent / "golden"
CONTENTS = [b"", b"a", bytes(range(256)), b"\x00" * 1000]
GOLDEN_FILES = [("plain.tfrecord", None), ("gzip.tfrecord", "gzip"), ("zlib.tfrecord", "zlib")]
SMALL = [b"abc", b"", b"defgh"]


def walked(source):
    """Return the records of a walk from the beginning; `list(source)` would ask for the length first."""
    return list(iter(source))


def outcome(path: Path, compression: str | None = None):
    """Return what iterating a file gives: its records, or the error's text."""
    try:
        return walked(records(path, compression=compression))
    except RecordError as error:
        return str(error)


def by_index(path: Path):
    """Return what reading a file record by record gives: its records, or the error's text."""
    try:
        source = records(path)
        assert isinstance(source, RecordSource)
        return [source[i] for i in range(len(source))]
    except RecordError as error:
        return str(error)


@pytest.mark.parametrize(("name", "compression"), GOLDEN_FILES)
def test_what_tensorflow_wrote(name, compression):
    assert list(records(GOLDEN / name, compression=compression)) == CONTENTS


def test_a_plain_file_is_what_tensorflow_writes(tmp_path):
    write_records(tmp_path / "plain.tfrecord", CONTENTS)
    assert (tmp_path / "plain.tfrecord").read_bytes() == (GOLDEN / "plain.tfrecord").read_bytes()


@given(contents=st.lists(st.binary(max_size=200), max_size=8), compression=st.sampled_from([None, "gzip", "zlib"]))
@settings(max_examples=60, deadline=None)
def test_round_trip(tmp_path_factory, contents, compression):
    path = tmp_path_factory.mktemp("round") / "file"
    write_records(path, iter(contents), compression=compression)
    source = records(path, compression=compression)
    assert list(source) == walked(source) == contents
    if isinstance(source, RecordSource):
        assert len(source) == len(contents)
        assert [source[i] for i in range(-len(contents), len(contents))] == contents * 2
    else:
        assert compression is not None


def test_the_same_records_make_the_same_file(tmp_path):
    for name in ("a", "b"):
        write_records(tmp_path / name, SMALL, compression="gzip")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_shards(tmp_path):
    names = write_records(tmp_path / "train.tfrecord", [b"%d" % i for i in range(10)], shards=4)
    assert [Path(name).name for name in names] == [f"train-0000{i}-of-00004.tfrecord" for i in range(4)]
    source = records(tmp_path / "train-?????-of-00004.tfrecord")
    assert isinstance(source, RecordSource)
    in_order = [b"0", b"4", b"8", b"1", b"5", b"9", b"2", b"6", b"3", b"7"]
    assert len(source) == 10
    assert [source[i] for i in range(10)] == list(source) == in_order
    assert source[3].origin == Origin(str(tmp_path / "train-00001-of-00004.tfrecord"), 0, 0)
    assert list(records([names[2], names[0]])) == [b"2", b"6", b"0", b"4", b"8"]


def test_more_shards_than_records(tmp_path):
    names = write_records(tmp_path / "few", [b"x"], shards=3)
    assert [list(records(name)) for name in names] == [[b"x"], [], []]
    assert len(records(names)) == 1


def test_more_files_than_are_kept_open(tmp_path, monkeypatch):
    monkeypatch.setattr("anytpu.pipeline.storage._MAX_OPEN_FILES", 0)
    source = records(write_records(tmp_path / "x", [b"%d" % i for i in range(6)], shards=3))
    assert sorted(source[i] for i in range(6)) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_a_list_without_such_a_record(tmp_path):
    write_records(tmp_path / "x", SMALL)
    source = records(tmp_path / "x")
    with pytest.raises(IndexError) as caught:
        source[3]
    assert str(caught.value) == (f"there is no record 3: RecordSource('{tmp_path}/x') has 3 records, numbered from 0")


def test_a_copy_in_another_process_knows_where_the_records_lie(tmp_path):
    write_records(tmp_path / "x", SMALL)
    source = records(tmp_path / "x")
    assert source[2] == b"defgh"
    copy = pickle.loads(pickle.dumps(source))
    assert (len(copy), copy[2], copy[2].origin) == (3, b"defgh", Origin(f"{tmp_path}/x", 2, 35))
    assert pickle.loads(pickle.dumps(copy[0])).origin == Origin(f"{tmp_path}/x", 0, 0)
    stream = pickle.loads(pickle.dumps(records(GOLDEN / "gzip.tfrecord", compression="gzip")))
    assert list(stream) == CONTENTS


def test_compressed_files_are_a_stream():
    stream = records(GOLDEN / "gzip.tfrecord", compression="GZIP")
    assert type(stream) is RecordStream
    assert repr(stream) == f"RecordStream('{GOLDEN}/gzip.tfrecord')"
    assert [record.origin.offset_bytes for record in stream] == [0, 16, 33, 305]


def test_gzip_of_several_members(tmp_path):
    framed = [frame(content) for content in CONTENTS]
    whole = b"".join(framed)
    cut = b"".join(gzip.compress(part) for part in (whole[:20], b"", whole[20:300], whole[300:]))
    (tmp_path / "x").write_bytes(cut + b"\0" * 100)
    assert list(records(tmp_path / "x", compression="gzip")) == CONTENTS


# Damage.


@pytest.mark.parametrize("read", [outcome, by_index])
def test_truncated_at_every_byte(tmp_path, read):
    whole = b"".join(map(frame, SMALL))
    ends = list(itertools.accumulate(len(frame(content)) for content in SMALL))
    path = tmp_path / "x"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        complete = sum(end <= size for end in ends)
        start = ([0, *ends])[complete]
        left = size - start
        if left == 0:
            assert read(path) == SMALL[:complete]
            continue
        if left < 12:
            reason = f"it ends after {left} of a record header's 12 bytes"
        else:
            length = len(SMALL[complete])
            reason = f"the record should have {length} bytes and a checksum of 4, and {left - 12} bytes are left"
        assert read(path) == (
            f'{path}, record {complete} at byte {start}: the file is truncated: {reason}; on_error="skip" skips it'
        )


@pytest.mark.parametrize("read", [outcome, by_index])
def test_a_flipped_bit_at_every_byte(tmp_path, read):
    whole = b"".join(map(frame, SMALL))
    path = tmp_path / "x"
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        number, start = max((n, s) for n, s in enumerate((0, 19, 35)) if s <= place)
        if place - start < 12:
            reason = "the record's length does not match its checksum, so nothing from here on can be read"
        else:
            reason = f"the record's {len(SMALL[number])} bytes do not match their checksum"
        assert read(path) == f'{path}, record {number} at byte {start}: {reason}; on_error="skip" skips it'


@pytest.mark.parametrize("compression", ["gzip", "zlib"])
def test_compressed_and_damaged(tmp_path, compression):
    path = tmp_path / "x"
    write_records(path, SMALL, compression=compression)
    whole = path.read_bytes()
    for size in range(1, len(whole)):
        path.write_bytes(whole[:size])
        found = outcome(path, compression)
        assert isinstance(found, str)
        assert found.startswith(f"{path}, record ")
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        found = outcome(path, compression)
        # The header of gzip has bytes that say nothing of the content.
        assert found == SMALL or str(found).startswith(f"{path}, record ")


def test_what_is_said_of_damaged_gzip(tmp_path):
    path = tmp_path / "x"
    write_records(path, SMALL, compression="gzip")
    path.write_bytes(path.read_bytes()[:-9])
    assert outcome(path, "gzip") == (
        f'{path}, record 3 at byte 56: the gzip stream ends before its end mark; on_error="skip" skips it'
    )
    path.write_bytes(b"no gzip")
    assert outcome(path, "gzip") == (
        f"{path}, record 0 at byte 0: the content is not gzip, or is damaged: Error -3 while decompressing "
        'data: incorrect header check; on_error="skip" skips it'
    )


def test_compressed_and_not_said(tmp_path):
    path = tmp_path / "x"
    write_records(path, SMALL, compression="gzip")
    assert (
        outcome(path)
        == by_index(path)
        == (
            f'{path}, record 0 at byte 0: this looks like a compressed file; pass compression="gzip"; '
            'on_error="skip" skips it'
        )
    )


@pytest.mark.parametrize("length", [2**31, 2**40, 2**63, 2**64 - 1])
@pytest.mark.parametrize("compression", [None, "gzip", "zlib"])
def test_a_forged_length_never_allocates(tmp_path, length, compression):
    header = struct.pack("<Q", length)
    forged = frame(b"good") + header + struct.pack("<I", masked_crc32c(header)) + b"few bytes"
    pack = {None: bytes, "gzip": gzip.compress, "zlib": zlib.compress}[compression]
    path = tmp_path / "x"
    path.write_bytes(pack(forged))
    readers = [outcome] if compression else [outcome, by_index]
    for read in readers:
        tracemalloc.start()
        found = read(path, compression) if read is outcome else read(path)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert found == (
            f"{path}, record 1 at byte 20: the file is truncated: the record should have {length} bytes and a "
            'checksum of 4, and 9 bytes are left; on_error="skip" skips it'
        )
        assert peak_bytes < 4 * MIB


@pytest.mark.parametrize("compression", ["gzip", "zlib"])
def test_a_record_that_unpacks_to_much_more_than_the_file(tmp_path, compression, monkeypatch):
    path = tmp_path / "x"
    write_records(path, [bytes(2**20)], compression=compression)
    assert outcome(path, compression) == [bytes(2**20)]
    monkeypatch.setattr(memory, "FREELY_UNPACKED_BYTES", 2**19)
    assert outcome(path, compression) == (
        f"{path}, record 0 at byte 0: the record cannot be read: it unpacks from "
        f"{format_bytes(path.stat().st_size)} to 1 MiB, and above 512 KiB a file may unpack to 100 times its "
        'size; on_error="skip" skips it'
    )


# Going on without what is damaged.


def damaged_files(folder: Path) -> None:
    """Write three files: a good one, one with a damaged record between two good ones, one with a damaged length."""
    write_records(folder / "a", SMALL)
    body = bytearray(b"".join(map(frame, SMALL)))
    body[12] ^= 1
    (folder / "b").write_bytes(body)
    header = bytearray(b"".join(map(frame, SMALL)))
    header[19] ^= 1
    (folder / "c").write_bytes(header)


def test_skip(tmp_path):
    damaged_files(tmp_path)
    source = records(tmp_path / "?", on_error="skip")
    assert isinstance(source, RecordSource)
    with pytest.warns(UserWarning) as caught:
        assert walked(source) == [*SMALL, b"", b"defgh", b"abc"]
        assert list(source) == walked(source)
    told = [str(warning.message) for warning in caught]
    reasons = [
        f"{tmp_path}/b, record 0 at byte 0: the record's 3 bytes do not match their checksum",
        f"{tmp_path}/c, record 1 at byte 19: the record's length does not match its checksum, so nothing from here on "
        "can be read",
    ]
    assert told == [
        f"{tmp_path}/{name}: an unreadable record was skipped. The first: {reason}"
        for name, reason in zip("bc", reasons, strict=True)
    ]
    assert [str(fault) for fault in source.skipped] == reasons


def test_skip_counts_before_the_first_record_is_read(tmp_path):
    damaged_files(tmp_path)
    source = records(tmp_path / "?", on_error="skip")
    assert isinstance(source, RecordSource)
    with pytest.warns(UserWarning, match="skipped"):
        assert len(source) == 6
    assert [source[i] for i in range(6)] == [*SMALL, b"", b"defgh", b"abc"]
    assert source[3].origin == Origin(f"{tmp_path}/b", 1, 19)
    assert len(source.skipped) == 2


def test_skip_in_a_compressed_file(tmp_path):
    damaged = bytearray(b"".join(map(frame, SMALL)))
    damaged[12] ^= 1
    (tmp_path / "x").write_bytes(gzip.compress(damaged)[:-4])
    stream = records(tmp_path / "x", compression="gzip", on_error="skip")
    with pytest.warns(UserWarning) as caught:
        assert list(stream) == SMALL[1:]
    assert str(caught[0].message) == (
        f"{tmp_path}/x: 2 unreadable records were skipped. The first: {tmp_path}/x, record 0 at byte 0: the "
        "record's 3 bytes do not match their checksum"
    )
    assert stream.skipped[1].reason == "the gzip stream ends before its end mark"


def test_nothing_is_said_of_good_files(tmp_path):
    write_records(tmp_path / "a", SMALL)
    source = records(tmp_path / "a", on_error="skip")
    assert (walked(source), len(source), source.skipped) == (SMALL, 3, ())


def test_a_file_that_changed_after_it_was_looked_through(tmp_path):
    path = tmp_path / "x"
    write_records(path, SMALL)
    source = records(path)
    assert len(source) == 3
    write_records(path, SMALL[:1])
    fresh = pickle.loads(pickle.dumps(source))
    with pytest.raises(RecordError) as caught:
        fresh[2]
    assert str(caught.value) == (
        f"{path}, record 2 at byte 35: the file is truncated: it ends after 0 of a record header's 12 bytes; "
        'on_error="skip" skips it'
    )


# Arguments.


def test_a_failed_write_leaves_the_old_file(tmp_path):
    write_records(tmp_path / "x", SMALL)

    def failing():
        yield b"new"
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        write_records(tmp_path / "x", failing())
    assert list(records(tmp_path / "x")) == SMALL
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (
            lambda path: write_records(path, [], shards=0),
            SettingError,
            "shards must be an integer from 1 to 99,999, not 0",
        ),
        (
            lambda path: write_records(path, [], shards=True),
            SettingError,
            "shards must be an integer from 1 to 99,999, not True",
        ),
        (
            lambda path: write_records(path, [], compression="bz2"),
            SettingError,
            'compression must be None, "gzip" or "zlib", not \'bz2\'',
        ),
        (
            lambda path: write_records(path, [b"a", {"label": 1}]),
            RecordError,
            "record 1 to write must be bytes, not dict; encode_example converts a dict to bytes",
        ),
        (
            lambda path: records(path, on_error="ignore"),
            SettingError,
            'on_error must be "raise" or "skip", not \'ignore\'',
        ),
        (lambda path: records(path), FileError, "there is no file '{0}/x'; '{0}' contains no files"),
    ],
)
def test_what_is_refused(tmp_path, call, kind, message):
    assert error_text(call, tmp_path / "x", kind=kind) == message.format(tmp_path)
    assert list(tmp_path.iterdir()) == []
