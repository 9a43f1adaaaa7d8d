from __future__ import annotations

import io

import pytest

from anytpu.planning.compiler.wire import receive, send


def test_messages_come_back_in_order():
    stream = io.BytesIO()
    send(stream, {"a": [1, None, "x"]}, b"\0\n" * 5)
    send(stream, {})
    stream.seek(0)
    assert receive(stream) == ({"a": [1, None, "x"]}, b"\0\n" * 5)
    assert receive(stream) == ({}, b"")


@pytest.mark.parametrize("kept_bytes", [0, 5, 16, 20, 25])
def test_a_message_that_is_cut_short(kept_bytes: int):
    stream = io.BytesIO()
    send(stream, {"key": "value"}, b"load")
    with pytest.raises(EOFError, match=r"^the other end is closed$"):
        receive(io.BytesIO(stream.getvalue()[:kept_bytes]))
