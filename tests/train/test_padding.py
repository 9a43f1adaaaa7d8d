"""Sequences of many lengths: the same numbers as plain Keras unpadded on one device, in few programs if masked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import anytpu as tpu
from anytpu.errors import DataError, SettingError
from anytpu.train.own_masks import NotPaddable, pads_of
from anytpu.train.padding import Padding, rows_of
from keras_oracle import close

pytestmark = [
    pytest.mark.filterwarnings("ignore:Your input ran out of data"),
    pytest.mark.filterwarnings("ignore:Layer .* does not support masking"),
]

WORDS, ROWS = 30, 6
LENGTHS = (10, 7, 13, 5)


def strategy(cores: int = 4) -> Any:
    return tpu.TPUDistributionStrategy(tpu.TPUClusterResolver("virtual", cores=cores))


def sequential(make: Callable[[], list[Any]], shape: tuple = (None,), **settings: Any) -> Any:
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input(shape), *make()])
    usual = {"optimizer": keras.optimizers.SGD(0.1, momentum=0.9), "loss": "mse", "metrics": ["mae"]}
    model.compile(**{**usual, **settings})
    return model


def words(mask_zero: bool = True) -> Any:
    return layers.Embedding(WORDS, 6, mask_zero=mask_zero)


def lstm(mask_zero: bool = True) -> Any:
    return sequential(lambda: [words(mask_zero), layers.LSTM(5), layers.Dense(1)])


def two_way() -> Any:
    keras.utils.set_random_seed(3)
    first = layers.LSTM(5, return_sequences=True, dropout=0.2)
    return sequential(
        lambda: [words(), layers.Bidirectional(first), layers.Bidirectional(layers.GRU(4)), layers.Dense(1)]
    )


def masking() -> Any:
    return sequential(lambda: [layers.Masking(0.5), layers.SimpleRNN(4), layers.Dense(1)], (None, 6))


def averaging() -> Any:
    parts = [layers.Dense(5, activation="relu"), layers.SpatialDropout1D(0.3), layers.LayerNormalization()]
    return sequential(lambda: [words(), *parts, layers.GlobalAveragePooling1D(), layers.Dense(1)])


def joining() -> Any:
    keras.utils.set_random_seed(3)
    ids = keras.Input((None,))
    seen = layers.BatchNormalization()(words()(ids))
    seen = layers.Concatenate()([layers.GRU(4, return_sequences=True)(seen), layers.Add()([seen, seen])])
    model = keras.Model(ids, layers.Dense(1)(layers.LSTM(3)(seen)))
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    return model


def unmasked() -> Any:
    return lstm(mask_zero=False)


def dropping() -> Any:
    return sequential(lambda: [words(), layers.Dropout(0.4), layers.GRU(4), layers.Dense(1)])


def stepwise() -> Any:
    return sequential(lambda: [words(), layers.GRU(4, return_sequences=True), layers.Dense(1)])


def batches(make: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    ones = []
    for length in LENGTHS:
        x: Any = rng.integers(0, WORDS, (ROWS, length)).astype("int32")
        if make is masking:
            x = np.where(rng.random((ROWS, length, 1)) > 0.3, rng.normal(size=(ROWS, length, 6)), 0.5).astype("float32")
        shape = (ROWS, length, 1) if make is stepwise else (ROWS, 1)
        ones.append((x, rng.normal(size=shape).astype("float32")))
    return ones


def walk(ones: list[Any]) -> Iterator[Any]:
    yield from ones


@pytest.mark.filterwarnings("ignore:.* is compiled anew")
@pytest.mark.parametrize(
    ("make", "programs"),
    # A model that masks: the first length as it is, 7 and 5 in 8 steps, 13 in 16. Another: each length.
    [(lstm, 3), (two_way, 3), (masking, 3), (averaging, 3), (joining, 3), (unmasked, 4), (dropping, 4), (stepwise, 4)],
)
def test_sequences_of_many_lengths_train_as_in_plain_keras(make: Any, programs: int):
    ones, plain, place = batches(make), make(), strategy()
    model = tpu.keras_to_tpu_model(plain, place)

    ours, theirs = (trained.fit(walk(ones), shuffle=False, verbose=0).history for trained in (model, plain))

    close(ours, theirs)
    close(*([np.array(weight.value) for weight in both.weights] for both in (model, plain)))
    assert place.strategy.compilations == programs
    x = ones[1][0]
    close(model.predict(x, verbose=0), np.array(plain(x)))
    assert model.predict(x, verbose=0).shape == plain(x).shape
    close(model.evaluate(walk(ones), verbose=0), plain.evaluate(walk(ones), verbose=0))


def test_forty_lengths_take_four_programs():
    place = strategy()
    model = tpu.keras_to_tpu_model(lstm(), place)
    rng = np.random.default_rng(1)
    sizes = [20, *rng.permutation(np.arange(1, 41))]
    ones = [(rng.integers(0, WORDS, (ROWS, n)), np.ones((ROWS, 1), "float32")) for n in sizes]
    model.fit(walk(ones), shuffle=False, verbose=0)
    assert place.strategy.compilations == 5  # 20 as it is, and 8, 16, 32, 64
    for x, _ in ones[:20]:
        model.predict(x, verbose=0)
    assert place.strategy.compilations == 10


def test_the_numbers_of_steps_may_be_given():
    place = strategy()
    model = tpu.keras_to_tpu_model(lstm(), place, lengths=(30, 15))
    ones = [(np.ones((ROWS, n), "int32"), np.ones((ROWS, 1), "float32")) for n in (40, 3, 15, 16, 30, 31)]
    model.fit(walk(ones), shuffle=False, verbose=0)
    assert place.strategy.compilations == 4  # 40 as it is, 15, 30, and 32 for 31
    with pytest.raises(SettingError) as caught:
        tpu.keras_to_tpu_model(lstm(), place, lengths=(0, 20))
    assert str(caught.value) == "lengths must be positive integers, such as (50, 100, 200), not (0, 20)"


def test_on_the_twin_whose_handles_open_only_by_get():
    ones, plain = batches(lstm), lstm()
    model = tpu.keras_to_tpu_model(plain, tpu.TPUDistributionStrategy(tpu.TPUClusterResolver("twin", cores=2)))
    close(*(trained.fit(walk(ones), shuffle=False, verbose=0).history for trained in (model, plain)))
    close(model.predict(ones[1][0], verbose=0), np.array(plain(ones[1][0])))


def ragged() -> tuple[list[list[int]], np.ndarray]:
    rng = np.random.default_rng(2)
    return [rng.integers(1, WORDS, n).tolist() for n in (3, 12, 2, 3, 12, 9)], rng.normal(size=6).astype("float32")


def one_by_one(model: Any, x: list[list[int]]) -> np.ndarray:
    return np.concatenate([np.array(model(np.array([row]))) for row in x])


def as_objects(x: list[list[int]]) -> np.ndarray:
    objects = np.empty(len(x), object)
    objects[:] = x
    return objects


@pytest.mark.parametrize(("make", "form"), [(lstm, list), (two_way, as_objects), (averaging, rows_of)])
def test_rows_of_different_lengths_sample_by_sample(make: Any, form: Any):
    x, y = ragged()
    plain = make()
    model = tpu.keras_to_tpu_model(plain, strategy())
    expected = one_by_one(plain, x)
    close(model.predict(form(x), batch_size=4, verbose=0), expected)
    loss = float(np.mean((expected[:, 0] - y) ** 2))
    close(model.evaluate(form(x), y, verbose=0)[0], loss)


def test_training_on_rows_of_different_lengths_sample_by_sample():
    x, y = ragged()
    plain = lstm()
    model = tpu.keras_to_tpu_model(plain, strategy())
    weights = np.linspace(0, 2, 6).astype("float32")
    model.fit(x, y, batch_size=6, sample_weight=weights, shuffle=False, verbose=0)

    # One step of SGD on the mean over the rows, each at its own length.
    def loss(trainable: Any) -> Any:
        fixed = [variable.value for variable in plain.non_trainable_variables]
        each = [plain.stateless_call(trainable, fixed, np.array([row]), training=True)[0][0, 0] for row in x]
        return sum(w * (output - t) ** 2 for w, output, t in zip(weights, each, y, strict=True)) / 6

    import jax

    before = [variable.value for variable in plain.trainable_variables]
    slopes = jax.grad(loss)(before)
    close(
        [v.value for v in model.trainable_variables],
        [weight - 0.1 * s for weight, s in zip(before, slopes, strict=True)],
    )


def test_rows_are_drawn_split_and_weighted_as_keras_does():
    x, y = ragged()
    labels = (y > 0).astype("int32")
    same = [row[:1] * 4 for row in x]
    settings: dict[str, Any] = {"batch_size": 2, "epochs": 2, "validation_split": 0.5, "verbose": 0}
    settings["class_weight"] = {0: 0.5, 1: 2.0}
    histories = []
    for rows in (same, np.array(same)):
        model = tpu.keras_to_tpu_model(lstm(), strategy())
        keras.utils.set_random_seed(4)
        histories.append(model.fit(rows, labels, **settings).history)
    close(*histories)


def test_targets_and_weights_beside_rows_may_be_lists():
    x, y = ragged()
    weights, listed = np.arange(1.0, len(x) + 1), [list(map(int, row)) for row in x]
    settings: dict[str, Any] = {"batch_size": 2, "verbose": 0, "shuffle": False}
    histories = []
    for form in (np.asarray, lambda values: np.ravel(values).tolist()):
        model = tpu.keras_to_tpu_model(lstm(), strategy())
        targets = form(np.float32(y))
        fitted = model.fit(
            listed, targets, sample_weight=form(np.float32(weights)), validation_data=(listed, targets), **settings
        )
        histories.append((fitted.history, model.evaluate(listed, targets, verbose=0)))
    close(*histories)


def test_a_recurrent_layer_with_an_initial_state_is_not_padded():
    inputs = keras.Input((None,), dtype="int32")
    x = words()(inputs)
    state = layers.GRU(3)(x)
    model = keras.Model(inputs, layers.GRU(3, name="second")(x, initial_state=state))
    with pytest.raises(NotPaddable) as raised:
        pads_of(model)
    assert str(raised.value) == "GRU 'second': with initial_state Keras passes it no mask"


def test_generators_and_data_sets_may_yield_lists():
    x, y = ragged()
    plain = lstm()
    model = tpu.keras_to_tpu_model(plain, strategy())

    class Set(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            return as_objects(x[index::2]), y[index::2]

    expected = float(np.mean((one_by_one(plain, x)[:, 0] - y) ** 2))
    close(model.evaluate(Set(), verbose=0)[0], expected)
    close(model.evaluate(((x[i::2], y[i::2]) for i in (0, 1)), verbose=0)[0], expected)


class Peeking(layers.Layer):
    """Looks at all steps, and says nothing of masks."""

    def call(self, x):
        return keras.ops.mean(x, axis=1)


class Knowing(layers.Layer):
    """Looks at all steps that count."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.supports_masking = True

    def call(self, x, mask=None):
        if mask is None:
            return keras.ops.mean(x, axis=1)
        kept = keras.ops.cast(mask, x.dtype)[..., None]
        return keras.ops.sum(x * kept, axis=1) / keras.ops.sum(kept, axis=1)

    def compute_mask(self, inputs, mask=None):
        return None


def test_a_layer_of_ones_own_that_knows_masks():
    plain = sequential(lambda: [words(), Knowing(), layers.Dense(1)])
    model = tpu.keras_to_tpu_model(plain, strategy())
    x, _ = ragged()
    close(model.predict(x, verbose=0), one_by_one(plain, x))


NO_MASK = "no mask comes before it; begin with Embedding(..., mask_zero=True) or Masking()"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: [words(False), layers.LSTM(2)], f"Embedding 'embedding{{}}': {NO_MASK}"),
        (
            lambda: [words(), Peeking(), layers.Dense(1)],
            "Peeking 'peeking{}': its behaviour at masked steps is not known",
        ),
        (
            lambda: [words(), layers.Conv1D(3, 2), layers.GlobalMaxPooling1D()],
            "Conv1D 'conv1d{}': its behaviour at masked steps is not known",
        ),
        (
            lambda: [words(), layers.LSTM(3, activity_regularizer="l2", return_sequences=True), layers.LSTM(2)],
            "LSTM 'lstm{}': its activity_regularizer counts all steps",
        ),
        (
            lambda: [layers.Embedding(WORDS, 6, mask_zero=True, activity_regularizer="l2"), layers.LSTM(2)],
            "Embedding 'embedding{}': its activity_regularizer counts all steps",
        ),
        (
            lambda: [words(), layers.GRU(3, go_backwards=True, return_sequences=True), layers.LSTM(2)],
            "GRU 'gru{}': it reverses the steps, and not their mask",
        ),
        (
            lambda: [words(), layers.UnitNormalization(axis=1), layers.LSTM(2)],
            "UnitNormalization 'unit_normalization{}': it mixes the steps",
        ),
        (
            lambda: [words(), layers.TimeDistributed(layers.Dense(3)), layers.BatchNormalization(), layers.LSTM(2)],
            "TimeDistributed 'time_distributed{}': its behaviour at masked steps is not known",
        ),
        (lambda: [words(), layers.LSTM(3, return_sequences=True)], "its output has a time axis"),
    ],
)
def test_a_model_that_cannot_be_padded_says_why_once_and_keeps_its_numbers(make: Any, reason: str):
    plain = sequential(make)
    model = tpu.keras_to_tpu_model(plain, strategy())
    x = np.arange(ROWS * 12).reshape(ROWS, 12) % WORDS
    model.predict(x, verbose=0)
    with pytest.warns(UserWarning) as caught:
        ours = [model.predict(x[:, :length], verbose=0) for length in (9, 7)]
    close(ours, [np.array(plain(x[:, :length])) for length in (9, 7)])
    (message,) = [str(warning.message) for warning in caught if "compiled anew" in str(warning.message)]
    number = "" if "{}" not in reason else message.split("'")[3].removeprefix(reason.split("'")[1].removesuffix("{}"))
    assert message == (
        f"{plain.name!r} is compiled anew for each length of its sequences (9 after 12), since they cannot be padded: "
        f"{reason.format(number)}. Pass sequences of one length, or of few"
    )
    with pytest.raises(DataError) as refused:
        model.predict([[1, 2], [3]], verbose=0)
    assert str(refused.value) == (
        f"the rows of x have different lengths, and {plain.name!r} cannot take them padded: {reason.format(number)}. "
        "Pass rows of one length, such as keras.utils.pad_sequences(x) makes"
    )


@pytest.mark.parametrize("shape", [(12,), (12, 2)])
def test_a_model_of_one_length_says_what_to_do(shape: tuple):
    model = tpu.keras_to_tpu_model(sequential(lambda: [layers.Flatten(), layers.Dense(1)], shape), strategy())
    with pytest.raises(DataError) as caught:
        model.predict([np.zeros((3, *shape[1:])), np.zeros((2, *shape[1:]))], verbose=0)
    assert str(caught.value) == (
        f"x has rows of different lengths, and {model.name!r} does not begin with an input of any length. Begin it "
        "with keras.Input((None,)), or cut and fill the rows to one length: keras.utils.pad_sequences(x)"
    )


def test_an_empty_row():
    model = tpu.keras_to_tpu_model(lstm(), strategy())
    with pytest.raises(DataError) as caught:
        model.predict([[1, 2], [], [3]], verbose=0)
    assert str(caught.value) == (
        f"row 1 of a batch has 0 steps, and {model.name!r} takes 1 or more: leave the row out, or fill it"
    )


def test_a_model_with_two_sequences():
    keras.utils.set_random_seed(3)
    left, right = keras.Input((None,), name="left"), keras.Input((None,), name="a_right")
    ends = [layers.LSTM(3)(words()(tokens)) for tokens in (left, right)]
    plain = keras.Model([left, right], layers.Dense(1)(layers.Concatenate()(ends)))
    model = tpu.keras_to_tpu_model(plain, strategy())
    model.compile()
    rng = np.random.default_rng(0)
    for lengths in ((6, 9), (3, 12), (10, 2), (5, 5)):
        x, z = (rng.integers(0, WORDS, (ROWS, length)) for length in lengths)
        close(model.predict([x, z], verbose=0), np.array(plain([x, z])))
        close(model.predict({"left": x, "a_right": z}, verbose=0), np.array(plain([x, z])))


def test_sizes():
    assert [Padding(None).size_of(length) for length in (1, 8, 9, 250)] == [8, 8, 16, 256]


def test_sequences_that_a_layer_joins_are_not_padded():
    left, right = keras.Input((None,)), keras.Input((None,))
    model = keras.Model([left, right], layers.LSTM(3)(layers.Add(name="sum")([words()(left), words()(right)])))
    with pytest.raises(NotPaddable) as caught:
        pads_of(model)
    assert str(caught.value) == "Add 'sum': it joins sequences that may have different lengths"


def test_two_values_that_mask_one_input_are_not_padded():
    numbers = keras.Input((None, 2))
    ends = [layers.LSTM(2)(layers.Masking(value, name=f"masks{value}")(numbers)) for value in (0, 1)]
    with pytest.raises(NotPaddable) as caught:
        pads_of(keras.Model(numbers, layers.Add()(ends)))
    assert str(caught.value).endswith("it masks by another value than a layer before it")


def test_a_fit_that_continues_pads_as_the_first_one(tmp_path: Path):
    ones = batches(lstm)
    trained = []
    for epochs in ((1, 2), (2,)):
        for last in epochs:
            with strategy().strategy.scope():
                model = lstm()
            folder = tmp_path / str(len(epochs))
            model.fit(walk(ones), epochs=last, steps_per_epoch=2, shuffle=False, verbose=0, checkpoint_dir=folder)
        trained.append([np.array(weight.value) for weight in model.weights])
    for ours, whole in zip(*trained, strict=True):
        np.testing.assert_array_equal(ours, whole)
