"""Which checkpoint the variables hold: beside a training that runs, and after one that is only looked at."""

from __future__ import annotations

import threading

import keras
import pytest

import anytpu as tpu
from anytpu.errors import EstimatorError, StrategyError
from error_texts import error_text
from estimator_samples import arrays, check_same, estimator, input_fn, linear_model_fn, spec_of

X, Y = arrays()
EVERY_FOUR = {"save_checkpoints_steps": 4, "tf_random_seed": 3}


class Between(tpu.SessionRunHook):
    """Calls a function after each loop."""

    def __init__(self, function) -> None:
        self.function = function

    def after_run(self, run_context, run_values):
        self.function(run_values.results["global_step"])


VERBS = {
    "evaluate": lambda one: one.evaluate(input_fn, steps=1)["global_step"],
    "predict": lambda one: next(one.predict(lambda params: X)) and one._state.step,
    "export": lambda one: int(one.export_saved_model(one.model_dir + "-exported", X[:2]).split("/")[-1].split(".")[0]),
    "program": lambda one: tpu.program.of(one, X[:2], mode="infer", tensors=True) and one._state.step,
    "train program": lambda one: tpu.program.of(one, (X[:16], Y[:16])) and one._state.step,
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_hook_of_train_looks_at_the_weights_of_that_moment(tmp_path, verb):
    run = {"save_checkpoints_steps": 8, "tf_random_seed": 3}
    expected = estimator(tmp_path / "alone", run=run).train(input_fn, max_steps=16)
    one = estimator(tmp_path / "run", run=run)
    seen = []
    one.train(input_fn, [Between(lambda step: seen.append((step, VERBS[verb](one))))], max_steps=16)
    assert seen == [(4, 4), (8, 8), (12, 12), (16, 16)]
    assert int(one.get_variable_value("global_step")) == 16
    check_same(one, expected)


def test_a_hook_of_train_evaluates_a_checkpoint_only_where_it_holds_the_same(tmp_path):
    one = estimator(tmp_path, run={"save_checkpoints_steps": 4})
    told, steps = [], []

    def look(step):
        with pytest.raises(StrategyError) as caught:
            one.evaluate(input_fn, steps=1, checkpoint_path=str(tmp_path / "0"))
        told.append(str(caught.value))

    class Listener:
        def begin(self):
            pass

        before_save = end = lambda self, session, step: None

        def after_save(self, session, step):
            steps.append(one.evaluate(input_fn, steps=1, checkpoint_path=one.latest_checkpoint())["global_step"])

    one.train(input_fn, [Between(look)], max_steps=8, saving_listeners=[Listener()])
    assert steps == [0, 4, 8]
    text = (
        f"checkpoint_path={str(tmp_path / '0')!r} was passed while train of the same estimator runs: to load it would "
        "overwrite the weights that are being trained. Leave checkpoint_path out to use the current weights, or "
        "use another TPUEstimator for this checkpoint"
    )
    assert told == [text] * 2
    assert one.evaluate(input_fn, steps=1, checkpoint_path=str(tmp_path / "0"))["global_step"] == 0


def test_another_thread_is_refused_while_training_runs(tmp_path):
    one = estimator(tmp_path, run={"save_checkpoints_steps": 8})
    told = []

    def look():
        for verb in ("export", "program", "train program"):
            with pytest.raises(StrategyError) as caught:
                VERBS[verb](one)
            told.append(str(caught.value))

    def aside(step):
        thread = threading.Thread(target=look, name="the second")
        thread.start()
        thread.join()

    one.train(input_fn, [Between(aside)], max_steps=4)
    where = f"of the estimator of {str(tmp_path)!r}"
    assert told == [
        f"{name} {where} was called in the thread 'the second' while train {where} runs in the thread 'MainThread', on "
        "the same variables. One thread at a time can use them: wait for the other one with thread.join(), or give "
        "each thread a model of its own with keras.models.clone_model(model)"
        for name in ("export_saved_model", "program", "program")
    ]


def test_a_checkpoint_of_another_step_is_not_saved(tmp_path):
    one = estimator(tmp_path, run={"save_checkpoints_steps": 4})

    def disturb(step):
        one._state.variables.global_step.assign(1)

    assert error_text(lambda: one.train(input_fn, [Between(disturb)], max_steps=8), kind=EstimatorError) == (
        "the checkpoint of step 4 is not saved, since the variables are those of step 1: code other than the "
        "training has assigned to the global step. Let only train change it; the next train continues from the newest "
        "checkpoint"
    )
    assert one._state.checkpoints.steps() == [0]

    class Early(Between):
        def begin(self):
            one._state.variables.global_step.assign(7)

    other = error_text(lambda: one.train(input_fn, [Early(print)], max_steps=8), kind=EstimatorError)
    assert other.startswith("the checkpoint of step 4 is not saved, since the variables are those of step ")
    assert one.train(input_fn, max_steps=4).evaluate(input_fn, steps=1)["global_step"] == 4


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return str(estimator(tmp_path_factory.mktemp("other"), run=EVERY_FOUR).train(input_fn, max_steps=40).model_dir)


@pytest.mark.parametrize("verb", ["evaluate", "predict", "export"])
def test_a_training_does_not_begin_with_a_checkpoint_that_was_looked_at(tmp_path, other, verb):
    expected = estimator(tmp_path / "alone", run=EVERY_FOUR).train(input_fn, max_steps=4)
    one = estimator(tmp_path / "run", run=EVERY_FOUR)
    if verb == "evaluate":
        assert one.evaluate(input_fn, steps=4, checkpoint_path=other)["global_step"] == 40
    elif verb == "predict":
        next(one.predict(lambda params: X, checkpoint_path=other))
    else:
        one.export_saved_model(str(tmp_path / "exported"), X[:2], checkpoint_path=other)
    one.train(input_fn, max_steps=4)
    assert one._state.checkpoints.steps() == [0, 4]
    check_same(one, expected)


def test_an_evaluation_after_that_of_another_checkpoint_is_of_the_own_weights(tmp_path, other):
    one = estimator(tmp_path, run=EVERY_FOUR)
    before = one.evaluate(input_fn, steps=4)
    assert one.evaluate(input_fn, steps=4, checkpoint_path=other)["loss"] < before["loss"]
    assert one.evaluate(input_fn, steps=4) == before


def test_a_warm_start_outlives_the_evaluation_of_another_checkpoint(tmp_path, other):
    first = str(estimator(tmp_path / "first").train(input_fn, max_steps=2).model_dir)
    expected = estimator(tmp_path / "alone", warm_start_from=first).train(input_fn, max_steps=4)
    for name, looks in {"before": [other], "between": [None, other]}.items():
        one = estimator(tmp_path / name, warm_start_from=first)
        for path in looks:
            one.evaluate(input_fn, steps=1, checkpoint_path=path)
        check_same(one.train(input_fn, max_steps=4), expected)


def test_a_refused_warm_start_is_refused_again(tmp_path, other):
    one = estimator(tmp_path, named, warm_start_from=other)
    for _ in range(2):
        with pytest.raises(EstimatorError, match="is of another model than model_fn makes to start another training"):
            one.train(input_fn, max_steps=1)


def named(features, labels, mode, params):
    logits = keras.layers.Dense(3, name="other")(features)
    return spec_of(mode, params, logits, labels, keras.optimizers.SGD(0.1))


def test_nothing_of_a_refused_checkpoint_is_loaded(tmp_path, other):
    one = estimator(tmp_path / "run", named, run=EVERY_FOUR)
    with pytest.raises(EstimatorError, match="and none of it is loaded"):
        one.evaluate(input_fn, steps=1, checkpoint_path=other)
    assert int(one._state.variables.global_step.value) == one._state.step == 0
    expected = estimator(tmp_path / "alone", named, run=EVERY_FOUR).train(input_fn, max_steps=4)
    check_same(one.train(input_fn, max_steps=4), expected)


@pytest.mark.parametrize("verb", ["train", "evaluate", "predict"])
def test_a_refused_checkpoint_of_its_own_folder_is_refused_again(tmp_path, verb):
    estimator(tmp_path, linear_model_fn).train(input_fn, max_steps=4)
    one = estimator(tmp_path, named)
    calls = {**VERBS, "train": lambda one: one.train(input_fn, steps=1)}
    for _ in range(2):
        with pytest.raises(EstimatorError, match="and none of it is loaded"):
            calls[verb](one)
        assert int(one._state.variables.global_step.value) == one._state.step == 0
    assert one._state.checkpoints.steps() == [0, 4]
