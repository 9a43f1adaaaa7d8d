"""`Dataset`: its steps, its passes, its positions, and what it refuses."""

from __future__ import annotations

import gc
import itertools
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anytpu as tpu
from anytpu.errors import AnyTPUError, DataError, SettingError

Dataset = tpu.pipeline.Dataset
ROWS = np.arange(23)


class Squares:
    """A source with a length that can be indexed, and nothing else."""

    def __len__(self):
        return 23

    def __getitem__(self, index):
        return index**2


def numbers():
    yield from range(23)


def plain(dataset: Any) -> list[Any]:
    return [np.asarray(element).tolist() for element in dataset]


def flat(lists: Any) -> list[Any]:
    return list(itertools.chain.from_iterable(lists))


def doubled(row: Any) -> Any:
    return 2 * row


def is_small(row: Any) -> bool:
    return bool(row < 30)


def shaken(row: Any, random: np.random.Generator) -> Any:
    return row + random.random()


def order_of(seed: int, number: int) -> np.ndarray:
    """The order of the rows that a shuffle promises: that of its seed and of the pass."""
    return np.random.default_rng((seed, number)).permutation(23)


DATASETS = {
    "arrays": lambda: Dataset.from_arrays(ROWS).shuffle(seed=5).batch(4),
    "arrays, repeated": lambda: Dataset.from_arrays(ROWS).shuffle(seed=5).repeat(3).batch(4, drop_remainder=True),
    "batches, shuffled": lambda: Dataset.from_arrays(ROWS).batch(4).shuffle(seed=1).repeat(2),
    "mapped": lambda: Dataset.from_arrays(ROWS).shuffle(seed=2).map(doubled).batch(4).prefetch(3, threads=2),
    "random": lambda: Dataset.from_source(Squares()).shuffle(seed=2).random_map(shaken, seed=7).batch(4).repeat(2),
    "filtered": lambda: Dataset.from_arrays(ROWS).shuffle(seed=3).map(doubled).filter(is_small).batch(4).repeat(2),
    "filtered, shard": lambda: (
        Dataset.from_arrays(ROWS).shuffle(seed=3).filter(is_small).shard(1, 2).batch(2).repeat(2)
    ),
    "list": lambda: Dataset.from_source(list(range(23))).shard(1, 3).shuffle(seed=9).repeat(2).batch(2),
    "generator": lambda: Dataset.from_generator(numbers).shuffle(6, seed=4).batch(4).repeat(3).prefetch(2),
    "generator, shard": lambda: Dataset.from_generator(numbers).shard(1, 3).random_map(shaken).repeat(2).batch(4),
    "iterable": lambda: Dataset.from_source(dict.fromkeys(range(23)).keys()).map(doubled).batch(4).prefetch(0),
}


@pytest.mark.parametrize("name", DATASETS)
def test_passes_lengths_and_positions(name: str):
    dataset = DATASETS[name]()
    whole, second = plain(dataset), plain(dataset)
    if name == "iterable" or name.startswith(("filtered", "generator")):
        with pytest.raises(TypeError) as caught:
            len(dataset)
        assert str(caught.value) == f"{dataset!r} has no length: its number of elements is known only after a pass"
    else:
        assert len(dataset) == len(whole)
    assert len(second) == len(whole)
    if "random" not in name and "shard" not in name and "repeated" not in name:
        assert sorted(flat(whole)) == sorted(flat(second))
    if "iterable" not in name:
        assert whole != second, "the second pass is in another order, or of other random numbers"
    walk = iter(DATASETS[name]())
    for done in range(len(whole) + 1):
        if done % 3 == 0 or done == len(whole):
            position = json.loads(json.dumps(walk.get_state()))
            assert plain(DATASETS[name]().resume(position)) == whole[done:]
        assert done == len(whole) or np.asarray(next(walk)).tolist() == whole[done]


@pytest.mark.parametrize("name", ["arrays", "filtered", "generator"])
def test_a_walk_can_be_set_to_a_position(name: str):
    dataset = DATASETS[name]()
    plain(dataset)
    walk = iter(dataset)
    next(walk)
    position, rest = walk.get_state(), plain(walk)
    assert position["pass"] == 1
    other = iter(DATASETS[name]())
    other.set_state(position)
    assert plain(other) == rest
    other.set_state(position)
    assert plain(other) == rest


@settings(max_examples=40)
@given(
    rows=st.integers(1, 40),
    batch=st.integers(1, 9),
    repeat=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
    drop=st.booleans(),
    data=st.data(),
)
def test_positions_of_all_sizes(rows: int, batch: int, repeat: int, seed: int, drop: bool, data: Any):
    dataset = Dataset.from_arrays({"row": np.arange(rows)}).shuffle(seed=seed).repeat(repeat).batch(batch, drop)
    whole = [element["row"].tolist() for element in dataset]
    assert len(whole) == (rows * repeat // batch if drop else -(-rows * repeat // batch))
    if not drop:
        assert sorted(flat(whole)) == sorted(list(range(rows)) * repeat)
    walk = iter(Dataset(dataset._recipe))
    done = data.draw(st.integers(0, len(whole)))
    assert [next(walk)["row"].tolist() for _ in range(done)] == whole[:done]
    rest = Dataset(dataset._recipe).resume(json.loads(json.dumps(walk.get_state())))
    assert [element["row"].tolist() for element in rest] == whole[done:]


@settings(max_examples=30)
@given(rows=st.integers(1, 30), count=st.integers(1, 5), is_stream=st.booleans())
def test_shards_are_disjoint_and_whole(rows: int, count: int, is_stream: bool):
    whole = (
        Dataset.from_generator(lambda: iter(range(rows)), rows) if is_stream else Dataset.from_arrays(np.arange(rows))
    )
    shards = [whole.shard(index, count).prefetch(0) for index in range(count)]
    assert sorted(flat(map(plain, shards))) == list(range(rows))
    assert [len(shard) for shard in shards] == [len(plain(shard)) for shard in shards]


def is_even(row: Any) -> bool:
    return row % 2 == 0


@pytest.mark.parametrize("source", ["arrays", "list", "generator"])
def test_shards_of_what_a_filter_left(source: str):
    def left():
        make = {"arrays": Dataset.from_arrays, "list": Dataset.from_source}.get(source)
        return (make(ROWS) if make else Dataset.from_generator(numbers)).filter(is_even)

    evens = list(range(0, 23, 2))
    assert [plain(left().shard(index, 5)) for index in range(5)] == [evens[index::5] for index in range(5)]
    assert plain(left().repeat(2).shard(1, 5)) == (evens * 2)[1::5]
    assert plain(left().shard(1, 2).repeat(2).batch(4)) == [[2, 6, 10, 14], [18, 22, 2, 6], [10, 14, 18, 22]]


def test_the_shard_of_a_host_is_its_own():
    assert plain(Dataset.from_arrays(ROWS).shard().batch(23)) == [ROWS.tolist()], "one process, one shard"


def test_rows_taken_late_are_those_of_grain():
    import grain

    orders = [order_of(5, number)[1::2] for number in range(2)]
    expected = [b.tolist() for b in grain.MapDataset.source(ROWS[np.concatenate(orders)].tolist()).batch(4)]
    assert plain(Dataset.from_arrays(ROWS).shuffle(seed=5).shard(1, 2).repeat(2).batch(4)) == expected


@pytest.mark.parametrize("source", [ROWS, list(range(23))])
def test_an_order_is_that_of_its_seed_and_pass(source: Any):
    make = Dataset.from_arrays if source is ROWS else Dataset.from_source
    dataset = make(source).shuffle(seed=5)
    passes = [plain(dataset) for _ in range(3)]
    assert passes == [order_of(5, number).tolist() for number in range(3)]
    assert plain(make(source).shuffle(seed=5).repeat(3)) == flat(passes), "repeated passes have these orders too"
    assert plain(make(source).shuffle(seed=6)) not in passes


def test_a_shuffle_of_shuffled_passes():
    dataset = Dataset.from_arrays(ROWS).shuffle(seed=1).repeat(9)
    whole = np.array(plain(dataset))
    order = np.random.default_rng((4, 0)).permutation(9 * 23)
    assert plain(Dataset.from_arrays(ROWS).shuffle(seed=1).repeat(9).shuffle(seed=4)) == whole[order].tolist()


def test_windows_of_a_stream_have_orders_of_their_own():
    passes = Dataset.from_generator(lambda: iter(range(20))).shuffle(8, seed=5)
    for number in range(2):
        windows = [np.arange(start, min(start + 8, 20)) for start in (0, 8, 16)]
        orders = [np.random.default_rng((5, number, place)).permutation(len(w)) for place, w in enumerate(windows)]
        assert plain(passes) == flat(w[order].tolist() for w, order in zip(windows, orders, strict=True))


def test_a_window_that_ends_with_its_stream():
    dataset = Dataset.from_generator(lambda: iter(range(16))).prefetch(2).shuffle(8)
    walk = iter(dataset)
    assert sorted(next(walk) for _ in range(16)) == list(range(16))
    position = walk.get_state()
    assert plain(walk) == plain(walk) == []
    assert plain(dataset.resume(position)) == plain(dataset.resume(walk.get_state())) == []


def test_batches_are_trees_of_arrays():
    rows = [{"image": np.ones((2, 2), np.uint8), "name": "a", "file": b"x\0", "label": 3}]
    (batch,) = Dataset.from_source(rows * 2).batch(2)
    assert batch["image"].shape == (2, 2, 2)
    assert batch["image"].dtype == np.uint8
    assert batch["name"].tolist() == ["a", "a"]
    assert batch["file"].tolist() == [b"x\0", b"x\0"], "zero bytes at the end of a string stay"
    assert batch["label"].tolist() == [3, 3]


def test_a_walk_left_early_is_begun_again():
    dataset = Dataset.from_arrays(ROWS).shuffle(seed=1).batch(4)
    first = next(iter(dataset)).tolist()
    assert next(iter(dataset)).tolist() == first
    assert plain(dataset)[0] == first
    assert next(iter(dataset)).tolist() != first


@pytest.mark.parametrize("name", ["mapped", "generator", "filtered"])
def test_a_walk_left_early_leaves_no_thread(name: str):
    before = set(threading.enumerate())
    walk = iter(DATASETS[name]())
    next(walk)
    threads = set(threading.enumerate()) - before
    assert threads
    del walk
    gc.collect()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def test_a_walk_that_was_closed():
    walk = iter(Dataset.from_arrays(ROWS).map(doubled).batch(4))
    next(walk)
    walk.close()
    walk.close()
    with pytest.raises(ValueError, match="closed"):
        next(walk)


def test_what_has_no_end():
    dataset = Dataset.from_arrays(ROWS).repeat().batch(5)
    walk = iter(dataset)
    assert sum(len(next(walk)) for _ in range(100)) == 500
    with pytest.raises(TypeError) as caught:
        len(dataset)
    assert str(caught.value) == "Dataset.from_arrays(23 rows).repeat().batch(5) has no length: it is endless"
    assert dataset


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_records(tmp_path: Path, compression: str | None):
    contents = [bytes([number] * number) for number in range(23)]
    tpu.pipeline.write_records(tmp_path / "rows.tfrecord", contents, shards=3, compression=compression)
    source = tpu.pipeline.records(str(tmp_path / "rows*"), compression=compression)

    def build():
        return Dataset.from_source(source).shuffle(10, seed=1).map(len).batch(5).repeat(2)

    whole = plain(build())
    assert sorted(flat(whole)) == sorted([*range(23)] * 2)
    walk = iter(build())
    assert [next(walk).tolist() for _ in range(7)] == whole[:7]
    assert plain(build().resume(walk.get_state())) == whole[7:]
    batch = next(iter(Dataset.from_source(source).batch(4)))
    assert all(record in contents for record in batch)


def test_an_error_of_a_function_comes_out_as_it_is():
    def fail(row):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        next(iter(Dataset.from_arrays(ROWS).map(fail).batch(2)))


def unequal():
    yield from (np.zeros(2), np.zeros(3))


def differing():
    yield from ({"a": 1}, {"b": 1})


MADE = numbers()
REFUSED = {
    "a generator for its function": (
        lambda: Dataset.from_generator(MADE),  # pyright: ignore[reportArgumentType]
        (
            f"from_generator must get the function itself, which it calls for each pass, not {MADE!r}: "
            "Dataset.from_generator(batches), not Dataset.from_generator(batches())"
        ),
    ),
    "a generator": (
        lambda: Dataset.from_source(MADE),
        (
            f"{MADE!r} can be iterated only once, and a data set is iterated once per epoch: pass the object that "
            "it was made from, or Dataset.from_generator(function) with the function that makes it"
        ),
    ),
    "a path": (
        lambda: Dataset.from_source("flowers.tfrecord"),
        (
            "'flowers.tfrecord' is a path, not a source of elements. Pass a reader of the file: "
            "Dataset.from_source(tpu.pipeline.records('flowers.tfrecord')), or tpu.pipeline.lines(...) for text"
        ),
    ),
    "no rows": (
        lambda: Dataset.from_arrays(np.zeros((0, 2))),
        "there is nothing to read: it has 0 rows. Pass at least one row",
    ),
    "no array": (lambda: Dataset.from_arrays({}), "there is nothing to read: no array. Pass at least one row"),
    "lengths": (
        lambda: Dataset.from_arrays({"x": np.zeros(3), "y": np.zeros(2)}),
        "all arrays must have the same number of rows, but x has 3, y has 2. Cut them to one length",
    ),
    "single value": (
        lambda: Dataset.from_arrays((np.zeros(2), 1.5)),
        (
            "from_arrays takes arrays whose first axis is the rows, and 1 is the scalar 1.5: pass lists of values "
            "as np.array([...])"
        ),
    ),
    "no source": (
        lambda: Dataset.from_source(3),
        (
            "a source must have a length and an index, or be iterable, and 3 is neither: pass a list, "
            "tpu.pipeline.records(...), or an object with __len__ and __getitem__"
        ),
    ),
    "rows": (lambda: Dataset.from_arrays(ROWS).batch(0), "rows must be an integer of at least 1, not 0"),
    "seed": (
        lambda: Dataset.from_arrays(ROWS).shuffle(seed=-1),
        "seed must be an integer from 0 to 4294967295, not -1",
    ),
    "stream, whole": (
        lambda: Dataset.from_generator(numbers).shuffle(),
        (
            "Dataset.from_generator(numbers) is a stream, which cannot be shuffled as a whole: pass the size of "
            "the window, shuffle(1000), or shuffle before filter, batch and prefetch"
        ),
    ),
    "endless, shuffled": (
        lambda: Dataset.from_arrays(ROWS).repeat().shuffle(),
        (
            "Dataset.from_arrays(23 rows).repeat() is endless, so it cannot be shuffled as a whole: shuffle before "
            "repeat(), or pass the size of the window, shuffle(1000)"
        ),
    ),
    "shard": (
        lambda: Dataset.from_arrays(ROWS).shard(2, 2),
        "index must be an integer from 0 to 1, for 2 shards, not 2",
    ),
    "workers of a stream": (
        lambda: Dataset.from_generator(numbers).prefetch(workers=2),
        (
            "workers divide elements by index, and Dataset.from_generator(numbers) is a stream: put "
            "prefetch(workers=2) before filter, on a source that can be indexed, or omit workers"
        ),
    ),
    "workers after filter": (
        lambda: Dataset.from_arrays(ROWS).filter(is_small).prefetch(workers=2),
        (
            "workers divide elements by index, and Dataset.from_arrays(23 rows).filter() is filtered: put "
            "prefetch(workers=2) before filter, on a source that can be indexed, or omit workers"
        ),
    ),
    "None": (
        lambda: next(iter(Dataset.from_arrays(ROWS).map(print).batch(2))),
        (
            "the function 'print' of map returned None for an element: return the new element; to drop elements, "
            "use filter"
        ),
    ),
    "shapes": (
        lambda: next(iter(Dataset.from_generator(unequal).batch(2))),
        (
            "it has elements of different shapes in one batch, (2,) and (3,): convert them to one shape in map, "
            "such as by tpu.pipeline.resize for images, or pad sequences with padded_batch. For ids of an embedding "
            "table: tpu.embedding.pad_ids"
        ),
    ),
    "columns": (
        lambda: next(iter(Dataset.from_generator(differing).batch(2))),
        (
            "element 1 of a batch has other columns than its first: b, not a. Return the same columns for every "
            "element in map"
        ),
    ),
    "another data set": (
        lambda: Dataset.from_arrays(ROWS).shuffle(seed=1).resume(iter(Dataset.from_arrays(ROWS)).get_state()),
        (
            "the position was saved from another data set, from_arrays(23 rows); this is from_arrays(23 "
            "rows).shuffle(seed=1). Build the data set with the same steps, seeds and sizes"
        ),
    ),
    "no position": (
        lambda: Dataset.from_arrays(ROWS).resume({"step": 3}),  # pyright: ignore[reportArgumentType]
        "a position must be the result of get_state() of a data set's iterator, not {'step': 3}",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.usefixtures("capsys")
def test_what_is_refused(name: str):
    make, message = REFUSED[name]
    with pytest.raises(AnyTPUError) as caught:
        make()
    assert str(caught.value) == message
    assert isinstance(caught.value, DataError | SettingError)


def test_an_endless_data_set_stays_endless_when_it_is_repeated():
    endless = Dataset.from_arrays(ROWS).repeat()
    for again in (endless.repeat(), endless.repeat(2), endless.repeat(-1)):
        assert again.is_endless
        first, second = (iter(dataset) for dataset in (endless, again))
        assert [next(first) for _ in range(30)] == [next(second) for _ in range(30)]
