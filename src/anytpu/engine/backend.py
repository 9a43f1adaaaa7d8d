"""`Backend`: the interface between the front doors and a machine.

Idea: the same front doors run on virtual cores and on a TPU or GPU mesh. A backend lists its cores, puts arrays on
them, gets arrays back, waits for calls, compiles a Program, and closes. `open` finds the backend of a system by the
kind of its address.

Rule: `put` and calls of an `Executable` return handles. A front door may pass a handle on or open it with `get`. The
in-memory twin (`engine/twin.py`) raises on any other use; every front door is tested on it. Backends in this process
use `jax.Array`s as handles, so their `get` is free.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import os
import threading
import weakref
from importlib.metadata import entry_points
from typing import Any, Literal

import jax

from anytpu import _env
from anytpu.engine.handles import later_arrays
from anytpu.engine.hosts import ONE_HOST, Hosts
from anytpu.errors import BackendError
from anytpu.program.program import Layout, Program, Tree
from anytpu.system.cores import Address, Core
from anytpu.system.lifecycle import System

_HOST_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclasses.dataclass(frozen=True)
class Loop:
    """The form of a compiled loop: its capacity, and the source of its batches.

    Attributes:
        capacity: number of steps in one feed, at least 1, and so the maximum for one call; each call chooses its count.
        feed: "rows": the whole data set is on the device, and a feed holds row indices, `(capacity, rows)`;
            "batches": a feed holds the stacked batches, `(capacity, rows, ...)`.
        guard: name of the output to check for NaN and infinity. A step is bad if that output, or a leaf of the new
            state that was finite before, is not finite. A bad step has no effect on the state, nor have the steps
            after it. None checks nothing and costs nothing.
        skips: whether steps after a bad step have an effect again.
        examples: number of rows of the data set on the device, for feed "rows".
        keeps_every: True returns the outputs of all steps, which take `capacity` times the memory of one step. False
            returns the outputs of the last step.
    """

    capacity: int
    feed: Literal["rows", "batches"]
    guard: str | None = None
    skips: bool = False
    examples: int | None = None
    keeps_every: bool = True


@dataclasses.dataclass(frozen=True)
class StepResults:
    """The result of one call of a looped executable.

    Attributes:
        state: handles of the state after the last step.
        last: handles of the outputs of the last step that ran.
        every: handles of the outputs of all steps, `(capacity, ...)` each; rows from `count` on are unspecified. None
            if the loop does not keep them.
        count: number of steps that ran.
        bad_steps: handle of the number of steps without an effect on the state. None without a guard.
    """

    state: Tree
    last: Tree
    every: Tree
    count: int
    bad_steps: Any = None


class Executable(abc.ABC):
    """A compiled Program on one backend."""

    @property
    @abc.abstractmethod
    def outputs(self) -> Tree:
        """Specs of the outputs of one step; stacked, `(replicas, ...)`, for per-replica code."""

    @abc.abstractmethod
    def step(self, state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        """Run one step: handles of state and batch in, handles of state and outputs out.

        The call consumes the state: its handles must not be used again. Outputs of per-replica code are stacked,
        `(replicas, ...)`.
        """

    @abc.abstractmethod
    def steps(self, state: Tree, feed: Tree, start: int, count: int) -> StepResults:
        """Run steps `start` to `start + count` of a feed in one compiled loop. The call consumes the state.

        Args:
            state: handles of the state.
            feed: for feed "rows" the pair (handles of the whole data set, handle of the row indices); the indices are
                put with `Layout(1)`. For feed "batches" handles of the stacked batches; the split axis of the batch
                moves up by one. Several calls may use one feed.
            start: index of the first step to run in the feed, from 0.
            count: number of steps to run; `start + count` is at most the loop's capacity.
        """


class Backend(abc.ABC):
    """A set of cores, with methods that run Programs on them.

    Attributes:
        is_host: whether the cores compute in the memory of this process, so that host arrays need no transfer.
        is_far: whether a transfer goes through a network, so that it may take longer than the steps.
        hosts: the hosts of the cores, which agree on durations, signals and files.
    """

    is_host: bool = False
    is_far: bool = False
    hosts: Hosts = ONE_HOST

    @property
    def abstract_device(self) -> Any:
        """Kind of the devices of a mesh in this process, a `jax.sharding.AbstractDevice`; None without such a mesh."""
        return None

    @classmethod
    def at(cls, address: Address, cores: tuple[Core, ...]) -> Backend:
        """Return the backend of the system at an address; see `open`."""
        backend: Any = cls
        return backend(cores) if address.numerics == "machine" else backend(cores, numerics=address.numerics)

    @property
    @abc.abstractmethod
    def cores(self) -> tuple[Core, ...]:
        """The cores, in order; one for each replica in sync."""

    @functools.cached_property
    def memory_bytes(self) -> int:
        """Memory for the arrays that one core holds: the smallest core's, or the host's if the host computes."""
        return min((not core.virtual and core.memory_bytes) or _HOST_BYTES for core in self.cores)

    @abc.abstractmethod
    def put(self, tree: Tree, layout: Layout) -> Tree:
        """Transfer arrays to the cores and return their handles. A handle in the tree passes through.

        A split axis that is not a multiple of the number of cores is padded for the transfer. No program sees the
        padding, but `get` of such a handle may return it.
        """

    def sharding(self, layout: Layout) -> Any:
        """Return the JAX sharding of a layout, to make an array in its shards; None if JAX cannot make arrays here."""
        return None

    def put_once(self, tree: Tree, layout: Layout) -> Tree:
        """Transfer arrays for a single call. The caller must not write to them until that call is complete.

        Returns:
            Handles for this one call. A backend whose calls accept host arrays returns the arrays themselves.
        """
        return self.put(tree, layout)

    @abc.abstractmethod
    def get(self, tree: Tree) -> Tree:
        """Open handles: return arrays that both NumPy and JAX can read.

        A caller that keeps a value of the state must copy it (`np.array`), because the next call consumes the state.
        """

    def get_later(self, tree: Tree) -> Tree:
        """Return arrays that may still be computed or on their way: NumPy and `float` wait for all of them.

        Raises:
            BackendError: (when they are read) a call that computes them failed.
        """
        leaves, form = jax.tree.flatten(tree)
        return form.unflatten(later_arrays(len(leaves), lambda: self.get(leaves)))

    @abc.abstractmethod
    def is_ready(self, tree: Tree) -> bool:
        """Return whether the arrays of all handles are computed. Never waits."""

    @abc.abstractmethod
    def wait(self, tree: Tree) -> None:
        """Wait until the arrays of all handles are computed, without a transfer of them.

        Raises:
            BackendError: a call that computes them failed.
        """

    @abc.abstractmethod
    def compile(self, program: Program, loop: Loop | None = None) -> Executable:
        """Compile a Program.

        Args:
            program: the program.
            loop: form of a loop of many steps per call; None runs one step per call.

        Raises:
            ProgramError: the step does not return (state, outputs), or the new state has another structure or shape. A
                new state of another dtype is cast back.
            ReplicaError: a new state of per-replica code differs between the replicas.
            BackendError: the compiler failed; the cause is chained.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Release the cores. Handles become invalid; a second call does nothing."""


_OPEN: weakref.WeakKeyDictionary[System, dict[int, Backend]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def backend_of(system: System, cores: int | None = None) -> Backend:
    """Return the backend of a running system. It is opened once, and closed when the system shuts down.

    Args:
        system: the system.
        cores: number of cores, the first of the system; None is all.
    """
    all_cores = system.topology.cores
    count = len(all_cores) if cores is None else cores
    with _lock:
        opened = _OPEN.setdefault(system, {})
        if count not in opened:
            part = dataclasses.replace(system.address, cores=count, shape=None)
            backend = open(system.address if count == len(all_cores) else part, all_cores[:count])
            opened[count] = backend
            system.on_shutdown(backend.close)
        return opened[count]


def open(address: Address, cores: tuple[Core, ...]) -> Backend:
    """Return the backend of the system at an address.

    The entry points of the group "anytpu.backends" map each kind of address to a class. So another package can add a
    kind, and this floor imports no backend.

    Args:
        address: address of the system.
        cores: the cores to use.

    Raises:
        BackendError: no installed package has a backend for this kind of address.
        SettingError: JAX or XLA cannot start with the current environment variables.
    """
    _env.check_jax_settings()
    kinds = {entry.name: entry for entry in entry_points(group="anytpu.backends")}
    if address.kind not in kinds:
        known = ", ".join(sorted(kinds)) or "none: is anytpu installed? Type pip install -e ."
        raise BackendError(f"no backend opens a system of kind {address.kind!r}; the installed kinds are {known}")
    return kinds[address.kind].load().at(address, cores)
