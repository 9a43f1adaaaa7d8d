from __future__ import annotations

import gzip
import zlib

import pytest

from anytpu.errors import RecordError, SettingError
from anytpu.pipeline import RecordSource, fixed_records

PACK = {None: bytes, "gzip": gzip.compress, "zlib": zlib.compress}


@pytest.mark.parametrize("compression", PACK)
@pytest.mark.parametrize(("header", "footer"), [(0, 0), (3, 0), (0, 2), (3, 2), (3, 20)])
def test_records_between_header_and_footer(tmp_path, compression, header, footer):
    path = tmp_path / "x"
    path.write_bytes(PACK[compression](b"H" * header + b"aabbccdd" + b"F" * footer))
    source = fixed_records(path, 2, header_bytes=header, footer_bytes=footer, compression=compression)
    walked = list(iter(source))
    assert walked == [b"aa", b"bb", b"cc", b"dd"]
    assert [record.origin.offset_bytes for record in walked] == [header + 2 * i for i in range(4)]
    if isinstance(source, RecordSource):
        assert [source[i] for i in range(len(source))] == walked
        assert [source[i].origin for i in range(4)] == [record.origin for record in walked]
    else:
        assert compression is not None


def test_no_record(tmp_path):
    (tmp_path / "x").write_bytes(b"HF")
    source = fixed_records(tmp_path / "x", 2, header_bytes=1, footer_bytes=1)
    assert (len(source), list(iter(source))) == (0, [])


@pytest.mark.parametrize("compression", PACK)
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"HaabbcF", "record 2 at byte 5: the record should have 2 bytes, and 1 are left"),
        (b"H", "record 0 at byte 0: the file should have a header of 1 bytes and a footer of 1, and has 1 bytes"),
        (b"", "record 0 at byte 0: the file should have a header of 1 bytes and a footer of 1, and has 0 bytes"),
    ],
)
def test_what_is_no_whole_record(tmp_path, compression, content, reason):
    path = tmp_path / "x"
    path.write_bytes(PACK[compression](content))

    def opened(on_error):
        return fixed_records(path, 2, header_bytes=1, footer_bytes=1, compression=compression, on_error=on_error)

    source = opened("raise")
    readers = [lambda: list(iter(source)), *([lambda: len(source)] if compression is None else [])]
    for read in readers:
        with pytest.raises(RecordError) as caught:
            read()
        assert str(caught.value) == f'{path}, {reason}; on_error="skip" skips it'
    skipping = opened("skip")
    with pytest.warns(UserWarning, match="skipped"):
        assert list(iter(skipping)) == ([b"aa", b"bb"] if content[1:] else [])
    assert [str(fault) for fault in skipping.skipped] == [f"{path}, {reason}"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"record_bytes": 0}, "record_bytes must be an integer of at least 1, not 0"),
        ({"record_bytes": 2.0}, "record_bytes must be an integer of at least 1, not 2.0"),
        ({"record_bytes": 1, "header_bytes": -1}, "header_bytes must be an integer of at least 0, not -1"),
        ({"record_bytes": 1, "footer_bytes": "2"}, "footer_bytes must be an integer of at least 0, not '2'"),
    ],
)
def test_arguments(tmp_path, arguments, message):
    with pytest.raises(SettingError) as caught:
        fixed_records(tmp_path / "x", **arguments)
    assert str(caught.value) == message
