from __future__ import annotations

from anytpu.planning.records.quoting import quoted


def test_what_is_long_is_cut():
    assert quoted("v" * 81) == repr("v" * 80 + "...")
    assert quoted([1] * 100) == repr([1] * 100)[:80] + "..."
    assert quoted(7) == "7"
