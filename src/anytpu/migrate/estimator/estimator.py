"""`TPUEstimator`: train, evaluate and predict with a model function on all cores.

Idea: this is the class of the first TPU systems, with its names, defaults and errors, on anytpu's engine. A step is
compiled once for each mode, not at each call, and the variables stay on the cores between calls.

Rule: some limits of the original do not apply.

- A reported loss is the mean over all replicas, not the loss of replica 0.
- A resumed run continues at its position in the data.
- The system is not shut down after a call.

As in the original, BatchNorm sees the rows of one replica.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any, final

import numpy as np

from anytpu._calls import explain_methods
from anytpu.errors import EstimatorError, ProgramError
from anytpu.migrate.estimator import arguments, inference, programs
from anytpu.migrate.estimator.deployment import Deployment, folder_of, strategy_of
from anytpu.migrate.estimator.mode_run import ModeRun, first_of
from anytpu.migrate.estimator.run_config import RunConfig
from anytpu.migrate.estimator.spec import ModeKeys
from anytpu.migrate.estimator.state import TABLES, ModelState
from anytpu.migrate.estimator.steps import STEPS, ModelStep, PredictStep
from anytpu.migrate.estimator.tables import EstimatorTables
from anytpu.migrate.estimator.training import Training
from anytpu.program.program import Program
from anytpu.strategy.identity import Identity
from anytpu.strategy.strategy import TPUStrategy
from anytpu.train.checkpoint import checkpoint_at

LOG = logging.getLogger("anytpu")


@explain_methods
@final
class TPUEstimator:
    """Trains, evaluates and predicts with a model function on all cores of a TPU.

    Args:
        model_fn: a function `(features, labels, mode, params)` that returns a `TPUEstimatorSpec`. It may also take
            `config`. It gets the rows of one replica. It makes its Keras layers in each call; they use the weights of
            the layers of the first call.
        model_dir: the folder of the checkpoints. None takes that of the config, or a temporary folder.
        config: a `RunConfig`.
        params: the `params` of model_fn and input_fn, to which "batch_size" and "use_tpu" are added.
        use_tpu: False runs everything on one CPU or GPU, with global batch sizes.
        train_batch_size: number of rows of a global training batch, divisible by the number of replicas.
        eval_batch_size: the same for evaluation; required there on a TPU.
        predict_batch_size: the same for prediction.
        batch_axis: the axes of the rows of `features` and of `labels`, for training; None is axis 0 of both.
        eval_on_tpu: False evaluates on one CPU or GPU.
        export_to_tpu: accepted for old programs: an exported program runs anywhere.
        export_to_cpu: accepted for old programs; `export_to_tpu` or `export_to_cpu` must be True.
        warm_start_from: a checkpoint or a model_dir. If model_dir has no checkpoint, variables start with its values of
            the same names. It must have all trainable weights.
        embedding_config_spec: a `tpu.embedding.EmbeddingConfigSpec`: model_fn gets embeddings in place of the ids of
            its features. None: no tables.
        export_saved_model_api_version: accepted for old programs; has no effect.

    Raises:
        EstimatorError, SettingError: an argument is invalid; the message says which and why.
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
        arguments.check_constructor(model_fn, config, params, use_tpu, rows, export_to_tpu or export_to_cpu)
        self._tables = EstimatorTables.of(embedding_config_spec, batch_axis)
        assert model_fn is not None and config is not None
        arguments.install_minimize()
        folder = folder_of(model_dir, config, on_tpu=use_tpu)
        self._model_fn, self._params = model_fn, dict(params or {})
        self._config = config.replace(model_dir=folder)
        self._use_tpu, self._eval_on_tpu, self._rows, self._batch_axis = use_tpu, eval_on_tpu, rows, batch_axis
        self._state = ModelState(folder, config.keep_checkpoint_max or None, warm_start_from, config.tf_random_seed)
        self._strategies: dict[bool, TPUStrategy] = {}
        self._runs: dict[str, tuple[Identity, ModeRun]] = {}

    @property
    def model_dir(self) -> str:
        """The folder of the checkpoints."""
        return self._state.checkpoints.folder

    @property
    def model_fn(self) -> Callable:
        """The model function."""
        return self._model_fn

    @property
    def params(self) -> dict[str, Any]:
        """A copy of the params passed to the constructor."""
        return dict(self._params)

    @property
    def config(self) -> RunConfig:
        """The `RunConfig`, with the model_dir in use."""
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
                `tpu.pipeline.Dataset` or another iterable of batches. Or it returns the arrays of all rows, which are
                used in order, repeatedly. It may be a generator function.
            hooks: a list of objects with the methods of `SessionRunHook`.
            steps: number of additional steps to train.
            max_steps: train until the global step has this value; no training if it is reached already. A TPU needs
                `steps` or `max_steps`; elsewhere None for both trains until the data end.
            saving_listeners: objects with `begin`, `before_save`, `after_save` and `end`, called around saves.

        Returns:
            The estimator.

        Raises:
            EstimatorError: an argument, or a result of input_fn or model_fn, is invalid; or the checkpoint in model_dir
                belongs to another model.
            DamageError: there are checkpoints in model_dir, and none is whole.
            FileError: another job trains in model_dir, or the folder cannot be written.
            NaNLossError: the loss is not finite.
        """
        arguments.check_train(steps, max_steps, self._use_tpu)
        with self._occupied_by("train"), self._state.training():
            if max_steps is not None and self._state.step >= max_steps:
                LOG.info("Skipping training since max_steps has already saved.")
            else:
                self._train(input_fn, hooks, steps, max_steps, saving_listeners)
        return self

    def _train(
        self, input_fn: Callable, hooks: Any, steps: int | None, max_steps: int | None, saving_listeners: Any
    ) -> None:
        state, run = self._state, self._run("train")
        # 1. Make the batches, and go to the position of the checkpoint.
        batches = run.batches(input_fn)
        if batches.go_to(state.position):
            LOG.info("The data continue at the position of step %d.", state.step)
        elif state.position is not None:
            LOG.warning(
                "The data start from the beginning. The checkpoint of step %d holds a position for another input_fn "
                "(%r), other arrays or another number of replicas (%d).",
                state.step,
                state.position["input_fn"],
                len(state.position["states"]),
            )
        # 2. Make the variables. The first batch shows the shapes, and is the first that is trained on.
        first = first_of(batches)
        state.seed()
        run.make(first)
        # 3. Train and save.
        training = Training(run, batches, run.hooks(hooks), state, self._config, saving_listeners)
        state.changes()
        training.train(first, max_steps if steps is None else state.step + steps)

    def evaluate(
        self,
        input_fn: Callable,
        steps: int | None = None,
        hooks: Any = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Evaluate a checkpoint.

        Args:
            input_fn: as for `train`; arrays are used once.
            steps: number of batches; required on a TPU. Elsewhere None takes all.
            hooks: a list of objects with the methods of `SessionRunHook`.
            checkpoint_path: the checkpoint to evaluate. None takes the newest or, in a hook of `train`, the current
                weights.
            name: accepted for old programs; has no effect.

        Returns:
            A dictionary: "loss", the mean over all rows, "global_step", and the metrics of `eval_metrics`.

        Raises:
            EstimatorError: an argument, or a result of input_fn or model_fn, is invalid.
        """
        arguments.check_evaluate(steps, self._use_tpu and self._eval_on_tpu)
        with self._occupied_by("evaluate"):
            run, batches = self._begin("eval", input_fn, checkpoint_path)
            first = first_of(batches)
            self._state.seed()
            run.make(first)
            values = inference.evaluated(run, itertools.chain([first], batches), steps, run.hooks(hooks))
            values = {**values, "global_step": np.int64(self._state.step)}
        LOG.info("Saving dict for global step %d: %s", values["global_step"], inference.format_results(values))
        return values

    def predict(
        self,
        input_fn: Callable,
        predict_keys: Any = None,
        hooks: Any = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[dict[str, np.ndarray]]:
        """Predict with a generator: nothing runs before its first `next`, and it may be abandoned at any time.

        Args:
            input_fn: as for `train`; arrays are used once and labels are ignored. The last batch may be shorter.
            predict_keys: the names of the predictions to yield; None: all.
            hooks: a list of objects with the methods of `SessionRunHook`.
            checkpoint_path: the checkpoint to predict with; None: as for `evaluate`.
            yield_single_examples: False yields one dictionary for each batch, not for each row.

        Yields:
            The predictions of one row, by name.

        Raises:
            EstimatorError: (at the first `next`) a result of input_fn or model_fn is invalid.
        """
        with self._occupied_by("predict"):
            run, batches = self._begin("infer", input_fn, checkpoint_path)
            self._state.seed()
        yield from inference.predicted(run, batches, hooks, yield_single_examples, predict_keys)

    def latest_checkpoint(self) -> str | None:
        """Return the folder of the newest checkpoint, or None."""
        step = self._state.checkpoints.latest()
        return None if step is None else self._state.checkpoints.path(step)

    def get_variable_names(self) -> list[str]:
        """Return the names of the variables in the newest checkpoint."""
        return sorted(self._checkpoint_values())

    def get_variable_value(self, name: str) -> np.ndarray:
        """Return the value of a variable in the newest checkpoint.

        Raises:
            EstimatorError: there is no such variable.
        """
        values = self._checkpoint_values()
        if name not in values:
            raise EstimatorError(f"there is no variable {name!r} in the checkpoint. There are {sorted(values)}")
        return values[name]

    def _checkpoint_values(self) -> dict[str, np.ndarray]:
        """Return the variables in the newest checkpoint by name, those of embedding tables by that of each table."""
        values, tables = checkpoint_at(self.model_dir).values, self._tables
        return dict(values) if tables is None else tables.values_by_table(values, TABLES)

    def export_saved_model(
        self,
        export_dir_base: str,
        serving_input_receiver_fn: Any,
        checkpoint_path: str | None = None,
        platforms: tuple[str, ...] = ("cpu",),
    ) -> str:
        """Write the prediction step with its weights to a file, which runs without the model's code.

        Args:
            export_dir_base: the folder.
            serving_input_receiver_fn: a function that returns the features of a batch, arrays or
                `jax.ShapeDtypeStruct`, or these themselves. The program takes batches of that shape.
            checkpoint_path: the checkpoint to export; None: as for `evaluate`.
            platforms: the platforms that it will run on: any of "cpu", "cuda" and "tpu".

        Returns:
            The path of the file, `<export_dir_base>/<global step>.anytpu`: for `anytpu.program.read`.

        Raises:
            EstimatorError: nothing was trained yet, or the features are invalid.
        """
        with self._occupied_by("export_saved_model"):
            if not self._state.refresh(checkpoint_path):
                missing = f"there is no checkpoint to export in {self.model_dir!r}: call estimator.train first"
                raise EstimatorError(missing)
            self._state.seed()
            program = programs.prediction(self._serving_step, serving_input_receiver_fn, tensors=True)
            return programs.exported(program, export_dir_base, self._state.step, platforms)

    def program(self, input_specs: Any, mode: str = "train", tensors: bool = False) -> Program:
        """Return the step of a mode as a `Program`, as `anytpu.program.of(estimator, ...)` does.

        Args:
            input_specs: specs or arrays of a global batch: `(features, labels)` for "train", features for "infer".
            mode: "train" or "infer".
            tensors: whether to copy the values of the variables into the Program.

        Raises:
            EstimatorError: mode is "train", and the estimator has embedding tables.
            ProgramError: `input_specs` is None.
        """
        if mode == "train" and self._tables is not None:
            raise EstimatorError(
                "a training step with embedding_config_spec is three programs: a lookup, the step of model_fn, and an "
                "update. To plan it as one, put tpu.layers.ShardedEmbedding into a Keras model, and type "
                "tpu.plan(model, batch)"
            )
        if input_specs is None:
            raise ProgramError(
                "a TPUEstimator needs input_specs, the shapes of a batch: program.of(estimator, (features, labels)), "
                'or program.of(estimator, features, mode="infer")'
            )
        with self._occupied_by("program"):
            self._state.refresh(None)
            self._state.seed()
            if mode == "train":
                return programs.training(self._run("train"), input_specs, tensors)
            return programs.prediction(self._serving_step, input_specs, tensors)

    def _occupied_by(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which a method of this name occupies the model."""
        return self._state.occupancy.by(f"{name} of the estimator of {self.model_dir!r}")

    def _begin(self, mode: str, input_fn: Callable, checkpoint_path: str | None) -> tuple[Any, Any]:
        """Load the checkpoint to evaluate or predict with, and return the run and the batches."""
        if not self._state.refresh(checkpoint_path) and not self._state.variables.is_trained:
            LOG.info("Could not find trained model in model_dir: %s, running initialization.", self.model_dir)
        run = self._run(mode)
        return run, run.batches(input_fn)

    def _run(self, mode: str) -> ModeRun:
        """Return the run of a mode; it is made again if model_fn has changed or the system was stopped.

        Raises:
            EstimatorError, SettingError: the batch size or the number of shards is invalid for the system.
        """
        identity, known = Identity(self._model_fn), self._runs.get(mode)
        if known is not None and known[0] == identity and known[1].deployment.strategy.system.is_running:
            return known[1]
        tpu_config, on_tpu = self._config.tpu_config, self._use_tpu and (self._eval_on_tpu or mode != ModeKeys.EVAL)
        assert tpu_config is not None
        axis = self._batch_axis if on_tpu and mode == ModeKeys.TRAIN else None
        pipeline: Any = tpu_config.per_host_input_for_training
        deployment = Deployment(mode, self._strategy(on_tpu), on_tpu, self._rows[mode], pipeline, axis)
        deployment.check(tpu_config.num_shards)
        params = deployment.model_params(self._params)
        step = STEPS[mode](self._model_fn, params, self._config, self._state, self._tables)
        run = ModeRun(deployment, step, self._params, self._strategy_of_tables)
        self._runs[mode] = identity, run
        return run

    def _serving_step(self, rows: int) -> ModelStep:
        """Return a prediction step for a number of rows, which runs on any system."""
        params = {**self._params, "batch_size": rows, "use_tpu": False}
        step = PredictStep(self._model_fn, params, self._config, self._state, self._tables, looks_up=True)
        step.add_tables(self._strategy_of_tables)
        return step

    def _strategy_of_tables(self) -> TPUStrategy:
        """Return the strategy of training, on whose cores the embedding tables are in all modes."""
        return self._strategy(self._use_tpu)

    def _strategy(self, on_tpu: bool) -> TPUStrategy:
        known = self._strategies.get(on_tpu)
        if known is None or not known.system.is_running:
            self._strategies[on_tpu] = strategy_of(self._config, on_tpu)
        return self._strategies[on_tpu]
