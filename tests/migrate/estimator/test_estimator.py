from __future__ import annotations

import logging
import re
import tempfile
from typing import Any

import keras
import numpy as np
import optax
import pytest

import anytpu as tpu
from anytpu.errors import DataExhaustedError, EstimatorError, NaNLossError, SettingError
from error_texts import error_text
from estimator_samples import arrays, estimator, input_fn, linear_model_fn, loss_of, model_fn, spec_of

X, Y = arrays()


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Any:
    """A model with state of every kind, trained for ten steps on two cores."""
    return estimator(tmp_path_factory.mktemp("trained"), model_fn).train(input_fn, max_steps=10)


def test_the_last_loop_is_shortened_a31(tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="anytpu"):
        estimator(tmp_path, run={"log_step_count_steps": 1}).train(input_fn, steps=10)
    lines = [line for line in caplog.messages if line.startswith("loss = ")]
    assert [line.split("global_step = ")[1].split()[0] for line in lines] == ["4", "8", "10"]
    assert lines[0].endswith(" s, compiling included)")
    assert re.fullmatch(r"loss = \S+, global_step = 8 \(\S+ steps/s, \S+ examples/s\)", lines[1])


@pytest.mark.parametrize("cores", [1, 2, 8])
def test_weights_are_those_of_keras_on_one_device(tmp_path, cores):
    one = estimator(tmp_path, cores=cores, run={"tf_random_seed": 7}).train(input_fn, max_steps=6)
    model = keras.Sequential([keras.Input((X.shape[1],)), keras.layers.Dense(3, name="dense")])
    start = one._state.checkpoints.load(0).values
    model.set_weights([start["dense/kernel"], start["dense/bias"]])
    model.compile(keras.optimizers.SGD(0.1), loss_of)
    model.fit(X, Y, batch_size=16, epochs=1, shuffle=False, verbose=0)
    model.fit(X[:32], Y[:32], batch_size=16, epochs=1, shuffle=False, verbose=0)
    for name, variable in zip(("dense/kernel", "dense/bias"), model.weights, strict=True):
        np.testing.assert_allclose(one.get_variable_value(name), np.asarray(variable.value), rtol=1e-5, atol=1e-6)


def test_losses_are_means_over_all_replicas_a31(trained):
    # Of old, replica 0's: of two replicas it sees the first half of each batch.
    logits = np.stack([row["logits"] for row in trained.predict(lambda params: X)])
    every = keras.losses.sparse_categorical_crossentropy(Y, logits, from_logits=True)
    assert trained.evaluate(input_fn, steps=4)["loss"] == pytest.approx(float(np.mean(every)), rel=1e-5)


def test_metrics_see_the_rows_of_all_steps_a30(trained):
    values = trained.evaluate(input_fn, steps=4)
    classes = [int(row["class"]) for row in trained.predict(lambda params: X)]
    assert values["accuracy"] == pytest.approx(np.mean(classes == Y))
    assert values["rows"] == 64
    assert trained.evaluate(input_fn, steps=2)["rows"] == 32


def test_predictions_come_in_order_and_without_pads_a32(trained):
    every = [row["logits"] for row in trained.predict(lambda params: X)]
    some = [row["logits"] for row in trained.predict(lambda params: X[:21])]
    np.testing.assert_array_equal(some, every[:21])


def test_predict_in_batches_and_some_keys(trained):
    parts = list(trained.predict(lambda params: X[:21], predict_keys="class", yield_single_examples=False))
    assert [part["class"].shape for part in parts] == [(8,), (8,), (5,)]
    assert (
        error_text(lambda: next(trained.predict(input_fn, predict_keys=["clas"])), kind=EstimatorError)
        == "there is no prediction 'clas': model_fn predicts ['class', 'logits']"
    )


def test_predict_twice_and_left_half_way_a32_p19(trained):
    left = trained.predict(lambda params: X)
    first = next(left)
    beside = list(trained.predict(lambda params: X[:3]))
    left.close()
    again = next(trained.predict(lambda params: X))
    np.testing.assert_array_equal(first["logits"], again["logits"])
    np.testing.assert_array_equal(first["logits"], beside[0]["logits"])


def test_no_row_to_predict(trained):
    assert list(trained.predict(lambda params: iter([]))) == []


def test_compiled_once_not_at_each_call_a33_p19(tmp_path):
    with tpu.connect("virtual", cores=2).scope() as strategy:
        config = tpu.RunConfig(tpu_config=tpu.TPUConfig(iterations_per_loop=4))
        sizes = {"train_batch_size": 16, "eval_batch_size": 16, "predict_batch_size": 8}
        one = tpu.TPUEstimator(linear_model_fn, str(tmp_path), config, **sizes)
        for _ in range(3):
            one.train(input_fn, steps=5)
            one.evaluate(input_fn, steps=3)
            list(one.predict(lambda params: X[:11]))
    assert strategy.compilations == 3


def test_on_the_in_memory_twin(tmp_path):
    config = tpu.RunConfig(cluster=tpu.TPUClusterResolver("twin", cores=2), tf_random_seed=7)
    sizes = {"train_batch_size": 16, "eval_batch_size": 16, "predict_batch_size": 8}
    one = tpu.TPUEstimator(model_fn, str(tmp_path / "twin"), config, **sizes).train(input_fn, max_steps=3)
    other = estimator(tmp_path / "virtual", model_fn, run={"tf_random_seed": 7}).train(input_fn, max_steps=3)
    for name in other.get_variable_names():
        np.testing.assert_array_equal(one.get_variable_value(name), other.get_variable_value(name), err_msg=name)
    assert one.evaluate(input_fn, steps=2)["loss"] == other.evaluate(input_fn, steps=2)["loss"]
    assert len(list(one.predict(lambda params: X[:9]))) == 9


def test_after_a_shutdown_a33(tmp_path):
    one = estimator(tmp_path).train(input_fn, steps=2)
    tpu.shutdown_tpu_system(tpu.TPUClusterResolver("virtual", cores=2))
    before = estimator(tmp_path).evaluate(input_fn, steps=2)
    assert one.evaluate(input_fn, steps=2) == before
    assert one.train(input_fn, steps=2).evaluate(input_fn, steps=2)["global_step"] == 4


def test_a_last_batch_off_the_tpu_may_be_shorter_a35(tmp_path):
    one = estimator(tmp_path, use_tpu=False).train(input_fn, steps=2)
    assert one.evaluate(lambda params: (X[:40], Y[:40]))["rows"] == 40
    every = one.evaluate(lambda params: [(X[:40], Y[:40])])["accuracy"]
    assert one.evaluate(lambda params: (X[:40], Y[:40]))["accuracy"] == every


def test_off_the_tpu_a35(tmp_path):
    seen = []

    def watching(features, labels, mode, params):
        seen.append((mode, features.shape[0], params["batch_size"], params["use_tpu"]))
        return linear_model_fn(features, labels, mode, params)

    one = estimator(tmp_path, watching, use_tpu=False, cores=2)
    one.train(input_fn, max_steps=2)
    assert one.evaluate(input_fn)["rows"] == 64
    assert len(list(one.predict(lambda params: X[:5]))) == 5
    assert set(seen) == {("train", 16, 16, False), ("eval", 16, 16, False), ("infer", 8, 8, False)}


def test_evaluation_off_the_tpu_a35(tmp_path):
    seen = []

    def watching(features, labels, mode, params):
        seen.append((mode, features.shape[0], params["use_tpu"]))
        return linear_model_fn(features, labels, mode, params)

    one = estimator(tmp_path, watching, eval_on_tpu=False).train(input_fn, max_steps=4)
    on_cpu = one.evaluate(input_fn)
    one.train(input_fn, steps=4)
    assert set(seen) == {("train", 8, True), ("eval", 16, False)}
    on_tpu = estimator(tmp_path).evaluate(input_fn, steps=4, checkpoint_path=f"{tmp_path}/4")
    assert on_cpu["loss"] == pytest.approx(on_tpu["loss"], rel=1e-6)


def test_batch_norm_is_per_replica_a31(tmp_path):
    def norm_fn(features, labels, mode, params):
        x = keras.layers.BatchNormalization(momentum=0.0, center=False, scale=False)(features, training=True)
        return spec_of(mode, params, keras.layers.Dense(3)(x), labels, keras.optimizers.SGD(0.0))

    one = estimator(tmp_path, norm_fn).train(input_fn, steps=1)
    mean = one.get_variable_value("batch_normalization/moving_mean")
    variance = one.get_variable_value("batch_normalization/moving_variance")
    np.testing.assert_allclose(mean, X[:16].mean(0), atol=1e-6)
    np.testing.assert_allclose(variance, (X[:8].var(0) + X[8:16].var(0)) / 2, rtol=1e-5)


def test_around_optax(tmp_path):
    def optax_fn(features, labels, mode, params):
        logits = keras.layers.Dense(3)(features)
        return spec_of(mode, params, logits, labels, optax.sgd(0.1, momentum=0.9))

    def keras_fn(features, labels, mode, params):
        logits = keras.layers.Dense(3)(features)
        return spec_of(mode, params, logits, labels, keras.optimizers.SGD(0.1, momentum=0.9))

    ours = [
        estimator(tmp_path / function.__name__, function, run={"tf_random_seed": 3}).train(input_fn, max_steps=7)
        for function in (optax_fn, keras_fn)
    ]
    # One estimator goes on from its checkpoint: the momentum is in it.
    kernels = [trained.train(input_fn, max_steps=9).get_variable_value("dense/kernel") for trained in ours]
    np.testing.assert_allclose(*kernels, rtol=1e-5, atol=1e-6)
    assert "optimizer/[0].trace[0]" in ours[0].get_variable_names()


def test_some_variables_only(tmp_path):
    def half_fn(features, labels, mode, params):
        hidden = keras.layers.Dense(4, name="frozen")
        logits = keras.layers.Dense(3, name="trained")
        loss = loss_of(labels, logits(hidden(features)))
        optimizer = tpu.CrossShardOptimizer(keras.optimizers.SGD(0.1))
        train_op = optimizer.minimize(loss, var_list=logits.trainable_variables)
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    one = estimator(tmp_path, half_fn).train(input_fn, max_steps=3)
    before, after = (one._state.checkpoints.load(step).values for step in (0, 3))
    np.testing.assert_array_equal(before["frozen/kernel"], after["frozen/kernel"])
    assert np.abs(before["trained/kernel"] - after["trained/kernel"]).max() > 1e-3


def test_rows_along_another_axis_a25(tmp_path):
    def columns_fn(features, labels, mode, params):
        return linear_model_fn(keras.ops.transpose(features), labels, mode, params)

    def columns(params):
        while True:
            yield X[:16].T, Y[:16]

    one = estimator(tmp_path / "columns", columns_fn, batch_axis=[1, 0], run={"tf_random_seed": 2})
    other = estimator(tmp_path / "rows", run={"tf_random_seed": 2})
    kernel = one.train(columns, max_steps=3).get_variable_value("dense/kernel")
    expected = other.train(lambda params: (X[:16], Y[:16]), max_steps=3).get_variable_value("dense/kernel")
    np.testing.assert_allclose(kernel, expected, rtol=1e-6)


def test_the_data_may_end_before(tmp_path, caplog):
    def short(params):
        return tpu.pipeline.Dataset.from_arrays((X, Y)).batch(params["batch_size"])

    one = estimator(tmp_path, use_tpu=False).train(short)
    assert int(one.get_variable_value("global_step")) == 4
    with caplog.at_level(logging.WARNING, logger="anytpu"):
        assert one.evaluate(short, steps=9)["rows"] == 64
    assert caplog.messages == ["The data ended after 4 of the 9 steps of the evaluation"]
    assert error_text(lambda: one.evaluate(lambda params: iter([])), kind=DataExhaustedError) == (
        "input_fn yielded no batch: return a data set with at least one batch that has rows for all replicas"
    )


def test_time_based_loops_follow_the_clock(tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="anytpu"):
        estimator(tmp_path, loop="1h", run={"log_step_count_steps": 1}).train(input_fn, steps=30)
    lines = [line for line in caplog.messages if line.startswith("loss = ")]
    assert [line.split("global_step = ")[1].split()[0] for line in lines] == ["1", "2", "30"]


def test_warm_start(tmp_path):
    first = estimator(tmp_path / "first").train(input_fn, max_steps=4)
    second = estimator(tmp_path / "second", warm_start_from=str(tmp_path / "first"))
    assert second.evaluate(input_fn, steps=4)["loss"] == first.evaluate(input_fn, steps=4)["loss"]
    assert second.evaluate(input_fn, steps=4)["global_step"] == 0


def test_a_temporary_model_dir_says_so(caplog):
    one = tpu.TPUEstimator(linear_model_fn, config=tpu.RunConfig(), train_batch_size=8)
    assert one.model_dir.startswith(tempfile.gettempdir())
    assert caplog.messages == [f"Using temporary folder as model directory: {one.model_dir}"]
    assert one.config.model_dir == one.model_dir


def test_a_loss_that_is_not_finite(tmp_path):
    def nan_fn(features, labels, mode, params):
        logits = keras.layers.Dense(3)(features)
        step = keras.ops.cast(tpu.get_global_step().value, "float32")
        return spec_of(mode, params, logits / (2.0 - step) * (2.0 - step), labels, keras.optimizers.SGD(0.1))

    one = estimator(tmp_path, nan_fn, run={"save_checkpoints_steps": 2}, loop=2)
    assert error_text(lambda: one.train(input_fn, steps=8), kind=NaNLossError) == (
        "the loss is not finite at global step 3. The last checkpoint in model_dir is from before. Lower the learning "
        "rate, clip the gradients (clipnorm=1.0), or look for NaN in the data"
    )
    assert np.isfinite(one._state.checkpoints.load(2).values["dense/kernel"]).all()
    values = one.evaluate(lambda params: (X, Y), steps=4)
    assert values["global_step"] == 2


def with_spec(make: Any) -> Any:
    def function(features, labels, mode, params):
        logits = keras.layers.Dense(3)(features)
        return make(mode, logits, loss_of(labels, logits))

    return function


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda mode, logits, loss: tpu.TPUEstimatorSpec(
                mode, loss=loss, train_op=keras.optimizers.Adam().minimize(loss)
            ),
            "CrossShardOptimizer must be used for model training on TPUs. Write optimizer = "
            "tpu.CrossShardOptimizer(keras.optimizers.Adam(...)) before optimizer.minimize(loss)",
        ),
        (
            lambda mode, logits, loss: {"loss": loss},
            "estimator_spec used by TPU training must have type `TPUEstimatorSpec`. Got dict: return "
            "tpu.TPUEstimatorSpec(mode, ...)",
        ),
        (
            lambda mode, logits, loss: tpu.TPUEstimatorSpec("eval", loss=loss),
            "model_fn was called for mode 'train' and returned a TPUEstimatorSpec for 'eval': pass on its argument "
            "mode",
        ),
        (
            lambda mode, logits, loss: tpu.TPUEstimatorSpec(mode, loss=loss, train_op=3),
            "train_op must be the result of optimizer.minimize(loss), not 3: a traced loss has no gradient, so the "
            "estimator differentiates model_fn itself. To clip gradients, use an optimizer that does: "
            "keras.optimizers.Adam(clipnorm=1.0)",
        ),
        (
            lambda mode, logits, loss: tpu.TPUEstimatorSpec(
                mode,
                loss=loss,
                train_op=tpu.CrossShardOptimizer(optax.sgd(0.1 * 0.9 ** tpu.get_global_step(), 0.9)).minimize(loss),
            ),
            "the optax optimizer of train_op holds a value that model_fn computed, such as a learning rate from the "
            "global step; it is applied outside of model_fn's gradient. Give optax a schedule, a function of the "
            "number of updates: optax.sgd(optax.exponential_decay(0.1, 1000, 0.9))",
        ),
    ],
)
def test_what_a_model_fn_may_not_return_a28(tmp_path, make, message):
    assert (
        error_text(lambda: estimator(tmp_path, with_spec(make)).train(input_fn, steps=1), kind=EstimatorError)
        == message
    )


def no_labels(features, mode, params):
    return None


def no_params(features, labels, mode):
    return None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda folder: estimator(folder).train(input_fn),
            "For TPU training, one of `steps` or `max_steps` must be set. Cannot be both `None`. Type "
            "estimator.train(input_fn, max_steps=1000)",
        ),
        (
            lambda folder: estimator(folder).train(input_fn, steps=1, max_steps=2),
            "Can not provide both steps and max_steps, got 1 and 2. Pass one",
        ),
        (
            lambda folder: estimator(folder).evaluate(input_fn),
            "Evaluate `steps` must be set on TPU. Cannot be `None`. Pass the number of full batches, "
            "steps=examples // eval_batch_size",
        ),
        (
            lambda folder: estimator(folder, no_labels).train(input_fn, steps=1),
            "model_fn does not take labels, but input_fn returns labels. Write def model_fn(features, labels, mode, "
            "params)",
        ),
        (
            lambda folder: estimator(folder, no_params),
            "model_fn (no_params) does not include params argument, required by TPUEstimator to pass batch size as "
            'params["batch_size"]: write def model_fn(features, labels, mode, params)',
        ),
        (
            lambda folder: estimator(folder).train(lambda params: [(X[:16], Y[:16]), (X[:12], Y[:12])], steps=2),
            "The features to the model returned by input_fn must have static shape. Tensor: (12, 6) after (16, 6). "
            "Make every batch as long as the first, for example with "
            'batch(params["batch_size"], drop_remainder=True)',
        ),
        (
            lambda folder: estimator(folder).train(lambda params: [(X[:15], Y[:15])], steps=1),
            "input_fn returned a batch of 15 rows, which the 2 replicas do not divide: make batches of "
            'params["batch_size"] rows, the last one too, for example with batch(params["batch_size"], '
            "drop_remainder=True)",
        ),
        (
            lambda folder: estimator(folder).get_variable_value("x"),
            None,
        ),
    ],
)
def test_calls_that_are_refused_a28(tmp_path, call, message):
    assert error_text(lambda: call(tmp_path), kind=(EstimatorError, OSError)) == (
        message or f"there is no checkpoint in {str(tmp_path)!r}: pass the checkpoint_dir of a fit, or a model_dir"
    )


def test_one_of_the_exports_must_be_true_a27(tmp_path):
    assert (
        error_text(lambda: estimator(tmp_path, export_to_tpu=False, export_to_cpu=False), kind=SettingError)
        == "One of export_to_cpu and export_to_tpu must be true. Leave both out"
    )


def test_its_properties(tmp_path):
    one = estimator(tmp_path, params={"rate": 3})
    assert (one.model_fn, one.params, one.model_dir) == (linear_model_fn, {"rate": 3}, str(tmp_path))
    assert one.latest_checkpoint() is None
