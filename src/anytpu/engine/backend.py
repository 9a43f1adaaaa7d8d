"""`Backend`: what the engine asks of a machine. Five methods, and handles that only `get` opens.

Idea: the same front doors run on virtual cores, on a TPU or GPU mesh, and on a worker in another process. What they
share is small: name your cores, put arrays there, get them back, compile a Program, close.

Rule: what `put` and a call of an `Executable` return are handles. A front door passes them on and opens them with
`get`, nothing else; the in-memory twin (`engine/twin.py`) raises on any other use, and every front door is tested on
it. Backends of this process hand out `jax.Array`s as handles, so that `get` costs nothing there.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, Literal

from anytpu.engine.measurements import Listener
from anytpu.program.program import Layout, Program, Tree
from anytpu.system.cores import Core


@dataclasses.dataclass(frozen=True)
class Loop:
    """How many steps one call runs, and where the batches of those steps come from.

    Attributes:
        capacity: the steps that one feed holds, and so the most that one call runs; how many it does run is given at
            the call.
        feed: "rows": the whole data set lies on the device, a feed brings row numbers `(capacity, rows)`;
            "batches": a feed brings the batches stacked, `(capacity, rows, ...)`.
        guard: the name of the output to watch. Once it is not finite the state is frozen, and the call reports the
            first such step. None watches nothing and costs nothing.
        examples: the number of rows of the data set on the device, for feed "rows".
        keeps_every: keep the outputs of all steps, which takes `capacity` times the memory of one; else the last ones.
    """

    capacity: int
    feed: Literal["rows", "batches"]
    guard: str | None = None
    examples: int | None = None
    keeps_every: bool = True


@dataclasses.dataclass(frozen=True)
class Steps:
    """What one call of a looped executable returns.

    Attributes:
        state: handles of the state after the last step.
        last: handles of the outputs of the last step that ran.
        every: handles of the outputs of all steps, `(capacity, ...)` each, rows past the count being unspecified; None
            where the loop does not keep them.
        count: how many steps ran.
        bad_step: handle of the first step whose guarded output was not finite, counted from 0 in this call, or -1; None
            without a guard.
    """

    state: Tree
    last: Tree
    every: Tree
    count: int
    bad_step: Any = None


class Executable(abc.ABC):
    """A compiled Program on one backend.

    Attributes:
        listener: who wants to know how long its calls take, or None.
    """

    listener: Listener | None = None

    @property
    @abc.abstractmethod
    def outputs(self) -> Tree:
        """Specs of the outputs of one step; stacked, `(replicas, ...)`, for per-replica code."""

    @abc.abstractmethod
    def step(self, state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        """Run one step: handles of state and batch in, handles of state and outputs out.

        The state handed in is consumed: its handles must not be used again. Outputs of per-replica code come stacked,
        `(replicas, ...)`.
        """

    @abc.abstractmethod
    def steps(self, state: Tree, feed: Tree, start: int, count: int) -> Steps:
        """Run steps `start` to `start + count` of a feed in one compiled loop. The state handed in is consumed.

        Args:
            state: handles of the state.
            feed: for feed "rows" the pair (handles of the whole data set, handle of the row numbers, put with
                `Layout(1)`); for feed "batches" handles of the stacked batches, put with an axis in front of that of
                the batch. A feed may serve several calls.
            start: the first step of the feed to run, from 0.
            count: steps to run; `start + count` is at most the loop's capacity.
        """


class Backend(abc.ABC):
    """Some cores, and the means to run Programs on them.

    Attributes:
        is_host: whether the cores compute in the memory of this process, so that an array of it costs them nothing.
    """

    is_host: bool = False

    @property
    @abc.abstractmethod
    def cores(self) -> tuple[Core, ...]:
        """The cores, in order; as many as replicas in sync."""

    @abc.abstractmethod
    def put(self, tree: Tree, layout: Layout) -> Tree:
        """Bring arrays to the cores and return their handles. A handle in the tree passes through.

        A split axis whose size the cores do not divide is padded for the transport; no program ever sees the padding,
        but `get` of such a handle may.
        """

    def put_once(self, tree: Tree, layout: Layout) -> Tree:
        """Bring arrays to the cores that one call reads or consumes, and that nobody writes to before it is done.

        Returns:
            Handles for this one call; where a call takes arrays of the host as they are, nothing is brought.
        """
        return self.put(tree, layout)

    @abc.abstractmethod
    def get(self, tree: Tree) -> Tree:
        """Open handles: return arrays that both NumPy and JAX can read.

        A value of a state that a later call consumes must be copied (`np.array`) by whoever keeps it.
        """

    @abc.abstractmethod
    def compile(self, program: Program, loop: Loop | None = None) -> Executable:
        """Compile a Program: as a loop of many steps when `loop` is given, else one step a call.

        Raises:
            ProgramError: the step does not return (state, outputs) with a state of the form that it was given. A state
                of another dtype is cast back.
            ReplicaError: a new state of per-replica code differs between the replicas.
            BackendError: the compiler refused; the cause is chained.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Give the cores back. Handles are worthless afterwards; closing twice does nothing."""
