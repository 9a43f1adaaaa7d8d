import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.engine.feeds import power_of_two
from anytpu.errors import SettingError

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(128, 8)).astype(np.float32)
Y = RANDOM.normal(size=(128, 1)).astype(np.float32)


@pytest.fixture
def strategy():
    return tpu.connect("virtual", cores=8)


def compiled(strategy, layers=2):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(4, activation="relu") for _ in range(layers - 1)])
        model.add(keras.layers.Dense(1))
        model.build((None, 8))
        model.compile(keras.optimizers.SGD(0.05), "mse")
    return model


class OneBuffer(keras.utils.PyDataset):
    """Batches that all lie in one buffer, which is filled again for each."""

    def __init__(self):
        super().__init__()
        self.x, self.y = np.zeros((8, 8), np.float32), np.zeros((8, 1), np.float32)

    def __len__(self):
        return 16

    def __getitem__(self, index):
        self.x[:], self.y[:] = X[index * 8 : index * 8 + 8], Y[index * 8 : index * 8 + 8]
        return self.x, self.y


def test_batches_that_share_a_buffer_keep_their_values(strategy):
    ours, plain = compiled(strategy), compiled(tpu.get_strategy())
    for _ in range(3):
        found = ours.fit(OneBuffer(), shuffle=False, verbose=0).history["loss"]
        expected = plain.fit(X, Y, batch_size=8, shuffle=False, verbose=0).history["loss"]
        assert found == pytest.approx(expected, rel=1e-5)


def test_data_sets_of_other_lengths_run_in_the_same_executable(strategy):
    model = compiled(strategy)
    before = strategy.compilations
    for examples in range(72, 129, 8):
        model.fit(X[:examples], Y[:examples], batch_size=8, verbose=0)
    assert strategy.compilations == before + 1


def test_the_room_that_is_left_is_never_reached(strategy):
    model = compiled(strategy)
    assert model.predict(X[:65], batch_size=8, verbose=0) == pytest.approx(model.predict(X, verbose=0)[:65], abs=1e-6)


def test_what_the_user_writes_into_x_is_for_the_next_fit(strategy):
    x = X.copy()
    model = compiled(strategy)

    class Zeroing(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            x[:] = 0

    ours = model.fit(x, Y, epochs=2, batch_size=8, shuffle=False, verbose=0, callbacks=[Zeroing()]).history
    again = compiled(strategy).fit(X, Y, epochs=2, batch_size=8, shuffle=False, verbose=0).history
    assert ours["loss"] == again["loss"]


def test_a_layer_that_is_frozen_between_two_calls(strategy):
    model = compiled(strategy)
    before = model.evaluate(X, Y, verbose=0)
    model.layers[-1].trainable = False
    assert model.evaluate(X, Y, verbose=0) == pytest.approx(before)


class Renaming(keras.Sequential):
    def train_step(self, state, data):
        logs, state = super().train_step(state, data)
        return {"mistake": logs["loss"]}, state


def test_on_nan_needs_the_log_that_it_watches(strategy):
    with strategy.scope():
        model = Renaming([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    with pytest.raises(SettingError) as error:
        model.fit(X, Y, on_nan="raise", verbose=0)
    assert str(error.value) == (
        "on_nan checks the log 'loss', but the training step does not return it; its logs are: 'mistake'. "
        "Add 'loss' to the logs that train_step returns, or remove on_nan"
    )


def test_a_model_built_by_hand_after_compile_can_be_compiled_again(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model(X[:1])
    model.fit(X, Y, verbose=0)
    with strategy.scope():
        model.compile("adam", "mse")
    assert len(model.fit(X, Y, verbose=0).history["loss"]) == 1


def test_a_program_of_a_model_can_hold_its_weights(strategy, tmp_path):
    model = compiled(strategy)
    program = tpu.program.of(model, X[:8], mode="infer", tensors=True)
    tpu.program.write(program, tmp_path / "model.anytpu")
    read = tpu.program.read(tmp_path / "model.anytpu", tensors=True)
    _, outputs = read.step(read.tensors, (X[:8],))
    assert np.asarray(outputs) == pytest.approx(model.predict(X[:8], verbose=0), abs=1e-6)


def test_another_batch_shape_is_paced_afresh(strategy):
    model = compiled(strategy)
    model.fit(X, Y, batch_size=8, epochs=3, verbose=0)
    steps = []

    class Counting(keras.callbacks.Callback):
        async_safe = True

        def on_train_batch_end(self, batch, logs=None):
            steps.append(batch)

    model.fit(X, Y, batch_size=4, verbose=0, callbacks=[Counting()])
    # Not the first in the list: Keras calls such a callback in threads, in any order.
    assert min(steps) == 0


@pytest.mark.parametrize(("number", "power"), [(1, 1), (2, 2), (3, 4), (64, 64), (65, 128)])
def test_power_of_two(number, power):
    assert power_of_two(number) == power
