"""`FitRecord`: writes the record of a `fit`, from what the trainer knows already.

Idea: a call of the compiled loop returns handles of its logs. Ended calls are read at most every
fifth of a second, or when Keras reads them, at the end of an epoch. The record never waits for a device.

Rule: the logs of Keras are means over the epoch so far. The `loss` of a point is the mean over its own steps, computed
from two such means and their numbers of examples. The other metrics are Keras's.

Source: Chowdhery et al., PaLM, arXiv:2204.02311, appendix B. MFU is the operations of a step on a core, divided by
the step time and the core's peak bfloat16 rate. XLA counts the operations.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import numpy as np

from anytpu.engine.executable import fetch
from anytpu.train.functions import has_steps_of_keras
from anytpu.train.record import RunRecord

if TYPE_CHECKING:
    from anytpu.engine.backend import Backend
    from anytpu.train.fit_checkpoints import FitRun
    from anytpu.train.input_clock import InputClock
    from anytpu.train.trainer import Trainer

MIN_POINT_S = 0.2
"""Seconds between two points of an epoch, at least."""

_RESOLUTION = 1e-6

MFU_FORMULA = "operations of a step on a core by XLA's count / (step time x peak bfloat16 rate of a core)"


class _Call(NamedTuple):
    """A call of the compiled loop whose logs were not read yet: the last and all of them, and the counts after it."""

    logs: Any
    every: list[tuple[Any, int]]
    step: int
    examples: int


class FitRecord(keras.callbacks.Callback):
    """Writes the record of one fit. As the last callback it sees the logs of each epoch.

    Args:
        trainer: the trainer of the model.
        record: the record.
        run: the checkpoints of the fit, or None.
        step: number of steps that ran before.
    """

    takes_many_steps = True

    def __init__(self, trainer: Trainer, record: RunRecord, run: FitRun | None, step: int) -> None:
        super().__init__()
        self._trainer, self._record, self._run = trainer, record, run
        self.step = self._written = step
        self._epoch, self._clock = 0, None
        self._calls: list[_Call] = []
        self._examples = self._seen = self._done = 0
        self._loss: float | None = None
        self._began_s = self._point_s = 0.0
        self._spent: dict[str, float] = {}
        self._before: dict[str, float] = {}
        self._evaluation_s = 0.0
        self._has_mean_loss = has_steps_of_keras(trainer.model)
        self.peak_flops_per_s = _peak_flops_per_s(trainer)

    # Called by the trainer, its epochs and its loops.

    def begin_epoch(self, epoch: int, clock: InputClock, done: int, logs: Any) -> None:
        """Begin the steps of an epoch, from 1. Of them `done` ran before a checkpoint; `logs` are those of the last."""
        self._epoch, self._clock, self._calls = epoch, clock, []
        self._done, self._loss = done, _numbers(logs).get("loss") if done else None
        self._examples, self._seen, self._evaluation_s = 0, 0, 0.0
        self._began_s = self._point_s = time.perf_counter()
        self._before = self._counters()
        self._spent = self._now_spent()

    def called(self, backend: Backend, logs: Any, every: list[tuple[Any, int]], examples: int) -> None:
        """Take the logs of a call that was started, and write a point for earlier calls if it is time."""
        steps = sum(count for _, count in every)
        if self._done:
            # The steps of this epoch before the checkpoint had batches of this size.
            self._seen = self._examples = self._done * (examples // steps)
            self._done = 0
        self.step, self._examples = self.step + steps, self._examples + examples
        if time.perf_counter() - self._point_s >= MIN_POINT_S:
            # Calls end in the order of their start.
            running = next((n for n, call in enumerate(self._calls) if not _has_ended(backend, call)), len(self._calls))
            ended, self._calls = self._calls[:running], self._calls[running:]
            if ended:
                self._write(ended)
        self._calls.append(_Call(logs, list(every), self.step, self._examples))

    def steps_ended(self) -> None:
        """Write the last point of an epoch, when Keras has read its logs."""
        calls, self._calls = self._calls, []
        if calls:
            self._write(calls)

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Measure the evaluation of an epoch."""
        began_s, compiled_s = time.perf_counter(), self._trainer.compiling_s
        yield
        self._evaluation_s += time.perf_counter() - began_s - (self._trainer.compiling_s - compiled_s)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Write the end of an epoch, with Keras's logs."""
        self.steps_ended()
        metrics = _numbers(logs)
        spent = {**self._now_spent(), "evaluation": self._evaluation_s}
        duration_s = time.perf_counter() - self._began_s
        rest_s = duration_s - (self._point_s - self._began_s) - self._evaluation_s
        besides_s = sum(spent[name] - self._spent[name] for name in ("compile", "save"))
        spent["callbacks"] = max(rest_s - besides_s, 0.0)
        spent["steps"] = max(duration_s - sum(spent.values()), 0.0)
        finite = {name: value if np.isfinite(value) else None for name, value in metrics.items()}
        self._record.event("epoch", self.step, epoch=epoch + 1, duration_s=duration_s, metrics=finite, spent=spent)

    # Points.

    def _write(self, calls: list[_Call]) -> None:
        # 1. The values: those of the newest call.
        last = calls[-1]
        fetch(last.logs)
        metrics = _numbers(last.logs)
        before, loss = self._loss, metrics.get("loss")
        if loss is not None and self._has_mean_loss and before is not None and np.isfinite(before):
            total = loss * last.examples - before * self._seen
            metrics["loss"] = total / max(last.examples - self._seen, 1)
            if abs(total) < _RESOLUTION * abs(loss * last.examples):
                del metrics["loss"]  # Only the rounding of the means is left.
        # 2. The times: what the host did besides is not a step's.
        now, spent = time.perf_counter(), self._now_spent()
        besides_s = sum(spent[name] - self._spent[name] for name in ("compile", "save"))
        duration_s = max(now - self._point_s - besides_s, 1e-9)
        steps = last.step - self._written
        input_s = spent["input"] - self._spent["input"]
        point: dict[str, Any] = {"step": last.step, "epoch": self._epoch, "time": time.time(), "steps": steps}
        point |= {"step_s": duration_s / steps, "examples_per_s": (last.examples - self._seen) / duration_s}
        point |= {"input_share": min(input_s / duration_s, 1.0), "spent": spent | {"all": now - self._began_s}}
        if self.peak_flops_per_s is not None and (flops := self._trainer.step_flops):
            point["mfu"] = flops * steps / duration_s / self.peak_flops_per_s
        first, seen = self._written, self._seen
        self._record.point(point, metrics, lambda: self._steps_meant(calls, first, before, seen))
        self._loss, self._seen = loss, last.examples
        self._written, self._point_s, self._spent = last.step, now, spent

    def _steps_meant(self, calls: list[_Call], first: int, before: float | None, seen: int) -> str:
        """Return the first step of these calls whose loss is not finite, or else the step with the largest loss."""
        parts = [(self._trainer.backend.get(logs), count) for call in calls for logs, count in call.every]
        means = np.concatenate([np.asarray(logs["loss"], np.float64)[:count] for logs, count in parts])
        bad = np.flatnonzero(~np.isfinite(means))
        if len(bad):
            return f"step {first + int(bad[0]) + 1}"
        if not self._has_mean_loss:
            return f"step {first + int(means.argmax()) + 1}"
        examples = np.linspace(seen, calls[-1].examples, len(means) + 1)
        losses = np.diff(examples * np.concatenate([[before or 0.0], means]))
        return f"step {first + int(losses.argmax()) + 1}"

    def _counters(self) -> dict[str, float]:
        waited_s = 0.0 if self._clock is None else self._clock.waited_s
        saved_s = 0.0 if self._run is None else self._run.saves_s
        return {"input": waited_s, "compile": self._trainer.compiling_s, "save": saved_s}

    def _now_spent(self) -> dict[str, float]:
        """Return the seconds that the epoch has spent on other things than steps."""
        return {name: value - self._before[name] for name, value in self._counters().items()}


@contextlib.contextmanager
def recorded(
    trainer: Trainer, run_dir: Any, checkpoint_dir: Any, arguments: dict[str, Any], run: FitRun | None
) -> Iterator[FitRecord | None]:
    """Return a context in which a fit writes a record; on several hosts, host 0 does.

    Args:
        trainer: the trainer of the model.
        run_dir: the folder, or None for that of the checkpoints.
        checkpoint_dir: the folder of the checkpoints, which may be a URL; or None.
        arguments: the arguments of `fit` by name; the callbacks are completed.
        run: the checkpoints of the fit, or None.
    """
    if run_dir is None and checkpoint_dir is not None:
        folder = getattr(checkpoint_dir, "folder", checkpoint_dir)
        run_dir = None if "://" in os.fspath(folder) else folder
    if run_dir is None:
        yield None
        return
    record = RunRecord(run_dir)
    if not trainer.backend.hosts.is_first:
        yield None
        return
    step = run.first_step if run is not None else _steps_of(trainer.model)
    fit = FitRecord(trainer, record, run, step)
    record.begin(step, _about(trainer, arguments, checkpoint_dir, fit.peak_flops_per_s))
    callbacks = arguments.get("callbacks")
    if isinstance(callbacks, keras.callbacks.CallbackList):
        fit.set_model(trainer.model)
        callbacks.callbacks.append(fit)
    else:
        arguments["callbacks"] = [*keras.tree.flatten(callbacks or []), fit]
    try:
        yield fit
    except BaseException as error:
        record.close(error, fit.step)
        raise
    record.close(step=fit.step)


def _has_ended(backend: Backend, call: _Call) -> bool:
    return backend.is_ready([logs for logs, _ in call.every])


def _numbers(logs: Any) -> dict[str, float]:
    """Return those of the logs that are one number."""
    values = {name: np.asarray(value) for name, value in logs.items()} if isinstance(logs, dict) else {}
    return {name: float(value) for name, value in values.items() if not value.shape and value.dtype.kind in "biufV"}


def _steps_of(model: Any) -> int:
    optimizer: Any = model.optimizer
    return (
        int(np.asarray(getattr(optimizer.iterations, "value", 0)))
        if isinstance(optimizer, keras.optimizers.Optimizer)
        else 0
    )


def _peak_flops_per_s(trainer: Trainer) -> float | None:
    """Return the peak rate of one core, or None if it is not known or the cores are virtual."""
    topology = trainer.strategy.system.topology
    chip = topology.chip
    if chip is None or topology.cores[0].virtual or not chip.bf16_flops_per_s:
        return None
    return chip.bf16_flops_per_s / topology.cores_per_chip


def _about(trainer: Trainer, arguments: dict[str, Any], checkpoint_dir: Any, peak: float | None) -> dict[str, Any]:
    """Return what runs where, for run.json."""
    # 1. The settings of the call and of the optimizer that are plain.
    model, topology = trainer.model, trainer.strategy.system.topology
    optimizer, loss = model.optimizer, model.loss
    is_known = isinstance(optimizer, keras.optimizers.Optimizer)
    config = {f"optimizer {name}": value for name, value in (optimizer.get_config() if is_known else {}).items()}
    names = {"loss": loss if isinstance(loss, str) else getattr(loss, "name", type(loss).__name__)}
    settings = {**arguments, **config, **names}
    # 2. The devices, and why there is no MFU.
    core = topology.cores[0]
    count = f"{len(topology.cores)} {'virtual' if core.virtual else core.platform.upper()} cores"
    devices = topology.name if topology.name == count else f"{topology.name}: {count}"
    no_peak = (
        "virtual cores share this machine's CPU" if core.virtual else "anytpu does not know this device's peak rate"
    )
    columns = {name: arguments[name] for name in "xy" if arguments.get(name) is not None}
    return {
        "settings": {name: v for name, v in settings.items() if isinstance(v, str | int | float | bool)},
        "model": {
            "name": model.name,
            "class": type(model).__name__,
            "parameters": sum(math.prod(v.shape) for v in model.weights) if model.built else None,
        },
        "data": {
            name: f"{v.dtype} {tuple(v.shape)}" if hasattr(v, "dtype") else type(v).__name__
            for name, v in columns.items()
        },
        "devices": devices + (", simulated on this machine's CPU" if core.virtual else ""),
        "virtual": core.virtual,
        "mfu": MFU_FORMULA if peak is not None else f"not computed: {no_peak}",
        "checkpoints": None if checkpoint_dir is None else str(getattr(checkpoint_dir, "folder", checkpoint_dir)),
    }
