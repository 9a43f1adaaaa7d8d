"""The step that is checked, with taps, as the runs want it: of a whole batch, or of each core's rows.

Idea: `fit` runs a step on the whole batch, and that is what is checked. A layer that asks which core it is on
(`jax.lax.axis_index("replica")`) has no answer there; its model is code for one core's rows, as `strategy.run` runs it,
and is checked as that: each core gets its rows, and what comes of them is joined.

Rule: each run traces the step anew, so that what is decided when it is traced shows too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any, Literal

import jax
import numpy as np

from anytpu.errors import AnyTPUError, ProgramError
from anytpu.program.program import REPLICA_AXIS, Program, Tree
from anytpu.train.checking.marking import marking
from anytpu.train.checking.taps import tapped

Code = Literal["whole-batch", "per-replica"]


class NoReplicasError(Exception):
    """The step asks for the axis of the replicas, and there is none."""


@dataclasses.dataclass(frozen=True)
class Job:
    """A step and what goes in.

    Attributes:
        program: the step of a whole batch.
        state: the leaves of its state.
        batch: the leaves of its batch.
        code: how it is run.
    """

    program: Program
    state: list[np.ndarray]
    batch: list[np.ndarray]
    code: Code = "whole-batch"

    def per_replica(self, cores: int) -> Job:
        """Return the same step as code for one core's rows, with as many rows as the cores divide.

        Raises:
            ProgramError: there are fewer rows than cores.
        """
        rows = len(self.batch[0]) // cores * cores
        if not rows:
            raise ProgramError(
                f"{self.program.name!r} is code for each core's rows, and {len(self.batch[0])} rows do not go round "
                f"{cores} cores: give tpu.check a batch_size of {cores} or more, or fewer cores"
            )
        return dataclasses.replace(self, batch=[one[:rows] for one in self.batch], code="per-replica")

    def on(self, cores: int) -> tuple[Program, list[np.ndarray]]:
        """Return the Program with taps for so many cores, and the leaves of its batch."""
        if self.code == "whole-batch":
            return dataclasses.replace(
                self.program, step=_traced(self.program.step, self.program.name, cores)
            ), self.batch
        batch = [one.reshape(cores, -1, *one.shape[1:]) for one in self.batch]
        specs = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in batch]
        into = jax.tree.structure(self.program.batch)
        step = _keeping_state(_traced(self.program.step, self.program.name, cores))
        program = dataclasses.replace(self.program, step=step, batch=into.unflatten(specs), replicas=cores)
        return program, batch

    def state_tree(self, leaves: list[np.ndarray]) -> Tree:
        """Return leaves of the state nested as the step wants them."""
        return jax.tree.unflatten(jax.tree.structure(self.program.state), leaves)

    def batch_tree(self, leaves: list[np.ndarray]) -> Tree:
        """Return leaves of the batch nested as the step wants them."""
        return jax.tree.unflatten(jax.tree.structure(self.program.batch), leaves)


def in_a_replica(function: Callable[[], Any]) -> Any:
    """Call a function where the axis of the replicas exists, of one replica: to build layers that ask for it."""
    returned: list[Any] = []
    jax.vmap(lambda _: returned.append(function()), axis_name=REPLICA_AXIS)(np.zeros(1))
    return returned[0]


@contextlib.contextmanager
def refusing(name: str, cores: int) -> Iterator[None]:
    """Return a context in which values are marked, and a failure says in which layer it was.

    Args:
        name: of the Program, "sequential/train".
        cores: how many cores the code is told of.

    Raises:
        NoReplicasError: the code asks for the axis of the replicas.
        ProgramError: it failed in another way, which is not an error of ours.
    """
    with marking(name.rpartition("/")[0]) as marks:
        try:
            yield
        except AnyTPUError:
            raise
        except Exception as error:
            if isinstance(error, NameError) and f"axis name: {REPLICA_AXIS}" in str(error):
                raise NoReplicasError from error
            where = "1 core" if cores == 1 else f"{cores} cores"
            model = f"the model {name.rpartition('/')[0]!r}"
            who = f"the layer {marks.failed!r} of {model}" if marks.failed else f"a training step of {model}"
            raise ProgramError(f"{who} cannot be traced as on {where}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Return the type of an error and the first line that says something, without what Keras puts around it."""
    text = re.sub(r"\x1b\[\d*m", "", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = next((line for line in lines if not line.startswith("Exception encountered when calling")), "")
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _keeping_state(step: Callable) -> Callable:
    """Return a step that returns its state as it was: each replica would make another one."""

    def kept(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        return state, step(state, batch)[1]

    return kept


def _traced(step: Callable, name: str, cores: int) -> Callable:
    """Return a step with taps, whose failure says which layer it was."""

    def marking_step(state: Tree, batch: Tree) -> Any:
        with refusing(name, cores):
            return step(state, batch)

    return tapped(marking_step)
