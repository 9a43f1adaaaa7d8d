"""`FitRun`: a `fit` that saves its state, and continues in the middle of an epoch.

Idea: `fit` is in a whole state at two places: before a group of steps, when all callbacks have been called, and after
an epoch. `Epochs` and two callbacks, the first and the last of the list, report these places. There a checkpoint may be
taken. A resumed fit begins with the epoch of its checkpoint. It restores the state where it was taken: before a group
of that epoch, or before the epoch begins.

Rule: the state at such a place, a `Moment`, is the weights and everything that the rest of the run depends on. Between
two places a moment stays valid while nothing changes its values: during the wait for data, compilation, evaluation.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jax
import keras
import numpy as np

from anytpu import _keras
from anytpu.engine.random_state import compact, random_states, restore_random_states
from anytpu.errors import SettingError
from anytpu.program.program_digest import program_digest
from anytpu.strategy.variables import host_copy
from anytpu.train.callback_states import CallbackStates
from anytpu.train.checkpoint import Checkpoints, Restored, SavePolicy, Saver, Snapshot
from anytpu.train.checkpointer import Checkpointer
from anytpu.train.host_callbacks import original_of
from anytpu.train.stopping import StopSignals
from anytpu.train.variable_names import OUTSIDE, model_variables
from anytpu.train.variable_values import HostMemory, assign, finite_names, size_bytes

if TYPE_CHECKING:
    from anytpu.program.program import Program
    from anytpu.train.epochs import Epochs
    from anytpu.train.trainer import Trainer

LOG = logging.getLogger("anytpu")

MAKER = "fit"


@dataclasses.dataclass
class Moment:
    """A place between two steps at which the state of a fit is whole.

    Attributes:
        epoch: index of the epoch that continues here.
        done: number of steps of this epoch that ran; None at the end of an epoch, before `epoch` begins.
        steps: number of steps that ran since the beginning of the run.
        inputs: position of each data set, by mode.
        random: states of the random generators.
        callbacks: states of the callbacks, or None if they cannot change while the moment is valid.
        metrics: values of the metrics' variables by name, or None, as for `callbacks`.
        is_finished: whether the fit ends here.
        logs: the logs of the epoch, at its end.
    """

    epoch: int
    done: int | None
    steps: int
    inputs: dict[str, Any]
    random: dict[str, Any]
    callbacks: dict[str, Any] | None = None
    metrics: dict[str, np.ndarray] | None = None
    is_finished: bool = False
    logs: dict[str, float] = dataclasses.field(default_factory=dict)


class FitRun:
    """The checkpoints of one call of `fit`.

    Args:
        trainer: the trainer of the model.
        checkpoints: the folder, which this process has locked.
        policy: when to save.
        arguments: the arguments of `fit` by name. The callbacks and the first epoch are replaced.
    """

    def __init__(
        self, trainer: Trainer, checkpoints: Checkpoints, policy: SavePolicy, arguments: dict[str, Any]
    ) -> None:
        self._trainer, self._checkpoints = trainer, checkpoints
        self._epochs_count = arguments.get("epochs", 1)
        self._resumed = self._load()
        self._steps = self._epoch_began = self._resumed.step if self._resumed else 0
        self.saves_s = 0.0
        """Seconds that the training waited for saves so far."""
        self._epoch = arguments.get("initial_epoch", 0)
        # The data of the evaluation are made at its first call, when the rest is restored already.
        self._saved_inputs: dict[str, Any] = dict(self._resumed.host["inputs"]) if self._resumed else {}
        self._callbacks = _callback_list(trainer.model, arguments, self)
        arguments["callbacks"] = self._callbacks
        if self._resumed is not None:
            host = self._resumed.host
            self._epoch = host["epoch"]
            arguments["initial_epoch"] = self._epochs_count if host["finished"] == "stopped" else self._epoch
        self._states = CallbackStates(_users(self._callbacks))
        self._programs: dict[str, str] = {}
        self._saved_programs: dict[str, str] = self._resumed.host.get("programs", {}) if self._resumed else {}
        self._from = self._resumed.where if self._resumed else ""
        self._has_batch_begin = any(map(_begins_batches, _users(self._callbacks)))
        self._epochs: dict[str, Epochs] = {}
        # Values of variables outside of Keras's lists, by name, until a trace finds the variables.
        self._unfound: dict[str, np.ndarray] = {}
        self._moment: Moment | None = None
        self._memory: HostMemory | None = None
        self._finite: frozenset[str] = frozenset()
        self._has_run = False
        self.saver = Saver(checkpoints, policy, self._steps)
        self._stop = StopSignals(self._save_for_stop, lambda: self._moment is not None or not self._has_run)

    def _load(self) -> Restored | None:
        checkpoint = self._checkpoints.load_newest()
        if checkpoint is None:
            return None
        resumed = Restored.of(checkpoint, MAKER, self._facts())
        self._checkpoints.set_aside(after=resumed.step)
        return resumed

    # Called by Epochs and the two callbacks.

    def adopt(self, mode: str, epochs: Epochs) -> None:
        """Take the data set of a mode, "train" or "test", and set its position if the run continues."""
        self._epochs[mode] = epochs
        epochs.run = self
        position = self._saved_inputs.pop(mode, None)
        if position is not None:
            epochs.continue_at(position)

    def begin(self) -> None:
        """Complete the parameters of the callbacks, which are made before the number of steps is known."""
        self._callbacks.set_params({**self._callbacks.params, "steps": self._epochs["train"].num_batches})
        self._checkpoints.check_room(size_bytes(self._named()))
        self._memory = HostMemory(self._named())
        self._finite = finite_names({n: v for n, v in self._named().items() if n.startswith("non_trainable/")})

    def begin_epoch(self, epoch: int) -> None:
        """Restore a state that was saved between two epochs, before the other callbacks are called."""
        if not self._has_run:
            self._states.begin()
        self._epoch, self._epoch_began = epoch, self._steps
        if self._resumed is not None and self._resumed.host["done"] is None:
            self.restore(self._resumed)
            self._trainer.model.reset_metrics()
            self._resumed = None
        self.change()

    def begin_steps(self) -> Restored | None:
        """Restore a state that was saved within the epoch; return it if steps of the epoch ran, or None."""
        resumed, self._resumed = self._resumed, None
        if resumed is None:
            return None
        self.restore(resumed)
        self._epoch_began = self._steps - resumed.host["done"]
        return resumed if resumed.host["done"] else None

    def reach(self, done: int, is_end: bool = False) -> None:
        """Report a place before a group of steps.

        Args:
            done: number of steps of the epoch that ran.
            is_end: whether the epoch has no more steps. Evaluation may follow, which changes metrics and callbacks.
        """
        self._steps = self._epoch_began + done
        moment = Moment(self._epoch, done, self._steps, self._positions(), random_states())
        if is_end:
            metrics = {name: v for name, v in self._named().items() if name.startswith("metrics/")}
            moment.callbacks = self._states.get()
            moment.metrics = {name: host_copy(variable) for name, variable in metrics.items()}
        self._reach(moment, is_due=not is_end and self.saver.is_due(self._steps))

    def compiled(self, program: Program) -> None:
        """Record the program of the next steps, and warn if the checkpoint's was another on the same cores."""
        key = f"{program.replicas} cores, {', '.join(str(leaf.shape) for leaf in jax.tree.leaves(program.batch))}"
        now = self._programs[key] = program_digest(program)
        then = self._saved_programs.pop(key, now)
        if then != now:
            LOG.warning(
                "The checkpoint %s was made by another program: the step's digest was %s, and is %s now. The run "
                "continues with the model, loss, optimizer and layout of now",
                self._from,
                then,
                now,
            )

    def found_outside(self) -> None:
        """Set the variables outside of Keras's lists that the trainer has found now to their saved values."""
        named = {name: variable for name, variable in self._named().items() if name in self._unfound}
        for name, variable in named.items():
            variable.assign(self._unfound.pop(name))

    def begin_group(self) -> None:
        """Report that the next call begins; if it calls callbacks before its steps, the last moment ends here."""
        if self._has_batch_begin:
            self.change()

    def change(self) -> None:
        """Report that values change, so that the last moment is over."""
        self._moment, self._has_run = None, True

    def end_epoch(self, epoch: int, logs: dict[str, Any]) -> None:
        """Report the place after an epoch, when all callbacks have been called."""
        for epochs in self._epochs.values():
            epochs.end_epoch()
        own = (logs or {}).items()
        numbers = {n: float(v) for n, v in own if isinstance(v, int | float) or getattr(v, "shape", None) == ()}
        is_stopped = bool(self._trainer.model.stop_training)
        is_last = is_stopped or epoch + 1 >= self._epochs_count
        moment = Moment(epoch + 1, None, self._steps, self._positions(), random_states(), logs=numbers)
        moment.is_finished = is_stopped
        is_due = is_last or self.saver.is_due(self._steps) or self.saver.is_best(numbers) or self.saver.is_affordable()
        self._reach(moment, is_due=self.saver.answer_of_host_0(is_due) and self._steps != self.saver.step)

    def end(self) -> None:
        """Restore the state of a finished run that has no epoch left, before the other callbacks are called."""
        resumed, self._resumed = self._resumed, None
        if resumed is not None:
            self.restore(resumed)
            model = self._trainer.model
            # The optimizer's averages are weights of the model only after this call. Keras made it before the values
            # were restored.
            if isinstance(model.optimizer, keras.optimizers.Optimizer):
                model.optimizer.finalize_variable_values(model.trainable_weights)
        self.change()

    # Saving and restoring.

    def _reach(self, moment: Moment, is_due: bool) -> None:
        # A stop saves this moment.
        self._moment = moment
        if self._stop.number is not None:
            self._stop.stop()
        if is_due:
            began_s = time.perf_counter()
            self.saver.save(lambda: self._snapshot(moment))
            self.saves_s += time.perf_counter() - began_s

    def _named(self) -> dict[str, Any]:
        return model_variables(self._trainer.model, self._trainer.outside_variables())

    def _positions(self) -> dict[str, Any]:
        return {**self._saved_inputs, **{mode: epochs.position() for mode, epochs in self._epochs.items()}}

    def _snapshot(self, moment: Moment) -> Snapshot:
        # Callbacks that run in other threads must have returned before their state is read.
        _keras.wait_for_callbacks(self._callbacks)
        named = self._named()
        assert self._memory is not None
        values = self._memory.copies(named)
        # The evaluation after this moment has changed the metrics.
        values |= self._unfound | (moment.metrics or {})
        logs = self._trainer.newest_logs if moment.done else None
        host = {
            "epoch": moment.epoch,
            "done": moment.done,
            "finished": "stopped" if moment.is_finished else None,
            "inputs": moment.inputs,
            "random": compact(moment.random),
            "programs": {**self._saved_programs, **self._programs},
            "callbacks": self._states.get() if moment.callbacks is None else moment.callbacks,
            "step_logs": jax.tree.map(np.asarray, logs),
        }
        return Snapshot(
            moment.steps,
            MAKER,
            values,
            trained=frozenset(name for name in named if name.startswith("trainable/")),
            optimizer_state=frozenset(name for name in named if name.startswith("optimizer/")),
            finite=self._finite,
            host=host,
            metrics=moment.logs,
            about={"model": self._trainer.model.name, "epoch": moment.epoch, **self._facts()},
        )

    def _facts(self) -> dict[str, Any]:
        cores = self._trainer.backend.cores
        return {"cores": len(cores), "platform": cores[0].platform}

    def _save_for_stop(self) -> str:
        moment, folder = self._moment, self._checkpoints.folder
        if moment is None or moment.steps == 0 or self.saver.is_saved(moment.steps):
            self.saver.wait()
            return f"nothing is new since step {self.saver.step}, in {folder}"
        if self.saver.save_now(lambda: self._snapshot(moment)):
            return f"step {moment.steps} is saved in {folder}"
        return f"step {moment.steps} could not be saved in {folder}"

    def restore(self, resumed: Restored) -> None:
        """Set all values to those of a checkpoint.

        Raises:
            FileError: the checkpoint belongs to another model.
        """
        # A trace of the step finds the variables outside of Keras's lists. The training step comes first, whatever
        # runs first: the names of these variables are numbered in the order in which they are found.
        self._unfound = {name: value for name, value in resumed.values.items() if name.startswith(OUTSIDE)}
        inside = {name: value for name, value in resumed.values.items() if name not in self._unfound}
        named = {name: variable for name, variable in self._named().items() if not name.startswith(OUTSIDE)}
        assign(named, dataclasses.replace(resumed, values=inside), f"the model {self._trainer.model.name!r}")
        self.found_outside()
        specs = self._epochs["train"].first_specs
        if self._unfound and specs is not None:
            self._trainer.trace("train", specs)
        unknown = self._states.set(resumed.host["callbacks"])
        if unknown:
            LOG.warning("%s is new: the checkpoint %s has no state of it", ", ".join(unknown), resumed.where)
        restore_random_states(resumed.host["random"])
        LOG.info("The fit continues from %s", resumed.where)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Return a context for the fit: signals save and stop it, and the last save is finished at its end."""
        with self._stop:
            try:
                yield
            except BaseException:
                self.saver.wait()
                raise
            self.saver.finish()
        if self._unfound:
            LOG.warning(
                "The checkpoint %s has values of variables outside of the model, which no step has used since: %s. "
                "They are kept in the next checkpoint, and the variables keep their values of now",
                self._from,
                ", ".join(self._unfound),
            )


class _FitCallback(keras.callbacks.LambdaCallback):
    """A callback that reports places to a `FitRun`."""


def _callback_list(model: Any, arguments: dict[str, Any], run: FitRun) -> Any:
    """Return the callbacks of a fit as Keras makes them, between the first and the last of `run`."""
    callbacks, verbose = arguments.get("callbacks"), arguments.get("verbose", "auto")
    if not isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = keras.callbacks.CallbackList(
            callbacks,
            add_history=True,
            add_progbar=verbose != 0,
            verbose=verbose,
            epochs=arguments.get("epochs", 1),
            steps=None,
            model=model,
        )
    if any(isinstance(callback, keras.callbacks.BackupAndRestore) for callback in callbacks.callbacks):
        raise SettingError(
            "fit has checkpoint_dir and the callback BackupAndRestore, and both continue a run. Remove BackupAndRestore"
        )
    first = _FitCallback(
        on_train_begin=lambda logs: run.begin(),
        on_epoch_begin=lambda epoch, logs: run.begin_epoch(epoch),
        on_epoch_end=lambda epoch, logs: run.change(),
        on_train_end=lambda logs: run.end(),
    )
    last = _FitCallback(on_epoch_end=run.end_epoch)
    for callback in (first, last):
        callback.set_model(model)
        callback.set_params(callbacks.params)
    callbacks.callbacks[:] = [first, *_users(callbacks), last]
    return callbacks


def _users(callbacks: Any) -> list[Any]:
    return [callback for callback in callbacks.callbacks if not isinstance(callback, _FitCallback)]


def _begins_batches(callback: Any) -> bool:
    callback = original_of(callback)
    if isinstance(callback, keras.callbacks.ProgbarLogger):
        return False
    return any(_keras.is_overridden(getattr(callback, name)) for name in ("on_train_batch_begin", "on_batch_begin"))


@contextlib.contextmanager
def checkpointed(trainer: Trainer, checkpoint_dir: Any, arguments: dict[str, Any]) -> Iterator[FitRun | None]:
    """Return a context in which a fit saves to a folder, and continues from it.

    Args:
        trainer: the trainer of the model.
        checkpoint_dir: the path of a folder, a `Checkpointer`, or None for no checkpoints.
        arguments: the arguments of `fit` by name; some are replaced.
    """
    if checkpoint_dir is None:
        yield None
        return
    folder, policy = folder_and_policy(checkpoint_dir)
    checkpoints = Checkpoints(folder, policy.keep)
    with checkpoints.writing():
        run = FitRun(trainer, checkpoints, policy, arguments)
        with run.running():
            yield run


def folder_and_policy(checkpoint_dir: Any) -> tuple[Any, SavePolicy]:
    """Return the folder and the policy of `fit(checkpoint_dir=...)`."""
    if isinstance(checkpoint_dir, Checkpointer):
        return checkpoint_dir.folder, checkpoint_dir.policy
    if not isinstance(checkpoint_dir, str | os.PathLike):
        raise SettingError(f"checkpoint_dir must be the path of a folder or a tpu.Checkpointer, not {checkpoint_dir!r}")
    return checkpoint_dir, SavePolicy(every_s=600.0)
