"""`TPUEstimator`: a model function, trained, evaluated and asked for predictions on all cores.

Idea: the class of the first TPU systems, with their names, defaults and errors, over the one engine: a step is compiled
once for each mode, not at each call, and the variables stay on the cores in between.

Rule: what was lifted is said here. A reported loss is the mean over all replicas (of old it was replica 0's). A run that
is resumed goes on where it stood, in the data too. The system is not shut down after a call.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, final

import keras
import numpy as np

from anytpu.strategy.identity import Identity
from anytpu.train.checkpoint import Checkpoints, checkpoint_at
from anytpu.train.estimator import arguments, evaluation, prediction
from anytpu.train.estimator.hooks import Hooks
from anytpu.train.estimator.inputs import HostBatches
from anytpu.train.estimator.mode_run import ModeRun
from anytpu.train.estimator.modes import ModeKeys
from anytpu.train.estimator.places import Places
from anytpu.train.estimator.run_config import RunConfig
from anytpu.train.estimator.saving import Saver
from anytpu.train.estimator.training import LoopLength, Training
from anytpu.train.estimator.variable_store import VariableStore

LOG = logging.getLogger("anytpu")


@final
class TPUEstimator:
    """Trains, evaluates and predicts with a model function, on all cores of a TPU.

    Args:
        model_fn: a function `(features, labels, mode, params)` that returns a `TPUEstimatorSpec`. It may also name
            `config`. It sees the rows of one replica, and makes its Keras layers each time that it is called; they have
            the weights of those that it made first.
        model_dir: the folder of the checkpoints. None takes that of the config, or a temporary one.
        config: a `RunConfig`.
        params: what model_fn and input_fn get as `params`, with "batch_size" and "use_tpu".
        use_tpu: False runs everything on one CPU or GPU, with global batch sizes.
        train_batch_size: the rows of a global batch of training; the replicas must divide it.
        eval_batch_size: likewise for evaluation; needed there on a TPU.
        predict_batch_size: likewise for prediction.
        batch_axis: the axis of rows of `features` and of `labels`, for training; None is the first of each.
        eval_on_tpu: False evaluates on one CPU or GPU.
        export_to_tpu: accepted: an exported program runs anywhere.
        export_to_cpu: likewise; one of the two must be True.
        warm_start_from: a checkpoint or a model_dir whose values the variables of the same names start with, where
            model_dir has no checkpoint.
        embedding_config_spec: None.
        export_saved_model_api_version: accepted.

    Raises:
        EstimatorError, SettingError: an argument cannot be used; the message says which and why.
    """

    def __init__(
        self,
        model_fn: Callable | None = None,
        model_dir: str | None = None,
        config: RunConfig | None = None,
        params: dict[str, Any] | None = None,
        use_tpu: bool = True,
        train_batch_size: int | None = None,
        eval_batch_size: int | None = None,
        predict_batch_size: int | None = None,
        batch_axis: Any = None,
        eval_on_tpu: bool = True,
        export_to_tpu: bool = True,
        export_to_cpu: bool = True,
        warm_start_from: str | None = None,
        embedding_config_spec: Any = None,
        export_saved_model_api_version: Any = 1,
    ) -> None:
        rows = {"train": train_batch_size, "eval": eval_batch_size, "infer": predict_batch_size}
        arguments.check_constructor(
            model_fn, config, params, use_tpu, rows, export_to_tpu or export_to_cpu, embedding_config_spec
        )
        assert model_fn is not None and config is not None
        arguments.install_minimize()
        self._model_fn, self._params = model_fn, dict(params or {})
        folder = model_dir or config.model_dir or _temporary()
        self._config = config.replace(model_dir=str(folder))
        self._checkpoints = Checkpoints(folder, config.keep_checkpoint_max or None)
        self._places = Places(self._config, use_tpu, eval_on_tpu, rows, batch_axis)
        self._store = VariableStore()
        self._runs: dict[tuple, ModeRun] = {}
        self._loaded: Any = None
        self._position: Any = None
        self._warm_start_from = warm_start_from

    @property
    def model_dir(self) -> str:
        """The folder of the checkpoints."""
        return str(self._checkpoints.folder)

    @property
    def model_fn(self) -> Callable:
        """The model function."""
        return self._model_fn

    @property
    def params(self) -> dict[str, Any]:
        """A copy of the params, as they were given."""
        return dict(self._params)

    @property
    def config(self) -> RunConfig:
        """The `RunConfig`, with the model_dir that is in use."""
        return self._config

    def train(
        self,
        input_fn: Callable,
        hooks: Any = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Any = None,
    ) -> TPUEstimator:
        """Train, and save a checkpoint at the end.

        Args:
            input_fn: a function of `params` that returns batches `(features, labels)` of `params["batch_size"]` rows: a
                `tpu.pipeline.Dataset` or another iterable of them, or the arrays, which are gone through in order
                again and again. It may be a generator function.
            hooks: a list of objects with the methods of `SessionRunHook`.
            steps: train so many steps more.
            max_steps: train until the global step is this; not if it is already. One of the two is needed on a TPU;
                elsewhere None for both trains until the data end.
            saving_listeners: objects with `begin`, `before_save`, `after_save` and `end`, called around saves.

        Returns:
            The estimator.

        Raises:
            EstimatorError: the arguments, or what input_fn or model_fn return, cannot be used.
            NaNLossError: the loss is not finite.
        """
        arguments.check_train(steps, max_steps, self._places.is_on_tpu(ModeKeys.TRAIN))
        self._refresh(None)
        step = self._step()
        if max_steps is not None and step >= max_steps:
            LOG.info("Skipping training since max_steps has already saved.")
            return self
        run = self._run(ModeKeys.TRAIN)
        batches = self._batches(run, input_fn)
        if batches.go_to(self._position):
            LOG.info("The data go on where the run of step %d stood.", step)
        first = next(batches)
        self._make(run, first)
        step = self._step()
        last = max_steps if steps is None else step + steps
        self._train(run, batches, first, step, last, hooks, saving_listeners)
        return self

    def evaluate(
        self,
        input_fn: Callable,
        steps: int | None = None,
        hooks: Any = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Evaluate.

        Args:
            input_fn: as for `train`; the arrays are gone through once.
            steps: how many batches; needed on a TPU. Elsewhere None takes all.
            hooks: a list of objects with the methods of `SessionRunHook`.
            checkpoint_path: the checkpoint to evaluate; None: the newest.
            name: accepted.

        Returns:
            A dictionary: "loss", the mean over all rows, "global_step", and the metrics of `eval_metrics`.

        Raises:
            EstimatorError: the arguments, or what input_fn or model_fn return, cannot be used.
        """
        arguments.check_evaluate(steps, self._places.is_on_tpu(ModeKeys.EVAL))
        run, batches, first = self._begin(ModeKeys.EVAL, input_fn, checkpoint_path)
        around = self._hooks(run, hooks)
        around.begin()
        around.ready()
        values = evaluation.evaluated(run, evaluation.chained(first, batches), steps, around)
        around.end()
        values = {**values, "global_step": np.int64(self._step())}
        LOG.info("Saving dict for global step %d: %s", values["global_step"], evaluation.told(values))
        return values

    def predict(
        self,
        input_fn: Callable,
        predict_keys: Any = None,
        hooks: Any = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[dict[str, np.ndarray]]:
        """Predict, as a generator: nothing runs before its first `next`, and it may be left at any time.

        Args:
            input_fn: as for `train`, gone through once; labels are left out. The last batch may be shorter.
            predict_keys: the names of the predictions to yield; None: all.
            hooks: a list of objects with the methods of `SessionRunHook`.
            checkpoint_path: the checkpoint to predict with; None: the newest.
            yield_single_examples: False yields one dictionary for each batch, not for each row.

        Yields:
            The predictions of one row, by name.

        Raises:
            EstimatorError: (at the first `next`) what input_fn or model_fn return cannot be used.
        """
        run, batches, first = self._begin(ModeKeys.PREDICT, input_fn, checkpoint_path)
        around = self._hooks(run, hooks)
        around.begin()
        around.ready()
        source = around.around(evaluation.chained(first, batches))
        yield from prediction.predicted(run, source, yield_single_examples, predict_keys)
        around.end()

    def latest_checkpoint(self) -> str | None:
        """Return the folder of the newest checkpoint, or None."""
        step = self._checkpoints.latest()
        return None if step is None else self._checkpoints.path(step)

    def get_variable_names(self) -> list[str]:
        """Return the names of the variables in the newest checkpoint."""
        return sorted(self._saved())

    def get_variable_value(self, name: str) -> np.ndarray:
        """Return the value of a variable in the newest checkpoint.

        Raises:
            EstimatorError: there is no such variable.
        """
        return arguments.found(name, self._saved())

    def _train(
        self, run: ModeRun, batches: HostBatches, first: Any, step: int, last: int | None, hooks: Any, listeners: Any
    ) -> None:
        config = self._config
        saver = Saver(
            self._checkpoints,
            self._store,
            config.save_checkpoints_steps,
            config.save_checkpoints_secs,
            listeners or (),
        )
        around = self._hooks(run, hooks)
        assert config.tpu_config is not None
        training = Training(
            run,
            batches,
            around,
            saver,
            LoopLength(self._places.loop_length()),
            config.tpu_config.experimental_host_call_every_n_steps,
            config.log_step_count_steps,
        )
        around.begin()
        saver.begin(step)
        around.ready()
        step = training.until(step, last, first)
        self._position = batches.position()
        saver.end(step, self._position)
        self._loaded = self._checkpoints.latest()
        around.end()
        LOG.info("Loss for final step: %.6g.", training.loss)

    def _begin(self, mode: str, input_fn: Callable, checkpoint_path: str | None) -> tuple[ModeRun, HostBatches, Any]:
        """Get ready to evaluate or predict: return the run, the batches, and the first of them."""
        if not self._refresh(checkpoint_path) and not self._store.is_trained:
            LOG.info("Could not find trained model in model_dir: %s, running initialization.", self.model_dir)
        run = self._run(mode)
        batches = self._batches(run, input_fn)
        first = arguments.first_of(batches)
        if mode == ModeKeys.EVAL:
            self._make(run, first)
        return run, batches, first

    def _batches(self, run: ModeRun, input_fn: Callable) -> HostBatches:
        return HostBatches(input_fn, run.deployment, self._params, self._config)

    def _hooks(self, run: ModeRun, hooks: Any) -> Hooks:
        return Hooks([*(hooks or ()), *run.hooks()])

    def _run(self, mode: str) -> ModeRun:
        """Return the run of a mode: the one that there is, unless model_fn or the system has changed since."""
        deployment = self._places.of(mode)
        key = (mode, deployment, Identity(self._model_fn))
        if key not in self._runs:
            self._runs[key] = ModeRun.of(self._model_fn, deployment, self._params, self._config, self._store)
        return self._runs[key]

    def _make(self, run: ModeRun, batch: Any) -> None:
        if self._config.tf_random_seed is not None and not self._store.is_made:
            keras.utils.set_random_seed(self._config.tf_random_seed)
        run.make(batch)

    def _step(self) -> int:
        return int(self._store.global_step.value)

    def _refresh(self, checkpoint_path: str | None) -> bool:
        """Load the newest checkpoint, or the one asked for, unless it is in the variables; say whether there is one."""
        if checkpoint_path is not None:
            checkpoints, step = checkpoint_at(checkpoint_path)
            wanted: Any = (str(checkpoints.folder), step)
        else:
            checkpoints, step = self._checkpoints, self._checkpoints.latest()
            wanted = step
        if step is not None and wanted != self._loaded:
            values, self._position = checkpoints.load(step)
            self._store.load(values)
            self._loaded = wanted
            LOG.info("Restoring parameters from %s", checkpoints.path(step))
        elif step is None and self._warm_start_from is not None:
            folder, step = checkpoint_at(self._warm_start_from)
            self._store.load(arguments.weights_of(folder.load(step)[0]))
            self._warm_start_from = None
        return step is not None

    def _saved(self) -> dict[str, np.ndarray]:
        checkpoints, step = checkpoint_at(self.model_dir)
        return checkpoints.load(step)[0]


def _temporary() -> str:
    folder = tempfile.mkdtemp(prefix="anytpu-estimator-")
    LOG.warning("Using temporary folder as model directory: %s", folder)
    return folder
