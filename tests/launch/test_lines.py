from __future__ import annotations

import pytest

from anytpu.launch.lines import MAX_LAST_LINES, MAX_LINE_BYTES, LineBuffer, last_words


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_lines_do_not_depend_on_the_chunks(size: int):
    text = b"one\r\n\ntwo \xff\xc3\xa9\n10 %\r20 %\r30 %\nlast\r\n"
    buffer = LineBuffer()
    chunks = [text[start : start + size] for start in range(0, len(text), size)]
    found = [line for chunk in chunks for line in buffer.feed(chunk)]
    assert found == [b"one", b"", b"two \xff\xc3\xa9", b"30 %", b"last"]
    assert buffer.unfinished() is None


def test_a_progress_bar_is_shown_when_it_changed():
    buffer = LineBuffer()
    assert buffer.feed(b"\r 1/9") == []
    assert (buffer.unfinished(), buffer.unfinished()) == (b" 1/9", None)
    assert buffer.feed(b"\r 2/9\r 3/9\r") == []
    assert (buffer.unfinished(), buffer.unfinished()) == (b" 3/9", None)
    assert buffer.feed(b" 4/9\nnext") == [b" 4/9"]
    assert buffer.unfinished() == b"next"


def test_a_progress_bar_takes_no_memory():
    buffer = LineBuffer()
    for _ in range(1000):
        assert buffer.feed(b"\r" + b"x" * 1000) == []
    assert len(buffer._rest) < 3000


def test_a_line_without_an_end_is_cut():
    buffer = LineBuffer()
    line = b"x" * (MAX_LINE_BYTES + 1)
    assert buffer.feed(line) == [line]
    assert buffer.feed(b"y\n") == [b"y"]


CHAIN = [
    b"Traceback (most recent call last):",
    b"KeyError: 1",
    b"",
    b"During handling of the above exception, another exception occurred:",
    b"",
    b"Traceback (most recent call last):",
    b"ValueError: 2",
    b"",
    b"The above exception was the direct cause of the following exception:",
    b"",
    b"Traceback (most recent call last):",
    b"RuntimeError: 3",
]


def test_the_last_traceback_with_its_causes():
    earlier = [b"Traceback (most recent call last):", b"OSError: caught and printed", b"going on"]
    assert last_words([*earlier, *CHAIN, b"after"]) == [*CHAIN, b"after"]


def test_a_crash_without_a_traceback():
    assert last_words([b"noise", b"Fatal Python error: Segmentation fault", b"", b"Current thread"]) == [
        b"Fatal Python error: Segmentation fault",
        b"",
        b"Current thread",
    ]
    many = [str(number).encode() for number in range(50)]
    assert last_words(many) == many[-MAX_LAST_LINES:]
    assert last_words([]) == []
