"""Sequences of many lengths: the same numbers as plain Keras unpadded on one device, in few programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import anytpu as tpu
from anytpu.errors import DataError, SettingError
from anytpu.train.padding import Padding, rows_of
from keras_oracle import close

pytestmark = [
    pytest.mark.usefixtures("quick_compilation"),
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


def words(mask_zero: bool = False) -> Any:
    return layers.Embedding(WORDS, 6, mask_zero=mask_zero)


def attending() -> Any:
    keras.utils.set_random_seed(3)
    ids = keras.Input((None,))
    found = words()(ids)
    seen = layers.LayerNormalization()(layers.Add()([layers.MultiHeadAttention(2, 3)(found, found), found]))
    seen = layers.Concatenate()([layers.Attention()([seen, seen]), seen])
    model = keras.Model(ids, layers.Dense(1)(layers.GlobalAveragePooling1D()(seen)))
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    return model


def nested() -> Any:
    keras.utils.set_random_seed(3)
    # The maximum does not follow the normalization: compiled without optimizations, XLA computes the normalized values
    # once for the maximum and once, differently rounded, for its gradient. Then no value equals it: 1 / 0.
    inner = keras.Sequential(
        [keras.Input((None, 6)), layers.BatchNormalization(), layers.Conv1D(4, 3, padding="causal")]
    )
    return sequential(lambda: [words(), inner, layers.GlobalMaxPooling1D(), layers.Dense(1)])


def lstm(*, mask_zero: bool = False) -> Any:
    return sequential(lambda: [words(mask_zero), layers.LSTM(5), layers.Dense(1)])


def two_way() -> Any:
    keras.utils.set_random_seed(3)
    first = layers.LSTM(5, return_sequences=True)
    return sequential(
        lambda: [words(), layers.Bidirectional(first), layers.Bidirectional(layers.GRU(4)), layers.Dense(1)]
    )


def dropping() -> Any:
    def make() -> list[Any]:
        first = layers.LSTM(5, return_sequences=True, dropout=0.2)
        second = layers.LSTM(4, recurrent_dropout=0.2)
        return [words(), layers.Dropout(0.4), first, layers.Dropout(0.3), second, layers.Dropout(0.2), layers.Dense(1)]

    return sequential(make)


def dropping_masked() -> Any:
    return sequential(lambda: [words(True), layers.Dropout(0.4), layers.GRU(4), layers.Dense(1)])


def convolving() -> Any:
    def make() -> list[Any]:
        parts = [layers.Conv1D(4, 3, activation="relu"), layers.MaxPooling1D(2), layers.Conv1D(4, 2, padding="same")]
        return [words(), *parts, layers.SpatialDropout1D(0.3), layers.GlobalMaxPooling1D(), layers.Dense(1)]

    return sequential(make)


def masking() -> Any:
    return sequential(lambda: [layers.Masking(), layers.SimpleRNN(4), layers.Dense(1)], (None, 6))


def averaging() -> Any:
    parts = [layers.Dense(5, activation="relu"), layers.TimeDistributed(layers.Dense(4)), layers.LayerNormalization()]
    return sequential(lambda: [words(), *parts, layers.GlobalAveragePooling1D(), layers.Dense(1)])


def stepwise() -> Any:
    return sequential(lambda: [words(), layers.GRU(4, return_sequences=True), layers.Conv1D(1, 3)])


MODELS = [
    lstm, lambda: lstm(mask_zero=True), two_way, dropping, dropping_masked, convolving, masking, averaging, attending,
    nested, stepwise,
]  # fmt: skip
NAMES = ["lstm", "mask_zero", "two ways", "dropout", "dropout and mask_zero", "convolution", "Masking", "average"]
NAMES += ["attention", "a model in a model", "each step"]


def batches(make: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    ones = []
    for length in LENGTHS:
        x: Any = rng.integers(0, WORDS, (ROWS, length)).astype("int32")
        if make is masking:
            x = (rng.normal(size=(ROWS, length, 6)) * (rng.random((ROWS, length, 1)) > 0.3)).astype("float32")
        shape = (ROWS, length - 2, 1) if make is stepwise else (ROWS, 1)
        ones.append((x, rng.normal(size=shape).astype("float32")))
    return ones


def walk(ones: list[Any]) -> Iterator[Any]:
    yield from ones


@pytest.mark.parametrize("make", MODELS, ids=NAMES)
def test_padded_is_as_unpadded(make: Any):
    ones, plain, place = batches(make), make(), strategy()
    model = tpu.keras_to_tpu_model(plain, place)

    ours, theirs = (trained.fit(walk(ones), shuffle=False, verbose=0).history for trained in (model, plain))

    close(ours, theirs)
    close(*([np.array(weight.value) for weight in both.weights] for both in (model, plain)))
    # The first length as it is; 7 and 5 in 8 steps, 13 in 16.
    assert place.strategy.compilations == 3
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
    ones, plain = batches(stepwise), stepwise()
    model = tpu.keras_to_tpu_model(plain, tpu.TPUDistributionStrategy(tpu.TPUClusterResolver("twin", cores=2)))
    close(*(trained.fit(walk(ones), shuffle=False, verbose=0).history for trained in (model, plain)))
    close(model.predict(ones[1][0], verbose=0), np.array(plain(ones[1][0])))


def ragged() -> tuple[list[list[int]], np.ndarray]:
    rng = np.random.default_rng(2)
    return [rng.integers(0, WORDS, n).tolist() for n in (3, 12, 2, 3, 12, 9)], rng.normal(size=6).astype("float32")


def one_by_one(model: Any, x: list[list[int]]) -> np.ndarray:
    return np.concatenate([np.array(model(np.array([row]))) for row in x])


def as_objects(x: list[list[int]]) -> np.ndarray:
    objects = np.empty(len(x), object)
    objects[:] = x
    return objects


@pytest.mark.parametrize(
    ("make", "form"), [(lstm, list), (two_way, as_objects), (averaging, rows_of), (attending, list)]
)
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


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (
            lambda: [words(), Peeking(), layers.Dense(1)],
            "Peeking 'peeking{}': its behaviour at masked steps is not known",
        ),
        (
            lambda: [words(), layers.LSTM(3, activity_regularizer="l2", return_sequences=True), layers.LSTM(2)],
            "LSTM 'lstm{}': its activity_regularizer counts all steps",
        ),
        (
            lambda: [words(True), layers.Conv1D(3, 2), layers.GlobalMaxPooling1D()],
            "Conv1D 'conv1d{}': it drops the model's own mask",
        ),
        (
            lambda: [words(), layers.Conv1D(3, 2, strides=2, padding="same"), layers.GlobalMaxPooling1D()],
            "Conv1D 'conv1d{}': padding=\"same\" depends on the length",
        ),
    ],
)
def test_what_stands_in_the_way_is_said_once_and_numbers_stay(make: Any, reason: str):
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


def test_a_metric_that_knows_no_mask_leaves_training_unpadded():
    settings = {"loss": "binary_crossentropy", "metrics": [keras.metrics.AUC()]}
    plain = sequential(lambda: [words(), layers.Dense(1, activation="sigmoid")], **settings)
    model = tpu.keras_to_tpu_model(plain, strategy())
    rng = np.random.default_rng(0)
    # Of 32 bits: from jax 0.11 on, Keras's own loops warn of labels of 64.
    ones = [(rng.integers(0, WORDS, (ROWS, n), "int32"), rng.integers(0, 2, (ROWS, n, 1), "int32")) for n in (6, 4, 5)]
    with pytest.warns(UserWarning, match="the metric 'auc.*' knows no mask"):
        ours = model.fit(walk(ones), shuffle=False, verbose=0).history
    close(list(ours.values()), list(plain.fit(walk(ones), shuffle=False, verbose=0).history.values()))


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
    for lengths in ((6, 9), (3, 12), (10, 2)):
        x, z = (rng.integers(0, WORDS, (ROWS, length)) for length in lengths)
        close(model.predict([x, z], verbose=0), np.array(plain([x, z])))
        close(model.predict({"left": x, "a_right": z}, verbose=0), np.array(plain([x, z])))


def test_sizes():
    assert [Padding(None).size_of(length) for length in (1, 8, 9, 250)] == [8, 8, 16, 256]
