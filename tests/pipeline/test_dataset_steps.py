"""The steps of a data set: tf.data's elements, exact positions, and what is refused."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import AnyTPUError, DataError, SettingError, SettingTypeError

Dataset = tpu.pipeline.Dataset
GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden" / "datasets.json").read_text())
SENTENCES = [[1, 2, 3], [4], [], [5, 6], [7, 8, 9, 10]]


def plain(element: Any) -> Any:
    if isinstance(element, dict):
        return {name: plain(part) for name, part in element.items()}
    if isinstance(element, tuple):
        return [plain(part) for part in element]
    element = element.tolist() if hasattr(element, "tolist") else element
    return element.decode() if isinstance(element, bytes) else element


def elements(dataset: Any) -> list[Any]:
    return [plain(element) for element in dataset]


def evaluated(program: str) -> Any:
    """Return the data set or the number that a program makes, with the names of scripts/golden_datasets.py."""
    names = {
        "Dataset": Dataset,
        "np": np,
        "stream": Dataset.from_generator(lambda: iter(range(10))),
        "sentences": Dataset.from_generator(lambda: (np.array(words, np.int64) for words in SENTENCES)),
        "contents": lambda dataset: sorted(elements(dataset)),
    }
    return eval(program, names)


@pytest.mark.parametrize("program", GOLDEN)
def test_elements_are_those_of_tf_data(program: str):
    result = evaluated(program)
    if not isinstance(result, Dataset):
        assert result == GOLDEN[program]
        return
    assert elements(result) == GOLDEN[program]
    assert elements(result) == GOLDEN[program], "the second pass"
    if result.cardinality() >= 0:
        assert len(result) == len(GOLDEN[program])


RANDOM = (
    "Dataset.range(9).repeat().shuffle(4, seed=3).take(40).batch(3)",
    "Dataset.range(9).shuffle(9, seed=3, reshuffle_each_iteration=False).repeat(2)",
    "Dataset.range(9).shuffle(9, seed=3).skip(2).take(5).repeat(3)",
    "Dataset.zip((Dataset.range(9).shuffle(9, seed=1), stream.shuffle(4, seed=2))).repeat(2)",
    "Dataset.range(9).shuffle(9).concatenate(Dataset.range(5).shuffle(5, seed=1)).repeat(2).batch(4)",
    "Dataset.range(9).shuffle(9).map(lambda x: x + 1).cache().shuffle(9, seed=2).repeat(2)",
    "stream.shuffle(4).cache().repeat(2).shuffle(5)",
    "Dataset.range(4).shuffle(4).interleave(lambda x: Dataset.range(5).shuffle(5, seed=x), 2, 2).repeat(2)",
    "Dataset.range(9).shuffle(9).filter(lambda x: x % 2 == 0).enumerate().repeat(2).batch(2).unbatch()",
    "Dataset.range(9).shuffle(9).random_map(lambda x, random: x + random.random()).take(4).repeat(2)",
)
POSITIONED = [program for program, result in GOLDEN.items() if isinstance(result, list) and "contents" not in program]


@pytest.mark.parametrize("program", [*POSITIONED, *RANDOM])
def test_a_position_is_exact_wherever_it_is_saved(program: str):
    dataset = evaluated(program)
    whole, second = elements(dataset), elements(dataset)
    walk = iter(evaluated(program))
    for done in range(len(whole) + 1):
        position = json.loads(json.dumps(walk.get_state()))
        if done % 3 == 0 or done == len(whole):
            resumed = evaluated(program).resume(position)
            assert elements(resumed) == whole[done:]
            assert elements(resumed) == second, "the pass after it"
        if done < len(whole):
            assert plain(next(walk)) == whole[done]
    walk.close()


def test_endless_elements_are_shuffled_in_windows():
    walk = iter(Dataset.range(6).repeat().shuffle(4, seed=1))
    windows = [[int(next(walk)) for _ in range(4)] for _ in range(6)]
    assert [sorted(window) for window in windows] == [sorted(np.arange(4 * k, 4 * k + 4) % 6) for k in range(6)]
    assert len({tuple(window) for window in windows[::3]}) == 2, "each window has its own order"


def test_an_order_that_is_not_shuffled_again():
    dataset = Dataset.range(20).shuffle(20, seed=4, reshuffle_each_iteration=False)
    first = elements(dataset)
    assert elements(dataset) == first != sorted(first)
    assert elements(dataset.repeat(2)) == first * 2
    assert elements(Dataset.range(20).shuffle(20, seed=4).repeat(2))[20:] != first


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("name", ["", "cache"])
def test_a_cache_computes_each_element_once(tmp_path: Path, name: str, is_stream: bool):
    seen: list[int] = []

    def doubled(number: int) -> int:
        seen.append(number)
        return number * 2

    source = Dataset.from_generator(lambda: iter(range(5))) if is_stream else Dataset.range(5)
    dataset = source.map(doubled).cache(tmp_path / name if name else "")
    for _ in range(3):
        assert elements(dataset) == [0, 2, 4, 6, 8]
    assert sorted(seen) == [0, 1, 2, 3, 4]


def test_a_pass_that_was_left_early_is_not_stored(tmp_path: Path):
    for dataset in (Dataset.from_generator(lambda: iter(range(5))).cache(), Dataset.range(5).cache(tmp_path / "x")):
        walk = iter(dataset)
        next(walk)
        walk.close()
        assert list(tmp_path.iterdir()) == []
        assert elements(dataset) == elements(dataset) == [0, 1, 2, 3, 4]
        assert not list(tmp_path.glob(".*"))


def test_files_are_listed_and_interleaved(tmp_path: Path):
    for name in "bca":
        (tmp_path / name).write_text(f"{name}1\n{name}2\n")
    in_order = Dataset.list_files(f"{tmp_path}/?", shuffle=False)
    assert elements(in_order) == [f"{tmp_path}/{name}" for name in "abc"]
    shuffled = Dataset.list_files(file_pattern=f"{tmp_path}/?", seed=1)
    assert sorted(elements(shuffled)) == elements(in_order)
    assert len({tuple(elements(shuffled)) for _ in range(8)}) > 1
    lines = in_order.interleave(lambda path: Dataset.from_source(tpu.pipeline.lines(path)), cycle_length=2)
    assert elements(lines) == ["a1", "b1", "a2", "b2", "c1", "c2"]


def test_arguments_of_a_generator():
    dataset = Dataset.from_generator(generator=lambda first, last: range(first, last), args=(2, 5))
    assert elements(dataset) == [2, 3, 4]


def test_options_that_change_no_element():
    options = types.SimpleNamespace(
        deterministic=False,
        threading=types.SimpleNamespace(private_threadpool_size=4),
        experimental_distribute=types.SimpleNamespace(auto_shard_policy="AutoShardPolicy.OFF"),
    )
    assert elements(Dataset.range(3).with_options(options).with_options({"autotune.enabled": True})) == [0, 1, 2]


def test_a_step_leaves_the_data_set_unchanged():
    dataset = Dataset.range(5)
    for step in (dataset.take(2), dataset.skip(1), dataset.enumerate(), dataset.cache(), dataset.batch(2)):
        assert step is not dataset
    assert elements(dataset) == [0, 1, 2, 3, 4]
    assert repr(dataset.take(2).concatenate(dataset.cache()).batch(2)) == (
        "Dataset.range(5).take(2).concatenate(range(5).cache()).batch(2)"
    )


def ragged() -> Any:
    return Dataset.from_source([np.zeros(2), np.zeros(3)])


REFUSED = {
    "take": (
        lambda: Dataset.range(3).take(-2),
        "count must be an integer of at least 0, or -1 for all elements, not -2",
    ),
    "skip": (
        lambda: Dataset.range(3).skip(1.5),
        "count must be an integer of at least 0, or -1 for all elements, not 1.5",
    ),
    "range": (lambda: Dataset.range("3"), "an argument of range must be an integer, not '3'"),
    "enumerate": (lambda: Dataset.range(3).enumerate("a"), "start must be an integer, not 'a'"),
    "zip": (
        lambda: Dataset.zip((Dataset.range(3), [1, 2])),
        "zip takes data sets, not 1: make one with Dataset.from_arrays or from_source",
    ),
    "zip of nothing": (
        lambda: Dataset.zip(()),
        "zip takes data sets, not (): make one with Dataset.from_arrays or from_source",
    ),
    "concatenate": (
        lambda: Dataset.range(3).concatenate([1]),
        "concatenate takes data sets, not [1]: make one with Dataset.from_arrays or from_source",
    ),
    "apply": (
        lambda: Dataset.range(3).apply(lambda dataset: None),
        "the function of apply must return a Dataset, not None: end it with return dataset",
    ),
    "flat_map": (
        lambda: elements(Dataset.range(3).flat_map(lambda x: [x])),
        (
            f"the function of flat_map must return a Dataset, not {[np.int64(0)]!r}: for arrays, "
            "Dataset.from_tensor_slices(arrays)"
        ),
    ),
    "flat_map to nothing": (
        lambda: elements(Dataset.range(3).flat_map(lambda x: None)),
        ("the function of flat_map must return a Dataset, not None: for arrays, Dataset.from_tensor_slices(arrays)"),
    ),
    "interleave": (
        lambda: Dataset.range(3).interleave(Dataset.range, cycle_length=0),
        "cycle_length must be an integer of at least 1, not 0",
    ),
    "endless, cached": (
        lambda: Dataset.range(3).repeat().cache(),
        "Dataset.range(3).repeat() is endless, so it cannot be stored: put cache before repeat()",
    ),
    "unbatch of single values": (
        lambda: elements(Dataset.range(3).unbatch()),
        "unbatch takes batches whose columns have the same number of rows, but it has the shape ()",
    ),
    "unbatch of unequal columns": (
        lambda: elements(Dataset.from_source([{"a": np.zeros(2), "b": np.zeros((3, 1))}]).unbatch()),
        (
            "unbatch takes batches whose columns have the same number of rows, but a has the shape (2,), b has the "
            "shape (3, 1)"
        ),
    ),
    "padded too short": (
        lambda: elements(ragged().padded_batch(2, padded_shapes=[2])),
        (
            "it has an element of shape (3,), longer than padded_shapes (2,): use a longer shape, or None for the "
            "longest element of each batch"
        ),
    ),
    "padded, other axes": (
        lambda: elements(ragged().padded_batch(2, padded_shapes=[2, 2])),
        "it has 1 and 2 axes in one batch: padding keeps their number",
    ),
    "padded, other structure": (
        lambda: elements(ragged().padded_batch(2, padding_values={"a": 0, "b": 1})),
        (
            "padding_values must have the structure of an element, PyTreeDef(*), or be a single one, not "
            "{'a': 0, 'b': 1}"
        ),
    ),
    "an unknown option": (
        lambda: Dataset.range(3).with_options({"speed": 3}),
        (
            "with_options does not know the option speed=3; the known ones: deterministic, experimental_deterministic, "
            "autotune, threading, experimental_threading, experimental_optimization, experimental_slack, "
            "experimental_warm_start, experimental_distribute.auto_shard_policy"
        ),
    ),
    "automatic shards": (
        lambda: Dataset.range(3).with_options({"experimental_distribute.auto_shard_policy": "DATA"}),
        (
            "with_options cannot follow experimental_distribute.auto_shard_policy='DATA': call shard(index, count) on "
            "each host"
        ),
    ),
    "nothing to slice": (
        lambda: Dataset.from_tensor_slices(([1, 2], [1, 2, 3])),
        "all arrays must have the same number of rows, but array 0 has 2, array 1 has 3. Cut them to one length",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str):
    make, message = REFUSED[name]
    with pytest.raises(AnyTPUError) as caught:
        make()
    assert str(caught.value) == message
    assert isinstance(caught.value, DataError | SettingError)


def test_texts_are_padded_as_batch_stacks_them():
    texts = Dataset.from_source(["a", "bc"])
    assert [batch.tolist() for batch in texts.padded_batch(2)] == [["a", "bc"]]
    assert [type(item) for batch in texts.padded_batch(2) for item in batch] == [str, str]


def test_a_generator_may_fill_one_array_again():
    def rows():
        row = np.zeros(2, np.int64)
        for value in range(4):
            row[:] = value
            yield row

    dataset = Dataset.from_generator(rows, output_signature="as in tf.data")
    assert [batch.tolist() for batch in dataset.batch(2)] == [[[0, 0], [1, 1]], [[2, 2], [3, 3]]]


def test_a_misspelt_method():
    for name, hint in (("mapp", "; did you mean 'map'?"), ("zzz", "")):
        with pytest.raises(AttributeError) as caught:
            getattr(Dataset.from_arrays(np.arange(3)), name)
        assert str(caught.value) == f"Dataset has no attribute {name!r}{hint}"


def test_a_property_that_fails():
    class Source:
        def __getitem__(self, index: int) -> int:
            return index

        def __len__(self) -> int:
            raise AttributeError("no files yet")

    for read in (len, list):
        with pytest.raises(AttributeError, match=r"^no files yet$"):
            read(Dataset.from_source(Source()))


def test_a_function_of_one_parameter_on_pairs():
    pairs = Dataset.from_arrays((np.arange(3), np.arange(3)))
    with pytest.raises(TypeError) as caught:
        list(pairs.map(lambda x: x / 255))
    assert caught.value.__notes__[0] == (
        "map passed a tuple of 2 parts as one argument: for a part each, give the function one parameter for each "
        "part, such as lambda x, y: ..."
    )
    with pytest.raises(ZeroDivisionError) as caught:
        list(pairs.map(lambda pair: 1 / 0))
    assert not any("parts" in note for note in getattr(caught.value, "__notes__", ()))
    with pytest.raises(SettingTypeError) as refused:
        pairs.map(3)  # pyright: ignore[reportArgumentType]
    assert str(refused.value) == "map takes a function of an element, not 3"
