from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anytpu.errors import RecordError, SettingError
from anytpu.pipeline import RecordSource, fixed_records, lines


def both_ways(path, **arguments):
    """Return the lines as a walk gives them, checked against reading them one by one."""
    source = lines(path, **arguments)
    walked = list(iter(source))
    assert isinstance(source, RecordSource)
    assert [source[i] for i in range(len(source))] == walked
    return walked


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"one", ["one"]),
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\r\n\r\ntwo\r\n", ["one", "", "two"]),
        (b"a\rb\n\n", ["a\rb", ""]),
        ("Süß\n".encode(), ["Süß"]),
    ],
)
def test_lines(tmp_path, content, expected):
    (tmp_path / "x").write_bytes(content)
    (tmp_path / "x.gz").write_bytes(gzip.compress(content))
    assert both_ways(tmp_path / "x") == list(lines(tmp_path / "x.gz", compression="gzip")) == expected


@given(st.lists(st.text(st.characters(exclude_characters="\n\r", codec="utf-8"), max_size=30), max_size=20))
@settings(max_examples=50, deadline=None)
def test_round_trip(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("lines") / "x"
    path.write_bytes("".join(f"{text}\n" for text in texts).encode())
    assert both_ways(path) == texts


def test_lines_longer_than_what_is_read_at_once(tmp_path):
    texts = ["a" * 300_000, "", "b" * 700_000, "c"]
    (tmp_path / "x").write_text("\n".join(texts))
    assert both_ways(tmp_path / "x") == texts


def test_encodings(tmp_path):
    (tmp_path / "x").write_bytes(b"S\xfc\xdf\n")
    assert both_ways(tmp_path / "x", encoding="latin-1") == ["Süß"]
    with pytest.raises(RecordError) as caught:
        list(lines(tmp_path / "x"))
    assert str(caught.value) == (
        f"{tmp_path}/x, record 0 at byte 0: the line is not utf-8: invalid start byte at byte 1 of the line; "
        'on_error="skip" skips it'
    )


def test_skip(tmp_path):
    (tmp_path / "x").write_bytes(b"good\n\xff\nbetter\n")
    source = lines(tmp_path / "x", on_error="skip")
    with pytest.warns(UserWarning, match="skipped"):
        assert list(iter(source)) == ["good", "better"]
    assert both_ways(tmp_path / "x", encoding="latin-1") == ["good", "ÿ", "better"]
    assert [source[i] for i in range(len(source))] == ["good", "better"]


@pytest.mark.parametrize("encoding", ["utf-16", "klingon", None])
def test_an_encoding_that_cannot_be_used(tmp_path, encoding):
    with pytest.raises(SettingError) as caught:
        lines(tmp_path / "x", encoding=encoding)
    assert str(caught.value) == (
        f'encoding must be one in which a newline is the byte 10, such as "utf-8", not {encoding!r}'
    )


# Records of fixed length.

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


def test_no_record_of_fixed_length(tmp_path):
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
def test_arguments_of_fixed_records(tmp_path, arguments, message):
    with pytest.raises(SettingError) as caught:
        fixed_records(tmp_path / "x", **arguments)
    assert str(caught.value) == message
