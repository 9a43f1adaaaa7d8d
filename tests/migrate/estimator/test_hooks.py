from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import EstimatorError
from estimator_samples import arrays, estimator, input_fn, spec_of

X, _ = arrays()


class Recorder(tpu.SessionRunHook):
    """Notes what it is called for, and asks to stop at a step."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.seen: list[Any] = []
        self.stop_at = stop_at

    def begin(self):
        self.seen.append("begin")

    def after_create_session(self, session, coord):
        self.seen.append("ready")

    def before_run(self, run_context):
        self.seen.append("before")

    def after_run(self, run_context, run_values):
        self.seen.append(run_values.results.get("global_step", "after"))
        if self.stop_at is not None and run_values.results.get("global_step", 0) >= self.stop_at:
            run_context.request_stop()

    def end(self, session):
        self.seen.append("end")


def test_hooks_are_called_between_loops_a31(tmp_path):
    hook = Recorder()
    estimator(tmp_path).train(input_fn, hooks=[hook], steps=10)
    assert hook.seen == ["begin", "ready", "before", 4, "before", 8, "before", 10, "end"]


def test_a_hook_stops_the_training_a31(tmp_path):
    hook = Recorder(stop_at=5)
    one = estimator(tmp_path).train(input_fn, hooks=[hook], steps=100)
    assert hook.seen[-2:] == [8, "end"]
    assert int(one.get_variable_value("global_step")) == 8


def test_hooks_of_the_spec_a29(tmp_path):
    hooks = {name: Recorder() for name in ("training_hooks", "evaluation_hooks", "prediction_hooks")}

    def hooked(features, labels, mode, params):
        more = {name: [hook] for name, hook in hooks.items()}
        return spec_of(mode, params, keras.layers.Dense(3)(features), labels, keras.optimizers.SGD(0.1), **more)

    one = estimator(tmp_path, hooked).train(input_fn, steps=4)
    one.evaluate(input_fn, steps=2)
    list(one.predict(lambda params: X[:9]))
    seen = {name: hook.seen for name, hook in hooks.items()}
    assert seen["training_hooks"] == ["begin", "ready", "before", 4, "end"]
    assert seen["evaluation_hooks"] == ["begin", "ready", "before", "after", "end"]
    assert seen["prediction_hooks"] == ["begin", "ready", "before", "after", "before", "after", "end"]


def test_listeners_hear_of_saves(tmp_path):
    seen: list[Any] = []

    class Listener:
        def begin(self):
            seen.append(("begin", None))

        def before_save(self, session, step):
            seen.append(("before", step))

        def after_save(self, session, step):
            seen.append(("after", step))

        def end(self, session, step):
            seen.append(("end", step))

    one = estimator(tmp_path, run={"save_checkpoints_steps": 8, "keep_checkpoint_max": 2})
    one.train(input_fn, steps=10, saving_listeners=[Listener()])
    assert seen == [
        ("begin", None),
        *[(name, step) for step in (0, 8, 10) for name in ("before", "after")],
        ("end", 10),
    ]
    assert one._state.checkpoints.steps() == [8, 10]


# In loops of 4 and 2 steps, every third is the steps 0 and 3, and 0.
@pytest.mark.parametrize(("every", "called"), [(1, [0, 1, 2, 3, 4, 5]), (3, [0, 3, 4])])
def test_host_call_a30(tmp_path, every, called):
    seen = []

    def host(step, losses):
        seen.append((int(step[0]), losses.shape))

    def calling(features, labels, mode, params):
        logits = keras.layers.Dense(3)(features)
        step = keras.ops.reshape(tpu.get_global_step().value, [1])
        losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        tensors = {"losses": losses, "step": step}
        more = {"host_call": (host, tensors)} if mode == "train" else {}
        return spec_of(mode, params, logits, labels, keras.optimizers.SGD(0.1), **more)

    tpu_config = {"experimental_host_call_every_n_steps": every}
    estimator(tmp_path, calling, tpu_config=tpu_config).train(input_fn, steps=6)
    assert [step for step, _ in seen] == called
    assert {shape for _, shape in seen} == {(16,)}


def test_host_call_without_rows_a29(tmp_path):
    def scalar(features, labels, mode, params):
        logits = keras.layers.Dense(3)(features)
        more = {"host_call": (print, [keras.ops.mean(logits)])}
        return spec_of(mode, params, logits, labels, keras.optimizers.SGD(0.1), **more)

    with pytest.raises(EstimatorError, match="All tensors outfed from TPU should preserve batch size dimension"):
        estimator(tmp_path, scalar).train(input_fn, steps=1)


def test_metric_fn_must_return_metrics(tmp_path):
    def listing(features, labels, mode, params):
        logits = keras.layers.Dense(3)(features)
        loss = keras.ops.mean(logits)
        return tpu.TPUEstimatorSpec(mode, loss=loss, eval_metrics=(lambda logits: [np.mean(logits)], [logits]))

    with pytest.raises(EstimatorError) as caught:
        estimator(tmp_path, listing).evaluate(input_fn, steps=1)
    assert str(caught.value).startswith("metric_fn must return a dictionary of Keras metrics or numbers by name, not [")
