from __future__ import annotations

import gzip

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anytpu.errors import RecordError, SettingError
from anytpu.pipeline import RecordSource, lines


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
