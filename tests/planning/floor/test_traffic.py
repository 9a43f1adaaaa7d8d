from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from anytpu.planning.floor.traffic import read_whole, written_whole
from anytpu.planning.floor.work import alive

W = jax.ShapeDtypeStruct((64,), "float32")
TABLE = jax.ShapeDtypeStruct((100, 64), "float32")
ROWS = jax.ShapeDtypeStruct((3,), "int32")


def read(step: Any, *specs: Any) -> list[bool]:
    return read_whole(alive(jax.make_jaxpr(step)(*specs).jaxpr))


def written(step: Any, *specs: Any) -> list[bool]:
    return written_whole(alive(jax.make_jaxpr(step)(*specs).jaxpr))


def test_what_is_computed_with_is_read():
    assert read(lambda w, unused: w * 2, W, W) == [True, False]
    assert read(jax.jit(lambda w, unused: w * 2), W, W) == [True, False]


def test_what_only_passes_is_neither_read_nor_written():
    assert read(lambda w: (w, w.reshape(8, 8)), W) == [False]
    assert written(lambda w: (w, w + 1), W) == [False, True]


def test_the_same_result_twice_is_written_once():
    def step(w: Any) -> Any:
        doubled = w * 2
        return doubled, doubled

    assert written(step, W) == [True, False]


def test_a_table_from_which_rows_are_gathered_is_not_read_whole():
    assert read(lambda table, rows: table[rows], TABLE, ROWS) == [False, True]
    assert read(lambda table, rows: jnp.take(table.astype("bfloat16"), rows, axis=0) * 2, TABLE, ROWS) == [False, True]

    def train(table: Any, rows: Any) -> Any:
        return table - jax.grad(lambda table: (table[rows] ** 2).sum())(table)

    assert read(train, TABLE, ROWS) == [True, True]
    assert written(train, TABLE, ROWS) == [True]


def test_a_cache_that_is_updated_in_place_is_neither():
    def store(cache: Any, row: Any) -> Any:
        return lax.dynamic_update_slice(cache, row[None], (7, 0))

    assert (read(store, TABLE, W), written(store, TABLE, W)) == ([False, True], [False])

    def attend(cache: Any, row: Any) -> Any:
        cache = store(cache, row)
        return cache, cache @ row

    assert (read(attend, TABLE, W), written(attend, TABLE, W)) == ([True, True], [False, True])


def test_a_loop_reads_what_its_body_reads():
    def step(tables: Any, row: Any) -> Any:
        return lax.scan(lambda carry, table: (carry + table @ row, None), jnp.zeros(100), tables)[0]

    assert read(step, jax.ShapeDtypeStruct((5, 100, 64), "float32"), W) == [True, True]


def test_nothing_is_known_of_branches():
    def step(flag: Any, w: Any) -> Any:
        return lax.cond(flag, lambda w: w * 2, lambda w: w, w)

    flag = jax.ShapeDtypeStruct((), "bool")
    assert (read(step, flag, W), written(step, flag, W)) == ([False, False], [False])
