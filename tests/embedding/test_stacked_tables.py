"""Stacks of tables that are stored as one."""

from __future__ import annotations

from anytpu.embedding import TableConfig
from anytpu.embedding.stacked_tables import stacks_of
from anytpu.errors import SettingError
from error_texts import error_text


def test_a_stack_has_at_most_as_many_rows_as_ids_of_32_bits():
    tables = [TableConfig(800_000_000, 4, name=f"t{number}") for number in range(3)]
    tables.insert(1, TableConfig(10, 8, name="wide"))
    stacks = stacks_of(tables, "sgd")
    assert [stack.name for stack in stacks] == ["t0_t1", "wide", "t2"]
    assert error_text(lambda: stacks_of([TableConfig(2**31, 1, name="huge")], "sgd"), kind=SettingError) == (
        "the table 'huge' has 2,147,483,648 rows, and ids are of 32 bits: a table has at most 2,130,706,432 rows. "
        "Split it into tables of fewer ids, or hash the ids into fewer"
    )
