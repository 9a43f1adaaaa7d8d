"""Groups of tables that are stored as one."""

from __future__ import annotations

import pytest

from anytpu.embedding import TableConfig
from anytpu.embedding.stacked_tables import groups_of
from anytpu.errors import SettingError


def test_a_group_has_at_most_as_many_rows_as_ids_of_32_bits():
    tables = [TableConfig(800_000_000, 4, name=f"t{number}") for number in range(3)]
    tables.insert(1, TableConfig(10, 8, name="wide"))
    groups = groups_of(tables, "sgd")
    assert [group.name for group in groups] == ["t0_t1", "wide", "t2"]
    with pytest.raises(SettingError) as caught:
        groups_of([TableConfig(2**31, 1, name="huge")], "sgd")
    assert str(caught.value) == (
        "the table 'huge' has 2,147,483,648 rows, and ids are of 32 bits: a table has at most 2,130,706,432 rows. "
        "Split it into tables of fewer ids, or hash the ids into fewer"
    )
