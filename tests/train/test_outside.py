"""State that a step assigns outside of Keras's four lists: kept by every loop, or refused by name."""

from __future__ import annotations

from typing import Any

import jax
import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import ProgramError
from anytpu.program import of

X = np.arange(44, dtype="float32").reshape(22, 2)
Y = np.zeros((22, 1), "float32")
COUNT: Any = keras.Variable(0.0)
LEVEL: Any = keras.metrics.Mean()
SEEDS = keras.random.SeedGenerator(5)


class Counts(keras.layers.Layer):
    """Counts its calls in a variable that no model knows."""

    def call(self, x: Any) -> Any:
        COUNT.assign_add(1.0)
        return x


class Norm(keras.metrics.Metric):
    """The largest weight of a model after the step: it reads variables that Keras does not pass to metrics."""

    def __init__(self) -> None:
        super().__init__(name="norm")
        self.model: Any = None
        self.newest = self.add_weight(shape=(), initializer="zeros", name="newest")

    def update_state(self, *_: Any, **__: Any) -> None:
        self.newest.assign(keras.ops.max(self.model().trainable_variables[0]))

    def result(self) -> Any:
        return self.newest.value


def fitted(*layers: Any, data: Any = (X, Y), cores: int = 4, **compiled: Any) -> tuple[Any, dict[str, list[float]]]:
    with tpu.connect("virtual", cores=cores).scope():
        model: Any = keras.Sequential([keras.Input((2,)), *layers, keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile(**{"optimizer": keras.optimizers.SGD(1e-4), "loss": "mse", **compiled})
    return model, model.fit(*data, batch_size=10, epochs=2, shuffle=False, verbose=0).history


def test_a_scan_and_a_branch_assign():
    class Inside(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            def step(state: Any, row: Any) -> Any:
                COUNT.assign_add(keras.ops.mean(row))
                return state + row, row

            total, _ = jax.lax.scan(step, x[0] * 0, keras.ops.ones((3, 2)))
            keras.ops.cond(x[0, 0] < 1, lambda: COUNT.assign_add(100.0), lambda: COUNT.assign_add(0.0))
            return x + total * 0

    COUNT.assign(0.0)
    fitted(Inside())
    assert float(COUNT.value) == 2 * (3 * 3 + 100)


def test_a_metric_outside_goes_on_over_epochs_as_its_owner_never_resets_it():
    class Level(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            LEVEL.update_state(keras.ops.mean(x, axis=1))
            return x

    LEVEL.reset_state()
    fitted(Level())
    assert float(LEVEL.count.value) == 44
    assert float(LEVEL.result()) == pytest.approx(21.5)


def test_a_loss_reads_and_assigns():
    def loss(y: Any, y_pred: Any) -> Any:
        COUNT.assign_add(1.0)
        return keras.ops.mean(y_pred * 0 + COUNT)

    COUNT.assign(0.0)
    model, history = fitted(loss=loss)
    # The mean over 10, 10 and 2 rows of the counts 1 to 3, and 4 to 6.
    assert history["loss"] == pytest.approx([(10 + 20 + 6) / 22, (40 + 50 + 12) / 22])
    COUNT.assign(7.0)
    assert model.evaluate(X[:4], Y[:4], verbose=0) == 8.0


def test_a_step_reads_the_newest_value_of_a_variable_that_it_does_not_assign():
    class Scaled(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return x * COUNT

    COUNT.assign(1.0)
    model, _ = fitted(Scaled(), optimizer=keras.optimizers.SGD(0.0))
    ones = model.predict(X, verbose=0)
    COUNT.assign(2.0)
    assert model.predict(X, verbose=0) == pytest.approx(2 * ones)


def test_a_metric_reads_the_weights_after_the_step():
    made: list[Any] = []
    norm = Norm()
    norm.model = lambda: made[0]
    with tpu.connect("virtual", cores=2).scope():
        made.append(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
        made[0].compile(keras.optimizers.SGD(1e-4), "mse", metrics=[norm])
    for _ in range(2):
        logs = made[0].train_on_batch(X, Y, return_dict=True)
        assert logs["norm"] == pytest.approx(float(np.max(made[0].get_weights()[0])))


def test_a_scope_that_the_user_opens_has_no_effect():
    class Tries(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            with keras.StatelessScope():
                COUNT.assign_add(1.0)
            return x

    COUNT.assign(0.0)
    fitted(Tries())
    assert float(COUNT.value) == 0.0


def test_a_model_step_assigns_in_each_mode():
    class Stepped(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.dense(x)

        @tpu.model_step
        def train_step(self, data: Any) -> Any:
            COUNT.assign_add(1.0)
            return {"noise": keras.random.normal((), seed=SEEDS)}

        @tpu.model_step
        def test_step(self, data: Any) -> Any:
            COUNT.assign_add(1.0)
            return {"noise": keras.random.normal((), seed=SEEDS)}

        @tpu.model_step
        def predict_step(self, data: Any) -> Any:
            COUNT.assign_add(1.0)
            return self(data)

    with tpu.connect("virtual", cores=2).scope():
        model: Any = Stepped()
        model.compile("sgd")
    COUNT.assign(0.0)
    noise = model.fit(X, Y, batch_size=11, epochs=2, verbose=0).history["noise"]
    noise += [model.evaluate(X, Y, verbose=0), model.evaluate(X, Y, verbose=0)]
    model.predict(X, verbose=0)
    assert float(COUNT.value) == 7.0
    assert len(set(noise)) == 4


def test_a_plan_of_such_a_model_has_keras_state_alone():
    model, _ = fitted(Counts())
    before = float(COUNT.value)
    program = of(model, batch_size=8)
    jax.eval_shape(program.step, program.state, program.batch)
    assert len(program.state) == 4
    assert float(COUNT.value) == before


def test_a_trainable_variable_beside_the_lists_is_refused():
    class Clipped(keras.Sequential):
        def train_step(self, state: Any, data: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            logs, state = super().train_step(state, data)
            self.trainable_variables[0].assign(keras.ops.clip(self.trainable_variables[0], -1, 1))
            return logs, state

    with tpu.connect("virtual", cores=2).scope():
        model: Any = Clipped([keras.Input((2,)), keras.layers.Dense(1, name="d")])
        model.compile("sgd", "mse")
    with pytest.raises(ProgramError) as caught:
        model.fit(X, Y, verbose=0)
    assert str(caught.value) == (
        f"the trainable variable {model.trainable_variables[0].path!r} is assigned in a step where Keras does not hold "
        "its value, such as in train_step beside the lists of its state, and the lists would overwrite it. Return the "
        "new value in the list of trainable variables, or write train_step(self, data) with @tpu.model_step, which may "
        "assign"
    )


def test_a_variable_outside_within_remat_is_refused():
    class Recomputed(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Counts()

        def call(self, x: Any) -> Any:
            return keras.remat(lambda x: self.inner(keras.ops.sin(x)))(x)

    with pytest.raises(ProgramError) as caught:
        fitted(keras.layers.Dense(2), Recomputed())
    assert str(caught.value) == (
        "a layer inside keras.remat (or jax.checkpoint) uses a variable that Keras does not pass to the step, such as "
        "a metric, a counter or a seed generator outside of the model: the backward pass would use it a second time. "
        "Use the variable outside of the rematerialised part, or leave remat out for this layer"
    )
