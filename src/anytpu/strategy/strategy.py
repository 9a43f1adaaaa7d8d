"""`TPUStrategy`, which runs programs on all cores of one system, and `connect`, which starts a system for it.

Idea: Keras variables are created and models are compiled in the scope of a strategy, and the strategy runs step
functions on every replica. It owns no arrays and no loop; it passes Programs to the backend.

Rule: strategies on the same system are interchangeable for a model, so a notebook cell that connects can run again.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, final

import jax

from anytpu import _by_name, _jax
from anytpu._calls import explain_arguments, explain_methods
from anytpu.engine.backend import Backend, Executable, Loop, backend_of
from anytpu.engine.hosts import Hosts
from anytpu.engine.random_state import share_random_states
from anytpu.errors import SettingError, StrategyError
from anytpu.program.program import Layout, Program
from anytpu.sharding import ModelLayout, check_spec, place, resolve, with_tables
from anytpu.strategy import scopes
from anytpu.strategy.base import Strategy
from anytpu.strategy.compiled_steps import CompiledSteps
from anytpu.strategy.looped import LoopResult, LoopRun, check_loop
from anytpu.system.cores import Numerics
from anytpu.system.lifecycle import initialize_tpu_system, running_system
from anytpu.system.resolver import TPUClusterResolver
from anytpu.system.topologies import Topology

compile_listeners: list[Callable[[int, Program], None]] = []
"""Functions of higher floors that are called with the number of cores and each Program that a strategy compiled."""


@explain_methods
@final
class TPUStrategy(Strategy):
    """All cores of a TPU system, in step.

    Args:
        tpu_cluster_resolver: the system, found by `TPUClusterResolver`; None finds one as `TPUClusterResolver("")`
            does.
        layout: how the weights of a Keras model are split over the cores: "data" (each core holds them whole), "fsdp"
            (weights, slots and batch are split over all cores), a `keras.distribution.LayoutMap`, a dictionary
            {pattern: PartitionSpec}, or a function `(name, shape) -> PartitionSpec`. "auto" chooses for each model,
            when its first step is compiled. None: as "data", and also for code that runs on each replica. The numbers
            are the same; memory and time on a TPU are not.
        mesh: {name: size} of each mesh axis, such as {"data": 4, "model": 2}, of as many devices as there are cores. At
            most one size is -1, which fills the cores. None: one axis "data", or the mesh of the layout.
        strict: reject batches that are not divisible by the number of cores, as the first TPU systems did, instead of
            computing them exactly.

    Raises:
        SettingError: `tpu_cluster_resolver` is not a resolver, `layout` is none of these, or `mesh` does not fit.
        TPUNotFoundError: the system does not exist.

    Example:
        >>> strategy = TPUStrategy(TPUClusterResolver("v2-8"))
        >>> strategy.num_replicas_in_sync
        8
    """

    def __init__(
        self,
        tpu_cluster_resolver: TPUClusterResolver | None = None,
        *,
        layout: Any = None,
        mesh: Mapping[str, int] | None = None,
        strict: bool = False,
    ) -> None:
        self._resolver = _checked(tpu_cluster_resolver)
        self._system = running_system(self._resolver.address)
        is_real = self._resolver.address.kind == "local"
        if is_real and len({core.host for core in self._system.topology.cores}) > 1:
            share_random_states(backend_of(self._system).hosts)
        self.layout = _resolved(layout, mesh, self._system.topology)
        """The layout of models over the cores, a `sharding.ModelLayout`, or None."""
        self._chosen: dict[Any, ModelLayout] = {}
        self._steps = CompiledSteps()
        self._parts: dict[int, TPUStrategy] = {}
        self._backend: Backend | None = None
        self._replicas = len(self._system.topology.cores)
        self.strict = strict
        self.compilations = 0
        """Number of programs that this strategy has compiled."""
        self.failed_runs = 0
        """Number of calls of `run` that raised an error."""

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
            StrategyError: the system was shut down, or this process was forked from one that used JAX.
        """
        if _jax.has_lost_threads:
            raise StrategyError(_FORKED)
        if not self._system.is_running:
            raise StrategyError(
                f"the TPU system of {self!r} was shut down. Make a new strategy with tpu.connect() and compile the "
                "model again in its scope; the model keeps its weights"
            )
        if self._backend is None:
            self._backend = backend_of(self._system)
        return self._backend

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of cores."""
        return self._replicas

    @property
    def splits_weights(self) -> bool:
        """Whether the layout may split weights over the cores."""
        return self.layout is not None and self.layout.name != "data"

    @property
    def hosts(self) -> Hosts:
        """The hosts of the cores."""
        return self.backend.hosts

    def part(self, cores: int) -> TPUStrategy:
        """Return a strategy on the first cores of the same system; a repeated call returns the same object.

        Variables made in the scope of this strategy can be used with the part too.

        Args:
            cores: number of cores, from 1 to `num_replicas_in_sync`.

        Raises:
            SettingError: the strategy has fewer cores, or it has a layout, which is for all of them.

        Example:
            >>> TPUStrategy(TPUClusterResolver("v2-8")).part(2).num_replicas_in_sync
            2
        """
        count = self.num_replicas_in_sync
        if not 1 <= cores <= count:
            raise SettingError(f"a part of {self!r} has from 1 to {count} cores, not {cores}")
        if cores == count:
            return self
        if self.layout is not None:
            raise SettingError(
                f"{self!r} splits a model over its {count} cores, and a part of it has {cores}: leave layout out"
            )
        if cores not in self._parts:
            _ = self.backend  # Raises if the system was shut down.
            part = copy.copy(self)
            part._steps, part._parts, part.compilations = CompiledSteps(), {}, 0
            part._backend, part._replicas = backend_of(self._system, cores), cores
            self._parts[cores] = part
        return self._parts[cores]

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which models, optimizers and metrics are made and compiled.

        Raises:
            StrategyError: (on entering) inside the scope of another strategy, or after the system was shut down.
        """
        return scopes.enter_scope(self)

    def run(self, fn: Callable, args: tuple = (), kwargs: dict | None = None, options: Any = None) -> Any:
        """Run a function once on each replica.

        The function is compiled on its first run, without a decorator. It is compiled again only if its code, its
        closure, the globals and attributes that it reads, or the shapes of its arguments change. It may read and mutate
        Keras models, optimizers and metrics. Numbers and strings are compared by value, other objects by identity.

        Args:
            fn: the step function of one replica.
            args: its arguments, a tuple. Each replica gets its own part of a `PerReplica`; all other values go to all
                replicas. Arrays and numbers are passed to the compiled step; a bool, a string or any other object is
                static. Flax NNX modules and optimizers are updated in place. The arrays of an Equinox module are
                passed.
            kwargs: its keyword arguments, likewise; None means none.
            options: TensorFlow's `RunOptions`; no effect, because they are about its compiler.

        Returns:
            The outputs of the function, each array as a `PerReplica`; plain arrays for one replica.

        Raises:
            ReplicaError: a variable without aggregation, or an NNX module, would differ between the replicas. Or the
                function uses an NNX module that is not an argument, or a `PerReplica` does not fit.
            SettingError: an argument cannot be passed to a step.
            StrategyError: the system was shut down, or this is inside a function that `run` runs or that JAX traces.

        Example:
            >>> strategy = TPUStrategy(TPUClusterResolver("virtual", cores=2))
            >>> strategy.run(lambda x: x * 2.0, args=(3.0,))
            PerReplica:{
              0: 6.0,
              1: 6.0
            }
        """
        del options
        scopes.prepare("strategy.run")
        try:
            return self._steps.run(self, fn, args, kwargs)
        except BaseException:
            self.failed_runs += 1
            raise

    def run_steps(self, fn: Callable, iterator: Any, steps: int, state: Any = None) -> Any:
        """Run a function on each replica for consecutive batches, many steps in one compiled loop.

        It is equivalent to `for _ in range(steps): strategy.run(fn, args=(next(iterator),))`, without the host between
        steps: as fast as `fit`. The compiled code does not depend on the number of steps.

        Args:
            fn: the step function of one replica, of its part of a batch; it may mutate Keras models, optimizers and
                metrics. With `state`, a pure function `(state, batch) -> (state, metrics)` whose new state is equal on
                every replica. On a strategy with a layout, such a function of the whole global batch.
            iterator: yields batches, as `iter(strategy.distribute_dataset(dataset))` does. On a strategy with a layout,
                whole batches, as `iter(dataset)` does.
            steps: number of steps.
            state: a tree of arrays that the steps update, or None.

        Returns:
            The outputs of the last step, each array as a `PerReplica`, plain arrays for one replica. With `state`, the
            pair of the new state and these outputs. On a strategy with a layout both are plain arrays.

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

    def place(self, program: Program, layout: ModelLayout | None = None) -> Program:
        """Return a Program placed by the layout of this strategy; without a layout, or if it is placed, itself.

        Args:
            program: the program.
            layout: the layout that `choose` returned; None: that of the strategy, chosen now if it is "auto".

        Raises:
            SettingError: the layout does not fit the program, or the program is code that runs on each replica.
        """
        is_whole = self.layout is None and not (program.tables and program.replicas is None)
        if is_whole or (program.placement is not None and not program.placement.assumption):
            return program
        if layout is None:
            layout = self.default_layout if self.layout is None else self._layout_for(program)
        return place(program, layout, device=self.backend.abstract_device)

    @functools.cached_property
    def default_layout(self) -> ModelLayout:
        """The layout of a model with embedding tables on a strategy without one: "data", which splits their rows."""
        return resolve("data", None, self.num_replicas_in_sync)

    def choose(self, program: Program) -> ModelLayout:
        """Choose the layout of a Program for `layout="auto"`, and print it with the reason on stderr.

        Raises:
            SettingError: no layout fits the memory of the slice, or the job has several hosts.
        """
        if not self.hosts.is_alone:
            raise SettingError(
                f'layout="auto" chooses on one host, and this job has {self.hosts.count}: choose before, '
                "found = tpu.find_layouts(model, tpu=..., batch_size=...), and pass layout=found"
            )
        name = self._system.topology.name
        chosen = _by_name.load("layout chooser")(program, name, _say)
        mesh = ", ".join(f"{axis}={size}" for axis, size in chosen.layout.axes)
        line = f'layout="auto" is {chosen.layout.name} over {mesh} for {program.name!r} on {name}: {chosen.why}'
        _say(line)
        return chosen.layout

    def _layout_for(self, program: Program) -> ModelLayout:
        """Return the layout of a Program; "auto" is chosen once for all programs with the same state."""
        assert self.layout is not None
        if not self.layout.is_open:
            return self.layout
        leaves = jax.tree.leaves(program.state)
        key = (program.mode, program.name, tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves))
        if key not in self._chosen:
            self._chosen[key] = self.choose(program)
        return self._chosen[key]

    def variable_sharding(self, name: str, shape: tuple[int, ...], is_table: bool = False) -> Any:
        """Return the JAX sharding with which a variable is made in its shards; None if it is made whole."""
        layout = self.default_layout if self.layout is None and is_table else self.layout
        if layout is None:
            return None
        spec = with_tables(layout, [name] if is_table else []).spec_of(name, shape)
        if not spec:
            return None
        check_spec(name, shape, spec, dict(layout.axes))
        return self.backend.sharding(Layout(None, spec, layout.axes))

    def compile(self, program: Program, loop: Loop | None = None) -> Executable:
        """Compile a Program for the cores, placed by the layout, and increment `compilations`."""
        with scopes.compiled_in_spite(f"{program.name} on {self!r}"):
            executable = self.backend.compile(self.place(program), loop)
        self.compilations += 1
        for listener in compile_listeners:
            listener(self.num_replicas_in_sync, program)
        return executable

    def __repr__(self) -> str:
        name = self._system.topology.name
        if not name.endswith(("core", "cores")):
            count = len(self._system.topology.cores)
            name += f", {count} {'virtual ' if self._resolver.is_virtual else ''}core{'' if count == 1 else 's'}"
        if self._replicas < len(self._system.topology.cores):
            name = f"{self._replicas} of {name}"
        if self._system.address.numerics == "tpu":
            name += ", products rounded as on a TPU"
        if self.layout is not None:
            name += f", layout {self.layout}"
        return f"<TPUStrategy: {name}>"


_FORKED = (
    "this process was forked from one in which JAX had started its devices. The threads of JAX do not exist here, so "
    'the call would wait for ever. Start the process anew, with multiprocessing.get_context("spawn"), or fork before '
    "tpu.connect()"
)


def _say(line: str) -> None:
    print(f"anytpu: {line}.", file=sys.stderr)


def _checked(resolver: Any) -> TPUClusterResolver:
    if resolver is None:
        return TPUClusterResolver("")
    if not isinstance(resolver, TPUClusterResolver):
        example = (
            f"tpu.connect({resolver!r})" if isinstance(resolver, str) else 'TPUStrategy(tpu.TPUClusterResolver(""))'
        )
        raise SettingError(f"tpu_cluster_resolver must be a TPUClusterResolver, not {resolver!r}: type {example}")
    return resolver


def _resolved(layout: Any, mesh: Mapping[str, int] | None, topology: Topology) -> ModelLayout | None:
    if layout is None and mesh is not None:
        raise SettingError(f'mesh={mesh!r} needs a layout, which says what it splits: add layout="data" or "fsdp"')
    cores = len(topology.cores)
    if not isinstance(layout, str) or layout != "auto":
        return None if layout is None else resolve(layout, mesh, cores)
    if mesh is not None:
        raise SettingError(f'layout="auto" chooses the mesh too: leave mesh={mesh!r} out')
    if topology.chip is None or not re.fullmatch(r"\w+-\d+", topology.name):
        raise SettingError(
            f'layout="auto" needs a TPU slice, not {topology.name}: connect to one, such as '
            'tpu.connect("v5e-8", layout="auto"), or name the layout: layout="fsdp"'
        )
    return dataclasses.replace(resolve("data", None, cores), name="auto", is_open=True)


@explain_arguments
def connect(
    tpu: str = "",
    cores: int | None = None,
    *,
    layout: Any = None,
    mesh: Mapping[str, int] | None = None,
    strict: bool = False,
    numerics: Numerics = "machine",
) -> TPUStrategy:
    """Find a TPU system, start it, and return the strategy that runs programs on all its cores.

    It may be called again at any time: strategies on the same system are interchangeable.

    Args:
        tpu: "" searches the environment variables, then for this machine's TPU, then for its GPU; otherwise it makes a
            virtual TPU from the CPU. "local" requires a real accelerator. "virtual" or a slice ("v2-8", "v5e-16") is a
            virtual TPU.
        cores: number of cores; None takes all, or 8 for a virtual TPU.
        layout: how the weights of a Keras model are split over the cores; see `TPUStrategy`.
        mesh: {name: size} of each mesh axis for the layout, or None.
        strict: reject batches that are not divisible by the number of cores.
        numerics: "machine" computes float32 products as this machine's compiler does. "tpu" rounds the operands of
            float32 matrix products and convolutions to bfloat16, forward and backward. That is a TPU's default
            precision, so a run here shows whether a model learns there. Each setting is a separate system.

    Raises:
        SettingError: `cores`, `layout`, `mesh` or `numerics` is none of these.
        UnknownTPUError: there is no TPU of that name.
        TPUNotFoundError: "local", and this machine has no accelerator.

    Example:
        >>> connect("virtual", cores=3).num_replicas_in_sync
        3
    """
    resolver = TPUClusterResolver(tpu, cores=cores, numerics=numerics)
    initialize_tpu_system(resolver)
    strategy = TPUStrategy(resolver, layout=layout, mesh=mesh, strict=strict)
    scopes.expect_use(strategy)
    return strategy
