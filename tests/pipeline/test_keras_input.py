"""`fit`, `evaluate` and `predict` on a `Dataset`: the numbers of plain Keras, and strings on the host."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import DataError, SettingError
from keras_oracle import agrees, classifier, close, compiled, rows

Dataset = tpu.pipeline.Dataset
X, Y = rows()
WEIGHTS = np.linspace(0.5, 2.0, len(X)).astype("float32")
NAMES = np.array([f"row {number}" for number in range(len(X))])


def pairs():
    return Dataset.from_arrays((X, Y))


DATASETS = {
    "arrays": lambda: {"x": pairs().batch(8)},
    "shuffled": lambda: {"x": pairs().shuffle(seed=3).batch(8)},
    "weighted": lambda: {"x": Dataset.from_arrays((X, Y, WEIGHTS)).batch(7)},
    "class weights": lambda: {"x": pairs().batch(8), "class_weight": {0: 1.0, 1: 3.0, 2: 0.5}},
    "generator": lambda: {"x": Dataset.from_generator(lambda: zip(X, Y, strict=True), len(X)).batch(8)},
    "endless": lambda: {"x": pairs().shuffle(seed=3).repeat().batch(8), "steps_per_epoch": 3},
    "strings": lambda: {"x": Dataset.from_arrays((X, Y, NAMES)).batch(8)},
    "validation": lambda: {"x": X, "y": Y, "batch_size": 8, "validation_data": pairs().batch(5)},
}


@pytest.mark.parametrize("name", DATASETS)
def test_fit_agrees_with_keras(name: str):
    agrees(classifier, lambda model: model.fit(epochs=2, verbose=0, **DATASETS[name]()))


def test_fit_sees_what_walks_give():
    def fit(data: Any, **arguments: Any) -> list[float]:
        keras.utils.set_random_seed(7)
        with tpu.connect("virtual", cores=2).scope():
            model = classifier()
        return model.fit(data, epochs=2, shuffle=False, verbose=0, **arguments).history["loss"]

    def shuffled():
        return pairs().shuffle(seed=3).batch(8)

    walked = shuffled()
    passes = [*walked, *walked]
    assert fit(shuffled()) == fit((batch for batch in passes), steps_per_epoch=6)
    assert fit(shuffled()) != fit((batch for batch in passes[:6] * 2), steps_per_epoch=6), "each epoch in its own order"


def test_evaluate_and_predict_agree_with_keras():
    agrees(
        classifier,
        lambda model: (model.evaluate(pairs().batch(8), verbose=0), model.predict(pairs().batch(8), verbose=0)),
    )


def filtered():
    return pairs().filter(lambda row: row[1] != 0).batch(8)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # Keras, wherever it does not know a length
def test_a_length_that_only_a_walk_can_tell():
    agrees(classifier, lambda model: model.fit(filtered(), epochs=2, verbose=0))
    agrees(classifier, lambda model: model.predict(filtered(), verbose=0))


def test_the_epochs_go_on_where_a_position_was_saved():
    whole = pairs().shuffle(seed=3).batch(8)
    walk = iter(whole)
    taken = [next(walk) for _ in range(2)]
    rest = pairs().shuffle(seed=3).batch(8).resume(walk.get_state())
    assert rest.left == len(rest) - 2
    with tpu.connect("virtual", cores=2).scope():
        model = classifier()
    for x, y in taken:
        model.train_on_batch(x, y)
    model.fit(rest, epochs=1, verbose=0)
    assert model.optimizer.iterations == len(whole)
    assert rest.left == len(rest), "the pass that was resumed is over"


def test_strings_stay_on_the_host(capsys: pytest.CaptureFixture[str]):
    with tpu.connect("virtual", cores=2).scope():
        model = classifier()
    test = Dataset.from_arrays({"x": X, "id": NAMES}).shuffle(seed=1).map(lambda row: (row["x"], row["id"])).batch(8)
    capsys.readouterr()
    predictions = model.predict(test, verbose=0)
    assert capsys.readouterr().err == (
        "anytpu: the column '1' remains on the host: cores do not compute with strings. dataset.on_host('1') "
        "returns it, row by row.\n"
    )
    ids = test.on_host("1")
    assert sorted(ids) == sorted(NAMES)
    order = [int(name.split()[1]) for name in ids]
    close(predictions, model.predict(X[order], verbose=0))
    model.predict(test, verbose=0)
    assert capsys.readouterr().err == "", "said once"
    assert test.on_host("1").tolist() != ids.tolist(), "the ids of the pass that was walked last"


def test_strings_stay_on_the_host_of_a_loop_of_ones_own():
    strategy = tpu.connect("virtual", cores=2)
    dataset = Dataset.from_arrays({"x": X, "id": NAMES}).batch(8)
    sums = [
        strategy.reduce("SUM", strategy.run(lambda batch: batch["x"].sum(), args=(batch,)))
        for batch in strategy.distribute_dataset(dataset)
    ]
    assert float(sum(sums)) == pytest.approx(float(X.sum()), rel=1e-4)
    assert dataset.on_host("id").tolist() == NAMES.tolist()


def test_strings_of_a_length_that_is_not_known_are_read_again():
    def elements():
        yield from ({"x": x, "id": name} for x, name in zip(X, NAMES, strict=True))

    walked = []
    test = Dataset.from_generator(elements).map(lambda row: walked.append(0) or row).batch(8)
    assert sum(len(batch["x"]) for batch in test.numbers()) == len(X)
    assert test.on_host("id").tolist() == NAMES.tolist()
    assert len(walked) == 2 * len(X)


def test_columns_that_are_not_there():
    dataset = Dataset.from_arrays({"x": X, "id": NAMES}).batch(8)
    with pytest.raises(DataError) as caught:
        dataset.on_host("name")
    assert str(caught.value) == f"{dataset!r} has no string column 'name'; its string columns: 'id'"
    with pytest.raises(DataError) as caught:
        dataset.repeat().on_host("id")
    assert str(caught.value) == (
        "Dataset.from_arrays(48 rows).batch(8).repeat() is endless, and so are its columns: call on_host of "
        "the data set before repeat()"
    )


ENDLESS = (
    "Dataset.from_arrays(48 rows).repeat().batch(8) is endless: pass steps_per_epoch (for validation data "
    "validation_steps; to evaluate and predict, steps), or remove repeat()"
)
REFUSED = {
    "endless": (lambda model: model.fit(pairs().repeat().batch(8)), SettingError, ENDLESS),
    "endless predict": (lambda model: model.predict(pairs().repeat().batch(8)), SettingError, ENDLESS),
    "rows": (
        lambda model: model.fit(pairs()),
        DataError,
        (
            "Dataset.from_arrays(48 rows) yields single rows, but Keras needs batches: Dataset.from_arrays(48 "
            "rows).batch(32)"
        ),
    ),
    "y": (
        lambda model: model.fit(pairs().batch(8), Y),
        DataError,
        (
            "y must be None when x is a Dataset: its batches are x, (x, y) or (x, y, sample_weight). Include it in "
            "the batches, with Dataset.from_arrays((x, y)) or with map"
        ),
    ),
    "four": (
        lambda model: model.fit(Dataset.from_arrays((X, Y, Y, Y)).batch(8)),
        DataError,
        "a batch must be x, (x, y) or (x, y, sample_weight), not a tuple of 4: return one of those in map",
    ),
    "two weights": (
        lambda model: model.fit(Dataset.from_arrays((X, Y, WEIGHTS)).batch(8), class_weight={0: 1.0}),
        SettingError,
        "class_weight cannot be combined with the sample_weight of the batches: remove one of them",
    ),
    "only strings": (
        lambda model: model.predict(Dataset.from_arrays({"id": NAMES}).batch(8)),
        DataError,
        (
            "all columns hold strings (id), and cores cannot compute with strings: decode or parse them first, "
            "with .map(...)"
        ),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("place", ["keras", "virtual"])
def test_what_is_refused(name: str, place: str):
    use, kind, message = REFUSED[name]
    if place == "keras":
        model = compiled(keras.Sequential([keras.layers.Dense(3)]))
    else:
        with tpu.connect("virtual", cores=2).scope():
            model = compiled(keras.Sequential([keras.layers.Dense(3)]))
    with pytest.raises(kind) as caught:
        use(model)
    assert str(caught.value) == message
