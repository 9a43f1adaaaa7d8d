from __future__ import annotations

import pytest

from anytpu.files.proto import parse_proto


@pytest.mark.parametrize("line", ["map<int32, bytes> names = 1;", "import public;", "optional int32 x = 1;"])
def test_more_of_the_language_is_refused(line: str):
    with pytest.raises(ValueError, match="cannot read") as caught:
        parse_proto("a.proto", f"message A {{\n  {line}\n}}\n")
    assert str(caught.value) == f"a.proto has a line that files/proto.py cannot read: {line!r}"
