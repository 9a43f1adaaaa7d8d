"""Rows of embedding tables in layouts."""

from __future__ import annotations

import pytest

from anytpu.sharding import resolve, with_tables

ALL = (("data", "model"), ())


@pytest.mark.parametrize("layout", ["data", "fsdp", {"kernel": (None, "model")}, lambda name, shape: None])
def test_rows_are_split_over_all_cores(layout):
    split = with_tables(resolve(layout, {"data": 4, "model": 2}, 8), ["items/embeddings"])
    assert split.spec_of("items/embeddings", (1024, 6)) == ALL
    # The cores do not divide the rows: whole, and not split by columns.
    assert not split.spec_of("items/embeddings", (1001, 4096))


def test_a_rule_of_the_user_stands():
    layout = resolve({"embeddings": (None, "model")}, {"data": 4, "model": 2}, 8)
    assert with_tables(layout, ["items/embeddings"]).spec_of("items/embeddings", (1024, 6)) == ((), ("model",))
    assert with_tables(layout, []) is layout
