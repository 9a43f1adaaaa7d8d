"""`FitRecord`: writes the record of a `fit`, from what the trainer knows already.

Idea: a call of the compiled loop returns handles of its logs. Ended calls are read at most every
fifth of a second, or when Keras reads them, at the end of an epoch. The record never waits for a device.

Rule: the loss and the metrics of a point are Keras's logs: means over the epoch so far, as the progress bar shows.

Source: Chowdhery et al., PaLM, arXiv:2204.02311, appendix B. MFU is the operations of a step on a core, divided by
the step time and the core's peak bfloat16 rate. XLA counts the operations.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import numpy as np

from anytpu.engine.executable import fetch
from anytpu.train.record import RunRecord

if TYPE_CHECKING:
    from anytpu.train.fit_checkpoints import FitRun
    from anytpu.train.input_clock import InputClock
    from anytpu.train.trainer import Trainer

MIN_POINT_S = 0.2
"""Seconds between two points of an epoch, at least."""


class _Call(NamedTuple):
    """A call of the compiled loop whose logs were not read yet: the last and all of them, and what it ran."""

    logs: Any
    every: list[tuple[Any, int]]
    steps: int
    examples: int
    flops: float | None


class FitRecord(keras.callbacks.Callback):
    """Writes the record of one fit. After the user's callbacks it sees the logs of each epoch.

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
        self._step, self._epoch, self._clock = step, 0, None
        self._calls: list[_Call] = []
        self._ending: dict[str, Any] | None = None
        self._began_s = self._point_s = self._evaluation_s = 0.0
        self._spent: dict[str, float] = {}
        self._before: dict[str, float] = {}
        self.peak_flops_per_s = _peak_flops_per_s(trainer)

    # Called by the trainer, its epochs and its loops.

    def begin_epoch(self, epoch: int, clock: InputClock) -> None:
        """Begin the steps of an epoch, from 1."""
        self.end_epoch()
        self._epoch, self._clock, self._calls = epoch, clock, []
        self._began_s = self._point_s = time.perf_counter()
        self._before = self._counters()
        self._spent = self._now_spent()

    def called(self, logs: Any, every: list[tuple[Any, int]], examples: int) -> None:
        """Take the logs of a call that was started, and write a point for earlier calls if it is time."""
        if time.perf_counter() - self._point_s >= MIN_POINT_S:
            # Calls end in the order of their start.
            is_ready = self._trainer.backend.is_ready
            ended = list(itertools.takewhile(lambda call: is_ready([log for log, _ in call.every]), self._calls))
            self._calls = self._calls[len(ended) :]
            self._write(ended)
        flops = None if self.peak_flops_per_s is None else self._trainer.step_flops
        self._calls.append(_Call(logs, list(every), sum(count for _, count in every), examples, flops))

    def steps_ended(self) -> None:
        """Write the last point of an epoch, when Keras has read its logs."""
        calls, self._calls = self._calls, []
        self._write(calls)

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Measure the evaluation of an epoch."""
        began_s, compiled_s = time.perf_counter(), self._trainer.compiling_s
        yield
        self._evaluation_s += time.perf_counter() - began_s - (self._trainer.compiling_s - compiled_s)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Take Keras's logs of an epoch. Its checkpoint comes after this callback."""
        self.steps_ended()
        self._ending = dict(logs or {})

    def end_epoch(self) -> None:
        """Write the end of the epoch, with Keras's logs, unless it is written."""
        logs, self._ending = self._ending, None
        if logs is None:
            return
        now, spent = time.perf_counter(), self._now_spent()
        spent["callbacks"] = max(now - self._point_s - self._besides_s(spent), 0.0)
        duration_s = now - self._began_s
        spent["steps"] = max(duration_s - sum(spent.values()), 0.0)
        with self._record.warned():
            facts = {"metrics": self._record.finite(self._step, logs), "spent": spent}
            self._record.event("epoch", self._step, epoch=self._epoch, duration_s=duration_s, **facts)

    # Points.

    def _write(self, calls: list[_Call]) -> None:
        if not calls:
            return
        # 1. The values: those of the newest call.
        fetch(metrics := calls[-1].logs)
        # 2. The times: what the host did besides is not a step's.
        now, spent = time.perf_counter(), self._now_spent()
        duration_s = max(now - self._point_s - self._besides_s(spent), 1e-9)
        steps, first = sum(call.steps for call in calls), self._step
        self._step, self._point_s = first + steps, now
        point: dict[str, Any] = {"step": self._step, "epoch": self._epoch, "time": time.time(), "steps": steps}
        point |= {"step_s": duration_s / steps, "spent": spent | {"all": now - self._began_s}}
        point["examples_per_s"] = sum(call.examples for call in calls) / duration_s
        if self.peak_flops_per_s is not None and all(call.flops for call in calls):
            flops = sum(call.steps * (call.flops or 0.0) for call in calls)
            point["mfu"] = flops / duration_s / self.peak_flops_per_s
        self._spent = spent
        self._record.point(point, metrics, lambda name: self._first_bad(name, calls, first))

    def _first_bad(self, name: str, calls: list[_Call], step: int) -> str:
        """Return the first step of these calls, which began after `step`, whose log of a name is not finite."""
        every = [(logs[name], count) for call in calls for logs, count in call.every]
        logs = self._trainer.backend.get([log for log, _ in every])
        values = np.concatenate([np.asarray(log, float)[:n] for log, (_, n) in zip(logs, every, strict=True)])
        return f"step {step + int(np.isfinite(values).argmin()) + 1}"

    def _counters(self) -> dict[str, float]:
        waited_s = 0.0 if self._clock is None else self._clock.waited_s
        saved_s = 0.0 if self._run is None else self._run.saves_s
        compiled_s, evaluated_s = self._trainer.compiling_s, self._evaluation_s
        return {"input": waited_s, "compile": compiled_s, "save": saved_s, "evaluation": evaluated_s}

    def _besides_s(self, spent: dict[str, float]) -> float:
        """Return the seconds since the last point in which no step was to run."""
        return sum(spent[name] - self._spent[name] for name in ("compile", "save", "evaluation"))

    def _now_spent(self) -> dict[str, float]:
        """Return the seconds that the epoch has spent on other things than steps."""
        return {name: value - self._before[name] for name, value in self._counters().items()}


@contextlib.contextmanager
def recorded(
    trainer: Trainer, run_dir: Any, checkpoint_dir: Any, arguments: dict[str, Any], run: FitRun | None
) -> Iterator[None]:
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
    record = None if run_dir is None else RunRecord(run_dir)
    if record is None or not trainer.backend.hosts.is_first:
        yield
        return
    step = run.saver.step if run is not None else _steps_of(trainer.model)
    fit = trainer.record = FitRecord(trainer, record, run, step)
    record.begin(step, _about(trainer, arguments, checkpoint_dir, fit.peak_flops_per_s))
    callbacks = arguments.get("callbacks")
    if isinstance(callbacks, keras.callbacks.CallbackList):
        fit.set_model(trainer.model)
        # The last callback of `run` may end the fit.
        callbacks.callbacks.insert(len(callbacks.callbacks) - (run is not None), fit)
    else:
        arguments["callbacks"] = [*keras.tree.flatten(callbacks or []), fit]
    with record:
        try:
            yield
        finally:
            trainer.record = None
            fit.end_epoch()
            if isinstance(callbacks, keras.callbacks.CallbackList):
                callbacks.callbacks.remove(fit)
        if run is not None:
            run.saver.finish()


def _steps_of(model: Any) -> int:
    """Return the number of steps of an optimizer; with accumulated gradients `iterations` is that of its updates."""
    variables = model.optimizer.variables if isinstance(model.optimizer, keras.optimizers.Optimizer) else ()
    return max((int(np.asarray(v.value)) for v in variables if v.path.endswith("iteration")), default=0)


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
    config: dict[str, Any] = {}
    with contextlib.suppress(Exception):  # A schedule of the user may have no config.
        config = {f"optimizer {name}": value for name, value in optimizer.get_config().items()}
    named = loss if isinstance(loss, str) else getattr(loss, "name", type(loss).__name__)
    settings = {**arguments, **config, "loss": named}
    # 2. The devices, and why there is no MFU.
    core = topology.cores[0]
    count = f"{len(topology.cores)} {'virtual' if core.virtual else core.platform.upper()} cores"
    devices = topology.name if topology.name == count else f"{topology.name}: {count}"
    formula = "operations of a step on a core by XLA's count / (step time x peak bfloat16 rate of a core)"
    no_peak = "virtual cores share this machine's CPU" if core.virtual else "this device's peak rate is not known"
    parameters = sum(math.prod(v.shape) for v in model.weights) if model.built else None
    return {
        "settings": {name: v for name, v in settings.items() if isinstance(v, str | int | float | bool)},
        "model": {"name": model.name, "class": type(model).__name__, "parameters": parameters},
        "data": {name: _form(arguments[name]) for name in "xy" if arguments.get(name) is not None},
        "devices": devices + (", simulated on this machine's CPU" if core.virtual else ""),
        "virtual": core.virtual,
        "mfu": f"not computed: {no_peak}" if peak is None else formula,
        "checkpoints": None if checkpoint_dir is None else str(getattr(checkpoint_dir, "folder", checkpoint_dir)),
    }


def _form(column: Any) -> str:
    return f"{column.dtype} {tuple(column.shape)}" if hasattr(column, "dtype") else type(column).__name__
