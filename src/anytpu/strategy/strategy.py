"""`TPUStrategy`, which runs programs on all cores of one system, and `connect`, which starts a system for it.

Idea: Keras variables are created and models are compiled in the scope of a strategy, and the strategy runs step
functions on every replica. It owns no arrays and no loop; it passes Programs to the backend.

Rule: strategies on the same system are interchangeable for a model, so a notebook cell that connects can run again.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any, final

from anytpu._calls import explain_arguments
from anytpu.engine.backend import Backend, Executable, Loop, backend_of
from anytpu.errors import SettingError, StrategyError
from anytpu.program.program import Program
from anytpu.strategy import scopes
from anytpu.strategy.base import Strategy
from anytpu.strategy.compiled_steps import CompiledSteps
from anytpu.strategy.looped import LoopResult, LoopRun, check_loop
from anytpu.system.cores import Numerics
from anytpu.system.lifecycle import initialize_tpu_system, running_system
from anytpu.system.resolver import TPUClusterResolver


@final
class TPUStrategy(Strategy):
    """All cores of a TPU system, in step.

    Args:
        tpu_cluster_resolver: the system, found by `TPUClusterResolver`; None finds one as `TPUClusterResolver("")`
            does.
        strict: reject batches that are not divisible by the number of cores, as the first TPU systems did, instead of
            computing them exactly.

    Raises:
        SettingError: `tpu_cluster_resolver` is not a resolver.
        TPUNotFoundError: the system does not exist.

    Example:
        >>> strategy = TPUStrategy(TPUClusterResolver("v2-8"))
        >>> strategy.num_replicas_in_sync
        8
    """

    def __init__(self, tpu_cluster_resolver: TPUClusterResolver | None = None, *, strict: bool = False) -> None:
        self._resolver = _checked(tpu_cluster_resolver)
        self._system = running_system(self._resolver.address)
        self._steps = CompiledSteps()
        self._parts: dict[int, TPUStrategy] = {}
        self._part_backend: Backend | None = None
        self.strict = strict
        self.compilations = 0
        """Number of programs that this strategy has compiled."""

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
                f"the TPU system of {self!r} was shut down. Make a new strategy with tpu.connect() and compile the "
                "model again in its scope; the model keeps its weights"
            )
        return self._part_backend or backend_of(self._system)

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of cores."""
        return len(self._part_backend.cores if self._part_backend else self._system.topology.cores)

    def part(self, cores: int) -> TPUStrategy:
        """Return a strategy on the first cores of the same system; a repeated call returns the same object.

        Variables made in the scope of this strategy can be used with the part too.

        Args:
            cores: number of cores, from 1 to `num_replicas_in_sync`.

        Raises:
            SettingError: the strategy has fewer cores.

        Example:
            >>> TPUStrategy(TPUClusterResolver("v2-8")).part(2).num_replicas_in_sync
            2
        """
        count = self.num_replicas_in_sync
        if not 1 <= cores <= count:
            raise SettingError(f"a part of {self!r} has from 1 to {count} cores, not {cores}")
        if cores == count:
            return self
        if cores not in self._parts:
            _ = self.backend
            backend = backend_of(self._system, cores)
            part = copy.copy(self)
            part._steps, part._parts, part._part_backend, part.compilations = CompiledSteps(), {}, backend, 0
            self._parts[cores] = part
        return self._parts[cores]

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which models, optimizers and metrics are made and compiled.

        Raises:
            StrategyError: (on entering) inside the scope of another strategy, or after the system was shut down.
        """
        return scopes.enter_scope(self)

    def run(self, fn: Callable, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Run a function once on each replica.

        The function is compiled on its first run, without a decorator. It is compiled again only if its code, its
        closure, the globals that it reads, or the shapes of its arguments change. It may read and mutate Keras models,
        optimizers and metrics. Global numbers and strings are compared by value, other objects by identity.

        Args:
            fn: the step function of one replica.
            args: its arguments, a tuple. Each replica gets its own part of a `PerReplica`; all other values go to all
                replicas. Arrays and numbers are passed to the compiled step; a bool, a string or any other object is
                static. Flax NNX modules and optimizers are updated in place. The arrays of an Equinox module are
                passed.
            kwargs: its keyword arguments, likewise; None means none.

        Returns:
            The outputs of the function, each array as a `PerReplica`; plain arrays for one replica.

        Raises:
            ReplicaError: a variable without aggregation, or an NNX module, would differ between the replicas. Or the
                function uses an NNX module that is not an argument, or a `PerReplica` does not fit.
            SettingError: an argument cannot be passed to a step.
            StrategyError: the system was shut down, or this is inside a function that `run` runs.

        Example:
            >>> strategy = TPUStrategy(TPUClusterResolver("virtual", cores=2))
            >>> strategy.run(lambda x: x * 2.0, args=(3.0,))
            PerReplica:{
              0: 6.0,
              1: 6.0
            }
        """
        scopes.prepare("strategy.run")
        return self._steps.run(self, fn, args, kwargs)

    def run_steps(self, fn: Callable, iterator: Any, steps: int, state: Any = None) -> Any:
        """Run a function on each replica for consecutive batches, many steps in one compiled loop.

        It is equivalent to `for _ in range(steps): strategy.run(fn, args=(next(iterator),))`, without the host between
        steps: as fast as `fit`. The compiled code does not depend on the number of steps.

        Args:
            fn: the step function of one replica, of its part of a batch; it may mutate Keras models, optimizers and
                metrics. With `state`, a pure function `(state, batch) -> (state, metrics)` whose new state is equal on
                every replica.
            iterator: yields batches, as `iter(strategy.distribute_dataset(dataset))` does.
            steps: number of steps.
            state: a tree of arrays that the steps update, or None.

        Returns:
            The outputs of the last step, each array as a `PerReplica`, plain arrays for one replica. With `state`, the
            pair of the new state and these outputs.

        Raises:
            DataExhaustedError: the batches end earlier; the model is at the last finished step.
            SettingError: `iterator` is not an iterator, or `steps` is not a positive integer.
            ReplicaError, StrategyError: as `run` raises them.

        Example:
            >>> strategy = TPUStrategy(TPUClusterResolver("virtual", cores=2))
            >>> batches = iter(strategy.distribute_dataset([np.ones(4)] * 10))
            >>> def step(total, batch):
            ...     return total + get_replica_context().all_reduce("SUM", batch.sum()), None
            >>> total, _ = strategy.run_steps(step, batches, steps=10, state=0.0)
            >>> float(total)
            40.0
        """
        result = self.loop(fn, iterator, steps, state)
        return result.last if state is None else (result.state, result.last)

    def loop(
        self, fn: Callable, iterator: Any, steps: int, state: Any = None, *, keeps_every: bool = False
    ) -> LoopResult:
        """Run `run_steps` for other parts of anytpu, which may need the outputs of every step."""
        scopes.prepare("strategy.run_steps")
        check_loop(fn, iterator, steps)
        return LoopRun(self, self._steps, fn, state, keeps_every).run(iterator, int(steps))

    def compile(self, program: Program, loop: Loop | None = None) -> Executable:
        """Compile a Program for the cores, and increment `compilations`."""
        executable = self.backend.compile(program, loop)
        self.compilations += 1
        return executable

    def __repr__(self) -> str:
        name = self._system.topology.name
        if not name.endswith(("core", "cores")):
            name += f", {len(self._system.topology.cores)} {'virtual ' if self._resolver.is_virtual else ''}cores"
        if self._part_backend:
            name = f"{self.num_replicas_in_sync} of {name}"
        if self._system.address.numerics == "tpu":
            name += ", products rounded as on a TPU"
        return f"<TPUStrategy: {name}>"


def _checked(resolver: Any) -> TPUClusterResolver:
    if resolver is None:
        return TPUClusterResolver("")
    if not isinstance(resolver, TPUClusterResolver):
        example = (
            f"tpu.connect({resolver!r})" if isinstance(resolver, str) else 'TPUStrategy(tpu.TPUClusterResolver(""))'
        )
        raise SettingError(f"tpu_cluster_resolver must be a TPUClusterResolver, not {resolver!r}: type {example}")
    return resolver


@explain_arguments
def connect(
    tpu: str = "", cores: int | None = None, *, strict: bool = False, numerics: Numerics = "machine"
) -> TPUStrategy:
    """Find a TPU system, start it, and return the strategy that runs programs on all its cores.

    It may be called again at any time: strategies on the same system are interchangeable.

    Args:
        tpu: "" searches the environment variables, then for this machine's TPU, then for its GPU; otherwise it makes a
            virtual TPU from the CPU. "local" requires a real accelerator. "virtual" or a slice ("v2-8", "v5e-16") is a
            virtual TPU.
        cores: number of cores; None takes all, or 8 for a virtual TPU.
        strict: reject batches that are not divisible by the number of cores.
        numerics: "machine" computes float32 products as this machine's compiler does. "tpu" rounds the operands of
            float32 matrix products and convolutions to bfloat16, forward and backward. That is a TPU's default
            precision, so a run here shows whether a model learns there. Each setting is a separate system.

    Raises:
        SettingError: `cores` or `numerics` is none of these.
        UnknownTPUError: there is no TPU of that name.
        TPUNotFoundError: "local", and this machine has no accelerator.

    Example:
        >>> connect("virtual", cores=3).num_replicas_in_sync
        3
    """
    resolver = TPUClusterResolver(tpu, cores=cores, numerics=numerics)
    initialize_tpu_system(resolver)
    strategy = TPUStrategy(resolver, strict=strict)
    scopes.expect_use(strategy)
    return strategy
