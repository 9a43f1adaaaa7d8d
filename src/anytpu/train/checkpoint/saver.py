"""`Saver`: the one writer of snapshots: in the background, at most one at a time.

Idea: the training waits only for the copy of its state to the host. A thread writes the copy, with digests. A new copy
is made when the thread has finished, so the memory holds one more state at most.

Rule: a failed save does not end the training: the first of a row is reported, and earlier checkpoints do not change.
A failed last save is an error, and so is a state that is not finite. The thread prints nothing: a signal may have
interrupted the main thread inside of a print.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

from anytpu.errors import FileError, NaNLossError
from anytpu.train.checkpoint.folder import Checkpoints
from anytpu.train.checkpoint.policy import SavePolicy, metrics_in
from anytpu.train.checkpoint.snapshot import Snapshot

_MAX_SHARE = 1 / 50
"""Maximum share of the training's time that saves may cost: the wait for the copy, and the cores that write it."""

_FREE_S = 1.0
"""Seconds that saves may cost beyond that share."""


class Saver:
    """Saves the snapshots of one run.

    Args:
        checkpoints: the folder to save to, which this process has locked.
        policy: when to save, and what to keep.
        step: step of the newest checkpoint, or 0.
        now: returns the time in seconds; it never goes back.
    """

    def __init__(
        self, checkpoints: Checkpoints, policy: SavePolicy, step: int = 0, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._checkpoints, self._policy, self._now = checkpoints, policy, now
        self._thread: threading.Thread | None = None
        self._failure: FileError | None = None
        self._has_reported = False
        self._unsaved: FileError | None = None
        # The writing thread adds to the costs. The time of waiting for it is apart: only the training's thread adds it.
        self._cost_s = self._total_s = self._waited_s = 0.0
        self._saves, self._has_postponed = 0, False
        self._began_s = now()
        self._saved_s = now()
        best = policy.best_of(metrics_in(checkpoints))
        self._best = None if best is None else best[1]
        self._written = step
        self.step = step
        """Step of the newest snapshot that was passed to `save`, or of the checkpoint that the run continues."""

    def is_due(self, step: int) -> bool:
        """Return whether the policy asks for a save at a step, and saves have not cost too much time.

        Several hosts ask at their turns only, and host 0 decides.
        """
        hosts = self._checkpoints.job
        return hosts.take_turn() and self.answer_of_host_0(hosts.is_first and self._is_due(step))

    def answer_of_host_0(self, answer: bool) -> bool:
        """Return host 0's answer to a question about saving, which it alone can answer: it has the clock and the disk.

        Every host must call this at the same place.

        Args:
            answer: the answer of this host.
        """
        return bool(self._checkpoints.job.first(answer))

    def _is_due(self, step: int) -> bool:
        self._report()
        if not self._policy.is_due(step - self.step, self._now() - self._saved_s):
            return False
        # 1. The time that saves may still take. Waiting for the writing thread counts as a part of it.
        left_s = _FREE_S + _MAX_SHARE * (self._now() - self._began_s) - self._total_s - self._waited_s
        if self._thread is not None:
            waited_from_s = self._now()
            self._thread.join(max(left_s, 0.0))
            self._waited_s += self._now() - waited_from_s
        # 2. Save if time is left and the last snapshot is written.
        if left_s > 0 and (self._thread is None or not self._thread.is_alive()):
            return True
        # 3. Otherwise postpone, and say so once.
        if not self._has_postponed:
            self._has_postponed = True
            cost_s = (self._total_s + self._waited_s) / self._saves
            _say(
                f"a save costs {cost_s:.2g} s of the training. So saves are about {cost_s / _MAX_SHARE:.0f} s apart, "
                f"{_MAX_SHARE:.0%} of the time"
            )
        return False

    def is_affordable(self) -> bool:
        """Return whether a save that no setting asks for costs little, compared with the time since the last one."""
        return self._cost_s <= _MAX_SHARE * (self._now() - self._saved_s)

    def is_best(self, metrics: dict[str, float]) -> bool:
        """Return whether these metrics are better than those of every checkpoint."""
        return self._policy.is_better(metrics.get(self._policy.best or ""), self._best)

    def save(self, make: Callable[[], Snapshot]) -> None:
        """Copy the state now, and write it in the background.

        Args:
            make: copies the state to the host.

        Raises:
            NaNLossError: a weight or a slot is not finite. Training on would not mend it.
        """
        # One snapshot at a time: the next one is copied to the same memory.
        self.wait()
        self._cost_s, began_s = 0.0, self._now()
        snapshot = make()
        bad = self._bad(snapshot)
        if bad is not None:
            raise NaNLossError(f'{bad}. Lower the learning rate, clip the gradients, or pass on_nan="skip" to fit')
        self._accept(snapshot)
        self._saves += 1
        self._cost(self._now() - began_s)
        self._thread = threading.Thread(target=self._write, args=(snapshot,), name="anytpu writes a checkpoint")
        self._thread.start()

    def save_first(self, make: Callable[[], Snapshot]) -> None:
        """Copy and write the state before the first step.

        Raises:
            FileError: it cannot be written.
        """
        snapshot = make()
        self._accept(snapshot)
        self._write_files(snapshot)

    def save_now(self, make: Callable[[], Snapshot]) -> bool:
        """Copy and write the state, and return whether it is saved."""
        self.wait()
        snapshot = make()
        bad = self._bad(snapshot)
        if bad is not None:
            _say(bad)
            return False
        self._accept(snapshot)
        self._write(snapshot)
        is_saved = self._failure is None
        self._report()
        return is_saved

    def wait(self) -> None:
        """Wait until the last snapshot is written, and report a failure."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._report()

    @property
    def is_written(self) -> bool:
        """Whether the snapshot of `step` is on the disk. Does not wait."""
        return self.step == self._written

    def is_saved(self, step: int) -> bool:
        """Wait until the last snapshot is written, and return whether it is that of a step."""
        self.wait()
        return self.answer_of_host_0(step == self._written)

    def finish(self) -> None:
        """Wait until the last snapshot is written, at the end of a run.

        Raises:
            FileError: it could not be written. The run must not look as if it had been saved.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._unsaved is not None:
            self._failure = None
            raise FileError(
                f"{self._unsaved}. The run is complete, and its end is only in the memory of this process: save the "
                "result elsewhere, or run the same command again. It repeats the steps since the newest checkpoint"
            )

    def _bad(self, snapshot: Snapshot) -> str | None:
        """Return why a snapshot must not be saved, or None: a value is not finite."""
        bad = snapshot.first_bad()
        if bad is None:
            return None
        newest = f"The newest checkpoint is that of step {self.step}" if self.step else "There is no checkpoint"
        return f"step {snapshot.step} is not saved: {bad!r} has a NaN or an infinity. {newest}"

    def _accept(self, snapshot: Snapshot) -> None:
        self.step, self._saved_s = snapshot.step, self._now()
        if self.is_best(snapshot.metrics):
            self._best = snapshot.metrics[self._policy.best or ""]

    def _cost(self, seconds: float) -> None:
        self._cost_s += seconds
        self._total_s += seconds

    def _write(self, snapshot: Snapshot) -> None:
        began_s = time.thread_time()
        try:
            self._write_files(snapshot)
            self._has_reported, self._unsaved = False, None
        except FileError as error:
            self._failure = self._unsaved = error
        # Whatever else ends this thread, the run must not look as if it had been saved.
        except BaseException as error:
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
            self._failure = self._unsaved = FileError(f"step {snapshot.step} cannot be saved: {reason}")
        # The training may need the core of this thread: all of it on two cores, the less the more there are.
        self._cost((time.thread_time() - began_s) / max((os.cpu_count() or 1) - 1, 1))

    def _write_files(self, snapshot: Snapshot) -> None:
        try:
            arrays, host = snapshot.packed()
        except TypeError as error:
            raise FileError(f"step {snapshot.step} cannot be saved: {error}") from None
        # Choose what stays: the checkpoints for good and the best one, this one included.
        earlier = metrics_in(self._checkpoints)
        best = self._policy.best_of([*earlier, (snapshot.step, snapshot.metrics)])
        kept = self._policy.for_good([*(step for step, _ in earlier), snapshot.step])
        self._checkpoints.save(
            snapshot.step,
            arrays,
            trained=snapshot.trained,
            optimizer_state=snapshot.optimizer_state,
            host=host,
            also_keep=kept if best is None else {*kept, best[0]},
        )
        self._written = snapshot.step

    def _report(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            return
        failure, self._failure = self._failure, None
        if failure is not None and not self._has_reported:
            self._has_reported = True
            _say(f"{failure}. The training goes on, and later saves are tried without another message")


def _say(message: str) -> None:
    print(f"anytpu: {message}.", file=sys.stderr, flush=True)
