"""`Checkpointer`: a folder of checkpoints and when to save there, for `fit` and for custom loops."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, final

from anytpu._calls import explain_methods
from anytpu.engine.random_state import compact, random_states, restore_random_states
from anytpu.errors import SettingError
from anytpu.train.checkpoint import Checkpoints, Restored, SavePolicy, Saver, Snapshot, checkpoint_at
from anytpu.train.checkpoint.weights import METRICS
from anytpu.train.stopping import StopSignals

if TYPE_CHECKING:
    from anytpu.train.loop_programs import LoopPrograms
    from anytpu.train.tracked import Tracked

LOG = logging.getLogger("anytpu")

MAKER = "Checkpointer"


@explain_methods
@final
class Checkpointer:
    """A folder of checkpoints, and when to save there.

    `fit(..., checkpoint_dir=Checkpointer("run7", every_steps=100))` saves a Keras training; `steps` a custom loop.

    Args:
        folder: path of the folder, or its URL in a bucket, such as "gs://bucket/run7". Two jobs cannot write there at
            once; the second gets an error that names the first.
        every_s: seconds between two saves; None: time does not decide. `fit` also saves after an epoch, if that costs
            less than 2 % of the time.
        every_steps: steps between two saves; None: steps do not decide.
        keep: number of newest checkpoints to keep.
        keep_every: the first checkpoint at or after each multiple of so many steps is kept for good.
        best: name of a metric, such as "val_loss". The checkpoint with its best value is kept too.
        mode: "min" or "max": which value is the best. "" takes "max" for names with "acc", "auc", "precision",
            "recall", "f1", "r2" or "iou", and else "min".

    Raises:
        SettingError: a setting has an invalid value.

    Example:
        >>> state = {"total": 0}
        >>> for step in Checkpointer(folder).steps(3, state=state):
        ...     state["total"] += step
        >>> state
        {'total': 3}
        >>> state = {"total": 0}
        >>> for step in Checkpointer(folder).steps(5, state=state):
        ...     print("step", step)
        ...     state["total"] += step
        step 3
        step 4
        >>> state
        {'total': 10}
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        every_s: float | None = 600.0,
        every_steps: int | None = None,
        keep: int = 3,
        keep_every: int | None = None,
        best: str | None = None,
        mode: str = "",
    ) -> None:
        self.folder = os.fspath(folder)
        self.policy = SavePolicy(every_s, every_steps, keep, keep_every, best, mode)
        self._metrics: dict[str, float] = {}
        self._is_best = False
        self._saver: Saver | None = None

    def steps(self, steps: int | range, **objects: Any) -> Iterator[int]:
        """Yield the steps of a loop that continues from its newest checkpoint, and save between them.

        The first use of a folder yields all steps. After a restart, `steps` restores the objects and yields the
        remaining steps. The body of the loop must use and change the objects themselves. SIGTERM and Ctrl-C let the
        body finish, save, and end the process with status 75.

        Args:
            steps: number of steps, or a range: `range(0, 1000, 50)` for a body that runs 50 steps.
            **objects: everything that the body changes. Keras models, optimizers and metrics. Iterators with
                `get_state` and `set_state`, such as those of `strategy.distribute_dataset`. Objects of Flax NNX. Dicts
                and lists of arrays, numbers, random keys, and modules of Flax NNX and Equinox; their entries are
                replaced.

        Yields:
            The index of the step.

        Raises:
            SettingError: an object cannot be saved.
            FileError: another job writes to the folder, or the checkpoint does not fit the objects. Or the last step
                could not be saved.
            NaNLossError: a weight, or another array on a device, has a NaN or an infinity at a save.
            DamageError: there are checkpoints, and none is whole.
        """
        from anytpu.train.tracked import Tracked

        if not isinstance(steps, range):
            if not isinstance(steps, int) or isinstance(steps, bool) or steps < 0:
                raise SettingError(f"steps must be a number of steps or a range, not {steps!r}")
            steps = range(steps)
        if steps.step < 1:
            raise SettingError(f"steps must be a range that goes up, not {steps!r}")
        return self._steps(steps, Tracked(objects))

    def load_weights(self, model: Any, step: int | None = None, *, name: str | None = None) -> int:
        """Set a model's weights to those of a checkpoint, in a strategy's scope or without one.

        The optimizer is not changed. Keras then writes the weights: `model.save_weights("run7.weights.h5")`.

        Args:
            model: a Keras model, built as the saved one was.
            step: step of the checkpoint; None takes the newest whole one.
            name: the name that `steps` had for the model. It is needed if there were several.

        Returns:
            The step of the checkpoint.

        Raises:
            FileError: there is no checkpoint, or its weights do not fit the model; the error names them. The model is
                not changed.
            DamageError: the checkpoint, or every one of the folder, is damaged.
            SettingError: the model is not built, or `name` is needed or unknown.

        Example:
            >>> import keras
            >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
            >>> for step in Checkpointer("trained").steps(3, model=model):
            ...     bias = model.layers[0].bias.assign_add([1.0])
            >>> fresh = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
            >>> Checkpointer("trained").load_weights(fresh)
            3
            >>> fresh.layers[0].bias.numpy().tolist()
            [3.0]
        """
        from anytpu.train.loaded_weights import load_weights

        checkpoint = checkpoint_at(self.folder) if step is None else Checkpoints(self.folder).load(step)
        load_weights(model, checkpoint, name)
        return checkpoint.step

    def report(self, **metrics: float) -> None:
        """Report metrics within a loop of `steps`. A best value of the `best` metric saves after this step.

        Args:
            **metrics: numbers by name, such as `val_loss=0.3`.
        """
        self._metrics = {name: float(value) for name, value in metrics.items()}
        self._is_best = self._saver is not None and self._saver.is_best(self._metrics)

    def _steps(self, steps: range, tracked: Tracked) -> Iterator[int]:
        from anytpu.train.loop_programs import LoopPrograms

        checkpoints = Checkpoints(self.folder, self.policy.keep)
        with contextlib.ExitStack() as stack:
            # 1. Lock the folder, and restore the newest checkpoint.
            stack.enter_context(checkpoints.writing())
            resumed = _restored(checkpoints, tracked)
            if resumed is None:
                checkpoints.check_room(tracked.size_bytes)
            else:
                steps = range(max(resumed.step, steps.start), steps.stop, steps.step)
            tracked.reserve()
            earlier = ({}, "") if resumed is None else (resumed.host.get("programs", {}), resumed.where)
            programs = stack.enter_context(LoopPrograms(*earlier))
            saver = self._saver = Saver(checkpoints, self.policy, resumed.step if resumed else steps.start)
            stack.callback(saver.wait)
            # 2. Between two steps, save if it is due. The body of the loop runs at the `yield`.
            is_between, done = True, saver.step

            def save() -> str:
                if saver.is_saved(done):
                    return f"nothing is new since step {saver.step}, in {checkpoints.folder}"
                is_saved = saver.save_now(lambda: self._snapshot(done, tracked, programs))
                return f"step {done} {'is' if is_saved else 'could not be'} saved in {checkpoints.folder}"

            stop = stack.enter_context(
                StopSignals(
                    save, lambda: is_between or (checkpoints.job.is_alone and done == saver.step and saver.is_written)
                )
            )
            for step in steps:
                is_between = False
                yield step
                programs.check()
                is_between, done = True, min(step + steps.step, steps.stop)
                checkpoints.job.count_call()
                if stop.number is not None:
                    stop.stop()
                is_best = self.policy.best is not None and saver.answer_of_host_0(self._is_best)
                if saver.is_due(done) or is_best:
                    saver.save(lambda done=done: self._snapshot(done, tracked, programs))
                    self._is_best = False
            # 3. The last step is saved in any case.
            if done != saver.step:
                saver.save(lambda: self._snapshot(done, tracked, programs))
            saver.finish()

    def _snapshot(self, step: int, tracked: Tracked, programs: LoopPrograms) -> Snapshot:
        metrics, self._metrics = self._metrics, {}
        return Snapshot(
            step,
            MAKER,
            tracked.values(),
            trained=tracked.trained(),
            optimizer_state=tracked.optimizer_state(),
            finite=tracked.finite(),
            host={
                "positions": tracked.positions(),
                "random": compact(random_states()),
                "programs": programs.state(),
                **tracked.host(),
            },
            metrics=metrics,
            about={METRICS: tracked.metrics()},
        )


def _restored(checkpoints: Checkpoints, tracked: Tracked) -> Restored | None:
    """Restore the newest checkpoint, and return it, or None if there is none."""
    checkpoint = checkpoints.load_newest()
    if checkpoint is None:
        return None
    resumed = Restored.of(checkpoint, MAKER)
    tracked.restore(resumed)
    restore_random_states(resumed.host["random"])
    checkpoints.set_aside(after=resumed.step)
    LOG.info("The loop continues from %s", resumed.where)
    return resumed
