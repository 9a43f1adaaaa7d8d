"""`TPUStrategy`: the cores of one system, and the programs that run on all of them.

Idea: a strategy is where a program says "on all cores": Keras variables are created in its scope, a model is compiled there,
a step function is run on every replica. It owns no arrays and no loop; it hands Programs to the backend.

Rule: two strategies on the same system are the same to a model, so a notebook cell that connects can be run again.
"""

from __future__ import annotations

import abc
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, final

from anytpu import _keras
from anytpu.engine.backend import Backend, Executable, Loop
from anytpu.engine.opening import backend_of
from anytpu.errors import StrategyError
from anytpu.program.program import REPLICATED, Program
from anytpu.strategy import reduction, scopes, step, variables
from anytpu.strategy.current import CURRENT
from anytpu.strategy.identity import Identity
from anytpu.strategy.per_replica import PerReplica, of_handles
from anytpu.system.lifecycle import running_system
from anytpu.system.resolver import TPUClusterResolver

_MOST_STEPS = 64


class Strategy(abc.ABC):
    """How a program is spread over replicas."""

    @property
    @abc.abstractmethod
    def num_replicas_in_sync(self) -> int:
        """The number of replicas that run each step together."""

    @abc.abstractmethod
    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which models, optimizers and metrics are made."""

    @abc.abstractmethod
    def run(self, fn: Callable, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Run a function once on each replica."""

    def reduce(self, reduce_op: Any, value: Any, axis: int | None = None) -> Any:
        """Make one value of one value for each replica.

        Args:
            reduce_op: `ReduceOp.SUM` or `ReduceOp.MEAN`, or their names in any case.
            value: a tree of `PerReplica`, as `run` returns it; a plain value counts as one replica's.
            axis: None reduces over the replicas; 0 also over the first axis of each replica's value.

        Returns:
            A tree of NumPy arrays.

        Raises:
            SettingError: the operation is not SUM or MEAN.
        """
        return reduction.reduce(reduction.ReduceOp.of(reduce_op), value, axis)

    def gather(self, value: Any, axis: int) -> Any:
        """Concatenate each replica's value along an axis.

        Args:
            value: a tree of `PerReplica`; a plain value is returned as it is.
            axis: the axis to concatenate along.

        Returns:
            A tree of NumPy arrays, in the order of the replicas.
        """
        return reduction.gather(value, axis)

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """Return the values of a `PerReplica` as a tuple; a plain value as a tuple of one."""
        return value.values if isinstance(value, PerReplica) else (value,)


@final
class DefaultStrategy(Strategy):
    """One replica, where the process stands: what `get_strategy` returns when no other strategy is in scope."""

    @property
    def num_replicas_in_sync(self) -> int:
        """One."""
        return 1

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context that changes nothing."""
        return contextlib.nullcontext(self)

    def run(self, fn: Callable, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Call the function."""
        return fn(*args, **(kwargs or {}))

    def __repr__(self) -> str:
        return "<DefaultStrategy: one replica, on the default device of JAX>"


@final
class TPUStrategy(Strategy):
    """All cores of a TPU system, in step.

    Args:
        tpu_cluster_resolver: the system, found by `TPUClusterResolver`; None finds one as `TPUClusterResolver("")` does.
        strict: refuse batches that the cores do not divide, as the first TPU systems did, instead of computing them
            exactly.

    Raises:
        TPUNotFoundError: there is no such system.

    Example:
        >>> strategy = TPUStrategy(TPUClusterResolver("v2-8"))
        >>> strategy.num_replicas_in_sync
        8
    """

    def __init__(self, tpu_cluster_resolver: TPUClusterResolver | None = None, *, strict: bool = False) -> None:
        self._resolver = tpu_cluster_resolver or TPUClusterResolver("")
        self._system = running_system(self._resolver.address)
        self._steps: OrderedDict[tuple, tuple[Executable, list[Any]]] = OrderedDict()
        self.strict = strict
        self.compilations = 0
        """How many programs this strategy has compiled."""

    @property
    def cluster_resolver(self) -> TPUClusterResolver:
        """The resolver that found the system."""
        return self._resolver

    @property
    def system(self) -> Any:
        """The running system; strategies on the same system are interchangeable."""
        return self._system

    @property
    def backend(self) -> Backend:
        """The backend of the system.

        Raises:
            StrategyError: the system was shut down.
        """
        if not self._system.is_running:
            raise StrategyError(
                f"the TPU system of {self!r} was shut down. Make a new strategy with tpu.connect() and compile the model "
                "again in its scope; the model keeps its weights"
            )
        return backend_of(self._system)

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of cores."""
        return len(self._system.topology.cores)

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which models, optimizers and metrics are made and compiled.

        Raises:
            StrategyError: (on entering) inside the scope of another strategy, or after the system was shut down.
        """
        return _scope(self)

    def run(self, fn: Callable, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Run a function once on each replica.

        The function is compiled on its first run and again only when its code, what it closes over, or the shapes of its
        arguments change; it needs no decorator. It may read and mutate Keras models, optimizers and metrics.

        Args:
            fn: what one replica does.
            args: its arguments. Each replica gets its own part of a `PerReplica`; everything else goes to all.
            kwargs: its keyword arguments, likewise.

        Returns:
            What the function returns, each array as a `PerReplica`; plain arrays when there is one replica.

        Raises:
            ReplicaError: a variable without aggregation would differ between the replicas.
        """
        backend = self.backend
        call = step.call_of(args, kwargs or {})
        executable, held = self._step(fn, call)
        state = variables.take(backend, held)
        arrays = [_put(backend, one) for one in call.arrays]
        state, outputs = executable.step(state, arrays)
        variables.give(held, state)
        variables.attach(held)
        return of_handles(backend, outputs, executable.outputs)

    def compile(self, program: Program, loop: Loop | None = None) -> Executable:
        """Compile a Program for the cores, and count it."""
        executable = self.backend.compile(program, loop)
        self.compilations += 1
        return executable

    def _step(self, fn: Callable, call: step.Call) -> tuple[Executable, list[Any]]:
        key = (Identity(fn), call.key())
        if key not in self._steps:
            program, held = step.step_program(fn, call, self.num_replicas_in_sync)
            self._steps[key] = (self.compile(program), held)
            if len(self._steps) > _MOST_STEPS:
                self._steps.popitem(last=False)
        self._steps.move_to_end(key)
        return self._steps[key]

    def __repr__(self) -> str:
        topology = self._system.topology
        kind = "virtual " if self._resolver.is_virtual else ""
        return f"<TPUStrategy: {topology.name}, {self.num_replicas_in_sync} {kind}cores>"


@contextlib.contextmanager
def _scope(strategy: TPUStrategy) -> Iterator[TPUStrategy]:
    outer = CURRENT.get()
    if outer is not None and outer.system is not strategy.system:
        raise StrategyError(
            f"mixing different strategies: the scope of {strategy!r} was opened inside the scope of {outer!r}. "
            "Close the outer scope first; a model belongs to one strategy"
        )
    _ = strategy.backend
    scopes.install()
    token = CURRENT.set(strategy)
    try:
        yield strategy
    finally:
        CURRENT.reset(token)


def _put(backend: Backend, one: Any) -> Any:
    if not isinstance(one, PerReplica):
        return backend.put(_keras.plain(one), REPLICATED)
    handle = one.handle_on(backend)
    return backend.put(one.stacked(), step.ROWS) if handle is None else handle
