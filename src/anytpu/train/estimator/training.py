"""`Training`: loops of steps, and what the host does between them.

Rule: between two loops, in this order: the host calls of the loop's steps, hooks, the log line, the checkpoint. The
last loop is shortened to end at the last step. Losses are means over all replicas.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import time
from typing import Any

import jax
import numpy as np

from anytpu.engine.feeds import MOST_STEPS
from anytpu.errors import NaNLossError
from anytpu.train.estimator.hooks import Hooks
from anytpu.train.estimator.inputs import HostBatches
from anytpu.train.estimator.mode_run import ModeRun, Outputs
from anytpu.train.estimator.run_config import RunConfig
from anytpu.train.estimator.saving import Saver
from anytpu.train.estimator.spec import called
from anytpu.train.estimator.tpu_config import IterationsPerLoop

LOG = logging.getLogger("anytpu")


@dataclasses.dataclass
class LoopLength:
    """Chooses the steps of each loop.

    Args:
        wanted: steps, or a time.

    Attributes:
        step_s: seconds that a step took in the loop before.
    """

    wanted: IterationsPerLoop
    step_s: float = 0.0

    def steps(self) -> int:
        """Return the steps of the next loop; 1 while nobody knows how long a step takes."""
        if self.wanted.steps is not None:
            return self.wanted.steps
        assert self.wanted.seconds_s is not None
        return max(1, int(self.wanted.seconds_s / self.step_s)) if self.step_s else 1

    def ran(self, steps: int, duration_s: float, is_first: bool) -> None:
        """Learn from a loop; the first one may have compiled something too."""
        self.step_s = 0.0 if is_first else duration_s / steps


class Training:
    """One `train` of an estimator.

    Args:
        run: the mode TRAIN on its cores.
        batches: the data.
        hooks: of the caller and of the spec.
        saver: saves between loops.
        config: says how long loops are, and how often the host calls and logs.
    """

    def __init__(self, run: ModeRun, batches: HostBatches, hooks: Hooks, saver: Saver, config: RunConfig) -> None:
        assert config.tpu_config is not None
        self._run, self._batches, self._hooks, self._saver = run, batches, hooks, saver
        self._length = LoopLength(IterationsPerLoop.of(config.tpu_config.iterations_per_loop))
        self._every_n = config.tpu_config.experimental_host_call_every_n_steps
        self._log_steps = config.log_step_count_steps
        self._logged = (0, 0.0, 0)
        self._next_line = 0
        self.loss = float("nan")
        """The mean loss of the last step."""

    def train(self, first_batch: Any, step: int, last: int | None) -> Any:
        """Train from a global step up to another, save, and return the position of the data.

        Args:
            first_batch: the first batch, which was looked at already.
            step: the global step.
            last: the last step; None: as long as there are batches.
        """
        self._hooks.begin()
        self._saver.begin(step)
        self._hooks.ready()
        step = self.until(step, last, first_batch)
        position = self._batches.position()
        self._saver.end(step, position)
        self._hooks.end()
        LOG.info("Loss for final step: %.6g.", self.loss)
        return position

    def until(self, step: int, last: int | None, first_batch: Any) -> int:
        """Train from a global step up to another; None: as long as there are batches. Return where it ended."""
        batches = itertools.chain([first_batch], self._batches)
        self._logged = (step, time.perf_counter(), self._run.deployment.strategy.compilations)
        self._next_line = step
        is_first = True
        while last is None or step < last:
            count = self._length.steps() if last is None else min(self._length.steps(), last - step)
            self._hooks.before()
            began_s = time.perf_counter()
            done = self._loop(batches, step, count)
            if done == 0:
                break
            step += done
            self._length.ran(done, time.perf_counter() - began_s, is_first)
            is_first = False
            stops = self._hooks.after(loss=self.loss, global_step=step)
            self._report(step)
            if self._saver.is_due(step):
                self._saver.save(step, self._batches.position())
            if stops or done < count:
                break
        return step

    def _loop(self, batches: Any, step: int, count: int) -> int:
        """Run one loop and return how many steps there were batches for."""
        done = 0
        for outputs in self._run.steps(batches, count, MOST_STEPS):
            losses = outputs["loss"].mean(axis=1)
            _check_finite(losses, step + done)
            self.loss = float(losses[-1])
            self._call_host(outputs["host_call"], done)
            done += len(losses)
        return done

    def _call_host(self, tensors: Outputs, done: int) -> None:
        spec = self._run.step.spec
        if tensors is None or spec is None or spec.host_call is None:
            return
        for index in range(len(jax.tree.leaves(tensors)[0])):
            if (done + index) % self._every_n == 0:
                rows = jax.tree.map(lambda leaf, index=index: leaf[index].reshape(-1, *leaf.shape[3:]), tensors)
                called("host_call", spec.host_call, rows)

    def _report(self, step: int) -> None:
        if self._log_steps is None or step < self._next_line:
            return
        (before, before_s, before_compiled), now_s = self._logged, time.perf_counter()
        compiled = self._run.deployment.strategy.compilations
        taken_s, steps, rows = now_s - before_s, step - before, self._run.deployment.rows
        speed = f"{steps / taken_s:.4g} steps/s"
        if rows is not None:
            speed += f", {rows * steps / taken_s:.4g} examples/s"
        if compiled != before_compiled:
            speed = f"{taken_s:.3g} s, compiling included"
        LOG.info("loss = %.6g, global_step = %d (%s)", self.loss, step, speed)
        self._logged, self._next_line = (step, now_s, compiled), step + self._log_steps


def _check_finite(losses: np.ndarray, step: int) -> None:
    bad = np.flatnonzero(~np.isfinite(losses))
    if len(bad):
        raise NaNLossError(
            f"the loss is not finite at global step {step + int(bad[0]) + 1}. The last checkpoint in model_dir is from "
            "before. Lower the learning rate, clip the gradients (clipnorm=1.0), or look for NaN in the data"
        )
