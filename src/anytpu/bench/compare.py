"""`compare`: one job on each system of this machine, in turns.

Idea: a machine heats up and its load changes while it measures. So the systems take turns, one epoch each, for some
rounds; the result of a system is the median of its epochs.

Rule: the first epoch of each system compiles and is reported separately. The times are those of `fit`, as users call
it.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import time
from collections.abc import Callable
from typing import Any

import keras

from anytpu import _env
from anytpu._calls import explain_arguments
from anytpu.bench.jobs import JOBS, Job, Task
from anytpu.errors import SettingError
from anytpu.strategy import TPUStrategy
from anytpu.system.comparison import Comparison, Measurement
from anytpu.system.cores import Address
from anytpu.system.probes import Reason, probe_gpu, probe_tpu, virtual_address
from anytpu.system.resolver import TPUClusterResolver
from anytpu.system.workers import parse_worker

ROUNDS = 3


@explain_arguments
def compare(job: Job, rounds: int = ROUNDS, on_epoch: Callable[[str, int], None] | None = None) -> Comparison:
    """Train one job on each system: on 1 virtual core, on 8, on this machine's GPU and TPU, on the worker of TPU_NAME.

    The virtual cores run on this machine's CPU, and 8 of them are no faster than 1. They show that a program computes
    the same on 8. Each system trains `rounds + 1` epochs, and Keras's random seed is set before each.

    Args:
        job: takes a strategy, makes and compiles a model in its scope, and returns `(model, x, y, batch_size)`.
        rounds: number of measured epochs per system, after the first, which compiles.
        on_epoch: called with a system's name and the round, from 0, before each epoch.

    Returns:
        The measurements of each system; `print` shows them, `to_record()` is for JSON.

    Raises:
        SettingError: the job is not a function, `rounds` is not positive, or the job returns a value of another form.

    Example:
        >>> from anytpu.bench import JOBS
        >>> comparison = compare(JOBS["iris"], rounds=1)
        >>> [measurement.cores for measurement in comparison.measurements][:2]
        [1, 8]
    """
    if not callable(job):
        near = difflib.get_close_matches(job, JOBS, n=1) if isinstance(job, str) else []
        raise SettingError(
            "compare takes a function of a strategy that returns (model, x, y, batch_size), not "
            f"{job!r}; did you mean anytpu.bench.JOBS[{(near or list(JOBS))[0]!r}]?"
        )
    try:
        inspect.signature(job).bind(None)
    except TypeError as error:
        named = f"{getattr(job, '__name__', 'it')}{inspect.signature(job)}"
        raise SettingError(f"a job takes one argument, the strategy: {named} does not") from error
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
        raise SettingError(f"rounds must be a positive integer, not {rounds!r}")
    systems, absent = local_systems()
    runs = [_SystemRun(system, job) for system in systems]
    for round_index in range(rounds + 1):
        for run in runs:
            if on_epoch is not None:
                on_epoch(run.system.name, round_index)
            run.train_one_epoch()
    name = (job.__doc__ or "").strip().partition("\n")[0].rstrip(".") or getattr(job, "__name__", "a job")
    return Comparison(name, runs[0].batch_size, tuple(run.measurement() for run in runs), absent)


@dataclasses.dataclass(frozen=True)
class LocalSystem:
    """A system of this machine.

    Attributes:
        name: the system's name in a report.
        address: the address that opens it.
    """

    name: str
    address: Address


def local_systems() -> tuple[tuple[LocalSystem, ...], tuple[Reason, ...]]:
    """Return the systems of this machine, the virtual ones first, and the reason why each other one is missing.

    A worker that the variable TPU_NAME names is the last one.
    """
    eight = virtual_address(None)
    systems = [
        LocalSystem("1 virtual core", virtual_address(1)),
        LocalSystem(f"{eight.cores} virtual cores", eight),
    ]
    reasons = []
    for name, probe in (("GPU", probe_gpu), ("TPU", probe_tpu)):
        answer = probe(None)
        if isinstance(answer, Address):
            systems.append(LocalSystem(_counted(name, answer.cores or 1), answer))
        else:
            reasons.append(answer)
    if worker := parse_worker(dict(_env.tpu_settings()).get("TPU_NAME", "")):
        systems.append(LocalSystem(f"worker at {worker.target}", Address("grpc", worker=worker)))
    return tuple(systems), tuple(reasons)


def _counted(name: str, count: int) -> str:
    thing = "TPU core" if name == "TPU" else name
    return f"{count} {thing}{'s' * (count > 1)}"


class _SystemRun:
    """A job on one system."""

    def __init__(self, system: LocalSystem, job: Job) -> None:
        self.system = system
        self._strategy = TPUStrategy(TPUClusterResolver.from_address(system.address))
        # The same initial weights on every system, even if the job sets no seed itself.
        keras.utils.set_random_seed(0)
        self._model, self._x, self._y, self.batch_size = _checked(job(self._strategy))
        self._clock = _EpochClock()
        self._metrics: dict[str, float] = {}

    def train_one_epoch(self) -> None:
        epoch = len(self._clock.epoch_s)
        keras.utils.set_random_seed(epoch)  # every system gets the examples in the same order
        history = self._model.fit(
            self._x,
            self._y,
            batch_size=self.batch_size,
            initial_epoch=epoch,
            epochs=epoch + 1,
            verbose=0,
            callbacks=[self._clock],
        )
        self._metrics = {name: float(values[-1]) for name, values in history.history.items()}

    def measurement(self) -> Measurement:
        first_s, *later_s = self._clock.epoch_s
        return Measurement(
            self.system.name,
            self._strategy.num_replicas_in_sync,
            self._strategy.backend.cores[0].virtual,
            first_s,
            tuple(later_s),
            len(self._x),
            self._metrics,
        )


class _EpochClock(keras.callbacks.Callback):
    """Records the seconds of each epoch, from its begin until its metrics are on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch_s: list[float] = []
        self._began_s = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._began_s = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        for value in (logs or {}).values():
            float(value)  # waits for the device
        self.epoch_s.append(time.perf_counter() - self._began_s)


def _checked(task: Any) -> Task:
    is_task = isinstance(task, tuple) and len(task) == 4 and isinstance(task[0], keras.Model)
    if not is_task or not getattr(task[0], "compiled", False) or not isinstance(task[3], int) or task[3] < 1:
        raise SettingError(
            "a job takes a strategy and returns (model, x, y, batch_size), with a model compiled in "
            f"strategy.scope() and a positive batch_size; this job returned {task!r}"
        )
    return task
