"""`CheckedStep`: the step to check, with taps, as code for the whole batch or for each core's rows.

Idea: `fit` runs a step on the whole batch, so that code is checked. A layer that asks for its core's index
(`jax.lax.axis_index("replica")`) fails there. Its model is code for one core's rows, as `strategy.run` runs it. It is
checked as such: each core gets its rows, and the results are combined.

Rule: each run traces the step again, so that decisions at trace time are compared too.
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
    """The step asks for the replica axis outside of per-replica code."""


@dataclasses.dataclass(frozen=True)
class CheckedStep:
    """A step and its inputs.

    Attributes:
        program: the step, on a whole batch.
        state: the leaves of the step's state.
        batch: the leaves of the step's batch, `(rows, ...)` each.
        code: how the step runs: "whole-batch" or "per-replica".
    """

    program: Program
    state: list[np.ndarray]
    batch: list[np.ndarray]
    code: Code = "whole-batch"

    def per_replica(self, cores: int) -> CheckedStep:
        """Return the same step as code for one core's rows, with rows dropped so that all cores get equally many.

        Raises:
            ProgramError: there are fewer rows than cores.
        """
        rows = len(self.batch[0]) // cores * cores
        if not rows:
            raise ProgramError(
                f"{self.program.name!r} is code for each core's rows, and {len(self.batch[0])} rows are too few for "
                f"{cores} cores: give tpu.check a batch_size of {cores} or more, or fewer cores"
            )
        return dataclasses.replace(self, batch=[leaf[:rows] for leaf in self.batch], code="per-replica")

    def on(self, cores: int) -> tuple[Program, list[np.ndarray]]:
        """Return the Program with taps for a number of cores, and the leaves of its batch."""
        if self.code == "whole-batch":
            return dataclasses.replace(
                self.program, step=_traced(self.program.step, self.program.name, cores)
            ), self.batch
        batch = [leaf.reshape(cores, -1, *leaf.shape[1:]) for leaf in self.batch]
        specs = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in batch]
        form = jax.tree.structure(self.program.batch)
        step = _keeping_state(_traced(self.program.step, self.program.name, cores))
        program = dataclasses.replace(self.program, step=step, batch=form.unflatten(specs), replicas=cores)
        return program, batch

    def state_tree(self, leaves: list[np.ndarray]) -> Tree:
        """Return leaves of the state, nested like the step's state."""
        return jax.tree.unflatten(jax.tree.structure(self.program.state), leaves)

    def batch_tree(self, leaves: list[np.ndarray]) -> Tree:
        """Return leaves of the batch, nested like the step's batch."""
        return jax.tree.unflatten(jax.tree.structure(self.program.batch), leaves)


def in_a_replica(function: Callable[[], Any]) -> Any:
    """Call a function inside a replica axis of size 1, to build layers that ask for the axis."""
    returned: list[Any] = []
    jax.vmap(lambda _: returned.append(function()), axis_name=REPLICA_AXIS)(np.zeros(1))
    return returned[0]


@contextlib.contextmanager
def refusing(name: str, cores: int) -> Iterator[None]:
    """Return a context in which values are marked, and an error names the layer that raised it.

    Args:
        name: name of the Program, such as "sequential/train".
        cores: number of cores that the code is traced for.

    Raises:
        NoReplicasError: the code asks for the replica axis.
        ProgramError: the code raised an error that is not one of anytpu's.
    """
    with marking(name.rpartition("/")[0]) as marks:
        try:
            yield
        except AnyTPUError:
            raise
        except Exception as error:
            if isinstance(error, NameError) and f"axis name: {REPLICA_AXIS}" in str(error):
                raise NoReplicasError from error
            target = "1 core" if cores == 1 else f"{cores} cores"
            model = f"the model {name.rpartition('/')[0]!r}"
            subject = f"the layer {marks.failed!r} of {model}" if marks.failed else f"a training step of {model}"
            raise ProgramError(f"{subject} cannot be traced for {target}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Return the type of an error and the first informative line of its text, without the lines that Keras adds."""
    text = re.sub(r"\x1b\[\d*m", "", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    text = next((line for line in lines if not line.startswith("Exception encountered when calling")), "")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _keeping_state(step: Callable) -> Callable:
    """Return a step that returns its input state, because each replica would compute another new state."""

    def kept(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        return state, step(state, batch)[1]

    return kept


def _traced(step: Callable, name: str, cores: int) -> Callable:
    """Return a step with taps, whose errors name the layer."""

    def marking_step(state: Tree, batch: Tree) -> Any:
        with refusing(name, cores):
            return step(state, batch)

    return tapped(marking_step)
